"""A step that does not fit memory is recorded within the budget: fake tensors, calls tried one by one, a smaller batch verified."""

import logging
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from networks import ALL, budget_at, build, eager, of_torchvision, optimizer_of, train
from torch import nn

import plimsoll
from plimsoll import batches, devices, pieces, planning, recording

SLOW, FAST = "200KB/s", "20GB/s"


def in_pieces(task, sample, adds=False):
    known, is_compared = pieces.known_of_few(task.loss, task.model, sample, None, adds)
    assert is_compared
    tape = recording.record_structure(task.loss, task.model, sample, known, adds)
    pieces.measure(tape, sample, devices.of(task.model))
    return tape


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_recording_in_pieces_is_the_recording_of_a_whole_step(name, adds):
    task = build(name)
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    generator = torch.get_rng_state()
    whole = recording.record(task.loss, task.model, task.batches[0], adds)
    made = in_pieces(task, task.batches[0], adds)
    assert [call.signature() for call in made.calls] == [call.signature() for call in whole.calls]
    assert [call.workspace_bytes for call in made.calls] == [call.workspace_bytes for call in whole.calls]
    assert [(s.size, s.role) for s in made.storages] == [(s.size, s.role) for s in whole.storages]
    kept = [(one.tensor, other.tensor) for one, other in zip(made.storages, whole.storages, strict=True)]
    assert all(a is b is None or a.data_ptr() == b.data_ptr() for a, b in kept)
    assert [t.data_ptr() for t in made.updated] == [t.data_ptr() for t in whole.updated]
    assert [w for _, w in made.gradients] == [w for _, w in whole.gradients]
    assert all(call.seconds > 0 for call in made.calls)
    assert made.arrivals == whole.arrivals
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert all(p.grad is None for p in task.model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


MATRIX = [
    pytest.param(name, share, link, marks=[] if (share, link) == (0.1, FAST) else pytest.mark.slow)
    for name in ALL
    for share, link in ((0.1, FAST), (0.1, SLOW), (0.4, FAST), (0.4, SLOW))
]


@pytest.mark.parametrize(("name", "share", "link"), MATRIX)
def test_a_step_that_was_recorded_in_pieces_leaves_the_bits_of_eager(name, share, link, caplog):
    reference, task = build(name), build(name)
    losses = train(reference, optimizer_of("adamw", reference.model), eager(reference))
    generator = torch.get_rng_state()
    optimizer = optimizer_of("adamw", task.model)
    budget = budget_at(share, task, optimizer)
    with caplog.at_level(logging.INFO, "plimsoll"):
        step = plimsoll.tune(
            task.loss, task.model, optimizer, task.batches[0], budget, link, seconds=0.5, in_pieces=True
        )
    assert "was recorded in pieces" in caplog.text

    def checked(*batch):
        loss = step(*batch)
        assert step.fallback is None
        assert step.program.counts.as_planned
        return loss

    planned = train(task, optimizer, checked)
    assert [loss.item() for loss in planned] == [loss.item() for loss in losses]
    assert all(map(torch.equal, task.model.state_dict().values(), reference.model.state_dict().values()))
    assert torch.equal(torch.get_rng_state(), generator)
    recorded = step._current().recorded
    weights = sum(t.untyped_storage().nbytes() for t in task.model.state_dict().values())
    assert 0 < recorded.measured.peak_bytes + weights <= budget
    assert recorded.measured.tried <= len(recorded.trace)
