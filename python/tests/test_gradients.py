"""Gradients that somebody keeps stay as they are, and those that are there are added to at their own place."""

import logging

import pytest
import torch
import torch.nn.functional as F
from networks import build, eager
from torch import nn

import plimsoll


def tuned(task, share="80%", **options):
    options = {"verify": 0, "seconds": 0.5, **options}
    return plimsoll.tune(task.loss, task.model, None, task.batches[0], share, "20GB/s", **options)


KEEPS = {
    "gradients": lambda p: p.grad,
    "views": lambda p: p.grad.flatten()[:1],
    "detached": lambda p: p.grad.detach(),
    "one row": lambda p: p.grad[0],
}


@pytest.mark.parametrize("kept", KEEPS)
def test_gradients_that_are_kept_stay_as_they_are(kept, caplog):
    """Gradient surgery, GradNorm and the gradient's noise scale keep those of one batch while they take those of the next."""
    left = []
    for run in (eager, tuned):
        task = build("gpt")
        step, model = run(task), task.model
        torch.manual_seed(3)
        seen = []
        for batch in task.batches[:3]:
            model.zero_grad()
            step(*batch)
            seen.append([KEEPS[kept](p) for p in model.parameters() if p.grad is not None])
        left.append([tensor for of_batch in seen for tensor in of_batch])
    assert len(left[0]) == len(left[1]) > 0
    assert all(map(torch.equal, *left))
    assert step.fallback is None
    assert step._memory.held == 2
    assert caplog.text.count("still held by other code") == 1, "it is said once"
    # With nothing held, the memory is used again.
    del seen, left
    generation = step._memory.gradients.generation
    for batch in task.batches[:3]:
        model.zero_grad()
        step(*batch)
    assert step._memory.gradients.generation == generation


def test_who_keeps_no_gradient_takes_no_fresh_memory(caplog):
    task = build("convolutions")
    optimizer = torch.optim.AdamW(task.model.parameters())
    step = tuned(task, verify=2)
    with caplog.at_level(logging.WARNING, "plimsoll"):
        for number in range(6):
            step(*task.batches[number % 3])
            if number % 2:
                torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    assert step._memory.held == 0
    assert caplog.text == ""


@pytest.mark.parametrize("verify", [0, 2])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_another_set_of_trained_parameters_adds_to_the_gradients_that_are_there(verify, set_to_none):
    """Gradual unfreezing, and freezing again."""
    x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
    left = []
    for is_planned in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def loss(x, y, model=model):
            return F.cross_entropy(model(x), y)

        def step(x, y, loss=loss):
            loss(x, y).backward()

        if is_planned:
            step = plimsoll.tune(loss, model, None, (x, y), "75%", "20GB/s", verify=verify, seconds=0.5)
        gradients = []
        for trained in ((2, 4), (0, 2, 4), (0, 4), (2,), (0, 2, 4)):
            for number in (0, 2, 4):
                model[number].requires_grad_(number in trained)
            for _ in range(2):
                step(x, y)
            gradients += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            model.zero_grad(set_to_none=set_to_none)
        left.append(gradients)
    assert step.fallback is None
    assert len(left[0]) == len(left[1])
    assert all(map(torch.equal, *left))
