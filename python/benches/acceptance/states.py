"""Sections `state-3b` and `state-8b`: weights, gradients and optimizer state that hardly fit, or do not.

Optimizers that take less of the GPU's memory, each with the usual remedies of its users (a checkpoint over each block, a
chunked loss), and with our plan in place of the checkpoints. A GPU or a host that is too small is reported before anything
is tried. That check counts only weights, gradients and state, so that a step that is tried may still run out of memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from beside import eager_step

import plimsoll
from plimsoll import _core, planning

from .asking import Ask, NotHere, Row
from .gauge import Gauge, measured, plan_seconds
from .rivals import SLICES, checkpointed, chunk_loss
from .tasks import Task, build, llama

SHARE = 0.95
"""Share of the GPU's free memory for our plan."""

HOST_SHARE = 0.9
"""Share of the host's available memory for an optimizer: one that took all of it would make the system end processes."""

RATE = 1e-5


def torchao(name: str) -> Any:
    """An optimizer of torchao's."""
    try:
        return getattr(importlib.import_module("torchao.optim"), name)
    except (ImportError, AttributeError) as error:
        raise NotHere(f"torchao has no {name}, or is not installed ({error})") from None


def fused(parameters: Any) -> Any:
    """PyTorch's own."""
    return torch.optim.AdamW(parameters, RATE, fused=True)


def eight_bits(parameters: Any) -> Any:
    """An optimizer with quantised state."""
    return torchao("AdamW8bit")(parameters, RATE)


def offloading(parameters: Any) -> Any:
    """An optimizer with state and update on the host, and copies of parameters and gradients."""
    kind = torchao("CPUOffloadOptimizer")
    if not torch.cuda.is_available():
        raise NotHere("CPUOffloadOptimizer needs a GPU")
    return kind(parameters, torch.optim.AdamW, fused=True, lr=RATE)


@dataclass(frozen=True)
class Kind:
    """An optimizer: its constructor, and its memory for each parameter."""

    make: Callable[[Any], Any]
    state_sizes: float
    """On the GPU, in sizes of the parameter."""
    state_bytes: float
    """On the GPU, in further bytes per number."""
    locked: int
    """On the host in page-locked memory, in sizes of the parameter."""
    pageable: int
    """On the host in other memory, in sizes of the parameter."""


KINDS = {
    "AdamW, fused": Kind(fused, 2, 0, 0, 0),
    # Two one-byte numbers, and a scale of four bytes for 256 of them.
    "AdamW8bit": Kind(eight_bits, 0, 2 + 8 / 256, 0, 0),
    # Parameters and gradients, copied from and to the GPU; the update's two averages.
    "CPUOffloadOptimizer": Kind(offloading, 0, 0, 2, 2),
}


def too_small(kind: Kind, counts: list[int], size: int, gpu: int | None, host: int | None) -> str | None:
    """Reason why parameters with these counts of numbers, of `size` bytes each, cannot be trained: the memory that is
    too small; `None` if none is known to be."""
    on_gpu = sum(counts) * (size * (2 + kind.state_sizes) + kind.state_bytes)
    # PyTorch page-locks powers of two.
    on_host = sum(kind.locked * (1 << (n * size - 1).bit_length()) + kind.pageable * n * size for n in counts)
    most = None if host is None else HOST_SHARE * host
    for need, have, where in ((on_gpu, gpu, "the GPU has"), (on_host, most, "the host can give")):
        if have is not None and need > have:
            return (
                f"does not fit: weights, gradients and state take {need / 2**30:.1f} GiB, {where} "
                f"{have / 2**30:.1f} GiB; not tried"
            )
    return None


def state(ask: Ask) -> None:
    """Adds two rows for each optimizer."""
    model = llama(ask.network, "meta", ask.small)
    counts = [value.numel() for value in model.parameters()]
    size = next(model.parameters()).element_size()
    gpu, host = None, None
    if ask.device.startswith("cuda"):
        gpu, host = torch.cuda.mem_get_info(torch.device(ask.device))[0], _core.available_host_bytes()
    ask.add({"arm": "size", "words": f"{sum(counts):,} parameters of {size} bytes"})
    for name, kind in KINDS.items():
        short = too_small(kind, counts, size, gpu, host)
        for arm, measure, fails in (
            (f"{name}, checkpoint every 1", alone, "failed"),
            (f"{name}, plimsoll", with_plan, "error"),
        ):
            if short is not None:
                ask.add({"arm": arm, "failed": short})
                continue
            ask.arm(arm, lambda m=measure, k=kind: m(ask, k, gpu), fails=fails)  # type: ignore[misc]


def fresh(ask: Ask) -> Task:
    """The network with a loss in slices: all arms have it, since whole logits would take the memory of the state."""
    task = build(ask.network, ask.device, ask.small)
    chunk_loss(task, SLICES[-1])
    return task


def rate(task: Task, timed: Row) -> Row:
    """Adds the tokens per second."""
    return {**timed, "tokens_per_second": task.batch[0].numel() / timed["seconds"]}


def alone(ask: Ask, kind: Kind, _gpu: int | None) -> Row:
    """Row of the optimizer as used without Plimsoll."""
    task = fresh(ask)
    checkpointed(task, 1)
    optimizer = kind.make(task.model.parameters())
    return rate(task, measured(Gauge(ask.device), task, eager_step(task), optimizer))


def with_plan(ask: Ask, kind: Kind, gpu: int | None) -> Row:
    """Row of the optimizer with our plan in place of checkpoints."""
    gauge, task = Gauge(ask.device), fresh(ask)
    optimizer = kind.make(task.model.parameters())
    start = gauge.clock()
    if not planning.is_state_known(optimizer):
        first_update(task, optimizer)
    budget: int | str = "90%" if gpu is None else int(SHARE * gpu)
    try:
        step = plimsoll.tune(
            task.loss, task.model, optimizer, task.batch, budget, verify=0, seconds=plan_seconds(ask.small)
        )
    except plimsoll.NoPlan as none:
        return {"no_plan": str(none)}
    row: Row = {"tune_seconds": gauge.clock() - start, "budget_bytes": step.program.schedule.budget_bytes}
    schedule = step.program.schedule
    row |= {"recomputed_ops": schedule.recomputed_ops, "offloaded_bytes": schedule.offloaded_bytes}
    row |= rate(task, measured(gauge, task, step, optimizer))
    return {**row, "fallback": step.fallback, "why": step.why}


def first_update(task: Task, optimizer: Any) -> None:
    """Makes an update with zero gradients: afterwards the optimizer's state is known."""
    for value in task.model.parameters():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    optimizer.zero_grad()
    task.model.zero_grad()
