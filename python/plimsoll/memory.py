"""The memory of a step: one allocation each for the pool, for gradients and for results, and host
memory for swapped tensors."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from ._core import ALIGNMENT
from .pool import Pool
from .torch_private import uses_of

if TYPE_CHECKING:
    from .devices import Device
    from .program import Program


logger = logging.getLogger("plimsoll")


class Arena:
    """One allocation that grows on demand. No tensor in it begins at its first byte, whose address
    is the allocator's to free."""

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._bytes = torch.empty(0, dtype=torch.uint8, device=where)
        self.size = 0
        self.generation = 0

    def holds(self, size: int) -> bool:
        """Returns `True` if it has at least this many bytes."""
        return size <= self.size and self.generation > 0

    def give_back(self) -> None:
        """Frees it as soon as no tensor lies in it any more."""
        self._bytes = torch.empty(0, dtype=torch.uint8, device=self._where)
        self.size = 0
        self.generation += 1

    def reserve(self, size: int) -> None:
        """Grows to at least this many bytes; growing loses the contents."""
        if not self.holds(size):
            self.give_back()  # first, so that both never exist at once
            self._bytes = torch.empty(size + 2 * ALIGNMENT, dtype=torch.uint8, device=self._where)
            self.size = size

    @property
    def uses(self) -> int:
        """Number of tensors in it."""
        return uses_of(self._bytes) - 2  # its own tensor and its storage

    @property
    def storage(self) -> torch.UntypedStorage:
        """The allocation."""
        return self._bytes.untyped_storage()

    @property
    def address(self) -> int:
        """Address of its first used byte."""
        return (self._bytes.data_ptr() // ALIGNMENT + 1) * ALIGNMENT


class Memory:
    """Memory shared by the programs of one step, which never run at once."""

    def __init__(self, device: Device, is_settled: Callable[[], bool] = lambda: True) -> None:
        """`is_settled` returns `True` once everything that is kept from step to step exists."""
        self.device = device
        self._is_settled = is_settled
        self._was_settled = False
        self.pool = Pool(device)
        self.host = device.host_slab()
        self.gradients = Arena(device.where)
        self.results = Arena(device.where)
        self.held = 0
        """Number of times that gradients took fresh memory, since earlier ones were still held."""
        self._bound: weakref.WeakSet[Program] = weakref.WeakSet()
        self._stream = 0

    @property
    def generation(self) -> tuple[int, ...]:
        """A value that changes whenever part of the memory moves."""
        return tuple(part.generation for part in (self.pool, self.host, self.gradients, self.results))

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arenas on the device."""
        return self.pool.held_bytes + sum(arena.storage.nbytes() for arena in (self.gradients, self.results))

    def reserve(self, program: Program, pool: int, host: int, gradients: int, results: int) -> None:
        """Provides a program with this many bytes of each. No other code has the pool from then until `lend`."""
        if self.pool.holds(pool):
            self.pool.take()
        parts = ((self.pool, pool), (self.host, host), (self.gradients, gradients), (self.results, results))
        if not all(part.holds(size) for part, size in parts):
            self._unbind()
            for part, size in parts:
                if not part.holds(size):
                    part.give_back()
            self.device.trim()
            for part, size in parts:
                part.reserve(size)
        self._bound.add(program)

    def keep_gradients(self, known: int) -> None:
        """Leaves the memory of gradients to others if more tensors lie in it than this number and the programs' own: somebody
        holds a gradient of an earlier step, which must stay as it is. The next program takes fresh memory."""
        if self.gradients.size == 0 or self.gradients.uses <= known + sum(p.uses for p in self._bound):
            return
        self._unbind()
        self.gradients.give_back()
        self.held += 1
        if self.held == 1:
            logger.warning(
                "gradients of an earlier step are still held by other code: they stay as they are, and the step takes fresh "
                "memory for its own, which costs time and memory. Where that is not meant, delete them, or keep clones"
            )

    def lend(self, budget: int) -> None:
        """Opens the pool's memory to other code between steps, within a budget for all allocations."""
        # Memory that stays, such as the optimizer state of the first step, must not lie in the pool.
        self._was_settled = self._was_settled or self._is_settled()
        self.pool.open(budget if self._was_settled else None)

    def stand_aside(self, gradients: Iterable[torch.Tensor], room: int = 0) -> None:
        """Makes room for other work if it holds more than `room` bytes: lends or frees the pool; frees everything
        if none of these gradients lies in it."""
        if self.arena_bytes <= room or not (self._bound or self.pool.size or self.host.size):
            return
        if self.arena_bytes - self.pool.held_bytes <= room and self.pool.lend():
            return
        first = self.gradients.storage.data_ptr()
        last = first + self.gradients.storage.nbytes()
        if not any(first <= gradient.data_ptr() < last for gradient in gradients):
            self.give_back(is_all=True)
        elif not self.pool.lend():
            self.give_back()

    def use_on(self, stream: int) -> None:
        """Waits for another stream's work in this memory before a step is enqueued on this stream."""
        if stream != self._stream:
            self.device.synchronise()
            self._stream = stream

    def give_back(self, is_all: bool = False) -> None:
        """Frees memory that holds nothing between steps: the pool, and its part of the host. With `is_all`,
        frees everything: no gradient is kept."""
        self._unbind()
        self.pool.give_back()
        self.host.give_back()
        if is_all:
            self.gradients.give_back()
            self.results.give_back()
        self.device.trim()

    def _unbind(self) -> None:
        """Unbinds all programs, whose windows would keep their memory; no stream uses it any more."""
        self.device.synchronise()
        for program in list(self._bound):
            program.unbind()
        self._bound.clear()
