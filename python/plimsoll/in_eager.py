"""A kind of batch that no plan runs: it runs in eager, and one warning says why, and what eager takes beside the budget."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator

import torch

from . import devices, planning
from ._core import show_bytes
from .allocator import ALLOCATED
from .memory import Memory
from .outputs import Given
from .tape import aligned

logger = logging.getLogger("plimsoll")


class InEager:
    """Runs one kind of batch without a plan."""

    def __init__(
        self,
        device: devices.Device,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        why: str = "",
    ) -> None:
        self.why = why
        """Reason why no plan runs; empty if it is known only when a batch comes."""
        self.peak_bytes: int | None = None
        """Bytes that eager takes, as recorded or measured; `None` before that."""
        self._device = device
        self._model = model
        self._optimizer = optimizer
        self._said: set[str] = set()

    def is_news(self, what: str) -> bool:
        """Returns `True` if this was not reported yet."""
        is_new = what not in self._said
        self._said.add(what)
        return is_new

    def run(self, run: Callable[[], Given], memory: Memory, budget: int | None, keeps: bool) -> Given:
        """Runs a batch, and measures what it takes if that is unknown. With `keeps`, the step's memory keeps its place for the
        next plan, as far as it has room next to the batch."""
        if budget is not None:
            gradients = (p.grad for p in self._model.parameters() if p.grad is not None)
            taken = budget if self.peak_bytes is None else self.peak_bytes
            memory.stand_aside(gradients, max(0, budget - taken) if keeps else 0)
        if self.peak_bytes is not None:
            return run()
        with peak_of(self._device, self._resident()) as peak:
            given = run()
        self.peak_bytes = peak[0]
        return given

    def words(self, budget: int | None) -> str:
        """Description of what eager takes beside the budget, as far as it is known."""
        if self.peak_bytes is None or budget is None:
            return "what eager takes is not known"
        than = " of the budget of" if self.peak_bytes <= budget else ", more than the budget of"
        return f"eager takes {show_bytes(self.peak_bytes)}{than} {show_bytes(budget)}"

    def _resident(self) -> int:
        """Bytes of parameters, gradients, buffers and the optimizer's state."""
        parts = [*itertools.chain(self._model.parameters(), self._model.buffers())]
        parts += [p for p in self._model.parameters() if p.requires_grad and p.grad is not None]
        held = sum(aligned(part.untyped_storage().nbytes()) for part in parts)
        return held + planning.optimizer_bytes(self._optimizer)


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
