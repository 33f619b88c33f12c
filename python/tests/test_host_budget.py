"""A budget for the host's memory: swapped tensors keep to it, and if it is short the plan recomputes."""

import re

import pytest
import torch
from networks import budget_at, build, eager, optimizer_of, train

import plimsoll
from plimsoll import batches, devices, errors
from plimsoll.devices.cpu import CpuSlab


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_what_is_swapped_keeps_to_the_host_budget_with_the_bits_of_eager(share):
    reference, task = build("gpt"), build("gpt")
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(0.4, task, optimizer)
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0], optimizer=optimizer)
    free = plimsoll.plan(trace, budget, "20GB/s", seconds=0.5)
    assert free.host_bytes > 0
    host = int(share * free.host_bytes)
    step = plimsoll.tune(
        task.loss, task.model, optimizer, task.batches[0], budget, "20GB/s", seconds=0.5, host_budget=host
    )
    schedule = step.program.schedule
    assert schedule.host_bytes <= host
    assert step._memory.host.size <= host
    if share < 1:
        assert schedule.recomputed_ops > 0
    if share == 0:
        assert schedule.offloaded_bytes == 0
    assert [loss.item() for loss in train(task, optimizer, step)] == [loss.item() for loss in losses]
    assert step.fallback is None
    assert all(map(torch.equal, task.model.parameters(), reference.model.parameters()))


def test_sizes_are_read_and_what_means_nothing_is_refused():
    task = build("mlp")
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
    for host in ("1MiB", 1 << 20, None, 0):
        assert plimsoll.plan(trace, "100%", "20GB/s", host_budget=host).pool_bytes > 0
    for host in ("50%", -1, True, 1.5, "much"):
        with pytest.raises(plimsoll.BadInput):
            plimsoll.plan(trace, "100%", "20GB/s", host_budget=host)


def test_where_only_swapping_would_fit_the_message_says_to_raise_the_host_budget():
    task = build("convolutions")
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
    assert plimsoll.plan(trace, trace.floor_bytes, "20GB/s").offloaded_bytes > 0
    with pytest.raises(plimsoll.NoPlan, match="raise the host budget"):
        plimsoll.plan(trace, trace.floor_bytes, "20GB/s", host_budget=0)


def deep(size):
    """Activations that no recomputation is cheap enough to replace: near the floor the plan swaps."""
    task = build("convolutions")
    return task, batches.taken(task.batches[0], 0, size)


def test_what_the_host_can_hold_bounds_what_fits_and_the_refusal_names_bytes():
    task, sample = deep(24)
    trace = plimsoll.trace(task.loss, task.model, *sample)
    budget = int(1.02 * trace.floor_bytes)
    free = plimsoll.fits(task.loss, task.model, *sample, budget=budget, link="20GB/s")
    assert free
    assert free.host_budget_bytes is None
    assert free.why_not == ""
    none = plimsoll.fits(task.loss, task.model, *sample, budget=budget, link="20GB/s", host_budget=0)
    assert not none
    assert none.planned_bytes is None
    assert none.host_budget_bytes == 0
    assert re.search(r"[\d.]+ [KM]iB.*raise the host budget", none.why_not)
    assert "does not fit in" in str(none)
    assert "with 0 B of the host" in str(none)
    assert none.why_not in str(none)
    assert none.largest_batch < free.largest_batch
    some = plimsoll.fits(task.loss, task.model, *sample, budget=budget, link="20GB/s", host_budget="1GiB")
    assert some.largest_batch == free.largest_batch
    # Its answer is that of `tune`.
    largest = batches.taken(task.batches[0], 0, none.largest_batch)
    rest = {"verify": 0, "seconds": 0.5, "host_budget": 0}
    step = plimsoll.tune(task.loss, task.model, None, largest, budget, "20GB/s", **rest)
    assert step.program.schedule.offloaded_bytes == 0


def test_the_recommended_batch_keeps_to_the_host_budget():
    task, sample = deep(16)
    budget = plimsoll.trace(task.loss, task.model, *sample).floor_bytes
    free = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], budget, "20GB/s", verify=0, seconds=0.5
    )
    none = plimsoll.tune(
        task.loss, task.model, None, task.batches[0], budget, "20GB/s", verify=0, seconds=0.5, host_budget=0
    )
    trace = plimsoll.trace(task.loss, task.model, *batches.taken(task.batches[0], 0, none.batch))
    assert plimsoll.plan(trace, budget, "20GB/s", seconds=0.5, host_budget=0).offloaded_bytes == 0
    assert 1 <= none.batch <= 16
    assert 1 <= free.batch <= 16


def test_a_suggestion_keeps_to_the_host_budget():
    task, sample = deep(16)
    budget = int(1.1 * plimsoll.trace(task.loss, task.model, *sample).floor_bytes)
    found = plimsoll.suggest(task.loss, task.model, None, sample, budget, "20GB/s", host_budget=0)
    assert all(one.swapped_bytes == 0 for one in found.tried)
    with pytest.raises(plimsoll.BadInput):
        plimsoll.suggest(task.loss, task.model, None, sample, budget, "20GB/s", host_budget="50%")


def test_where_the_host_gives_less_it_is_measured_and_the_plan_recomputes(monkeypatch, caplog):
    reference, task = build("gpt"), build("gpt")
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(0.4, task, optimizer)
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0], optimizer=optimizer)
    limit = plimsoll.plan(trace, budget, "20GB/s", seconds=0.5).host_bytes // 2
    take = CpuSlab.take

    def limited(slab, size):
        if size > limit:
            raise errors.HostMemoryError("there is no more")
        take(slab, size)

    monkeypatch.setattr(CpuSlab, "take", limited)
    monkeypatch.setattr(devices.CPU, "pinnable", lambda size: min(size, limit), raising=True)
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], budget, "20GB/s", seconds=2.0)
    assert "of the host's memory, as measured, in place of" in caplog.text
    assert 0 < step.program.schedule.host_bytes <= limit
    assert step.program.schedule.recomputed_ops > 0
    assert [loss.item() for loss in train(task, optimizer, step)] == [loss.item() for loss in losses]
    assert step.fallback is None


def test_what_fits_is_answered_with_what_the_host_was_measured_to_give(monkeypatch):
    task, sample = deep(24)
    budget = int(1.02 * plimsoll.trace(task.loss, task.model, *sample).floor_bytes)
    free = plimsoll.fits(task.loss, task.model, *sample, budget=budget, link="20GB/s")
    assert free.host_budget_bytes is None
    monkeypatch.setattr(devices.CPU, "pinnable", lambda _size: 0)
    none = plimsoll.fits(task.loss, task.model, *sample, budget=budget, link="20GB/s")
    assert none.host_budget_bytes == 0
    assert not none
    assert "raise the host budget" in none.why_not
    assert none.largest_batch < free.largest_batch
