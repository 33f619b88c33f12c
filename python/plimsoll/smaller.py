"""Compares a plan with eager where eager does not fit the budget: at the largest batch that does.

That batch is recorded in pieces and planned as tightly as the whole one, so that the same ways of recording, swapping and
recomputing are compared. The results of eager are kept on the host meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _core, batches
from ._core import show_bytes
from .errors import BadInput, NoPlan
from .memory import Memory
from .outputs import Given
from .planning import Recorded
from .program import Diverged, Program
from .surroundings import host_generators_kept
from .tape import to_document
from .torch_private import tree_flatten, uncompiled
from .verification import Outcome, State, generators_of, is_same, outcome

LOOSER = (0.0, 0.5, 1.0)
"""Degrees by which the plan of the smaller batch is looser than that of the whole one if no plan is
found: up to eager's memory."""


Record = Callable[[int, Recorded | None], Recorded]
"""Records a smaller batch; the host reads the values of the other recording."""

Plan = Callable[[Recorded, int], _core.Schedule]
"""Plans a recording within a budget."""


class Smaller:
    """A smaller batch of the same step, with an equally tight plan."""

    def __init__(self, recorded: Recorded, record: Record, plan: Plan, budget: int, share: float) -> None:
        self.recorded = recorded
        self.batch = recorded.trace.batch
        self._record = record
        self._plan = plan
        self._budget = budget
        self._share = share

    def prepare(self, memory: Memory) -> None:
        """Plans it. Raises `NoPlan`."""
        trace = self.recorded.trace
        for looser in LOOSER:
            share = self._share + looser * (1 - self._share)
            limit = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
            try:
                schedule = self._plan(self.recorded, min(limit, self._budget))
            except NoPlan:
                if looser == LOOSER[-1]:
                    raise
                continue
            self.program = Program(self.recorded.tape, self.recorded.document, schedule, memory)
            return

    @host_generators_kept()
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
                left = outcome(model, generators_of(tape), eager(*part))
            before.restore()
            memory.device.trim()
            return left

        try:
            left = run_eager()
            planned = outcome(model, generators_of(tape), self._run(tensors))
            before.restore()
            is_same(left, planned, run_eager)
        finally:
            before.restore()

    def _run(self, tensors: list[torch.Tensor]) -> Given:
        """Runs the plan; in its first run the host may read other values than in the whole batch."""
        while True:
            try:
                return self.program.run(tensors)
            except Diverged as diverged:
                if self.program.finished or self.recorded.measured is None:
                    raise
                self.recorded = self._record(self.batch, self.recorded.told(diverged.call, diverged.value))
                self.prepare(self.program.memory)


def largest(whole: Recorded, record: Record, budget: int, other_resident_bytes: int) -> int:
    """Largest batch that fits the budget in eager, at most the whole one; 0 if none does.

    Its memory is interpolated linearly between the whole batch and a small one. Raises `BadInput` if the step makes
    different calls at a different batch.
    """
    few = batches.SMALL[0]
    texts = [
        to_document(one.tape, whole.trace.name, size, other_resident_bytes, is_rounded=False).text
        for one, size in ((record(few, None), few), (whole, whole.trace.batch))
    ]
    family = _core.Batches(*texts)
    low, high = 0, whole.trace.batch + 1
    while high - low > 1:
        middle = (low + high) // 2
        if family.at(middle).peak_bytes <= budget:
            low = middle
        else:
            high = middle
    return low


def find(
    whole: Recorded, record: Record, plan: Plan, memory: Memory, budget: int, other_resident_bytes: int
) -> Smaller | str:
    """Returns the largest batch that fits the budget in eager, with a plan, or the reason why there is none."""
    if whole.trace.batch <= batches.SMALL[0]:
        return "the batch cannot be made smaller"
    try:
        size = largest(whole, record, budget, other_resident_bytes)
        if size == 0:
            return f"not even one sample fits {show_bytes(budget)} in eager"
        found = Smaller(record(size, None), record, plan, budget, _share(whole.trace, budget))
        found.prepare(memory)
    except NoPlan as no_plan:
        return str(no_plan)
    except BadInput as other:
        return f"the step is another at smaller batches ({other})"
    except Exception as error:  # the user's code, which may support only one batch size
        return f"the step fails at a smaller batch ({type(error).__name__}: {error})"
    return found


def _share(trace: _core.Trace, budget: int) -> float:
    """Position of a budget between the floor (0) and eager's memory (1)."""
    room = trace.peak_bytes - trace.floor_bytes
    return 1.0 if room <= 0 else min(1.0, max(0.0, (budget - trace.floor_bytes) / room))
