"""Descriptions of the choice for a kind of batch: in one line, and line by line."""

from __future__ import annotations

from . import _core, planning
from ._core import show_bytes, show_seconds
from .devices import Device
from .interconnect import Interconnect
from .link import Link
from .planned import Planned
from .smaller import Smaller
from .tape import Role


def moved(recomputed_ops: int, recomputed_bytes: int, swapped_bytes: int) -> str:
    """Describes what is recomputed and swapped in an iteration: ops, the bytes that they write
    again, and the bytes that leave the device."""
    if recomputed_ops == 0 and swapped_bytes == 0:
        return "everything stays"
    return f"{_ops(recomputed_ops, recomputed_bytes)} recomputed, {show_bytes(swapped_bytes)} swapped out"


def _ops(count: int, written: int) -> str:
    return f"{count} ops ({show_bytes(written)})" if count > 0 else "0 ops"


def in_one_line(planned: Planned, device: Device, exchange: _core.Exchange | None = None) -> str:
    """Describes batch, peak, what is recomputed and swapped, and the predicted time. The time that an exchange adds stands
    separately."""
    trace, schedule = planned.trace, planned.program.schedule
    peak = trace.resident_bytes + schedule.pool_bytes
    words = [
        f"batch {trace.batch}",
        "lr unchanged",
        f"peak {show_bytes(peak)} of {show_bytes(schedule.budget_bytes)}",
    ]
    words.append(moved(schedule.recomputed_ops, schedule.recomputed_bytes, schedule.offloaded_bytes))
    all_stays = schedule.recomputed_ops == 0 and schedule.offloaded_bytes == 0
    if schedule.makespan_seconds is not None and trace.compute_seconds > 0:
        words.append(f"{schedule.makespan_seconds / trace.compute_seconds - 1:+.1%}")
        if exchange is not None:
            words.append(
                f"exchanging {show_bytes(exchange.bytes)} {exchange.exposed_seconds / trace.compute_seconds:+.1%}"
            )
    if device.graphs is not None:
        words.append("call by call" if planned.program.no_graph else "one CUDA graph")
    if planning.logits_decide(trace) and not all_stays:
        words.append(
            "floor set by the logits (`F.linear_cross_entropy`, Liger's and Cut Cross-Entropy hold fewer)"
        )
    return ", ".join(words)


def line_by_line(
    planned: Planned,
    device: Device,
    link: Link,
    exchange: _core.Exchange | None = None,
    interconnect: Interconnect | None = None,
) -> str:
    """Describes the same, and the contents of the plan."""
    trace, schedule = planned.trace, planned.program.schedule
    constants = sum(s.role is Role.KEPT for s in planned.tape.storages)
    lines = [
        in_one_line(planned, device, exchange),
        f"  ops           {len(trace)}, {show_seconds(trace.compute_seconds)} together",
        f"  eager's peak  {show_bytes(trace.peak_bytes)}",
        f"  floor         {show_bytes(trace.floor_bytes)} ({planning.place_of(trace.floor_layer)})",
        f"  resident      {show_bytes(trace.resident_bytes)}: {constants} parameters, buffers and constants; "
        "gradients; the optimizer's state",
        f"  pool          {show_bytes(schedule.pool_bytes)}",
        f"  host          {show_bytes(schedule.host_bytes)}",
        f"  recomputed    {_ops(schedule.recomputed_ops, schedule.recomputed_bytes)}",
        f"  swapped       {show_bytes(schedule.offloaded_bytes)} out, {show_bytes(schedule.prefetched_bytes)} in",
        f"  link          {link}",
        f"  runs          {planned.program.runs_as}",
    ]
    if hint := planning.floor_hint(trace):
        lines.insert(4, f"                {hint}")
    measured = planned.recorded.measured
    if measured is not None:
        said = f"in pieces: {measured.tried} of {len(trace)} calls, at most {show_bytes(measured.peak_bytes)} at once"
        if isinstance(planned.smaller, Smaller):
            said += f"; compared with eager at batch {planned.smaller.batch}"
        lines.append(f"  recorded      {said}")
    if schedule.makespan_seconds is not None and schedule.bound_seconds is not None:
        predicted, bound = map(show_seconds, (schedule.makespan_seconds, schedule.bound_seconds))
        if planned.alone_seconds is not None:
            predicted += f", from runs of the plan; {show_seconds(planned.alone_seconds)} by ops alone"
        lines.append(f"  predicted     {predicted}; no plan is faster than {bound} ({schedule.status})")
    if exchange is not None:
        added, whole = map(show_seconds, (exchange.exposed_seconds, exchange.seconds))
        buckets = f"{show_bytes(exchange.bytes)} in {len(exchange)} buckets over {interconnect}"
        lines.append(f"  exchange      {buckets} add {added}: {whole} a step")
    return "\n".join(lines)
