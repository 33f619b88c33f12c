"""Rivals of the acceptance compute the loss and the gradients of eager; and the contents of their rows."""

import os
import sys

import pytest
import torch
from acceptance import gauge, racing, rivals, tasks
from acceptance.asking import Ask
from beside import eager_step
from torch.utils._python_dispatch import TorchDispatchMode

NETWORKS = ("GPT, dropout", "GPT, bf16", "ResNet-50", "ViT-B/16", "U-Net", "Llama 1B, 8k")
LONG = [rival for rival in rivals.long_rivals() if "transformers" in rival.arm]
CASES = [
    (network, rival)
    for network in NETWORKS
    for rival in rivals.rivals(tasks.has_logits(network)) + (LONG if network.startswith("Llama") else [])
    # Both kinds of GPT share their code: the plain rivals run once, those with a chunked loss in both.
    if network != "GPT, bf16" or rival.family.startswith("chunked")
]


def loss_and_gradients(task):
    torch.manual_seed(1)
    loss = task.loss(*task.batch)
    loss.backward()
    return loss.detach(), [value.grad for value in task.model.parameters()]


def assert_as_eager(network, change, relative):
    expected_loss, expected = loss_and_gradients(tasks.build(network, "cpu", True))
    task = tasks.build(network, "cpu", True)
    change(task)
    loss, found = loss_and_gradients(task)
    torch.testing.assert_close(loss, expected_loss, rtol=relative, atol=0)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= relative * other.norm() + 1e-6
    return task


@pytest.mark.parametrize(("network", "rival"), CASES, ids=[f"{n}: {r.arm}" for n, r in CASES])
def test_a_rival_has_the_loss_and_the_gradients_of_eager(network, rival):
    if "transformers" in rival.arm:
        pytest.importorskip("transformers", minversion="5.17", reason="transformers has no offload")
    # Slices of rows add up in a different order, in bf16 with as many bits as it has.
    is_rounded = network.endswith("bf16") or network.startswith("Llama")
    assert_as_eager(network, rival.change, 2e-2 if is_rounded else 1e-5)


def test_a_wrong_loss_is_seen():
    def change(task):
        loss = task.loss
        task.loss = lambda *batch: loss(*batch) * 1.001

    with pytest.raises(AssertionError):
        assert_as_eager("GPT, dropout", change, 1e-5)


@pytest.mark.parametrize("slices", [3, 7])
def test_slices_need_not_be_equal(slices):
    assert_as_eager("GPT, dropout", lambda task: rivals.chunk_loss(task, slices), 1e-5)


