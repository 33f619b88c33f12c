"""State of a step for a kind of batch that runs by a plan."""

from __future__ import annotations

import math

from .in_eager import InEager
from .planning import Recorded
from .program import Program
from .smaller import Smaller

COMPARED_AGAIN = 128
"""Runs of this number, twice this number and so on are compared with eager again, which is less than one in a hundred."""

ANOTHER_WAY = 4
"""After this many batches in a row for which the host reads a different value, the plan is not tried for the next ones."""

PUT_OFF = 32
"""Number of batches for which it is not tried, which makes the cost of trying less than one in a hundred."""


class Planned:
    """One kind of batch: its tape, its program, and the number of runs still to be verified."""

    def __init__(self, recorded: Recorded, program: Program, verify: int, in_eager: InEager) -> None:
        self.recorded = recorded
        self.trace = recorded.trace
        self.tape = recorded.tape
        self.program = program
        self.verify = verify
        self.compared = 0
        """Number of runs compared with eager."""
        self.eager_seconds = math.inf
        self.plan_seconds = math.inf
        """Shortest times of verified runs."""
        self.alone_seconds: float | None = None
        """Predicted seconds of the step from its ops alone, if runs of the plan have given a better prediction."""
        self.broken = ""
        """Reason why the program must not be used any more."""
        self.in_eager = in_eager
        """Runs batches that cannot keep to the plan."""
        self.fits_beside_eager = recorded.measured is None
        """`False` if the whole batch is known not to fit next to eager for the comparison."""
        self.smaller: Smaller | str | None = None
        """Smaller batch that is compared in its place, or the reason why there is none; `None` before it is due."""
        self._place = ""
        self._in_a_row = 0
        self._put_off = 0

    def tried(self, place: str = "") -> None:
        """Records that the plan was tried for a batch, which diverged at `place` if that is given."""
        self._place = place
        self._in_a_row = self._in_a_row + 1 if place else 0
        self._put_off = PUT_OFF if self._in_a_row >= ANOTHER_WAY else 0

    def put_off(self) -> str:
        """Reason why the plan is not tried for the next batch; empty if it is."""
        if self._put_off == 0:
            return ""
        self._put_off -= 1
        return (
            f"the last batches took another way at {self._place}; one in {PUT_OFF + 1} is tried by the plan"
        )

    def is_due_again(self) -> bool:
        """Returns `True` if this run is compared with eager long after the first ones, which happens
        if eager fits the budget."""
        runs = self.program.runs
        if runs < COMPARED_AGAIN or runs & (runs - 1):
            return False
        if not self.fits_beside_eager:
            return isinstance(self.smaller, Smaller)
        return self.trace.peak_bytes <= self.program.schedule.budget_bytes
