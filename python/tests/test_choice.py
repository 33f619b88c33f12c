"""Recommendations and displays of a step: batch, learning rate, the log line, the memory snapshot."""

import io
import json
import math
import pickle
from contextlib import redirect_stdout

import pytest
import torch
from networks import budget_at, build, eager, optimizer_of
from torch import nn

import plimsoll
from plimsoll import batches


def tuned(name="convolutions", optimizer="sgd", share=0.1, link="20GB/s", **more):
    task = build(name)
    its = optimizer_of(optimizer, task.model)
    budget = budget_at(share, task, its)
    return task, plimsoll.tune(
        task.loss, task.model, its, task.batches[0], budget, link, verify=0, seconds=0.5, **more
    )


def test_the_recommended_batch_fits_and_nothing_changes():
    task = build("convolutions")
    budget = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, 16)).floor_bytes
    step = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], budget, "20GB/s", verify=0, seconds=0.5
    )
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    chosen = step.batch
    assert 1 <= chosen <= 16
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    trace = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, chosen))
    assert plimsoll.plan(trace, budget, "20GB/s", seconds=0.5).pool_bytes <= budget


@pytest.mark.parametrize(("optimizer", "power"), [("sgd", 1), ("adamw", 0.5)])
def test_the_rate_follows_the_batch_as_the_optimizer_wants(optimizer, power):
    _, step = tuned("mlp", optimizer)
    rate = step._optimizer.param_groups[0]["lr"]
    step._choice = 16
    assert step.learning_rate == pytest.approx(rate * 4**power)
    step._choice = 4
    assert step.learning_rate == pytest.approx(rate)


def test_the_base_rate_is_the_one_before_a_scheduler_changed_it():
    task = build("mlp")
    optimizer = optimizer_of("sgd", task.model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01)
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], "100%", "1GB/s", verify=0)
    step._choice = 4
    assert step.learning_rate == pytest.approx(0.05)
    assert scheduler.get_last_lr()[0] < 0.001


def test_a_rate_of_no_optimizer_and_of_an_unknown_one_are_refused():
    task = build("mlp")
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "100%", "1GB/s", verify=0)
    with pytest.raises(plimsoll.BadInput, match="without an optimizer"):
        _ = step.learning_rate
    step._optimizer = torch.optim.LBFGS(task.model.parameters())
    step._choice = 4
    with pytest.raises(plimsoll.BadInput, match="LBFGS"):
        _ = step.learning_rate


def test_a_batch_of_a_loss_over_pairs_is_not_recommended():
    model = nn.Linear(16, 16)
    step = plimsoll.tune(
        lambda x: (model(x) @ model(x).t()).square().mean(), model, None, torch.randn(8, 16), "100%", "1GB/s"
    )
    with pytest.raises(plimsoll.BadInput, match="do not grow linearly"):
        _ = step.batch


def test_a_plan_that_does_not_pay_is_declined():
    task, step = tuned("mlp", share=2.0)
    step.verify(1)
    step(*task.batches[0])
    assert step.fallback is None
    planned = step._current()
    planned.eager_seconds, planned.plan_seconds = 1.0, 1.5
    while not planned.broken:
        assert planned.compared < 6
        planned.verify = 0
        step._decline(planned)
    task.model.zero_grad()
    loss = step(*task.batches[1])
    assert "planning does not pay" in step.fallback
    assert "takes 50.0% longer" in step.fallback
    assert torch.equal(loss, eager(task)(*task.batches[1]))


def test_a_plan_that_is_needed_is_not_declined():
    _, step = tuned("convolutions", share=0.1)
    planned = step._current()
    planned.verify = 0
    planned.compared, planned.eager_seconds, planned.plan_seconds = 9, 1.0, 9.0
    step._decline(planned)
    assert not planned.broken


def snapshot_of(step, tmp_path):
    step.memory_viz(tmp_path / "plan.pickle")
    with open(tmp_path / "plan.pickle", "rb") as file:
        return pickle.load(file)


def most_alive(events):
    alive = most = 0
    for event in events:
        alive += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
        most = max(most, alive)
    assert alive == 0 or alive > 0
    return most


@pytest.mark.parametrize("link", ["200KB/s", "20GB/s"])
@pytest.mark.parametrize("name", ["convolutions", "gpt"])
def test_a_snapshot_has_the_plan_and_the_run(name, link, tmp_path):
    task, step = tuned(name, link=link)
    with pytest.raises(plimsoll.BadInput, match="call the step first"):
        step.memory_viz(tmp_path / "none.pickle")
    step(*task.batches[0])
    snapshot = snapshot_of(step, tmp_path)
    planned, actual = snapshot["device_traces"]
    schedule, trace = step.program.schedule, step._current().trace
    names = {event["frames"][0]["name"] for event in planned}
    assert any(name.endswith(".weight") for name in names)
    assert any(name.endswith("(gradient)") for name in names)
    assert "the loss" in names
    tensors = json.loads(trace.to_json())["tensors"]
    assert {t["name"] for t in tensors} & names
    # In the plan no two live spans overlap in address, and every span of the pool lies in the pool.
    alive = {}
    pool = range(step.program.pool_address, step.program.pool_address + schedule.pool_bytes)
    for event in planned:
        if event["action"] == "free_completed":
            del alive[(event["addr"], event["frames"][0]["name"])]
        elif event["action"] == "alloc" and event["addr"] in pool:
            assert event["addr"] + event["size"] <= pool.stop
        if event["action"] == "alloc":
            alive[(event["addr"], event["frames"][0]["name"])] = event["size"]
    # The run's allocations are the plan's: each lies in a buffer of the plan, under its name.
    assert not any(event["frames"][0]["name"] == "not planned" for event in actual)
    served = [e for e in actual if e["action"] == "alloc" and e["addr"] in pool]
    assert served
    assert all(event["addr"] + event["size"] <= pool.stop for event in served)
    resident = sum(e["size"] for e in planned if e["action"] == "alloc" and e["addr"] not in pool)
    assert most_alive(planned) <= resident + schedule.pool_bytes


def test_pytorch_s_own_tool_reads_the_snapshot(tmp_path):
    from torch.cuda import _memory_viz

    task, step = tuned("gpt")
    step(*task.batches[0])
    snapshot = snapshot_of(step, tmp_path)
    with redirect_stdout(io.StringIO()):
        text = _memory_viz.trace(snapshot)
        page = _memory_viz.trace_plot(snapshot)
        _memory_viz.segsum(snapshot)
    assert "Device 0" in text
    assert "Device 1" in text
    assert "<html>" in page


def test_the_line_says_batch_rate_peak_and_time():
    _, step = tuned("gpt", link="200KB/s")
    parts = step.why.split(", ")
    assert parts[0] == "batch 4"
    assert parts[1] == "lr unchanged"
    assert parts[2].startswith("peak ")
    assert math.isfinite(float(parts[-1].rstrip("%")))
