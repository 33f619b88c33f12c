"""How long a planned step takes, learnt from running it on the sample when it is bound.

The planner has each op's seconds from a recording, where an op runs alone: there caches are cold, memory is new, and what lies
between two ops is not counted. Here the plan runs a few times. Each op takes the least of its times in there; their sum is
scaled to the fastest whole step, without the time in which it waited for copies; and the link is as fast as the copies were.
The plan stays as it is, and its prediction is made anew from those.

What it deliberately does not do: look for another plan. On a GPU, where events time ops within a stream, nothing runs.
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
"""The plan runs so often at least; more often where it is short, as short times are noisy."""
LONG_SECONDS = 0.5
"""Of a plan that takes longer, one run of each kind does."""


def timed(
    recorded: Recorded, program: Program, tensors: list[torch.Tensor], around: Callable[[], object]
) -> tuple[Recorded, Schedule] | None:
    """Trace and schedule with what runs of the program measured; none where a run did not end.

    `around` is what a step does besides. All is left as it was.
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
            return None  # the first step says so, and does what is to be done
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
