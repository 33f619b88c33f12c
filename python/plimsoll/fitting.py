"""`fits`: a check of a step against a memory budget before anything large runs.

Shapes come from fake tensors, so that the check works for a step that fits no memory at all. Scratch and seconds come from
two recordings of small batches, if the model itself fits the budget; else the answer says that it does not include them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from . import _core, batches, devices, planning, recording
from ._core import show_bytes
from .errors import BadInput, NoPlan, Refused
from .link import Link
from .recorder import NOTHING_KNOWN, Known
from .recording import Loss
from .tape import aligned, to_document


@dataclass(frozen=True)
class Fit:
    """Answer of `fits`; true if the step fits the budget."""

    batch: int
    budget_bytes: int
    host_budget_bytes: int | None
    """Host memory limit for swapped tensors; `None` means unlimited."""
    peak_bytes: int
    """Bytes that eager takes."""
    floor_bytes: int
    """Smallest feasible budget."""
    floor_layer: str
    """Layer that determines the floor."""
    floors: list[tuple[str, int]]
    """By layer: smallest feasible budget for that layer alone, largest first."""
    planned_bytes: int | None
    """Bytes of a plan within the budget; `None` if there is none."""
    largest_batch: int | None
    """Largest batch that a plan fits; `None` if not even one sample fits, or for the reason in `why_no_largest`."""
    why_no_largest: str
    why_not: str
    """Reason why no plan fits: the op, its layer, and the bytes that it needs of the budget or of
    the host's memory; empty if one fits."""
    is_measured: bool
    """`True` if scratch of libraries is counted."""
    hint: str
    """Other ways to lower the floor."""

    def __bool__(self) -> bool:
        """Returns `True` if a plan fits."""
        return self.planned_bytes is not None

    def __str__(self) -> str:
        """The answer in a few lines."""
        budget = show_bytes(self.budget_bytes)
        answer = "does not fit" if self.planned_bytes is None else "fits"
        host = (
            ""
            if self.host_budget_bytes is None
            else f" with {show_bytes(self.host_budget_bytes)} of the host"
        )
        lines = [f"batch {self.batch} {answer} in {budget}{host}"]
        eager = "fits" if self.peak_bytes <= self.budget_bytes else "does not fit"
        lines.append(f"  eager takes   {show_bytes(self.peak_bytes)}, which {eager}")
        if self.planned_bytes is not None:
            lines.append(f"  a plan takes  {show_bytes(self.planned_bytes)}")
        lines.append(
            f"  floor         {show_bytes(self.floor_bytes)} ({planning.place_of(self.floor_layer)})"
        )
        for layer, needed in self.floors[1:4]:
            lines.append(f"                {show_bytes(needed)} ({planning.place_of(layer)})")
        largest = self.why_no_largest or ("none" if self.largest_batch is None else str(self.largest_batch))
        lines.append(f"  largest batch {largest}")
        if self.why_not:
            lines.append(f"  {self.why_not}")
        if not self.is_measured:
            lines.append("  without the scratch of libraries, which is not known before the step runs")
        if self.hint:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)


def fits(
    fn: Loss,
    model: torch.nn.Module,
    *sample: Any,
    budget: int | str,
    optimizer: torch.optim.Optimizer | None = None,
    link: Link | str = "12GB/s",
    host_budget: int | str | None = None,
) -> Fit:
    """Checks whether the step fits a memory budget: the bytes that it takes, the layer that decides, and the largest batch
    that fits.

    Swapped tensors take at most `host_budget` of the host's memory (`"4GiB"`, or bytes); without it, on a GPU, most of the
    host's memory.

    The batch of the sample never runs: its shapes are worked out on fake tensors. Batches of 2 and 4 samples run to measure
    the scratch of libraries, if parameters, gradients and optimizer state fit the budget. The model may lie on the device
    `meta`. Everything is left as it was.
    """
    planning.check(model, optimizer)
    batch = planning.as_sample(sample)
    size = batches.size_of(batch)
    name = type(model).__name__
    is_real = not any(p.is_meta for p in (*model.parameters(), *model.buffers()))
    state = planning.optimizer_bytes(optimizer)
    host = planning.host_bytes(host_budget)
    if is_real:
        host = planning.host_limit(devices.of(model), host_budget)
        state = planning.resident_beside(devices.of(model), model, optimizer)
    if is_real and not str(budget).endswith("%"):
        is_real = state + _weights_and_gradients(model) <= planning.budget_bytes(budget, 0)
    family: _core.Batches | None = None
    known = NOTHING_KNOWN
    why = ""
    try:
        family, tape = batches.family(fn, model, batch, state, name, is_real=is_real)
        if is_real:
            known = Known.of(tape)
    except (Refused, BadInput):
        raise
    except Exception as error:  # the user's code, which may support only one batch size
        why = f"not known: the step fails at a batch of {batches.SMALL[0]} ({type(error).__name__}: {error})"
    trace = _trace(recording.record_shapes(fn, model, batch, known), name, size, state, family)
    limit = planning.budget_bytes(budget, trace.peak_bytes)
    rates = Link.parse(link)
    planned: int | None = None
    why_not = ""
    try:
        plan = planning.plan(trace, limit, rates, batches.PLAN_SECONDS, host)
        can = devices.of(model).pinnable(plan.host_bytes) if is_real else plan.host_bytes
        if can < plan.host_bytes:
            host = can
            plan = planning.plan(trace, limit, rates, batches.PLAN_SECONDS, host)
        planned = trace.resident_bytes + plan.pool_bytes
    except NoPlan as no_plan:
        why_not = str(no_plan)
    largest: int | None = None
    if family is not None and family.bytes_at(size) != trace.tensor_bytes():
        why = "not known: the step's tensors do not grow linearly with the batch"
    elif family is not None:
        largest = family.largest(limit, batches.LARGEST, *rates.rates, batches.PLAN_SECONDS, host)
        if planned is not None:
            largest = max(largest or 0, size)
    return Fit(
        batch=size,
        budget_bytes=limit,
        host_budget_bytes=host,
        peak_bytes=trace.peak_bytes,
        floor_bytes=trace.floor_bytes,
        floor_layer=trace.floor_layer,
        floors=trace.floors(),
        planned_bytes=planned,
        largest_batch=largest,
        why_no_largest=why,
        why_not=why_not,
        is_measured=is_real and family is not None,
        hint=planning.floor_hint(trace),
    )


def _weights_and_gradients(model: torch.nn.Module) -> int:
    kept = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    return sum(aligned(t.numel() * t.element_size()) * (1 + t.requires_grad) for t in kept)


def _trace(
    tape: recording.Tape, name: str, batch: int, state: int, family: _core.Batches | None
) -> _core.Trace:
    """Trace of the shapes, with the scratch and the seconds that the family knows."""
    document = json.loads(to_document(tape, name, batch, state).text)
    if family is not None:
        ops = json.loads(family.at(batch).to_json())["ops"]
        if [op["kind"] for op in ops] == [op["kind"] for op in document["ops"]]:
            for op, known in zip(document["ops"], ops, strict=True):
                op |= {name: known[name] for name in ("seconds", "workspace_bytes")}
    return _core.Trace(json.dumps(document))
