"""A plan and the run that followed it as a memory snapshot, for https://pytorch.org/memory_viz and
`python -m torch.cuda._memory_viz`.

Device 0 is the plan: every buffer of the pool under its tensor's name, and next to the pool the tensors that outlive the
step. Device 1 is the last run: every allocation of a call, at the allocator's address, until the plan closes its buffer.
Time is counted in commands.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import allocator
from .program import Program
from .tape import Role, aligned

PLANNED, ACTUAL = 0, 1


@dataclass(frozen=True)
class Span:
    """Bytes in use during a half-open range of time."""

    name: str
    address: int
    size: int
    opens: int
    closes: int


def write(program: Program, trace: dict[str, Any], names: dict[int, str], path: str | Path) -> None:
    """Writes the snapshot. `names` has the name of each parameter and buffer by its address."""
    program.bind()
    schedule = json.loads(program.schedule.to_json())
    end = len(schedule["commands"])
    planned = [*_planned(program, schedule, trace, end), *_residents(program, names, end)]
    actual = _actual(program, schedule, planned, end)
    devices = [planned, actual]
    snapshot = {
        "segments": [_segment(number, spans) for number, spans in enumerate(devices)],
        "device_traces": [_events(spans) for spans in devices],
        "allocator_settings": {},
        "external_annotations": [],
    }
    with open(path, "wb") as file:
        pickle.dump(snapshot, file)


def _planned(program: Program, schedule: dict[str, Any], trace: dict[str, Any], end: int) -> list[Span]:
    pool = program.pool_address
    spans = []
    for buffer in schedule["buffers"]:
        if "tensor" in buffer:
            tensor = trace["tensors"][buffer["tensor"]]
            size = buffer.get("bytes") or tensor["bytes"] - (buffer.get("first_byte") or 0)
            name = tensor["name"]
        else:
            op = trace["ops"][schedule["commands"][buffer["workspace_of"]]["op"]]
            name, size = f"{op['name']} (scratch)", op["workspace_bytes"]
        opens = 0 if buffer.get("opens") is None else buffer["opens"]
        closes = max(buffer["closes"], default=end - 1) + 1
        spans.append(Span(name, pool + buffer["offset"], size, opens, closes))
    return spans


def _residents(program: Program, names: dict[int, str], end: int) -> list[Span]:
    """Tensors that exist before the step or after it."""
    spans = []
    tape = program.tape
    gradients = {w.storage for _, w in tape.gradients if w is not None}
    for number, place in program.residents.items():
        storage = tape.storages[number]
        if storage.role is Role.KEPT:
            name = names.get(place.address, "a constant")
        elif number in gradients:
            parameter = next(p for p, w in tape.gradients if w is not None and w.storage == number)
            name = f"{names.get(parameter.data_ptr(), 'a parameter')} (gradient)"
        else:
            name = "the loss" if number == tape.loss.storage else "an output"
        spans.append(Span(name, place.address, aligned(storage.size), 0, end))
    return spans


def _actual(program: Program, schedule: dict[str, Any], planned: list[Span], end: int) -> list[Span]:
    computes = [n for n, command in enumerate(schedule["commands"]) if command["do"] == "compute"]
    by_address: dict[int, list[Span]] = {}
    for span in planned:
        by_address.setdefault(span.address, []).append(span)
    spans = [span for span in planned if span.opens == 0 and span.closes == end]
    there = {span.address for span in spans}
    for command, events in zip(computes, program.allocated(), strict=True):
        for kind, address, size in events:
            if kind == allocator.UNPLANNED:
                spans.append(Span("not planned", address, size, command, command + 1))
                continue
            if address in there:
                continue
            inside = [s for s in by_address.get(address, []) if s.opens <= command < s.closes]
            name, closes = (inside[0].name, inside[0].closes) if inside else ("scratch", command + 1)
            spans.append(Span(name, address, size, command, closes))
    return spans


def _events(spans: list[Span]) -> list[dict[str, Any]]:
    order = [(span.closes, 0, span) for span in spans] + [(span.opens, 1, span) for span in spans]
    events = []
    for time, opens, span in sorted(order, key=lambda entry: entry[:2]):
        for action in ("alloc",) if opens else ("free_requested", "free_completed"):
            event = {"action": action, "addr": span.address, "size": span.size, "stream": 0, "time_us": time}
            events.append({**event, "frames": [_frame(span)]})
    return events


def _segment(device: int, spans: list[Span]) -> dict[str, Any]:
    first = min((span.address for span in spans), default=0)
    last = max((span.address + span.size for span in spans), default=0)
    return {
        "device": device,
        "address": first,
        "total_size": last - first,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "frames": [],
        "blocks": [
            {"address": first, "size": last - first, "requested_size": 0, "state": "inactive", "frames": []}
        ],
    }


def _frame(span: Span) -> dict[str, Any]:
    return {"filename": "plimsoll", "line": 0, "name": span.name}
