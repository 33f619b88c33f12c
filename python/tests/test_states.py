"""Sections of the acceptance on a GPU about state that hardly fits, and about sequences of varying lengths."""

import functools
import sys

import pytest
import torch
from acceptance import lengths, states, tasks
from acceptance.asking import Ask
from acceptance.gauge import Gauge

GIB = 1 << 30


def ask_of(network):
    return Ask(network, "cpu", True, lambda row: None)


@functools.cache
def parameters(name):
    return [value.numel() for value in tasks.llama(name, "meta", False).parameters()]


def test_networks_have_the_sizes_of_their_names():
    assert 3.0e9 < sum(parameters("Llama 3B")) < 3.3e9
    assert 7.9e9 < sum(parameters("Llama 8B")) < 8.1e9
    half = tasks.llama("Llama 8B, bf16 weights", "meta", True)
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("name", "size", "fits"),
    [
        # For 79 GiB on the GPU, and 126 GiB on the host.
        ("Llama 3B", 4, {"AdamW, fused", "AdamW8bit", "CPUOffloadOptimizer"}),
        ("Llama 8B", 4, {"AdamW8bit"}),
        ("Llama 8B", 2, {"AdamW, fused", "AdamW8bit", "CPUOffloadOptimizer"}),
    ],
)
def test_what_is_too_small_is_said_before_it_is_tried(name, size, fits):
    counts = parameters(name)
    said = {
        arm: states.too_small(kind, counts, size, 79 * GIB, 126 * GIB) for arm, kind in states.KINDS.items()
    }
    assert {arm for arm, words in said.items() if words is None} == fits
    if "CPUOffloadOptimizer" not in fits:
        assert "take 119.7 GiB, the GPU has 79.0 GiB; not tried" in said["AdamW, fused"]
    offloading = states.KINDS["CPUOffloadOptimizer"]
    assert "the host can give 18.0 GiB" in states.too_small(offloading, counts, size, 79 * GIB, 20 * GIB)
    assert states.too_small(offloading, counts, size, None, None) is None


def test_what_is_not_tried_is_a_row_for_each_arm(monkeypatch):
    monkeypatch.setattr(states, "too_small", lambda *what: "does not fit: it is too large; not tried")
    monkeypatch.setattr(states, "fresh", lambda ask: 1 / 0)
    ask = ask_of("Llama 8B")
    states.state(ask)
    assert [row.get("failed") for row in ask.rows] == [
        None,
        *6 * ["does not fit: it is too large; not tried"],
    ]


def test_without_torchao_rows_say_so_and_the_others_are_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    ask = ask_of("Llama 3B")
    states.state(ask)
    rows = {row["arm"]: row for row in ask.rows}
    for arm in ("AdamW8bit, plimsoll", "AdamW8bit, checkpoint every 1", "CPUOffloadOptimizer, plimsoll"):
        assert rows[arm]["not_measured"].startswith("not measured: torchao has no ")
    ours = rows["AdamW, fused, plimsoll"]
    assert ours["fallback"] is None and ours["tokens_per_second"] > 0
    assert rows["AdamW, fused, checkpoint every 1"]["tokens_per_second"] > 0
    assert not [row for row in ask.rows if "error" in row or "failed" in row]


def test_an_optimizer_of_unknown_state_has_its_first_update_before_it_is_planned(monkeypatch):
    """A stand-in for torchao's optimizer of eight bits, which takes a compiler half a minute."""

    class Other(torch.optim.AdamW):
        pass

    Other.__module__ = "elsewhere"
    monkeypatch.setitem(states.KINDS, "AdamW8bit", states.Kind(lambda some: Other(some, 1e-5), 0, 2, 0, 0))
    row = states.with_plan(ask_of("Llama 3B"), states.KINDS["AdamW8bit"], None)
    assert row["fallback"] is None and row["seconds"] > 0


@pytest.mark.slow  # it compiles its update, which takes half a minute
def test_the_optimizer_of_eight_bits(monkeypatch):
    pytest.importorskip("torchao.optim", reason="torchao is not installed")
    monkeypatch.setattr(states, "KINDS", {"AdamW, fused": None, "AdamW8bit": states.KINDS["AdamW8bit"]})
    kind = states.KINDS["AdamW8bit"]
    rows = [measure(ask_of("Llama 3B"), kind, None) for measure in (states.alone, states.with_plan)]
    assert all(row["tokens_per_second"] > 0 for row in rows) and rows[1]["fallback"] is None


def test_most_sequences_are_short_and_the_longest_comes_late():
    some = lengths.lengths_of(1024, 200)
    assert len(some) == 200 and max(some) == some[150] == 1024
    assert sorted(some)[-2] <= 922 and sorted(some)[100] < 512 and min(some) == 128
    assert lengths.lengths_of(1024, 200) == some


def test_ours_survives_by_its_buckets_and_the_loop_by_shrinking():
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    ask = ask_of("GPT, bf16")
    lengths.lengths(ask)
    rows = {row["arm"]: row for row in ask.rows}
    loop, ours = rows["find_executable_batch_size"], rows["plimsoll, buckets"]
    assert (loop["steps"], loop["last_batch"], loop["ooms"], loop["lost_steps"]) == (12, 4, 0, 0)
    assert (ours["steps"], ours["last_batch"], ours["fallback"]) == (12, 4, None)
    assert ours["tokens_per_second"] > 0


def test_a_loop_that_runs_out_of_memory_begins_anew_with_less(monkeypatch):
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    def eager_step(task):
        def step(x, y):
            if x.numel() > 3 * 24:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            task.loss(x, y).backward()

        return step

    monkeypatch.setattr(lengths, "eager_step", eager_step)
    some = [6, 6, 24, 6]
    row = lengths.by_shrinking(ask_of("GPT, bf16"), 1 << 30, 4, some)
    # Two steps run with four samples, then all with three.
    assert (row["last_batch"], row["ooms"], row["lost_steps"], row["steps"]) == (3, 1, 2, 4)
    with pytest.raises(TimeoutError, match="after 0 steps and 0 restarts"):
        lengths.by_shrinking(ask_of("GPT, bf16"), 1 << 30, 4, some, seconds=-1)


def test_without_accelerate_a_row_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(lengths.NotHere, match="accelerate is not installed"):
        lengths.by_shrinking(ask_of("GPT, bf16"), 1 << 30, 4, [6])


def test_steps_without_a_plan_are_counted():
    task = tasks.build("own checkpoint", "cpu", True)

    class Step:
        fallback = None

        def __call__(self, *batch):
            self.fallback = None if len(batch[0]) == 4 else "no plan"

    some = [tasks.of_size(task.batch, size) for size in (4, 2, 4, 3)]
    assert lengths.trained(task, Step(), tasks.optimizer_of(task), iter(some)) == "2 steps: no plan"
    assert lengths.trained(task, Step(), tasks.optimizer_of(task), iter(some[:1])) is None
    assert Gauge("cpu").ooms() is None
