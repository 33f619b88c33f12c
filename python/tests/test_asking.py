"""Arms of the acceptance on a GPU: an arm that raises, ends its process or never ends becomes a row, and the others run."""

import json
import sys
import time

import pytest
import torch
from acceptance import asking, processes
from acceptance.asking import Ask


def ask_of(**more):
    written = []
    return Ask("GPT, dropout", "cpu", True, written.append, **more), written


def test_what_an_arm_raises_is_its_row_and_the_next_is_asked():
    ask, written = ask_of()

    def raising(error):
        def measure():
            raise error

        return measure

    ask.arm("short", raising(torch.OutOfMemoryError("tried to allocate")), rival="r")
    ask.arm("pinned", raising(RuntimeError("CUDA error: out of memory")), fails="error")
    ask.arm("missing", raising(asking.NotHere("torchao is not installed")))
    ask.arm("fine", lambda: {"seconds": 1.0})
    assert written == ask.rows
    assert written[0]["failed"].startswith("does not fit: OutOfMemoryError") and written[0]["rival"] == "r"
    assert written[1]["error"].startswith("does not fit: RuntimeError")
    assert written[2]["not_measured"] == "not measured: torchao is not installed"
    assert written[3]["seconds"] == 1.0 and written[3]["arm_seconds"] >= 0


def test_rows_of_a_process_before_are_not_asked_again():
    ask, written = ask_of(rows=[{"arm": "eager", "seconds": 2.0}])
    assert ask.arm("eager", lambda: 1 / 0)["seconds"] == 2.0
    assert ask.add({"arm": "eager", "seconds": 3.0})["seconds"] == 2.0
    assert written == []


def test_a_gpu_that_answers_no_more_ends_the_process_behind_its_row(monkeypatch):
    answers = iter([None, RuntimeError("CUDA error: an illegal memory access was encountered")])

    def emptied(device):
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(asking, "emptied", emptied)
    ask, written = ask_of()
    with pytest.raises(SystemExit) as ended:
        ask.arm("broken", lambda: 1 / 0)
    assert ended.value.code == processes.AGAIN
    assert [row["arm"] for row in written] == ["broken"]


CHILD = """
import json, os, signal, sys, time

def say(word, what):
    print("\\n" + word, json.dumps(what), flush=True)

done = [json.loads(line)["arm"] for line in open(sys.argv[1])]
for arm in ("one", "two", "three", "four", "five"):
    if arm in done:
        continue
    print("words without an end", end="", flush=True)
    say("ARM", {"row": {"arm": arm}, "fails": "error" if arm == "four" else "failed", "seconds": 1.0})
    if arm == "two":
        os.kill(os.getpid(), signal.SIGKILL)
    if arm == "four":
        time.sleep(60)
    say("ROW", {"arm": arm})
    if arm == "three":
        sys.exit(75)
"""


def asked(child, seconds=60.0):
    rows = []
    wrong = processes.asked(
        "curve", "GPT", lambda left, done: [sys.executable, "-c", child, done], seconds, rows.append
    )
    return wrong, rows


def test_a_process_that_ends_in_an_arm_is_followed_by_another():
    begun = time.monotonic()
    wrong, rows = asked(CHILD)
    assert wrong == ""
    assert [row["arm"] for row in rows] == ["one", "two", "three", "four", "five"]
    assert rows[1]["failed"].startswith("fails: its process ended: exit code -9: words without an end")
    assert rows[3]["error"].startswith("fails: its process ended: cut after 1 s")
    assert [set(row) for row in (rows[0], rows[2], rows[4])] == 3 * [{"arm"}]
    assert time.monotonic() - begun < 30


def test_a_section_that_is_cut_has_its_rows():
    wrong, rows = asked(CHILD.replace('"seconds": 1.0', '"seconds": 99.0'), seconds=2.0)
    assert wrong == "cut after 2 s"
    # A further process would not have come far in the remaining time.
    assert [row["arm"] for row in rows] == ["one", "two"]
    wrong, rows = asked("import time; print('waits'); time.sleep(60)", seconds=1.0)
    assert (wrong, rows) == ("cut after 1 s: waits", []) or (wrong, rows) == ("cut after 1 s: ", [])


def test_what_fails_outside_of_arms_is_told_once():
    wrong, rows = asked("print('begun'); raise SystemExit('no such thing')")
    assert "exit code 1: " in wrong and "no such thing" in wrong and rows == []


def test_processes_that_never_come_further_end(monkeypatch):
    monkeypatch.setattr(processes, "PROCESSES", 2)
    wrong, rows = asked("import sys; sys.exit(75)")
    assert (wrong, rows) == ("2 processes ended before their time", [])


def test_comparisons_have_expandable_segments_and_bits_pytorchs_defaults(monkeypatch):
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    name, value = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
    assert processes.settings("curve", True)[name] == processes.settings("state-3b", True)[name] == value
    for section, is_expandable in (("bits", True), ("facts", True), ("curve", False)):
        assert name not in processes.settings(section, is_expandable)
    monkeypatch.setenv(name, "max_split_size_mb:64")
    assert processes.settings("curve", True)[name] == "max_split_size_mb:64"


def test_a_file_of_rows_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert processes.read(path) == []
    path.write_text(json.dumps({"arm": "one"}) + '\n{"arm": "tw')
    assert processes.read(path) == [{"arm": "one"}]
