"""Sections `facts` and `bits`: a description of the machine, and a comparison of planned steps with eager, bit for bit."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from beside import eager_step, train
from torch import nn

import plimsoll
from plimsoll import devices

from .asking import Ask, NotHere, Row
from .gauge import Gauge, measured, plan_seconds
from .tasks import Task, build


def trained(task: Task, step: Callable[..., Any]) -> list[Any]:
    """Results of a few steps."""
    return train(task, torch.optim.AdamW(task.model.parameters(), 1e-3), step)


def are_equal(one: list[Any], other: list[Any]) -> bool:
    """Returns `True` if they are equal bit for bit."""
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)) for a, b in pairs)


def facts(ask: Ask) -> None:
    """Adds a row of the machine, and one of a small step with an allocator whose segments grow."""
    ask.arm("machine", lambda: machine(ask.device), fails="error")
    ask.arm("a step with expandable segments", lambda: expandable(ask.device), fails="error")


def machine(device: str) -> Row:
    """Versions, memory and the link's rates."""
    where = devices.on(torch.device(device))
    where.prepare()
    link = where.measure_link()
    return {
        "words": where.words(),
        "python": platform.python_version(),
        "plimsoll": plimsoll.__file__,
        "offload_bytes_per_second": link.offload,
        "prefetch_bytes_per_second": link.prefetch,
        "half_duplex": link.half_duplex,
        "host_limit_bytes": where.host_limit(),
        "free_bytes": where.free_bytes(),
    }


def expandable(device: str) -> Row:
    """Compares the bits of a small planned step under `expandable_segments:True`, which the comparisons use."""
    if not device.startswith("cuda"):
        raise NotHere("the CPU's allocator has no segments")
    from torch.cuda.memory import _set_allocator_settings

    def fresh() -> Task:
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU(), nn.Dropout(0.1))]
        model = nn.Sequential(*layers).to(device)
        x = torch.randn(4096, 1024, device=device)
        return Task(model, lambda x: model(x).square().mean(), (x,), [model])

    _set_allocator_settings("expandable_segments:True")
    try:
        task = fresh()
        expected = trained(task, eager_step(task))
        task = fresh()
        step = plimsoll.tune(task.loss, task.model, None, task.batch, "80%", verify=0, seconds=1)
        equal = are_equal(expected, trained(task, step))
        return {"bits_equal": equal, "fallback": step.fallback, "runs": step.program.runs_as}
    finally:
        _set_allocator_settings("expandable_segments:False")


def bits(ask: Ask) -> None:
    """Adds one row for eager, one with everything kept, one for each budget."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    name, device, small = ask.network, ask.device, ask.small
    gauge = Gauge(device)
    reference, again = (
        trained(t, eager_step(t)) for t in (build(name, device, small), build(name, device, small))
    )
    repeats = are_equal(reference, again)
    del again

    def in_eager() -> Row:
        task = build(name, device, small)
        return {"bits_equal": repeats, **measured(gauge, task, eager_step(task))}

    eager = ask.arm("eager", in_eager, fails="error")
    task = build(name, device, small)
    trace = plimsoll.trace(task.loss, task.model, *task.batch)
    floor, peak = trace.floor_bytes, trace.peak_bytes
    del task, trace
    for arm, budget in (
        ("all kept", 2 * peak),
        *((f"f {f}", int(floor + f * (peak - floor))) for f in (0.4, 0.1)),
    ):

        def planned(budget: int = budget) -> Row:
            row = within(ask, gauge, budget, reference)
            if "seconds" in eager:
                row["over_eager"] = row["seconds"] / eager["seconds"]
            return row

        ask.arm(arm, planned, fails="error", eager_repeats=repeats)


def within(ask: Ask, gauge: Gauge, budget: int, reference: list[Any]) -> Row:
    """Bits, time and memory of a step planned for a budget."""
    task = build(ask.network, ask.device, ask.small)
    start = gauge.clock()
    seconds = plan_seconds(ask.small)
    step = plimsoll.tune(task.loss, task.model, None, task.batch, budget, verify=0, seconds=seconds)
    tuning = gauge.clock() - start
    row: Row = {"bits_equal": are_equal(reference, trained(task, step)), "fallback": step.fallback}
    row["runs"] = step.program.runs_as
    timed = measured(gauge, task, step)
    program, schedule = step.program, step.program.schedule
    counts = program.counts
    row |= {
        "unplanned": None if counts is None else counts.unplanned + counts.unused,
        "tune_seconds": tuning,
        "predicted_seconds": schedule.makespan_seconds,
        "budget_bytes": schedule.budget_bytes,
        "pool_bytes": schedule.pool_bytes,
        "resident_bytes": step.trace.resident_bytes,
        "host_bytes": schedule.host_bytes,
        "recomputed_ops": schedule.recomputed_ops,
        "offloaded_bytes": schedule.offloaded_bytes,
        "copying_seconds": program.copying_seconds,
        "stalled_seconds": program.stalled_seconds,
    }
    if "peak_bytes" in timed:
        row["peak_over_budget"] = timed["peak_bytes"] / schedule.budget_bytes - 1
    return {**row, **timed}
