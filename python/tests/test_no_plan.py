"""A batch that no plan fits is refused, with the largest batch that fits, for accumulation, and a sufficient budget."""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from networks import build, eager, optimizer_of
from torch import nn

import plimsoll
from plimsoll import batches, refusal


def large(name, times=8):
    """A task with batches this many times as large, and a budget for a part of one."""
    task = build(name)
    task.batches = [tuple(torch.cat([t] * times) for t in batch) for batch in task.batches]
    eager(task)(*(t[:6] for t in task.batches[0]))
    part = plimsoll.trace(task.loss, task.model, *(t[:6] for t in task.batches[0]))
    return build(name), task.batches, part.floor_bytes + 1024


@pytest.mark.parametrize("name", ["mlp", "convolutions", "gpt"])
def test_a_loop_that_accumulates_what_the_refusal_names_fits_with_the_bits_of_eager(name):
    task, data, budget = large(name)
    with pytest.raises(plimsoll.NoPlan) as failed:
        plimsoll.tune(task.loss, task.model, None, data[0], budget, "20GB/s", seconds=0.5)
    error, size = failed.value, len(data[0][0])
    assert 1 < error.largest_batch < size
    number = -(-size // error.largest_batch)
    assert f"accumulate {number} of them for an update of {size} (`plimsoll.suggest` prints the loop)" in str(
        error
    )
    plimsoll.plan(plimsoll.trace(task.loss, task.model, *data[0]), error.enough_bytes, "20GB/s")
    parts = [batches.taken(data[0], first, first + error.largest_batch) for first in (0, error.largest_batch)]
    step = plimsoll.tune(task.loss, task.model, None, parts[0], budget, "20GB/s", seconds=0.5)
    reference = build(name)
    left = []
    for model, run in ((task.model, step), (reference.model, eager(reference))):
        torch.manual_seed(3)
        losses = [run(*part).item() for part in parts]
        left.append([*losses, *(p.grad for p in model.parameters()), *model.buffers()])
    assert step.fallback is None
    for one, other in zip(*left, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_a_later_batch_that_no_plan_fits_is_refused_before_anything_runs():
    task, data, budget = large("convolutions")
    small = tuple(t[:4] for t in data[0])
    step = plimsoll.tune(task.loss, task.model, None, small, budget, "20GB/s", verify=0, seconds=0.5)
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    with pytest.raises(plimsoll.NoPlan, match="The largest batch that fits"):
        step(*data[0])
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in task.model.parameters())
    step(*small)
    assert step.fallback is None


def test_a_batch_whose_first_size_is_time_is_not_split():
    """Attention over a part of the time would compute other gradients."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)  # time comes first
    model = nn.Sequential(nn.Embedding(100, 32), layer, nn.Linear(32, 100))
    x, y = torch.randint(0, 100, (64, 4)), torch.randint(0, 100, (64, 4))

    def loss(x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    budget = plimsoll.trace(loss, model, x, y).floor_bytes - 1
    with pytest.raises(plimsoll.NoPlan):
        plimsoll.tune(loss, model, None, (x, y), budget, "20GB/s", seconds=0.5)


@pytest.mark.parametrize(
    ("loss", "makes"),
    [
        (lambda y, t: F.cross_entropy(y, t), "mean"),
        (lambda y, t: F.cross_entropy(y, t, reduction="sum"), "sum"),
        (lambda y, t: y.square().sum().sqrt(), None),
        (lambda y, t: F.cross_entropy(y @ y.t(), torch.arange(len(y))), None),
    ],
)
def test_what_the_losses_of_parts_make_is_found_out(loss, makes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    generator = torch.get_rng_state()

    def fn(x, y):
        return loss(model(x), y)

    if makes is None:
        with pytest.raises(plimsoll.BadInput, match="neither the mean nor the sum"):
            batches.losses_make(fn, model, (x, y))
    else:
        assert batches.losses_make(fn, model, (x, y)) == makes
    assert model.training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_largest_batch_fits_and_the_next_does_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x = torch.randn(512, 64)

    def loss(x):
        y = model(x)
        return F.cross_entropy(y @ y.t(), torch.arange(len(x)))

    budget = plimsoll.trace(loss, model, x).floor_bytes - 1
    with pytest.raises(plimsoll.NoPlan, match="The largest batch that fits") as failed:
        plimsoll.tune(loss, model, None, x, budget, "1GB/s")
    error = failed.value
    assert f"also where gradients are added up, is {error.largest_batch}: give batches of that" in str(error)
    assert f"{error.short_by_bytes} B more than the budget" in str(error)
    step = plimsoll.tune(loss, model, None, x[: error.largest_batch], budget, "1GB/s", verify=0)
    for _ in range(2):  # the second one adds
        step(x[: error.largest_batch])
        assert step.fallback is None
    assert plimsoll.trace(loss, model, x[: error.largest_batch + 1]).floor_bytes > budget, (
        "with gradients there"
    )


def test_a_budget_that_holds_no_sample_is_told_what_is_enough():
    task = build("convolutions")
    optimizer = optimizer_of("adamw", task.model)
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0], optimizer=optimizer)
    budget = trace.resident_bytes // 2
    state = {name: value.clone() for name, value in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    with pytest.raises(
        plimsoll.NoPlan, match="One sample at a time, whose gradients are added, does not"
    ) as failed:
        plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], budget, "1GB/s")
    error = failed.value
    assert all(torch.equal(value, state[name]) for name, value in task.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in task.model.parameters())
    assert not optimizer.state
    assert error.layer == trace.floor_layer != ""
    assert f"layer `{error.layer}`" in str(error)
    assert error.short_by_bytes == trace.floor_bytes - budget
    assert error.largest_batch is None
    assert "lower the batch" not in str(error)
    for way in ("an optimizer with less state", "smaller samples", "fewer or smaller trained parameters"):
        assert way in str(error), "none of them alone is enough"
    enough = re.search(r"What helps: a budget of ([\d.]+ \w+)", str(error))[1]
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], enough, "1GB/s")
    step(*task.batches[0])
    assert step.fallback is None


def test_logits_that_decide_are_named_with_a_budget_that_is_enough():
    torch.manual_seed(0)
    model = nn.Linear(8, 5000)
    x, y = torch.randn(4, 64, 8), torch.randint(0, 5000, (4, 64))

    def tuned(samples, budget):
        def loss(x, y):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

        return plimsoll.tune(loss, model, None, (x[:samples], y[:samples]), budget, "1GB/s")

    for samples in (1, 4):
        with pytest.raises(
            plimsoll.NoPlan, match=r"What helps: .* a loss that never holds all logits"
        ) as failed:
            tuned(samples, "1MiB")
        said = str(failed.value)
        assert "outside all modules, as the loss" in said
        assert ("One sample at a time" in said) == (samples > 1)
        assert "an optimizer" not in said, "there is none"
        assert "trained parameters" not in said, "they take less than what is missing"
        step = tuned(samples, failed.value.enough_bytes)
        step(x[:samples], y[:samples])
        assert step.fallback is None


def test_a_step_of_one_batch_size_says_that_no_other_is_known():
    model = nn.Linear(64, 64)
    x = torch.randn(64, 64)

    def loss(x):
        return model(x).view(64, 8, 8).square().sum()

    floor = plimsoll.trace(loss, model, x).floor_bytes
    with pytest.raises(
        plimsoll.NoPlan, match=r"Which smaller batch fits is not known.* \(RuntimeError: shape"
    ) as failed:
        plimsoll.tune(loss, model, None, x, floor - 1, "1GB/s")
    assert failed.value.short_by_bytes == 1


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_the_largest_that_fits_is_found_from_any_guess(limit):
    for largest, guess in itertools.product(range(limit + 1), range(1, limit + 1)):
        asked = []

        def fits(at, asked=asked, largest=largest):
            asked.append(at)
            return at <= largest

        assert refusal.largest_of(fits, guess, limit) == largest
        assert len(asked) == len(set(asked))
        assert all(1 <= at <= limit for at in asked)
        assert guess not in (largest, largest + 1) or len(asked) <= 2
