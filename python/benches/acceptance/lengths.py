"""Section `lengths`: 200 steps of sequences of varying lengths, in half of eager's memory for the longest.

Most sequences are short, and the longest comes late: a batch that has run for a hundred steps then runs out of memory. The
rival is Accelerate's `find_executable_batch_size` around the training, which restarts with a tenth less; Plimsoll has
buckets, and keeps the batch. Both run with the same limit on the memory that PyTorch's allocator takes from the driver.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from beside import eager_step

import plimsoll

from .asking import Ask, NotHere, Row, emptied, limited
from .batches import eagers_peak
from .gauge import Gauge, plan_seconds
from .racing import MARGIN
from .tasks import Task, build, of_size, optimizer_of

STEPS, SMALL_STEPS = 200, 12
RIVAL_SECONDS = 110.0
"""Seconds for the loop to end its training."""

IGNORED = -100
"""The label that is ignored."""


def lengths_of(longest: int, steps: int) -> list[int]:
    """A length for each step, the same each time: most are short, and the longest comes once, in the last quarter."""
    numbers = random.Random(0)
    some = [max(longest // 8, int(0.9 * longest * numbers.random() ** 2)) for _ in range(steps)]
    some[steps * 3 // 4] = longest
    return some


def batches(task: Task, size: int, lengths: list[int]) -> Iterator[tuple[Any, ...]]:
    """A batch of this many sequences for each length."""
    samples = of_size(task.batch, size)
    for length in lengths:
        yield tuple(part[:, :length].contiguous() for part in samples)


def lengths(ask: Ask) -> None:
    """Runs the loop, then ours: Plimsoll installs its allocator in front of PyTorch's at first use."""
    peak = eagers_peak(ask, has_optimizer=True)
    if peak is None:
        return
    # In tiny sizes weights and state take most of the memory.
    budget = int(peak * (0.9 if ask.small else 0.5))
    task = build(ask.network, ask.device, ask.small)
    size, longest = task.batch[0].shape
    del task
    some = lengths_of(longest, SMALL_STEPS if ask.small else STEPS)
    more = {"budget_bytes": budget, "wanted_batch": size}
    ask.arm(
        "find_executable_batch_size",
        lambda: by_shrinking(ask, budget, size, some),
        seconds=2 * RIVAL_SECONDS,
        **more,
    )
    ask.arm("plimsoll, buckets", lambda: by_buckets(ask, budget, some), fails="error", **more)


def by_shrinking(ask: Ask, budget: int, size: int, some: list[int], seconds: float = RIVAL_SECONDS) -> Row:
    """Trains in eager; each time that memory runs out, restarts from the first step with a tenth less."""
    try:
        import accelerate
        from accelerate.utils import find_executable_batch_size
    except ImportError:
        raise NotHere("accelerate is not installed") from None
    gauge = Gauge(ask.device)
    end, begun, steps = time.monotonic() + seconds, 0, 0

    @find_executable_batch_size(starting_batch_size=size)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        nonlocal begun, steps
        begun += 1
        emptied(ask.device)  # of the training before
        task = build(ask.network, ask.device, ask.small)
        step, optimizer = eager_step(task), optimizer_of(task)
        for batch in batches(task, batch_size, some):
            if time.monotonic() > end:
                raise TimeoutError(f"its time is over after {steps} steps and {begun - 1} restarts")
            task.model.zero_grad()
            step(*batch)
            optimizer.step()
            steps += 1
        return batch_size

    gauge.reset()
    start = gauge.clock()
    with limited(ask.device, budget):
        last = train()
        spent = gauge.clock() - start
    row = survived(gauge, last, some, spent)
    # Memory ran out once for each restart.
    return {
        **row,
        "ooms": begun - 1,
        "lost_steps": steps - len(some),
        "loop": f"accelerate {accelerate.__version__}",
    }


def by_buckets(ask: Ask, budget: int, some: list[int]) -> Row:
    """Trains by a plan for each of three lengths, and pads to them."""
    gauge, task = Gauge(ask.device), build(ask.network, ask.device, ask.small)
    optimizer = optimizer_of(task)
    size, longest = task.batch[0].shape
    buckets = plimsoll.Buckets([longest // 4, longest // 2, longest], {0: 0, 1: IGNORED})
    # The budget does not cover the allocator's rounding.
    within = budget - (MARGIN if gauge.is_cuda else 0)
    gauge.reset()
    before, start = gauge.ooms(), gauge.clock()
    with limited(ask.device, budget):
        step = plimsoll.tune(
            task.loss,
            task.model,
            optimizer,
            task.batch,
            within,
            verify=0,
            seconds=plan_seconds(ask.small),
            buckets=buckets,
        )
        tuned, in_tuning = gauge.clock() - start, gauge.ooms()
        fallbacks = trained(task, step, optimizer, batches(task, size, some))
        spent = gauge.clock() - start
    row = {**survived(gauge, size, some, spent), "tune_seconds": tuned, "fallback": fallbacks}
    if before is not None and in_tuning is not None:
        # Recording tries the whole step first, and continues in pieces.
        row |= {"ooms_in_tuning": in_tuning - before, "ooms": (gauge.ooms() or 0) - in_tuning}
    return row


def trained(
    task: Task, step: Callable[..., Any], optimizer: Any, some: Iterator[tuple[Any, ...]]
) -> str | None:
    """Runs the steps; returns the reasons why some ran without a plan, or `None`."""
    fallbacks: dict[str, int] = {}
    for batch in some:
        task.model.zero_grad()
        step(*batch)
        optimizer.step()
        why = getattr(step, "fallback", None)
        if why is not None:
            fallbacks[why] = fallbacks.get(why, 0) + 1
    return "; ".join(f"{count} steps: {why}" for why, count in fallbacks.items()) or None


def survived(gauge: Gauge, size: int, some: list[int], seconds: float) -> Row:
    """Row of a training that ended; its time includes everything before its last start."""
    row: Row = {"steps": len(some), "last_batch": size, "train_seconds": seconds}
    row["tokens_per_second"] = size * sum(some) / seconds
    return {**row, **gauge.peaks()}
