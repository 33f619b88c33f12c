"""`fits` answers for batches that never run, and its numbers are those of recordings."""

import pytest
import torch
import torch.nn.functional as F
from networks import ALL, build, optimizer_of
from torch import nn

import plimsoll
from plimsoll import batches, recording

LIMIT = 0.03
"""Tolerance: scratch is assumed to grow linearly, which is not exact."""


@pytest.mark.parametrize("name", ALL)
def test_shapes_without_computing_are_the_shapes_of_a_recording(name):
    task = build(name)
    real = recording.record(task.loss, task.model, task.batches[0])
    before = [p.data_ptr() for p in task.model.parameters()]
    fake = recording.record_shapes(task.loss, task.model, task.batches[0])
    assert [p.data_ptr() for p in task.model.parameters()] == before
    assert all(p.grad is None for p in task.model.parameters())
    assert [(s.size, s.role) for s in fake.storages] == [(s.size, s.role) for s in real.storages]
    for one, other in zip(fake.calls, real.calls, strict=True):
        assert (one.func, one.layer, one.reads, one.writes) == (
            other.func,
            other.layer,
            other.reads,
            other.writes,
        )


@pytest.mark.parametrize("name", ["mlp", "convolutions", "gpt", "resnet18"])
def test_peak_and_floor_are_those_of_a_recording_at_a_batch_that_did_not_run(name):
    task = build(name)
    optimizer = optimizer_of("adamw", task.model)
    sample = batches.taken(task.batches[0], 0, 24)
    ran = []

    def loss(x, y):
        if not isinstance(x, torch._subclasses.FakeTensor):
            ran.append(len(x))
        return task.loss(x, y)

    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    fit = plimsoll.fits(loss, task.model, *sample, optimizer=optimizer, budget="1TiB")
    assert max(ran) == 4
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    trace = plimsoll.trace(task.loss, task.model, *sample, optimizer=optimizer)
    assert fit.peak_bytes == pytest.approx(trace.peak_bytes, rel=LIMIT)
    assert fit.floor_bytes == pytest.approx(trace.floor_bytes, rel=LIMIT)
    assert fit
    assert fit.is_measured


def test_yes_and_no_are_what_tune_finds():
    task = build("convolutions")
    sample = batches.taken(task.batches[0], 0, 24)
    floor = plimsoll.trace(task.loss, task.model, *sample).floor_bytes
    yes = plimsoll.fits(task.loss, task.model, *sample, budget=int(1.05 * floor))
    assert yes
    assert yes.planned_bytes <= 1.05 * floor
    plimsoll.tune(task.loss, task.model, None, sample, int(1.05 * floor), "12GB/s", seconds=0.5)
    no = plimsoll.fits(task.loss, task.model, *sample, budget=int(0.95 * floor))
    assert not no
    assert no.planned_bytes is None
    assert "does not fit in" in str(no)
    assert f"layer `{no.floor_layer}`" in str(no)
    assert no.floors[0] == (no.floor_layer, no.floor_bytes)
    assert 4 < no.largest_batch < 24


@pytest.mark.parametrize("name", ["mlp", "convolutions", "gpt"])
def test_the_largest_batch_has_a_plan_and_a_larger_one_has_none(name):
    task = build(name)
    budget = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, 20)).floor_bytes
    largest = plimsoll.fits(task.loss, task.model, *task.batches[0], budget=budget).largest_batch
    assert 19 <= largest <= 21
    trace = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, largest - 1))
    assert plimsoll.plan(trace, budget, "12GB/s", seconds=0.5).budget_bytes == budget
    with pytest.raises(plimsoll.NoPlan):
        trace = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, largest + 2))
        plimsoll.plan(trace, budget, "12GB/s")


def test_a_network_that_fits_no_memory_is_asked_about():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(65536, 65536) for _ in range(32)))  # 512 GiB of weights
    x = torch.empty(1024, 65536, device="meta")
    fit = plimsoll.fits(lambda x: model(x).square().mean(), model, x, budget="80GiB")
    assert not fit
    assert fit.largest_batch is None
    assert fit.peak_bytes > 2 * 32 * 65536 * 65536 * 4
    assert "without the scratch of libraries" in str(fit)
    assert all(p.is_meta for p in model.parameters())
    assert plimsoll.fits(lambda x: model(x).square().mean(), model, x, budget="2TiB")


def test_a_model_whose_weights_do_not_fit_is_not_run():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def loss(x):
        assert isinstance(x, torch._subclasses.FakeTensor)
        return model(x).sum()

    fit = plimsoll.fits(loss, model, torch.randn(8, 64), budget="10KiB")
    assert not fit
    assert not fit.is_measured


def test_a_step_that_knows_one_batch_size_is_answered_for_that_one():
    model = nn.Linear(16, 16)
    fit = plimsoll.fits(lambda x: model(x).view(8, 4, 4).sum(), model, torch.randn(8, 16), budget="1GiB")
    assert fit
    assert fit.largest_batch is None
    assert "the step fails at a batch of 2" in str(fit)


def test_memory_that_grows_with_the_square_of_the_batch_has_no_largest_batch():
    model = nn.Linear(16, 16)

    def loss(x):
        y = model(x)
        return F.cross_entropy(y @ y.t(), torch.arange(len(x)))

    fit = plimsoll.fits(loss, model, torch.randn(64, 16), budget="1GiB")
    assert fit
    assert "do not grow linearly" in str(fit)
    trace = plimsoll.trace(loss, model, torch.randn(64, 16))
    assert fit.peak_bytes == pytest.approx(trace.peak_bytes, rel=LIMIT)


def test_logits_that_decide_are_named():
    model = nn.Linear(8, 50000)
    fit = plimsoll.fits(
        lambda x, y: F.cross_entropy(model(x), y),
        model,
        torch.randn(256, 8),
        torch.randint(0, 50000, (256,)),
        budget="40MiB",
    )
    assert not fit
    assert "linear_cross_entropy" in str(fit)


def test_what_the_host_reads_is_known_from_small_batches():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def loss(x):
        y = model(x)
        return (y if (x.abs().sum() > 0).item() else -y).sum()

    assert plimsoll.fits(loss, model, torch.randn(64, 8), budget="1GiB")


def test_what_the_host_reads_of_a_model_that_cannot_run_is_refused():
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    with pytest.raises(plimsoll.Refused, match="not known before the step runs"):
        plimsoll.fits(lambda x: model(x).sum() * x.sum().item(), model, torch.randn(4, 8), budget="1GiB")
