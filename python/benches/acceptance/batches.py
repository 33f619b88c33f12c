"""Section `batch`: the batch that fits in half of eager's peak, found by loops that run out of memory, and by `suggest`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from beside import eager_step

import plimsoll

from .asking import Ask, NotHere, Row, limited
from .finders import LOOPS, Tries
from .gauge import Gauge, measured
from .tasks import build, of_size, optimizer_of

LOOP_SECONDS = 40.0
"""Seconds for one loop to find its batch."""


def eagers_peak(ask: Ask, has_optimizer: bool = False) -> int | None:
    """Eager's peak bytes. `None` if unknown, which is a row."""

    def eager() -> Row:
        task, gauge = build(ask.network, ask.device, ask.small), Gauge(ask.device)
        optimizer = optimizer_of(task) if has_optimizer else None
        timed = measured(gauge, task, eager_step(task), optimizer)
        if "peak_bytes" in timed:
            return timed
        # The CPU has no count.
        trace = plimsoll.trace(task.loss, task.model, *task.batch, optimizer=optimizer)
        return {**timed, "whole_bytes": trace.peak_bytes}

    row = ask.arm("eager", eager, fails="error")
    return row.get("peak_bytes", row.get("whole_bytes"))


def batch(ask: Ask) -> None:
    """Runs the loops first: Plimsoll installs its allocator in front of PyTorch's at first use."""
    peak = eagers_peak(ask)
    if peak is None:
        return
    budget = peak // 2
    for arm, loop in LOOPS.items():
        ask.arm(
            arm,
            lambda loop=loop: finding(ask, loop, budget),  # type: ignore[misc]
            seconds=2 * LOOP_SECONDS,
            budget_bytes=budget,
        )
    ask.arm("suggest", lambda: suggested(ask, budget), fails="error", budget_bytes=budget)


def finding(ask: Ask, loop: Callable[[Callable[[int], bool]], int], budget: int) -> Row:
    """Row of a loop within this many bytes of the GPU."""
    if not ask.device.startswith("cuda"):
        raise NotHere("the CPU's memory is not limited")
    with limited(ask.device, budget):
        return found(loop, ask.network, ask.device, ask.small, LOOP_SECONDS)


def found(
    loop: Callable[[Callable[[int], bool]], int], name: str, device: str, small: bool, seconds: float
) -> Row:
    """The batch that a loop finds in this many seconds, how often memory ran out, and the speed of the batch in eager."""
    gauge, task = Gauge(device), build(name, device, small)
    step, sample = eager_step(task), task.batch

    def run(count: int) -> None:
        task.model.zero_grad()
        step(*of_size(sample, count))

    tries, start = Tries(run, seconds), gauge.clock()
    try:
        size = loop(tries)
    except TimeoutError as late:
        return {"not_measured": f"not measured: {late}"}
    row = {"find_seconds": gauge.clock() - start, "tries": tries.count, "ooms": tries.ooms}
    if not size:
        return {**row, "failed": "does not fit: not one sample runs"}
    task.batch = of_size(sample, size)
    timed = measured(gauge, task, step)
    return {**row, "batch": size, "samples_per_second": size / timed["seconds"], **timed}


def suggested(ask: Ask, budget: int) -> Row:
    """Recommendation of `suggest` if the batch need not be kept."""
    gauge, task = Gauge(ask.device), build(ask.network, ask.device, ask.small)
    optimizer = torch.optim.SGD(task.model.parameters(), 0.01)
    start = gauge.clock()
    try:
        answer = plimsoll.suggest(task.loss, task.model, optimizer, task.batch, budget, keep_batch=False)
    except plimsoll.NoPlan as none:
        return {"no_plan": str(none)}
    return {
        "batch": answer.batch,
        "samples_per_second": answer.samples_per_second,
        "peak_bytes": answer.peak_bytes,
        "find_seconds": gauge.clock() - start,
        "words": str(answer),
    }
