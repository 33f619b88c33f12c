"""A batch that no plan fits as a whole runs in parts, with the bits of eager in the same parts."""

import itertools
import logging
import re

import pytest
import torch
import torch.nn.functional as F
from networks import build, eager, optimizer_of
from torch import nn

import plimsoll
from plimsoll import batches, splitting


def large(name, times=8):
    """A task with batches this many times as large, and a budget for a part of one."""
    task = build(name)
    task.batches = [tuple(torch.cat([t] * times) for t in batch) for batch in task.batches]
    eager(task)(*(t[:6] for t in task.batches[0]))
    part = plimsoll.trace(task.loss, task.model, *(t[:6] for t in task.batches[0]))
    return build(name), task.batches, part.floor_bytes + 1024


def in_parts(loss, sizes, weights):
    def step(*batch):
        total, first = None, 0
        for size, weight in zip(sizes, weights, strict=True):
            part = loss(*(t[first : first + size] for t in batch))
            if weight != 1:
                part = part * weight
            part.backward()
            total = part.detach() if total is None else total + part.detach()
            first += size
        return total

    return step


@pytest.mark.parametrize("name", ["mlp", "convolutions", "gpt"])
def test_a_batch_that_does_not_fit_is_split_with_the_bits_of_eager_in_the_same_parts(name, caplog):
    task, data, budget = large(name)
    optimizer = optimizer_of("sgd", task.model)
    with caplog.at_level(logging.INFO, "plimsoll"):
        step = plimsoll.tune(task.loss, task.model, None, data[0], budget, "20GB/s", seconds=0.5)
    parts = step._parts
    assert len(parts.sizes) > 1
    assert sum(parts.sizes) == len(data[0][0])
    assert f"batch {parts}, lr unchanged, peak " in caplog.text
    assert "its loss is the mean of its parts' losses" in caplog.text
    reference = build(name)
    reference_optimizer = optimizer_of("sgd", reference.model)
    by_hand = in_parts(reference.loss, parts.sizes, parts.weights)
    for model, loss, its in (
        (reference.model, by_hand, reference_optimizer),
        (task.model, step, optimizer),
    ):
        torch.manual_seed(3)
        model.losses = []
        for batch in data:
            model.losses.append(loss(*batch).item())
            its.step()
            its.zero_grad()
    assert step.fallback is None
    assert task.model.losses == reference.model.losses
    for one, other in zip(
        task.model.state_dict().values(), reference.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_batch_that_fits_is_not_split():
    task, data, _ = large("mlp")
    step = plimsoll.tune(task.loss, task.model, None, data[0], "100%", "20GB/s", verify=0)
    step(*data[0])
    assert step._parts is None
    assert step.why.startswith("batch 32, ")


def test_a_larger_batch_than_the_sample_is_split_and_the_sample_s_is_not():
    task, data, budget = large("convolutions")
    small = tuple(t[:4] for t in data[0])
    step = plimsoll.tune(task.loss, task.model, None, small, budget, "20GB/s", verify=0, seconds=0.5)
    assert step.why.startswith("batch 4, ")
    step(*data[0])
    assert step.why.startswith(f"batch {step._parts}, ")
    task.model.zero_grad()
    step(*small)
    assert step.why.startswith("batch 4, ")


def test_an_exception_in_a_later_part_leaves_everything_as_it_was():
    task, data, budget = large("convolutions")
    step = plimsoll.tune(task.loss, task.model, None, data[0], budget, "20GB/s", verify=0, seconds=0.5)
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    run, parts_run = step._run, []

    def interrupted(planned, part, weight):
        parts_run.append(part)
        if len(parts_run) == 2:
            raise KeyboardInterrupt
        return run(planned, part, weight)

    step._run = interrupted
    with pytest.raises(KeyboardInterrupt):
        step(*data[0])
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in task.model.parameters())


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


def test_a_loss_over_pairs_of_samples_is_not_split():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x = torch.randn(512, 64)

    def loss(x):
        y = model(x)
        return F.cross_entropy(y @ y.t(), torch.arange(len(x)))

    budget = plimsoll.trace(loss, model, x).floor_bytes - 1
    with pytest.raises(plimsoll.NoPlan, match="neither the mean nor the sum of the losses") as failed:
        plimsoll.tune(loss, model, None, x, budget, "1GB/s")
    error = failed.value
    assert f"The largest batch that fits, also where gradients are added up, is {error.largest_batch}" in str(
        error
    )
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
    assert step._parts is not None


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

        assert splitting.largest_of(fits, guess, limit) == largest
        assert len(asked) == len(set(asked))
        assert all(1 <= at <= limit for at in asked)
        assert guess not in (largest, largest + 1) or len(asked) <= 2


@pytest.mark.parametrize(
    ("batch", "largest", "sizes"), [(8, 8, [8]), (8, 3, [3, 3, 2]), (7, 2, [2, 2, 2, 1]), (5, 1, [1] * 5)]
)
def test_parts_are_few_and_equal(batch, largest, sizes):
    assert batches.part_sizes(batch, largest) == sizes
    assert sum(batches.weights("mean", sizes)) == pytest.approx(1)
