"""Common ways to save memory in addition to a plan: losses that never hold all logits, optimizers with a small state."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from networks import Task, eager, train
from torch import nn

import plimsoll
from plimsoll import planning
from plimsoll.torch_private import parts_of

WORDS, WIDTH = 2048, 64


class Language(nn.Module):
    """Words, two layers, and the weights of the logits; the loss is separate."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        return self.body(self.words(x)).flatten(0, 1)


def plain_loss(model, x, y):
    return F.cross_entropy(model(x) @ model.head.weight.t(), y.flatten())


def in_parts(model, x, y):
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(model(x), model.head.weight, y.flatten(), options=options)


def language(loss):
    torch.manual_seed(0)
    model = Language()
    g = torch.Generator().manual_seed(1)
    batches = [tuple(torch.randint(0, WORDS, (8, 64), generator=g) for _ in range(2)) for _ in range(3)]
    return Task(model, lambda x, y: loss(model, x, y), batches)


def budget_of(task, optimizer):
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0], optimizer=optimizer)
    return int(trace.floor_bytes + 0.3 * (trace.peak_bytes - trace.floor_bytes))


def assert_trains_as_eager(build, optimizer_of, link="20GB/s"):
    """Trains three steps of both, and compares every bit. Returns the step, and the counted bytes of the optimizer's state."""
    left = []
    for is_planned in (False, True):
        task = build()
        optimizer = optimizer_of(task.model.parameters())
        eager(task)(*task.batches[0])
        optimizer.step()  # after which every optimizer has a state
        optimizer.zero_grad()
        step = eager(task)
        if is_planned:
            sample = task.batches[0]
            budget = budget_of(task, optimizer)
            step = plimsoll.tune(
                task.loss, task.model, optimizer, sample, budget, link, verify=1, seconds=0.5
            )
        losses = train(task, optimizer, step)
        state = [part for tensor in task.model.state_dict().values() for part in parts_of(tensor)]
        left.append([*losses, *state, torch.get_rng_state()])
    assert step.fallback is None
    assert all(map(torch.equal, *left))
    return step, planning.optimizer_bytes(optimizer)


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="torch has it since 2.15")
def test_a_loss_that_never_holds_all_logits_lowers_the_floor():
    step, _ = assert_trains_as_eager(lambda: language(in_parts), lambda p: torch.optim.AdamW(p, 1e-3))
    whole = language(plain_loss)
    optimizer = torch.optim.AdamW(whole.model.parameters(), 1e-3)
    floor = plimsoll.trace(whole.loss, whole.model, *whole.batches[0], optimizer=optimizer)
    logits = 8 * 64 * WORDS * 4
    beside = [trace.floor_bytes - trace.resident_bytes for trace in (floor, step.trace)]
    assert beside[0] > 2 * logits
    assert beside[1] < logits


def test_where_the_logits_decide_the_explanation_names_the_loss_that_does_not_hold_them():
    task = language(plain_loss)
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "95%", "20GB/s", verify=0)
    for name in (
        "LinearCrossEntropyOptions",
        "liger_fused_linear_cross_entropy",
        "adapters.cut_cross_entropy",
    ):
        assert name in step.explain()
    assert "logits" in step.why


@pytest.mark.slow  # it compiles its step, which takes half a minute
def test_the_8_bit_optimizer_of_torchao():
    optim = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    task = language(plain_loss)
    with pytest.raises(plimsoll.BadInput, match=r"call `optimizer\.step\(\)` once before"):
        planning.optimizer_bytes(optim.AdamW8bit(task.model.parameters()))
    _, state = assert_trains_as_eager(lambda: language(plain_loss), lambda p: optim.AdamW8bit(p, 1e-3))
    parameters = sum(p.numel() for p in task.model.parameters())
    # Two bytes a parameter, and scales; in 32 bits it would be eight.
    assert 2 * parameters < state < 2.5 * parameters


class Stream:
    """A stand-in for a GPU's stream."""

    def wait_stream(self, other):
        pass

    def record_event(self):
        return self

    def synchronize(self):
        pass


@pytest.mark.parametrize("offload_gradients", [False, True])
def test_the_offloading_optimizer_of_torchao(monkeypatch, offload_gradients):
    """Its hooks copy each gradient to the host. It requires a GPU, whose streams and page-locked memory have stand-ins."""
    offload = pytest.importorskip("torchao.optim.cpu_offload", reason="torchao is not installed")
    monkeypatch.setattr(offload, "get_available_devices", lambda: ["cpu", "xpu"])
    monkeypatch.setattr(torch.xpu, "Stream", Stream)
    monkeypatch.setattr(torch.xpu, "current_stream", Stream)
    monkeypatch.setattr(torch.xpu, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    empty_like = torch.empty_like
    plain = lambda tensor, *, pin_memory=False, **how: empty_like(tensor, **how)  # noqa: E731
    monkeypatch.setattr(torch, "empty_like", plain)

    def optimizer_of(parameters):
        how = {"offload_gradients": offload_gradients, "lr": 1e-3, "minimal_size": 1024}
        return offload.CPUOffloadOptimizer(parameters, torch.optim.AdamW, **how)

    _, state = assert_trains_as_eager(lambda: language(plain_loss), optimizer_of)
    parameters = sum(p.numel() for p in language(plain_loss).model.parameters())
    assert 8 * parameters < state < 9 * parameters


def test_of_an_optimizer_that_works_elsewhere_what_lies_on_the_device_counts():
    class Offloading(torch.optim.Optimizer):
        def __init__(self, here, elsewhere):
            self.on_device = torch.optim.AdamW([here])
            self.on_host = {0: torch.optim.AdamW([elsewhere])}

        param_groups = property(lambda self: self.on_device.param_groups)

    here = nn.Parameter(torch.zeros(1000, device="meta"))
    optimizer = Offloading(here, nn.Parameter(torch.zeros(9000)))
    assert planning.optimizer_bytes(optimizer, torch.device("meta")) == 2 * 4096 + 256
    assert planning.rate_rule(optimizer) == "square root"


class Adapted(nn.Module):
    """A frozen layer, plus a small trained one (LoRA)."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("bits", [8, 4])
def test_adapters_on_quantised_weights_of_torchao(bits):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    config = quantization.Int8WeightOnlyConfig()
    if bits == 4:
        groups = quantization.PerGroup(32)
        config = quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=groups)

    def fine_tuning():
        task = language(plain_loss)
        task.model.requires_grad_(False)
        quantization.quantize_(task.model.body, config)
        for block in task.model.body:
            assert len(parts_of(block[0].weight)) > 1
            block[0] = Adapted(block[0])
        return task

    assert_trains_as_eager(fine_tuning, lambda p: torch.optim.AdamW(p, 1e-2))
