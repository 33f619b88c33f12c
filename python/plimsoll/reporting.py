"""`step.report`: the facts about a planned step, handed to the Rust report, which makes the page.

Rust makes the page, its numbers and the comparison with other policies; this file adds the facts that only PyTorch knows:
the measurements, the eager times, and the machine.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
import time

import torch

from . import _core
from ._core import show_bytes
from .program import Program, seconds_of

COMPARING_SECONDS = 20.0
"""Seconds of planning other policies for comparison."""


def page(
    trace: _core.Trace,
    program: Program,
    eager_seconds: float,
    fallback: str | None,
    seconds: float,
) -> str:
    """Report of one kind of batch as HTML. `eager_seconds` is infinite if eager was not timed."""
    schedule = program.schedule
    measured = None if program.spans is None else seconds_of(program.spans)
    eager = eager_seconds if math.isfinite(eager_seconds) else None
    warnings = program.device.notes()
    if fallback:
        warnings.append(f"The last batch ran in eager: {fallback}.")
    planned = _setting("the plan", trace, schedule.makespan_seconds, measured)
    planned["peak_bytes"] = trace.resident_bytes + schedule.pool_bytes
    kept = _setting("eager", trace, trace.compute_seconds, eager)
    kept["peak_bytes"] = trace.peak_bytes
    if trace.peak_bytes > schedule.budget_bytes:
        over = show_bytes(trace.peak_bytes - schedule.budget_bytes)
        kept["note"] = f"its peak is {over} above the budget of {show_bytes(schedule.budget_bytes)}"
    known = {
        "device": program.device.words(),
        "machine": [
            ("system", platform.platform()),
            ("threads", str(torch.get_num_threads())),
            ("Python", platform.python_version()),
        ],
        "command": shlex.join(["python", *sys.argv]) if sys.argv and sys.argv[0] else None,
        "unix_seconds": int(time.time()) if measured else None,
        "warnings": warnings,
        "settings": [planned, kept],
    }
    return _core.report_page(schedule, program.spans or ([], [], []), json.dumps(known), seconds)


def _setting(
    what: str, trace: _core.Trace, predicted: float | None, measured: float | None
) -> dict[str, object]:
    return {
        "what": what,
        "batch": trace.batch,
        "predicted_iteration_seconds": predicted,
        "iteration_seconds": measured,
        "samples_per_second": trace.batch / measured if measured else None,
    }
