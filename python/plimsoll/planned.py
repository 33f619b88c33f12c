"""What a step keeps of a kind of batch: its plan, or the parts that it runs in."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from .in_eager import InEager
from .planning import Recorded
from .program import Program
from .smaller import Smaller

COMPARED_AGAIN = 128
"""The runs after so many, twice as many and so on are compared with eager again, which is less than one in a hundred."""

ANOTHER_WAY = 4
"""After so many batches in a row for which the host reads another value, the next ones are not tried by the plan."""

PUT_OFF = 32
"""So many are not, which makes what trying costs less than one in a hundred."""


class Planned:
    """One kind of batch: its tape, its program, and how many of its runs are still to be verified."""

    def __init__(
        self, recorded: Recorded, program: Program, verify: int, weight: float | None, in_eager: InEager
    ) -> None:
        self.recorded = recorded
        self.trace = recorded.trace
        self.tape = recorded.tape
        self.program = program
        self.verify = verify
        self.weight = weight
        """What the loss of a part of a batch counts; none for a whole batch."""
        self.compared = 0
        """How often it ran beside eager."""
        self.eager_seconds = math.inf
        self.plan_seconds = math.inf
        """The least of the times of verified runs."""
        self.alone_seconds: float | None = None
        """How long the step would take by its ops alone, where runs of the plan have said better."""
        self.broken = ""
        """Why the program is not to be used any more."""
        self.in_eager = in_eager
        """How a batch runs that cannot keep to the plan."""
        self.fits_beside_eager = recorded.measured is None
        """Whether the whole batch can be compared with eager, as far as is known."""
        self.smaller: Smaller | str | None = None
        """What is compared with eager where this does not fit in eager, or why nothing is; none before it is due."""
        self._place = ""
        self._in_a_row = 0
        self._put_off = 0

    def tried(self, place: str = "") -> None:
        """A batch was tried by the plan; it took another way where a place is said."""
        self._place = place
        self._in_a_row = self._in_a_row + 1 if place else 0
        self._put_off = PUT_OFF if self._in_a_row >= ANOTHER_WAY else 0

    def put_off(self) -> str:
        """Why the next batch is not tried by the plan; empty where it is."""
        if self._put_off == 0:
            return ""
        self._put_off -= 1
        return (
            f"the last batches took another way at {self._place}; one in {PUT_OFF + 1} is tried by the plan"
        )

    def is_due_again(self) -> bool:
        """Whether this run is compared with eager long after the first ones, which is so where eager fits the budget."""
        runs = self.program.runs
        if runs < COMPARED_AGAIN or runs & (runs - 1):
            return False
        if not self.fits_beside_eager:
            return isinstance(self.smaller, Smaller)
        return self.trace.peak_bytes <= self.program.schedule.budget_bytes


@dataclass(frozen=True)
class Parts:
    """A kind of batch that no plan fits as a whole: it runs part by part, each of which adds to the gradients."""

    sizes: list[int]
    weights: list[float]

    def __str__(self) -> str:
        """Such as `512 = 8 x 64`."""
        counts = Counter(self.sizes)
        return f"{sum(self.sizes)} = " + " + ".join(f"{count} x {size}" for size, count in counts.items())