def saved_bytes(change):
    """Bytes that autograd saves in the forward pass outside checkpoints; each storage counts once."""
    task = tasks.build("GPT, dropout", "cpu", True)
    change(task)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        task.loss(*task.batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_rivals_save_less_than_eager():
    eager = saved_bytes(lambda task: None)
    under = saved_bytes(lambda task: rivals.checkpointed(task, 1))
    chunked = saved_bytes(lambda task: rivals.chunk_loss(task, 4))
    both = saved_bytes(rivals.with_chunks(lambda task: rivals.checkpointed(task, 1), 4))
    assert both < under < eager
    assert both < chunked < eager


def test_all_that_is_saved_is_offloaded_but_parameters_and_what_is_small(monkeypatch):
    packed = {True: set(), False: set()}

    def pack(self, tensor):
        kept = spied(self, tensor)
        packed[isinstance(kept, torch.Tensor)].add((tensor.nbytes, isinstance(tensor, torch.nn.Parameter)))
        return kept

    spied = rivals.OffloadActivations.pack
    monkeypatch.setattr(rivals.OffloadActivations, "pack", pack)
    task = tasks.build("GPT, dropout", "cpu", True)
    rivals.offload_activations(task)
    loss_and_gradients(task)
    assert packed[False] and all(size >= 1024 and not kept for size, kept in packed[False])
    assert all(kept or size < 1024 or size in sizes_of(task.model) for size, kept in packed[True])


def sizes_of(model):
    return {value.nbytes for value in model.parameters()}


def test_the_update_is_part_of_a_timed_step():
    task = tasks.build("own checkpoint", "cpu", True)
    optimizer, before = tasks.optimizer_of(task), [p.detach().clone() for p in task.model.parameters()]
    gauge.measured(gauge.Gauge("cpu"), task, eager_step(task), optimizer)
    assert not any(torch.equal(p, old) for p, old in zip(task.model.parameters(), before, strict=True))
    assert {int(state["step"]) for state in optimizer.state.values()} == {2 + gauge.RUNS}


class Count(TorchDispatchMode):
    """Counts the operations that run, also in the backward pass."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def __torch_dispatch__(self, operation, types, values=(), names=None):
        self.ran.append(operation)
        return operation(*values, **(names or {}))


def ran(saved):
    """Number of forward runs of the blocks' linear layers and of attention."""
    task = tasks.build("GPT, dropout", "cpu", True)
    rivals.selective(task, saved)
    with Count() as count:
        task.loss(*task.batch).backward()
    linear = count.ran.count(torch.ops.aten.addmm.default)
    return linear, sum(operation in rivals.ATTENTION for operation in count.ran)


def test_selective_checkpoints_run_no_saved_operation_again():
    layers, attentions = 3 * 4, 3  # of three blocks
    assert ran(()) == (2 * layers, 2 * attentions)
    assert ran(rivals.SAVED["attention"]) == (2 * layers, attentions)
    assert ran(rivals.SAVED["products and attention"]) == (layers, attentions)


def offloaded(monkeypatch, module):
    """The shapes that `save_on_cpu` of a module offloads from here on, and whether each use requests pinned memory."""
    shapes, pinned = [], []

    class Spy(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pin_memory=False, **_how):
            pinned.append(pin_memory)
            super().__init__(self.pack, lambda tensor: tensor)

        def pack(self, tensor):
            shapes.append(tuple(tensor.shape))
            return tensor

    monkeypatch.setattr(module, "save_on_cpu", Spy)
    return shapes, pinned


def test_offloaded_checkpoints_offload_what_goes_into_a_group_and_nothing_else(monkeypatch):
    shapes, _ = offloaded(monkeypatch, rivals)
    task = tasks.build("GPT, dropout", "cpu", True)
    rivals.offloaded_checkpoints(task, 2)
    loss_and_gradients(task)
    assert [shape for shape in shapes if shape != (0,)] == 2 * [(4, 24, 32)]


def test_a_rival_that_fails_or_does_not_fit_is_a_row_and_the_others_run():
    def broken(_task):
        raise ValueError("no such thing")

    def large(_task):
        raise torch.OutOfMemoryError("tried to allocate")

    some = [
        rivals.Rival("broken", "", broken),
        rivals.Rival("large", "", large),
        *(rivals.Rival("fine", number, lambda task: None) for number in "12"),
    ]
    ask = Ask("GPT, dropout", "cpu", True, lambda row: None)
    racing.raced(ask, some, 60)
    rows = ask.rows
    assert [row["arm"] for row in rows] == ["broken", "large", "fine 1", "fine 2"]
    assert rows[0]["failed"] == "fails: ValueError: no such thing"
    assert rows[1]["failed"].startswith("does not fit: OutOfMemoryError")
    assert rows[2]["seconds"] > 0
    assert racing.sweep_of(rows, "fine") == rows[2]["arm_seconds"] + rows[3]["arm_seconds"] > 0
    assert rows[2]["driver"] == "not measured: no GPU"
    late = Ask("GPT, dropout", "cpu", True, lambda row: None, seconds=59)
    racing.raced(late, some, 60)
    assert [row["not_measured"] for row in late.rows] == 4 * ["not measured: the time for rivals is over"]


def test_the_best_rival_is_the_fastest_within_the_budget():
    def row(family, seconds, peak, sweep):
        return {
            "arm": family,
            "rival": family,
            "seconds": seconds,
            "peak_bytes": peak,
            "arm_seconds": sweep,
        }

    own = {"arm": "ours", "budget_bytes": 10, "peak_bytes": 9, "seconds": 2.0, "tune_seconds": 5.0}
    less = {"arm": "ours, less", "budget_bytes": 3, "peak_bytes": 3, "seconds": 9.0, "tune_seconds": 5.0}
    rows = [
        row("a", 3.0, 9, 1.0),
        row("b", 2.5, 10, 1.0),
        row("b", 4.0, 7, 2.0),
        row("c", 1.0, 11, 1.0),
        {"arm": "d", "rival": "d", "failed": "does not fit"},
    ]
    best, none = racing.beside(own, rows), racing.beside(less, rows)
    assert (best["arm"], best["sweep_seconds"], best["ours_over_rival"]) == (
        "best rival beside ours: b",
        3.0,  # both settings
        0.8,
    )
    assert racing.beside({"arm": "ours, where no peak is known"}, rows) is None
    assert none == {"arm": "best rival beside ours, less", "none": "none is within the budget"}


def test_the_driver_is_asked_for_this_process_then_for_the_device(monkeypatch):
    asked = gauge.Gauge("cpu")
    asked.is_cuda = True
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert asked.driver()["driver"].startswith("not measured: ")
    nvml = type(sys)("pynvml")
    process = type("Process", (), {"pid": os.getpid(), "usedGpuMemory": 7})
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [process] if handle == "GPU-1" else []
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    cuda = asked._cuda
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "device_memory_used", lambda: 9)
    for uuid, said in (("1", (7, "this process")), ("2", (9, "whole device"))):
        monkeypatch.setattr(cuda, "get_device_properties", lambda _, uuid=uuid: type("P", (), {"uuid": uuid}))
        assert tuple(asked.driver().values()) == said


