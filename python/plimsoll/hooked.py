"""Eager steps whose saved tensors are swapped by hooks until the step fits a budget: for steps that no plan can run.

A step runs a few times, and everything is restored: the tensors that it saves for the backward pass are noted, and its
peak. Then the tensors saved first, which are needed last, go to the host, as much as the peak is above the budget; the peak
is measured again, and more go until the step fits. If not even one eager run finds memory, the saved tensors are noted
while all of them are swapped.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from . import devices, planning, shortage
from ._core import show_bytes
from .allocator import ALLOCATED
from .saved import SavedSwaps
from .surroundings import host_generators, put_back_host_generators
from .tape import aligned
from .torch_private import local_part

MOST_TRIALS = 6
"""Number of times that a step is run with more swapped than before."""

Trial = Callable[[Callable[[], AbstractContextManager[None]]], None]
"""Runs the step within a context, and restores everything."""


@dataclass
class Before:
    """State that a step changes, kept to restore it."""

    gradients: list[tuple[torch.nn.Parameter, torch.Tensor | None]]
    buffers: list[tuple[torch.Tensor, torch.Tensor]]
    generators: list[tuple[torch.Generator, torch.Tensor]]
    of_host: tuple[Any, Any]

    def restore(self) -> None:
        """Restores it."""
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, copy in self.buffers:
                buffer.copy_(copy)
        for generator, state in self.generators:
            generator.set_state(state)
        put_back_host_generators(self.of_host)


def state_of(device: devices.Device, model: torch.nn.Module) -> Before:
    """Copies the state that a step may change. Existing gradients are not copied."""
    generators = {id(g): g for g in (torch.default_generator, device.default_generator())}
    return Before(
        [(p, p.grad) for p in model.parameters()],
        [(b, b.clone()) for b in model.buffers()],
        [(g, g.get_state()) for g in generators.values()],
        host_generators(),
    )


class Hooked:
    """Swaps by hooks for one kind of step."""

    def __init__(
        self,
        device: devices.Device,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        most: Callable[[int], int] | None = None,
    ) -> None:
        """`most` returns the largest value over all ranks, if the step runs on several."""
        self._device = device
        self._model = model
        self._optimizer = optimizer
        self._is_alone = most is None
        self._most = most or int
        self.swaps = SavedSwaps(device)
        self.eager_bytes: int | None = None
        """Bytes that eager takes; `None` if it found no memory."""
        self.peak_bytes = 0
        """Bytes that the step takes with the hooks."""
        self.budget_bytes = 0

    def fit(self, trial: Trial, budget: Callable[[int], int], host: int | None) -> str:
        """Chooses the tensors to swap, for a budget that may depend on eager's bytes. Returns the reason if
        it does not fit, else an empty string."""
        self._learn(trial)
        self.budget_bytes = budget(self.peak_bytes)
        sizes = self.swaps.sizes
        wanted = self.swaps.swapped_bytes + max(0, self.peak_bytes - self.budget_bytes)
        for number in range(1, MOST_TRIALS + 1):
            if self.peak_bytes <= self.budget_bytes or self.eager_bytes is None:
                break
            chosen = _first(sizes, wanted if number < MOST_TRIALS else sum(sizes))
            taken = sum(sizes[n] for n in chosen)
            if self._most(int(host is not None and taken > host)):
                return f"{show_bytes(taken)} would be swapped, more than the host budget"
            self.swaps.choose(chosen)
            self.peak_bytes = self._peak(trial, self.swaps.active)
            if not self._most(int(wanted < sum(sizes))):
                break
            wanted = taken + max(0, self.peak_bytes - self.budget_bytes)
        if self.peak_bytes > self.budget_bytes:
            return "what autograd saves is swapped, and more than the budget is taken still"
        if host is not None and self.swaps.swapped_bytes > host:
            return f"{show_bytes(self.swaps.swapped_bytes)} are swapped, more than the host budget"
        return ""

    def _learn(self, trial: Trial) -> None:
        try:
            self.eager_bytes = self.peak_bytes = self._peak(trial, lambda: self.swaps.learning(self._model))
        except Exception as error:
            if not (shortage.is_one(error) and self._is_alone):
                raise
            self.eager_bytes = None
            self._device.trim()
            self.peak_bytes = self._peak(trial, lambda: self.swaps.learning(self._model, swaps_all=True))

    def words(self) -> str:
        """Description of the swaps, and of the step's bytes."""
        if not self.swaps.chosen:
            return "nothing is swapped"
        number, of = len(self.swaps.chosen), sum(size > 0 for size in self.swaps.sizes)
        return (
            f"{number} of {of} storages, {show_bytes(self.swaps.swapped_bytes)}; "
            f"peak {show_bytes(self.peak_bytes)} of {show_bytes(self.budget_bytes)}, measured"
        )

    def _peak(self, trial: Trial, how: Callable[[], AbstractContextManager[None]]) -> int:
        """Peak of a trial, on the rank where it is largest."""
        with peak_of(self._device, self._resident()) as peak:
            trial(how)
        return self._most(peak[0])

    def _resident(self) -> int:
        """Parameters, gradients, buffers and the optimizer state, as far as they lie on this rank."""
        parts = [local_part(t) for t in itertools.chain(self._model.parameters(), self._model.buffers())]
        trained = [local_part(p) for p in self._model.parameters() if p.requires_grad and p.grad is not None]
        held = sum(aligned(part.untyped_storage().nbytes()) for part in (*parts, *trained))
        return held + planning.optimizer_bytes(self._optimizer)


def _first(sizes: list[int], wanted: int) -> set[int]:
    """Numbers of the storages saved first, until they have this many bytes."""
    chosen: set[int] = set()
    total = 0
    for number, size in enumerate(sizes):
        if total >= wanted:
            break
        if size > 0:
            chosen.add(number)
            total += size
    return chosen


@contextlib.contextmanager
def peak_of(device: devices.Device, resident: int) -> Iterator[list[int]]:
    """Peak bytes within the context: of the GPU's allocator; on the CPU, resident bytes and this thread's allocations."""
    peak = [0]
    if device.where.type == "cuda":
        device.synchronise()
        torch.cuda.reset_peak_memory_stats(device.where)
        yield peak
        peak[0] = torch.cuda.max_memory_allocated(device.where)
        return
    with torch.autograd.set_multithreading_enabled(False), device.allocator.recording() as log:
        yield peak
        held: dict[int, int] = {}
        now = most = 0
        for kind, address, size in log.take():
            if kind == ALLOCATED:
                held[address] = size
                now += size
                most = max(most, now)
            else:
                now -= held.pop(address, 0)
    peak[0] = resident + most
