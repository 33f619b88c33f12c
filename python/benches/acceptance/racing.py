"""Sections `curve`, `curves`, `long-*` and `compile-*`: rivals at several settings, Plimsoll at three budgets, and the verdict.

Rivals run without a limit on memory: the peak of each decides within which of our budgets it is. Rows of other sections about
the same network on the same GPU (`compile-gpt` for `curve`, and the other way round) are part of the rivals' hull, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from beside import eager_step

import plimsoll

from . import verdict
from .asking import Ask, Row, limited
from .gauge import Gauge, context, measured, plan_seconds
from .rivals import SLICES, Rival, chunk_loss, compilers, long_rivals, rivals
from .tasks import Task, build, has_logits, optimizer_of

OURS = (0.5, 0.3, 0.7)
"""Our budgets, as shares of eager's peak: the middle one, with the strictest target, comes first."""

MARGIN = 64 << 20
"""Bytes by which PyTorch's allocator may reserve more than it allocates, since it rounds up."""

LEAST_SECONDS = 20.0
"""Part of our time that the last rival may take."""


def tried(ask: Ask, rival: Rival) -> Row:
    """Time and memory of a rival."""
    task = build(ask.network, ask.device, ask.small)
    rival.change(task)
    return measured(Gauge(ask.device), task, eager_step(task), optimizer_of(task))


def raced(ask: Ask, some: Iterable[Rival], reserve: float) -> None:
    """Adds one row for each rival; none is begun in the last seconds, which are reserved for ours."""
    for rival in some:
        left = ask.left() - reserve
        if left > 0:
            seconds = left + LEAST_SECONDS
            ask.arm(rival.arm, lambda r=rival: tried(ask, r), seconds=seconds, rival=rival.family)  # type: ignore[misc]
        else:
            late = "not measured: the time for rivals is over"
            ask.add({"arm": rival.arm, "rival": rival.family, "not_measured": late})


def best(rows: list[Row], budget: int) -> Row | None:
    """The fastest rival whose peak is within a budget, if any."""
    fit = [row for row in rows if "rival" in row and row.get("peak_bytes", budget + 1) <= budget]
    return min(fit, key=lambda row: row["seconds"], default=None)


def sweep_of(rows: list[Row], family: str) -> float:
    """Seconds of all settings of a family, including compilation."""
    return sum(row.get("arm_seconds", 0) for row in rows if row.get("rival") == family)


def beside(own: Row, rows: list[Row]) -> Row | None:
    """Row of the best rival within our budget, and its sweep compared with our tuning; `None` if our peak is unknown."""
    if "peak_bytes" not in own:
        return None
    rival = best(rows, own["budget_bytes"])
    if rival is None:
        return {"arm": f"best rival beside {own['arm']}", "none": "none is within the budget"}
    return {
        "arm": f"best rival beside {own['arm']}: {rival['arm']}",
        "budget_bytes": own["budget_bytes"],
        "seconds": rival["seconds"],
        "peak_bytes": rival["peak_bytes"],
        "sweep_seconds": sweep_of(rows, rival["rival"]),
        "our_tune_seconds": own["tune_seconds"],
        "ours_over_rival": own["seconds"] / rival["seconds"],
    }


def ours(ask: Ask, chunks: tuple[int, ...]) -> None:
    """Adds rows for each of our budgets: Plimsoll with each number of slices of the loss (0: whole),
    each with its best rival; and the verdict."""
    whole = whole_of(ask)
    if whole is None:
        return
    others = verdict.others_of(ask.rows, ask.known)
    for share in OURS:
        rows = []
        for slices in chunks:
            arm = f"plimsoll {share}" + (f", chunked loss, slices {slices}" if slices else "")

            def asked(slices: int = slices, budget: int = int(share * whole)) -> Row:
                task = build(ask.network, ask.device, ask.small)
                if slices:
                    chunk_loss(task, slices)
                return planned(task, ask.device, ask.small, budget)

            own = ask.arm(arm, asked, fails="error", share=share, budget_bytes=int(share * whole))
            rows.append(own)
            row = beside(own, others)
            if row is not None:
                ask.add(row)
        ask.add(verdict.verdict(share, rows, others))


def whole_of(ask: Ask) -> int | None:
    """Bytes that our budgets are shares of: eager's peak, or the GPU's memory if eager does not fit it.
    `None` if neither is known, which is a row."""
    eager = ask.found("eager") or {}
    if "peak_bytes" in eager:
        return eager["peak_bytes"]
    if str(eager.get("failed", "")).startswith("does not fit") and ask.device.startswith("cuda"):
        return torch.cuda.get_device_properties(ask.device).total_memory
    task = build(ask.network, ask.device, ask.small)

    def recorded() -> Row:
        return {
            "whole_bytes": plimsoll.trace(
                task.loss, task.model, *task.batch, optimizer=optimizer_of(task)
            ).peak_bytes
        }

    return ask.arm("eager's peak, by its recording", recorded, fails="error").get("whole_bytes")


def planned(task: Task, device: str, small: bool, budget: int) -> Row:
    """Time and memory of a planned step within a budget, or the reason why there is none."""
    gauge, optimizer = Gauge(device), optimizer_of(task)
    start = gauge.clock()
    try:
        step = plimsoll.tune(
            task.loss, task.model, optimizer, task.batch, budget, verify=0, seconds=plan_seconds(small)
        )
    except plimsoll.NoPlan as none:
        return {"no_plan": str(none)}
    row: Row = {"tune_seconds": gauge.clock() - start}
    row |= measured(gauge, task, step, optimizer)
    row |= verdict.over_budget(row, context(device), budget)
    row |= {"fallback": step.fallback, "why": step.why}
    if gauge.is_cuda:
        row |= under_limit(task, step, optimizer, device, budget)
    return row


def under_limit(task: Task, step: plimsoll.Step, optimizer: Any, device: str, budget: int) -> Row:
    """Row about some more steps with the memory that PyTorch's allocator takes from the driver limited to the budget."""
    gauge = Gauge(device)
    before = gauge.ooms()
    try:
        with limited(device, budget + MARGIN):
            for _ in range(2):
                task.model.zero_grad()
                step(*task.batch)
                optimizer.step()
    except Exception as error:  # earlier measurements stand
        return {"limit_holds": f"no: {type(error).__name__}: {str(error)[:200]}"}
    more = (gauge.ooms() or 0) - (before or 0)
    return {"limit_holds": "yes" if not more else f"no: {more} times out of memory"}


def compared(ask: Ask, some: list[Rival], reserve: float, chunks: tuple[int, ...] | None = None) -> None:
    """Adds rows for eager, the rivals that there is time for, and ours at each of our budgets."""
    raced(ask, [Rival("eager", "", lambda task: None), *some], reserve)
    if chunks is None:
        chunks = (0, SLICES[-1]) if has_logits(ask.network) else (0,)
    ours(ask, chunks)


def curve(ask: Ask) -> None:
    """Compares with all rivals but `torch.compile`."""
    compared(ask, rivals(has_logits(ask.network)), 70)


def long(ask: Ask) -> None:
    """Compares with all rivals, most promising first for logits of tens of gigabytes."""
    # Ours has the whole loss only if its logits can fit.
    chunks = (SLICES[-1], 0) if ask.network.endswith(" 8k") else (SLICES[-1],)
    compared(ask, long_rivals(), 250, chunks)


def compile_(ask: Ask) -> None:
    """Compares with `torch.compile` at its budgets."""
    compared(ask, compilers(has_logits(ask.network)), 150)