def test_the_trainers_offload_sends_the_inputs_of_blocks_to_the_host(monkeypatch):
    pytest.importorskip("transformers", minversion="5.17", reason="transformers has no offload")
    from transformers import modeling_utils

    shapes, pinned = offloaded(monkeypatch, modeling_utils)
    task = tasks.build("Llama 1B, 8k", "cpu", True)
    rivals.trainers_offload(task)
    loss_and_gradients(task)
    assert [shape for shape in shapes if shape != (0,)] == 3 * [(1, 256, 32)]
    assert pinned and all(pinned)


def test_without_transformers_a_row_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    ask = Ask("Llama 1B, 8k", "cpu", True, lambda row: None)
    racing.raced(ask, [rival for rival in rivals.long_rivals() if rival.arm in LONG[0].arm], 0)
    assert ask.rows[0]["not_measured"].startswith("not measured: transformers is not installed")


def test_long_sequences_begin_with_a_chunked_loss_and_have_all_rivals():
    some = rivals.long_rivals()
    assert {r.arm for r in some} >= {r.arm for r in rivals.rivals(True) + rivals.compilers(True)}
    kinds = [rival.family.startswith("chunked loss") for rival in some]
    assert kinds == sorted(kinds, reverse=True)
    assert some[0].arm == "chunked loss, checkpoint every 1"
    assert {r.arm for r in some[:8]} >= {
        "chunked loss, torch.compile, budget 0.5",
        "chunked loss, transformers' checkpoint every 1, offload",
    }


def test_compile_has_a_chunked_loss_too_where_there_are_logits():
    plain, both = rivals.compilers(False), rivals.compilers(True)
    assert [r.arm for r in both[: len(plain)]] == [r.arm for r in plain]
    assert {r.family for r in both[len(plain) :]} == {"chunked loss, torch.compile, budget"}
    assert len(both) == 2 * len(plain) == 2 * len(rivals.SHARES)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_compiled_gradients_without_dropout_are_those_of_eager(share):
    def change(task):
        rivals.compiled(task, share)

    assert_as_eager("ResNet-50", change, 1e-3)
