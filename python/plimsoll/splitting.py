"""A batch that no plan fits: split into parts, or refused with the largest batch that fits.

The planner names the op that needs most, its layer and the missing bytes. A refusal adds advice: a smaller batch, or, if
not even one sample fits, a sufficient budget and ways to need less.
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
"""Positions between floor and peak at which a sufficient budget is tried."""


SOME_SHARE = 0.5
"""Weight of a part's loss while it is unknown."""


class Splitting:
    """One recorded batch, and the reason why no plan fits it."""

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
        """Returns the fewest parts that a plan fits, and the rule by which their losses make that of the batch: `mean` or
        `sum`. Raises `NoPlan` if there are none."""
        if self._size == 1:
            raise self._refused(least=self._recorded.trace)
        try:
            return self._parts()
        except NoPlan:
            raise
        except Exception as error:  # the user's code, which may support only one batch size
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
        """Trace of one sample as recorded, or as predicted from larger batches if it cannot be
        recorded: batch norm needs two."""
        try:
            return self._record(batches.taken(self._batch, 0, 1)).trace
        except Exception as error:
            if shortage.is_one(error):
                raise
            return family.at(1)

    def _record(self, part: tuple[Any, ...]) -> Recorded:
        """Records a part other than the first, which takes most: with its share of the loss, and with gradients to add to."""
        return self._planner.record(batches.weighted(self._fn, SOME_SHARE), part, adds=True)

    def _losses(self) -> str:
        """Rule by which the losses of parts make the loss of the batch. Raises `BadInput` if there is none."""
        if self._recorded.tape.others is not None:
            raise BadInput("A step that gives more than its loss is not split")
        return batches.losses_make(self._fn, self._planner.model, self._batch)

    def _fits(self, size: int) -> bool:
        """Returns `True` if a plan fits a smaller batch that adds to gradients, as recorded."""
        recorded = self._record(batches.taken(self._batch, 0, size))
        try:
            self._planner.schedule(recorded)
        except NoPlan:
            return False
        return True

    def _instead(self, why_not: str, largest: int) -> NoPlan:
        """The refusal of a batch that is not to be split, of which this many samples fit."""
        error = self._refused(
            f"{why_not}. The largest batch that fits, also where gradients are added up, is {largest}: give batches of that, "
            "and accumulate gradients",
            planning.floor_hint(self._recorded.trace),
        )
        error.largest_batch = largest
        return error

    def _refused(self, *why: str, least: _core.Trace | None = None) -> NoPlan:
        """The refusal, with further reasons, and with advice if not even the `least` batch fits."""
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
    """Largest batch up to a limit that fits, searched from a guess on; 0 if none does."""
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
    """A budget that a plan fits; `None` if no plan was found up to eager's memory plus a tenth."""
    for share in ENOUGH:
        least = trace.floor_bytes + int(share * (trace.peak_bytes - trace.floor_bytes))
        budget = _core.parse_size(show_bytes(least + least // 100), 0)  # a value that can be read and typed
        try:
            plan(budget)
        except NoPlan:
            continue
        return budget
    return None


def what_helps(trace: _core.Trace, budget: int, enough_bytes: int | None, state: int) -> str:
    """Advice for a batch that cannot be made smaller and does not fit: reduce a part that takes as
    much as is missing, or all of them."""
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
