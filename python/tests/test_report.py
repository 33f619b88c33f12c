"""The report of a step: the contents of the page, and that writing it changes nothing."""

import itertools
import json
import re

import pytest
import torch
from networks import budget_at, build, optimizer_of

import plimsoll
from plimsoll import batches, program


def report_of(step, tmp_path, **more):
    step.report(tmp_path / "report.html", **more)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    data = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)
    return json.loads(data[1])


def tuned(share=0.1, link="20GB/s", verify=1):
    task = build("convolutions")
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(share, task, optimizer)
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], budget, link, verify, seconds=0.5)
    return task, step


def test_before_a_batch_has_run_the_report_is_the_prediction(tmp_path):
    _, step = tuned()
    report = report_of(step, tmp_path, seconds=0)
    schedule = step.program.schedule
    assert [view["name"] for view in report["iteration"]["timelines"]] == ["predicted"]
    assert report["iteration"]["timelines"][0]["makespan_seconds"] == pytest.approx(schedule.makespan_seconds)
    assert report["settings"][0]["iteration_seconds"] is None
    assert report["about"]["budget_bytes"] == schedule.budget_bytes
    assert all(row["note"] for row in report["policies"]["rows"] if row["policy"] != "this schedule")


@pytest.mark.parametrize("link", ["200KB/s", "20GB/s"])
def test_a_run_is_shown_command_by_command_beside_the_prediction_and_beside_eager(link, tmp_path):
    task, step = tuned(link=link)
    step(*task.batches[0])
    report = report_of(step, tmp_path, seconds=2)
    predicted, measured = report["iteration"]["timelines"]
    commands = len(json.loads(step.program.schedule.to_json())["commands"])
    assert len(predicted["slices"]["start"]) == len(measured["slices"]["start"]) == commands
    assert predicted["slices"]["lane"] == measured["slices"]["lane"]
    assert 0 < measured["makespan_seconds"] < 60
    for lane in range(3):
        spans = [
            (start, start + length)
            for start, length, of in zip(
                measured["slices"]["start"],
                measured["slices"]["length"],
                measured["slices"]["lane"],
                strict=True,
            )
            if of == lane
        ]
        assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(spans))
    plan, eager = report["settings"]
    assert plan["what"], eager["what"] == ("the plan", "eager")
    assert plan["iteration_seconds"] == pytest.approx(measured["makespan_seconds"])
    assert eager["iteration_seconds"] > 0
    assert eager["peak_bytes"] == step.trace.peak_bytes > report["about"]["budget_bytes"]
    assert "above the budget" in eager["note"]
    assert any(row["policy"] == "keep" for row in report["policies"]["rows"])
    assert any(layer["decision"] != "kept" for layer in report["layers"] if layer["feature_map_bytes"])


def test_the_fastest_of_some_runs_is_kept():
    task, step = tuned(verify=0)
    seen = []
    for _ in range(9):
        step(*task.batches[0])
        step._optimizer.zero_grad()
        seen.append(step.program.spans)
    assert step.program.runs == 9
    took = [program.seconds_of(spans) for spans in seen]
    assert took == sorted(took, reverse=True)
    for run, (before, after) in enumerate(itertools.pairwise(seen), 2):
        assert after is before or run in (2, 4, 8)


def test_the_report_is_of_the_batch_that_ran_most_often(tmp_path):
    task, step = tuned(verify=0)
    for batch in [*[task.batches[0]] * 3, batches.taken(task.batches[0], 0, 3)]:
        step._optimizer.zero_grad()
        step(*batch)
    assert step.trace.batch == 3
    assert report_of(step, tmp_path, seconds=0)["about"]["batch"] == 4


def test_a_report_changes_nothing(tmp_path):
    task, step = tuned()
    step(*task.batches[0])
    gradients = [p.grad.clone() for p in task.model.parameters()]
    state = torch.get_rng_state()
    report_of(step, tmp_path, seconds=0)
    assert all(torch.equal(p.grad, g) for p, g in zip(task.model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_report_that_cannot_be_written_says_so(tmp_path):
    _, step = tuned(verify=0)
    with pytest.raises(plimsoll.BadInput, match="nowhere"):
        step.report(tmp_path / "nowhere" / "report.html", seconds=0)
