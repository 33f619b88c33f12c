"""Compares a plan with eager where eager does not fit the budget: at the largest batch that does.

That batch is recorded in pieces and planned as tightly as the whole one, so that the same ways of recording, swapping and
recomputing are compared. What eager leaves is kept on the host meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from . import _core, batches
from ._core import show_bytes
from .errors import BadInput, NoPlan
from .memory import Memory
from .outputs import Given
from .planning import Recorded
from .program import Program
from .tape import to_document
from .torch_private import tree_flatten, uncompiled
from .verification import Outcome, State, is_same, outcome

logger = logging.getLogger("plimsoll")

LOOSER = (0.0, 0.5, 1.0)
"""How much looser than the whole batch the smaller one is planned where no plan is found: as far as what eager takes."""


class Smaller:
    """A smaller batch of the same step, with a plan."""

    def __init__(self, recorded: Recorded, program: Program) -> None:
        self.recorded = recorded
        self.program = program
        self.batch = recorded.trace.batch

    def compare(self, model: torch.nn.Module, batch: tuple[Any, ...], eager: Callable[..., Given]) -> None:
        """Runs its part of a batch in eager and by the plan, and leaves everything as it was. Raises `VerificationError`."""
        part = batches.taken(batch, 0, self.batch)
        tensors = [leaf for leaf in tree_flatten(part)[0] if isinstance(leaf, torch.Tensor)]
        memory, tape = self.program.memory, self.recorded.tape
        before = State(tape)

        def run_eager() -> Outcome:
            memory.give_back(is_all=True)
            before.restore()
            with uncompiled(), memory.device.comparable():
                left = outcome(model, tape, eager(*part), is_on_host=True)
            before.restore()
            memory.device.trim()
            return left

        try:
            left = run_eager()
            planned = outcome(model, tape, self.program.run(tensors), is_on_host=True)
            before.restore()
            is_same(left, planned, run_eager)
        finally:
            before.restore()


def largest(
    whole: Recorded, record: Callable[[int], Recorded], budget: int, other_resident_bytes: int
) -> int:
    """The largest batch that fits the budget in eager; 0 where none does.

    What it takes follows from the whole batch and from a small one, by a line. Raises `BadInput` where the step makes other
    calls at another batch.
    """
    few = batches.SMALL[0]
    texts = [
        to_document(one.tape, whole.trace.name, size, other_resident_bytes, is_rounded=False).text
        for one, size in ((record(few), few), (whole, whole.trace.batch))
    ]
    family = _core.Batches(*texts)
    low, high = 0, whole.trace.batch
    while high - low > 1:
        middle = (low + high) // 2
        if family.at(middle).peak_bytes <= budget:
            low = middle
        else:
            high = middle
    return low


def find(
    whole: Recorded,
    record: Callable[[int], Recorded],
    plan: Callable[[Recorded, int], _core.Schedule],
    memory: Memory,
    budget: int,
    other_resident_bytes: int,
) -> Smaller | str:
    """The largest batch that fits eager, with a plan; or why there is none."""
    if whole.trace.batch <= batches.SMALL[0]:
        return "the batch cannot be made smaller"
    try:
        size = largest(whole, record, budget, other_resident_bytes)
        if size == 0:
            return f"not even one sample fits {show_bytes(budget)} in eager"
        recorded = record(size)
    except NoPlan as no_plan:
        return str(no_plan)
    except BadInput as other:
        return f"the step is another at smaller batches ({other})"
    except Exception as error:  # the user's code, which may know one batch size only
        return f"the step fails at a smaller batch ({type(error).__name__}: {error})"
    share = _share(whole.trace, budget)
    for looser in LOOSER:
        floor, peak = recorded.trace.floor_bytes, recorded.trace.peak_bytes
        limit = int(floor + (share + looser * (1 - share)) * (peak - floor))
        try:
            schedule = plan(recorded, min(limit, budget))
        except NoPlan:
            continue
        return Smaller(recorded, Program(recorded.tape, recorded.document, schedule, memory))
    return f"no plan is found for the {size} samples that fit in eager"


def _share(trace: _core.Trace, budget: int) -> float:
    """How far a budget lies between the floor and what eager takes."""
    room = trace.peak_bytes - trace.floor_bytes
    return 1.0 if room <= 0 else min(1.0, max(0.0, (budget - trace.floor_bytes) / room))
