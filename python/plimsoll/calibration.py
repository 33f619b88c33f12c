"""Step time of a plan, calibrated by running it on the sample when it is bound.

The planner has each op's seconds from a recording, where an op runs alone: caches are cold, memory is new, and the time
between two ops is not counted. Here the plan runs a few times. Each op takes its shortest time of these runs; the sum of
these is scaled to the fastest whole step, without its stalls for copies; the link rates are those of the copies. The plan
stays as it is; its prediction is made anew from these times.

What this file deliberately does not do: search for a different plan. Nothing runs on a GPU, where events time ops within a
stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from . import shortage
from ._core import Schedule
from .errors import PoolInUse
from .planning import Recorded
from .program import Diverged, Program, Unplanned
from .verification import State

LEAST_RUNS, MOST_RUNS = 3, 20
ENOUGH_SECONDS = 0.2
"""Limits for the number of runs: a short plan runs more often, since short times are noisy."""
LONG_SECONDS = 0.5
"""A plan that takes longer than this runs once of each kind."""


def timed(
    recorded: Recorded, program: Program, tensors: list[torch.Tensor], around: Callable[[], object]
) -> tuple[Recorded, Schedule] | None:
    """Returns trace and schedule with the measurements of some runs of the program; `None` if a run did not end.

    `around` is the rest of a step's work. Everything is left as it was.
    """
    before: State | None = None
    fastest, besides, stalled = float("inf"), float("inf"), 0.0
    least: list[float] = []
    copied = [float("inf"), float("inf")]
    start = time.perf_counter()
    number = 0
    try:
        before = State(recorded.tape)
        with program.trial():
            program.run(tensors)
            wanted = LEAST_RUNS if time.perf_counter() - start < LONG_SECONDS else 1
            while number < wanted or (number < MOST_RUNS and time.perf_counter() - start < ENOUGH_SECONDS):
                began = time.perf_counter()
                around()
                between = time.perf_counter()
                program.run(tensors)
                ended = time.perf_counter()
                besides = min(besides, between - began)
                if ended - between < fastest:
                    fastest, stalled = ended - between, program.stalled_seconds
                program.run(tensors, is_timed=True)
                assert program.spans is not None
                computes, *copies = ([end - start for start, end in stream] for stream in program.spans)
                least = list(map(min, least, computes)) if least else computes
                copied = list(map(min, copied, map(sum, copies)))
                program.spans = None
                number += 1
    except Exception as error:
        if isinstance(error, Diverged | Unplanned | PoolInUse) or shortage.is_one(error):
            return None  # the first step reports the error and handles it
        raise
    finally:
        if before is not None:
            before.restore()
    schedule = program.schedule
    share = max(0.0, fastest + besides - stalled) / sum(least)
    seconds = [float("inf")] * len(recorded.trace)
    for compute, took in zip(schedule.computes(), least, strict=True):
        seconds[compute.op] = min(seconds[compute.op], took * share)
    moved = (schedule.offloaded_bytes, schedule.prefetched_bytes)
    rates = [
        size / took if size and took > 0 else rate
        for size, took, rate in zip(moved, copied, schedule.rates, strict=True)
    ]
    trace = recorded.trace.with_seconds(seconds)
    return replace(recorded, trace=trace), schedule.timed(trace, rates[0], rates[1])
