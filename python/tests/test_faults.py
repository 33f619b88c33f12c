"""Faults planted into a program show in the comparison with eager, so that its silence means something."""

import logging

import pytest
import torch
from networks import budget_at, build

import plimsoll
from plimsoll import verification

SLOW, FAST = "200KB/s", "20GB/s"


def without_waits(program):
    for step in program._steps:
        step.wait = None


def with_other_random_numbers(program):
    class Other(dict):
        def __getitem__(self, _):
            return torch.Generator().manual_seed(1).get_state()

    program._needed_states = set()
    program._states = Other()


def with_statistics_updated_again(program):
    program._scratch = lambda number, place: place
    program._bound_to = None
    program.bind()


@pytest.mark.parametrize(
    ("plant", "network", "link"),
    [
        (without_waits, "gpt", FAST),
        (with_other_random_numbers, "gpt", SLOW),
        (with_statistics_updated_again, "convolutions", SLOW),
    ],
)
def test_a_planted_fault_is_a_verification_error(plant, network, link):
    task = build(network)
    budget = budget_at(0.1, task, None)
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], budget, link, verify=5, seconds=0.5)
    plant(step.program)
    with pytest.raises(plimsoll.VerificationError, match="differs from eager"):
        for batch in [*task.batches, *task.batches[:2]]:
            step(*batch)
            task.model.zero_grad()


def test_a_plan_is_judged_against_the_spread_of_eager_with_itself(caplog):
    def left(value):
        return {"the loss": torch.tensor(value), "the buffer b": torch.ones(3)}

    assert verification.is_same(left(1.0), left(1.0), lambda: pytest.fail("eager ran a second time"))
    with caplog.at_level(logging.WARNING, "plimsoll"):
        assert not verification.is_same(left(1.0), left(1.25), lambda: left(1.5))
    assert "two runs differ by up to 0.5" in caplog.text
    for planned, again in ((2.0, 1.5), (1.25, 1.0), (float("nan"), 1.5)):
        with pytest.raises(plimsoll.VerificationError, match=r"1 of 2 tensors: the loss"):
            verification.is_same(left(1.0), left(planned), lambda again=again: left(again))
