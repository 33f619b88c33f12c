"""A small run of the whole acceptance on the CPU, so that it does not rot; and its rows on the bench's page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from acceptance import racing, sections
from acceptance.asking import Ask
from acceptance.measures import MEASURES
from acceptance.table import table

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "accept.py"
WITH = ("checkpoint every 1", "plimsoll")


def run(tmp_path, *arguments, code=0):
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, PROGRAM, "--small", "--device", "cpu", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2100, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    assert (tmp_path / "python-accept.jsonl").read_text().splitlines()[-len(printed) :] == printed
    return [json.loads(line) for line in printed]


def test_the_page_of_the_bench_has_the_rows_of_the_program():
    page = (ROOT / "benches/README.md").read_text()
    between = page.split("<!-- cuda -->")[1].split("<!-- end of cuda -->")[0]
    rows = [line for line in between.strip().splitlines() if line.startswith("|")]
    assert [row.split(" | ")[:2] for row in rows] == [row.split(" | ")[:2] for row in table([]).splitlines()]


def test_facts_and_the_bits_of_one_network(tmp_path):
    rows = run(tmp_path, "bits", "--only", "own checkpoint") + run(tmp_path, "facts")
    assert all(row["device"] == "cpu" and row["small"] for row in rows)
    by_arm = {(row["section"], row.get("arm")): row for row in rows}
    for arm in ("all kept", "f 0.4", "f 0.1"):
        row = by_arm["bits", arm]
        assert (row["bits_equal"], row["eager_repeats"], row["unplanned"], row["fallback"]) == (
            True,
            True,
            0,
            None,
        )
    assert by_arm["bits", "all kept"]["recomputed_ops"] == 0
    assert by_arm["facts", "machine"]["offload_bytes_per_second"] > 0


def test_a_network_that_fails_is_a_row_and_the_run_goes_on(tmp_path):
    rows = run(tmp_path, "facts", "bits", "--only", "link", "--seconds", "0", code=1)
    assert [row["error"] for row in rows] == ["cut: the time for all sections is over"]
    text = table(rows)
    assert "cut: the time" in text and "not measured" in text


def test_the_usual_sections_take_twelve_minutes_and_no_section_more_than_ten():
    seconds = {name: section.seconds * len(section.networks) for name, section in sections.SECTIONS.items()}
    assert sum(seconds[name] for name in sections.USUAL) == sections.SECONDS <= 720
    assert max(seconds.values()) <= 600
    assert set(MEASURES) == set(seconds)


def test_a_verdict_is_a_row_of_the_table():
    row = {
        "section": "curve",
        "network": "ResNet-50",
        "arm": "verdict at 0.5",
        "ours": "plimsoll 0.5",
        "hull_seconds": 1.0,
        "over_hull": 0.01,
        "aim": 0.05,
        "met": False,
        "rivals_not_measured": 0,
        "driver_gap": 0.004,
        "gap_met": True,
    }
    text = table([row])
    assert "plimsoll 0.5 is +1.0% over the rivals' hull (aim 5% above: **missed**)" in text
    assert "\\|peak - budget\\| 0.4% by the driver (aim 1%: met)" in text


def test_a_verdict_is_given_anew_beside_the_rivals_of_all_runs():
    about = {"network": "ResNet-50", "device": "a GPU", "torch": "2.11", "small": False}
    curve, other = {**about, "section": "curve"}, {**about, "section": "compile-resnet"}
    rival = {"rival": "r", "seconds": 2.0, "peak_bytes": 40}
    own = {"arm": "plimsoll 0.5", "share": 0.5, "budget_bytes": 50, "peak_bytes": 50, "seconds": 1.0}
    rows = [{**curve, **rival, "arm": "checkpoint every 1"}, {**curve, **own}]
    rows.append({**curve, "arm": "verdict at 0.5", "share": 0.5, "met": True, "hull_seconds": 2.0})
    assert "plimsoll 0.5 is +100.0% over the rivals' hull (aim 5% above: met)" in table(rows)
    faster = {**rival, "arm": "torch.compile, budget 0.5", "seconds": 0.9}
    assert "plimsoll 0.5 is -10.0% over" in table([*rows, {**other, **faster}])
    # It judges no other GPU.
    assert "is +100.0% over" in table([*rows, {**other, **faster, "device": "another GPU"}])


@pytest.mark.slow
def test_a_long_sequence_beside_its_rivals(monkeypatch):
    some = [rival for rival in racing.long_rivals() if "compile" not in rival.arm][:3]
    monkeypatch.setattr(racing, "long_rivals", lambda: some)
    ask = Ask("Llama 1B, 8k", "cpu", True, lambda row: None)
    racing.long(ask)
    arms = [row["arm"] for row in ask.rows]
    assert arms[:4] == ["eager", *(rival.arm for rival in some)]
    ours = {f"plimsoll {share}{loss}" for share in racing.OURS for loss in ("", ", chunked loss, slices 16")}
    assert ours | {f"verdict at {share}" for share in racing.OURS} <= set(arms)
    assert not [row for row in ask.rows if "error" in row or "failed" in row]


@pytest.mark.slow
def test_all_of_it(tmp_path):
    # Compiling takes minutes, and its rivals have separate tests; so have long sequences. `curves` is `curve` for other
    # networks.
    some = [
        name for name in sections.SECTIONS if not name.startswith(("compile", "curves", "long", "state-8b"))
    ]
    rows = run(tmp_path, *some, "--seconds", "2000")
    arms = {row.get("arm") for row in rows if row["section"] == "curve"}
    assert {"eager", "checkpoint every 1", "checkpoint every 3", "save_on_cpu", "plimsoll 0.5"} <= arms
    assert {
        "selective checkpoint, attention",
        "offloaded checkpoint every 1",
        "chunked loss, slices 4",
    } <= arms
    assert {"OffloadActivations", "OffloadActivations, checkpoint every 1"} <= arms
    # Without a GPU no peak is known, so that nothing is judged.
    verdicts = {f"verdict at {share}" for share in racing.OURS}
    assert verdicts <= arms
    loops = {"a tenth less each time, from 1024", "doubled from 2, then bisected"}
    here = {"a step with expandable segments", *(f"CPUOffloadOptimizer, {with_}" for with_ in WITH)}
    assert {row["arm"] for row in rows if "not_measured" in row} == verdicts | loops | here
    assert not [row for row in rows if "failed" in row]
    assert any(row.get("batch", 0) >= 1 for row in rows if row["section"] == "batch")
    assert not [row for row in rows if "error" in row]
    assert {row["network"] for row in rows if row["section"] == "bits"} == set(sections.BITS)
