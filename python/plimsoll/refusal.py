"""A batch that no plan fits: the refusal says what would fit.

The planner names the op that needs most, its layer and the missing bytes. To that come the largest batch that fits, for a
loop that accumulates gradients, and a sufficient budget; and, if not even one sample fits, ways to need less. No batch is
split here: only the user knows which dimension counts samples, and how the losses of the parts combine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _core, batches, planning, shortage
from ._core import show_bytes
from .errors import NoPlan
from .planner import Planner
from .planning import Recorded
from .recording import Loss

ENOUGH = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 1.1)
"""Positions between floor and peak at which a sufficient budget is tried."""


def refused(
    planner: Planner, fn: Loss, batch: tuple[Any, ...], recorded: Recorded, no_plan: NoPlan
) -> NoPlan:
    """Returns the planner's refusal of a batch, with what would fit. Records smaller batches, and changes nothing."""
    size = batches.size_of(batch)
    words = [str(no_plan).removesuffix(", or lower the batch")]
    if recorded.tape.adds_to_gradients():
        words.append(
            "The step adds to gradients that were there when it was called, which takes more: if that was not meant, call "
            "`optimizer.zero_grad()` before the step"
        )
    least = recorded.trace
    if size > 1:
        try:
            no_plan.largest_batch, least = _smaller(planner, fn, batch)
        except NoPlan:
            raise
        except Exception as error:  # the user's code, which may support only one batch size
            if shortage.is_one(error):
                raise
            words.append(
                "Which smaller batch fits is not known, as the step cannot be recorded at another batch size "
                f"({type(error).__name__}: {error})"
            )
    fits = no_plan.largest_batch
    options = (planner.link, batches.PLAN_SECONDS, planner.host_budget)
    no_plan.enough_bytes = enough(
        recorded.trace, lambda budget: planning.plan(recorded.trace, budget, *options)
    )
    if fits is None:
        if least is not recorded.trace:
            words.append("One sample at a time, whose gradients are added, does not fit either")
        state = planning.state_bytes(planner.device, planner.optimizer)
        words.append(what_helps(least, planner.budget_bytes, no_plan.enough_bytes, state))
    else:
        words.append(
            f"The largest batch that fits (the first size of its tensors), also where gradients are added up, is {fits}: give "
            f"batches of that, and accumulate {-(-size // fits)} of them for an update of {size} (`plimsoll.suggest` prints "
            "the loop)"
        )
        if no_plan.enough_bytes is not None:
            words.append(f"For the whole batch a budget of {show_bytes(no_plan.enough_bytes)} is enough")
        words.append(planning.floor_hint(recorded.trace))
    no_plan.args = (". ".join(filter(None, words)),)
    return no_plan


def _smaller(planner: Planner, fn: Loss, batch: tuple[Any, ...]) -> tuple[int | None, _core.Trace]:
    """Returns the largest batch that adds to gradients and has a plan, if there is one, and the trace of one sample."""

    def record(part: tuple[Any, ...]) -> Recorded:
        return planner.record(fn, part, adds=True)

    def fits(size: int) -> bool:
        recorded = record(batches.taken(batch, 0, size))
        try:
            planner.schedule(recorded)
        except NoPlan:
            return False
        return True

    size = batches.size_of(batch)
    family, _ = batches.family(
        fn,
        planner.model,
        batch,
        planner.resident_beside(),
        type(planner.model).__name__,
        adds=True,
        tape_of=lambda part: record(part).tape,
    )
    limits = (*planner.link.rates, batches.PLAN_SECONDS, planner.host_budget)
    guess = family.largest(planner.budget_bytes, size - 1, *limits) or 0
    largest = guess and largest_of(fits, guess, size - 1)
    if largest > 0:
        return largest, family.at(1)
    try:
        return None, record(batches.taken(batch, 0, 1)).trace
    except Exception as error:
        if shortage.is_one(error):
            raise
        return None, family.at(1)  # predicted from larger batches: batch norm needs two samples


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
    """Advice where not even one sample fits: the budget that is enough for the whole batch, or reducing a part of the sample's
    memory that takes as much as is missing, or all of them."""
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
    ways = [] if enough_bytes is None else [f"a budget of {show_bytes(enough_bytes)} for the whole batch"]
    takes = [(taken, way) for taken, way in takes if taken > 0]
    ways += [way for taken, way in takes if taken >= floor - budget] or [way for _, way in takes]
    return (
        f"At batch {trace.batch} the floor is {show_bytes(floor)} ({planning.place_of(trace.floor_layer)}). What helps: "
        f"{'; '.join(ways)}. Checkpointing does not, as plans recompute"
    )
