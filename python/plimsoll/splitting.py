"""A batch that no plan fits: split into parts, or refused with the largest batch that fits.

The planner names the op that needs most, its layer and the bytes that are short. A refusal adds what to do: the batch to give
instead, or, where not even one sample fits, a budget that is enough and what else would need less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _core, batches, planning, shortage
from ._core import show_bytes
from .errors import BadInput, NoPlan
from .planned import Parts
from .planner import Planner
from .planning import Recorded
from .recording import Loss

ENOUGH = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 1.1)
"""So far between floor and peak a budget is tried that is to be enough."""


SOME_SHARE = 0.5
"""What the loss of a part counts while it is not known."""


class Splitting:
    """One batch, as it was recorded, and why no plan fits it."""

    def __init__(
        self, planner: Planner, fn: Loss, batch: tuple[Any, ...], recorded: Recorded, no_plan: NoPlan
    ) -> None:
        self._planner = planner
        self._fn = fn
        self._batch = batch
        self._size = batches.size_of(batch)
        self._recorded = recorded
        self._no_plan = no_plan

    def parts(self) -> tuple[Parts, str]:
        """The fewest parts that a plan fits, and whether their losses make that of the batch as a mean or as a sum. Raises
        `NoPlan` where there are none."""
        if self._size == 1:
            raise self._refused(least=self._recorded.trace)
        try:
            return self._parts()
        except NoPlan:
            raise
        except Exception as error:  # the user's code, which may know one batch size only
            if shortage.is_one(error):
                raise
            raise self._refused(
                "Which smaller batch fits is not known, as the step cannot be recorded at another batch size "
                f"({type(error).__name__}: {error})"
            ) from error

    def _parts(self) -> tuple[Parts, str]:
        planner, size = self._planner, self._size
        family, _ = batches.family(
            self._fn,
            planner.model,
            self._batch,
            planner.resident_beside(),
            type(planner.model).__name__,
            adds=True,
            tape_of=lambda part: self._record(part).tape,
        )
        limits = (*planner.link.rates, batches.PLAN_SECONDS, planner.host_budget)
        largest = family.largest(planner.budget_bytes, size - 1, *limits) or 0
        try:
            losses = self._losses()
        except BadInput as why_not:
            largest = largest and largest_of(self._fits, largest, size - 1)
            if largest > 0:
                raise self._instead(str(why_not), largest) from None
        while largest > 0:
            sizes = batches.part_sizes(size, largest)
            if self._fits(sizes[0]):
                return Parts(sizes, batches.weights(losses, sizes)), losses
            largest -= max(1, largest // 16)  # the estimate was too high
        raise self._refused(
            "One sample at a time, whose gradients are added, does not fit either", least=self._one(family)
        )

    def _one(self, family: _core.Batches) -> _core.Trace:
        """One sample as it is recorded, or as larger batches predict it where the step cannot be: batch norm needs two."""
        try:
            return self._record(batches.taken(self._batch, 0, 1)).trace
        except Exception as error:
            if shortage.is_one(error):
                raise
            return family.at(1)

    def _record(self, part: tuple[Any, ...]) -> Recorded:
        """A part as those after the first are, which take most: with its share of the loss, and with gradients to add to."""
        return self._planner.record(batches.weighted(self._fn, SOME_SHARE), part, adds=True)

    def _losses(self) -> str:
        """What the losses of parts make. Raises `BadInput` where that is not the loss of the batch."""
        if self._recorded.tape.others is not None:
            raise BadInput("A step that gives more than its loss is not split")
        return batches.losses_make(self._fn, self._planner.model, self._batch)

    def _fits(self, size: int) -> bool:
        """Whether a plan fits a smaller batch that adds to gradients, as it is when it is recorded."""
        recorded = self._record(batches.taken(self._batch, 0, size))
        try:
            self._planner.schedule(recorded)
        except NoPlan:
            return False
        return True

    def _instead(self, why_not: str, largest: int) -> NoPlan:
        """The refusal of a batch that is not to be split, of which so many samples fit."""
        error = self._refused(
            f"{why_not}. The largest batch that fits, also where gradients are added up, is {largest}: give batches of that, "
            "and accumulate gradients",
            planning.floor_hint(self._recorded.trace),
        )
        error.largest_batch = largest
        return error

    def _refused(self, *why: str, least: _core.Trace | None = None) -> NoPlan:
        """The refusal, with more of why, and with what helps where not even the `least` batch fits."""
        error, planner = self._no_plan, self._planner
        words = [str(error) if least is None else str(error).removesuffix(", or lower the batch")]
        if self._recorded.tape.adds_to_gradients():
            words.append(
                "The step adds to gradients that were there when it was called, which takes more: where that was not meant, "
                "call `optimizer.zero_grad()` before the step"
            )
        words += filter(None, why)
        if least is not None:
            options = (planner.link, batches.PLAN_SECONDS, planner.host_budget)
            error.enough_bytes = enough(least, lambda budget: planning.plan(least, budget, *options))
            state = planning.state_bytes(planner.device, planner.optimizer)
            words.append(what_helps(least, planner.budget_bytes, error.enough_bytes, state))
        error.args = (". ".join(words),)
        return error


def largest_of(fits: Callable[[int], bool], guess: int, limit: int) -> int:
    """The largest batch up to a limit that fits, looked for from a guess on; 0 where none does."""
    low, high, at, step = 0, limit + 1, guess, 1
    while high - low > 1:
        if fits(at):
            low, at = at, at + step
        else:
            high, at = at, at - step
        step *= 2
        if not low < at < high:
            at = (low + high) // 2
    return low


def enough(trace: _core.Trace, plan: Callable[[int], object]) -> int | None:
    """A budget that a plan fits; none where no plan was found up to what eager takes, and a tenth more."""
    for share in ENOUGH:
        least = trace.floor_bytes + int(share * (trace.peak_bytes - trace.floor_bytes))
        budget = _core.parse_size(show_bytes(least + least // 100), 0)  # what can be read and written
        try:
            plan(budget)
        except NoPlan:
            continue
        return budget
    return None


def what_helps(trace: _core.Trace, budget: int, enough_bytes: int | None, state: int) -> str:
    """What to do where a batch that cannot be made smaller does not fit: less of what takes as much as is short, or of all."""
    floor, resident = trace.floor_bytes, trace.resident_bytes
    if planning.logits_decide(trace):
        less = (
            "a loss that never holds all logits (`F.linear_cross_entropy` of torch 2.15, Liger's, "
            "`plimsoll.adapters.cut_cross_entropy`)"
        )
    else:
        less = "smaller samples, such as shorter sequences"
    takes = [
        (floor - resident, f"{less}, for {show_bytes(floor - resident)} in one op"),
        (state, f"an optimizer with less state, such as torchao's of 8 bits, for {show_bytes(state)}"),
        (
            resident - state,
            f"fewer or smaller trained parameters, for {show_bytes(resident - state)} of what stays",
        ),
    ]
    ways = [] if enough_bytes is None else [f"a budget of {show_bytes(enough_bytes)}"]
    takes = [(taken, way) for taken, way in takes if taken > 0]
    ways += [way for taken, way in takes if taken >= floor - budget] or [way for _, way in takes]
    return (
        f"At batch {trace.batch} the floor is {show_bytes(floor)} ({planning.place_of(trace.floor_layer)}). What helps: "
        f"{'; '.join(ways)}. Checkpointing does not, as plans recompute"
    )
