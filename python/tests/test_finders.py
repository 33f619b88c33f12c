"""Loops that find a batch by running out of memory, and their counts."""

import pytest
import torch
from acceptance import batches, finders
from acceptance.asking import Ask
from acceptance.tasks import build, of_size


def tries(most, seconds=60):
    ran = []

    def step(batch):
        ran.append(batch)
        if batch > most:
            raise torch.OutOfMemoryError("tried to allocate")

    return finders.Tries(step, seconds), ran


def test_a_tenth_less_each_time_misses_what_lies_between():
    runs, ran = tries(900)
    assert finders.shrinking(runs) == 828  # 1024, 921, 828
    assert ran == [1024, 921, *finders.STEPS * [828]]
    assert (runs.count, runs.ooms) == (3, 2)


@pytest.mark.parametrize("most", [1, 2, 3, 63, 64, 100, 1000])
def test_bisecting_finds_the_largest(most):
    runs, _ = tries(most)
    assert finders.doubling(runs) == most
    assert runs.ooms >= 1


def test_where_nothing_runs_the_answer_is_none():
    for loop in finders.LOOPS.values():
        runs, _ = tries(0)
        assert loop(runs) == 0
        assert runs.count == runs.ooms


def test_other_errors_are_not_taken_for_memory():
    def broken(batch):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        finders.shrinking(finders.Tries(broken, 60))


def test_the_time_for_tries_ends():
    runs, ran = tries(900, seconds=-1)
    with pytest.raises(TimeoutError, match="after 0 tries"):
        finders.shrinking(runs)
    assert not ran


@pytest.mark.parametrize("count", [1, 3, 4, 11])
def test_a_batch_of_any_size_is_made_of_the_sample(count):
    task = build("GPT, dropout", "cpu", True)
    sized = of_size(task.batch, count)
    assert [len(part) for part in sized] == 2 * [count]
    assert torch.equal(sized[0][:3], task.batch[0][:count][:3])
    assert torch.equal(sized[1][-1], task.batch[1][(count - 1) % 4])


def test_what_a_loop_found_is_a_row():
    def loop(runs):
        assert runs(2) and runs(3)
        return 3

    row = batches.found(loop, "own checkpoint", "cpu", True, 60)
    assert (row["batch"], row["tries"], row["ooms"]) == (3, 2, 0)
    assert row["samples_per_second"] > 0 and row["find_seconds"] > 0
    none = batches.found(lambda runs: 0, "own checkpoint", "cpu", True, 60)
    assert none["failed"] == "does not fit: not one sample runs"
    late = batches.found(finders.shrinking, "own checkpoint", "cpu", True, -1)
    assert late["not_measured"].startswith("not measured: the time is over")


def test_without_a_limit_on_memory_no_loop_is_run():
    ask = Ask("own checkpoint", "cpu", True, lambda row: None)
    batches.batch(ask)
    rows = {row["arm"]: row for row in ask.rows}
    for arm in finders.LOOPS:
        assert rows[arm]["not_measured"] == "not measured: the CPU's memory is not limited"
    assert "no_plan" in rows["suggest"], "its parameters take more than half"
