"""A planned step leaves eager's bits: losses, parameters, buffers, generator, over three optimizer steps."""

import itertools
import json

import pytest
import torch
from networks import ALL, budget_at, build, eager, of_torchvision, optimizer_of, train

import plimsoll
from plimsoll._core import show_bytes

SLOW, FAST = "200KB/s", "20GB/s"
"""On a slow link the plan recomputes, on a fast one it swaps."""


def assert_same(planned, other):
    one, two = planned.state_dict(), other.state_dict()
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


FEW = {("sgd", 0.1, FAST), ("adamw", 0.4, SLOW)}
"""In CI every network is tried with these; the rest is marked `slow`."""

MATRIX = [
    pytest.param(*all_of, marks=[] if all_of[1:] in FEW else pytest.mark.slow)
    for all_of in itertools.product(ALL, ("sgd", "adamw"), (0.1, 0.4), (SLOW, FAST))
]


@pytest.mark.parametrize(("name", "optimizer", "share", "link"), MATRIX)
def test_planned_steps_leave_the_bits_of_eager(name, optimizer, share, link):
    reference = build(name)
    reference_optimizer = optimizer_of(optimizer, reference.model)
    losses = train(reference, reference_optimizer, eager(reference))
    generator = torch.get_rng_state()

    task = build(name)
    its_optimizer = optimizer_of(optimizer, task.model)
    budget = budget_at(share, task, its_optimizer)
    step = plimsoll.tune(
        task.loss, task.model, its_optimizer, task.batches[0], budget, link, verify=0, seconds=0.5
    )
    schedule = step.program.schedule
    if link == FAST:
        assert schedule.offloaded_bytes > 0
    elif share == 0.4:  # nearer to the floor a small network may be able only to swap
        assert schedule.recomputed_ops > 0
    assert schedule.pool_bytes <= budget

    def checked(*batch):
        loss = step(*batch)
        assert step.fallback is None
        counts = step.program.counts
        assert counts.as_planned
        assert counts.unplanned == counts.unused == 0
        return loss

    planned = train(task, its_optimizer, checked)
    assert [loss.item() for loss in planned] == [loss.item() for loss in losses]
    assert_same(task.model, reference.model)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("name", ["convolutions", "gpt"])
def test_keeping_everything_leaves_the_bits_of_eager(name):
    reference, task = build(name), build(name)
    losses = train(reference, optimizer_of("sgd", reference.model), eager(reference))
    optimizer = optimizer_of("sgd", task.model)
    step = plimsoll.tune(task.loss, task.model, optimizer, task.batches[0], "100%", FAST)
    schedule = step.program.schedule
    assert (schedule.recomputed_ops, schedule.offloaded_bytes) == (0, 0)
    assert "everything stays" in step.why
    planned = train(task, optimizer, step)
    assert [loss.item() for loss in planned] == [loss.item() for loss in losses]
    assert_same(task.model, reference.model)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mobilenet_v3_small"),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("efficientnet_b0", "densenet121")),
    ],
)
def test_networks_of_torchvision_run_unchanged(name):
    reference, task = of_torchvision(name), of_torchvision(name)
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(0.1, task, optimizer)
    step = plimsoll.tune(
        task.loss, task.model, optimizer, task.batches[0], budget, "1KB/s", verify=0, seconds=0.5
    )
    schedule = step.program.schedule
    again = [compute.op for compute in schedule.computes() if compute.again]
    ops, sizes = json.loads(step.trace.to_json())["ops"], step.trace.tensor_bytes()
    written = sum(sizes[tensor] for op in again for tensor in ops[op]["writes"])
    assert written == schedule.recomputed_bytes > 0
    assert f"{len(again)} ops ({show_bytes(written)}) recomputed" in step.why
    planned = train(task, optimizer, step)
    assert step.fallback is None
    assert [loss.item() for loss in planned] == [loss.item() for loss in losses]
    assert_same(task.model, reference.model)
