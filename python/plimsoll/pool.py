"""The pool of a step: used by the step while it runs, and lent to other code between steps.

If code between steps (evaluation, sampling, a comparison with eager) finds no memory, or runs without gradients and would
exceed the budget, PyTorch's allocator gets the pool's memory as a whole (`native/log.h`). The next step allocates as much
anew. In most cases it gets the same address, so that the step's windows and its CUDA graph stay valid; else they are made
anew. A tensor that still lies there keeps its memory, and the pool moves.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ._core import ALIGNMENT, show_bytes
from .errors import PoolInUse

if TYPE_CHECKING:
    from .devices import Device

logger = logging.getLogger("plimsoll")

THERE, BACK, MOVED = range(3)


class Pool:
    """One allocation, like an `Arena`; tensors on it own nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bytes = torch.empty(0, dtype=torch.uint8, device=device.where)
        self._handle: int | None = None
        self._end: Callable[[], object] | None = None
        self._stream = 0
        self.size = 0
        self.generation = 0

    def holds(self, size: int) -> bool:
        """Returns `True` if it has at least this many bytes, lent or not."""
        return size <= self.size and self._handle is not None

    @property
    def storage(self) -> torch.UntypedStorage:
        """The allocation. Its first byte is never used."""
        return self._bytes.untyped_storage()

    @property
    def address(self) -> int:
        """Address of its first used byte."""
        return (self._bytes.data_ptr() // ALIGNMENT + 1) * ALIGNMENT

    @property
    def is_lent(self) -> bool:
        """`True` if other code has its memory."""
        return self._handle is not None and not self._device.allocator.pools().plimsoll_pool_is_there(
            self._handle
        )

    @property
    def held_bytes(self) -> int:
        """Bytes that it takes now."""
        return 0 if self.is_lent else self.storage.nbytes()

    def give_back(self) -> None:
        """Frees it. Nothing may use its windows any more."""
        if self._end is not None:
            self._end()
        self._handle = self._end = None
        self._bytes = torch.empty(0, dtype=torch.uint8, device=self._device.where)
        self.size = 0
        self.generation += 1

    def reserve(self, size: int) -> None:
        """Grows to at least this many bytes; growing loses the contents."""
        if self.holds(size):
            return
        self.give_back()  # first, so that both never exist at once
        library = self._device.allocator.pools()
        handle = library.plimsoll_pool(size + 2 * ALIGNMENT, self._device.where.index or 0)
        if handle is None:
            raise torch.OutOfMemoryError(f"there is no memory for a pool of {show_bytes(size)}")
        self._handle = handle
        end = weakref.finalize(self, library.plimsoll_pool_free, handle)
        end.atexit = False  # the process frees everything
        self._end = end
        self._stream = self._device.stream()
        self.size = size
        self._look()

    def take(self) -> None:
        """Takes a lent pool back before a step runs. Raises `PoolInUse` or `OutOfMemoryError` if that is impossible."""
        if self._handle is None:
            return
        before = self._bytes.data_ptr(), self.storage.nbytes()
        library = self._device.allocator.pools()
        how = library.plimsoll_pool_take(self._handle)
        if how in (THERE, BACK):
            return
        own = library.plimsoll_pool_address(self._handle) if how == MOVED else 0
        living = [size for at, size in self._device.living_in(*before) if not at <= own < at + size]
        if how == MOVED:
            self._stream = self._device.stream()
            self.generation += 1
            self._look()
            if living:
                logger.warning(
                    "%s of between steps in %d tensors lies where the pool was, and %s were taken elsewhere for it: delete "
                    "such tensors before the next step, or make them before `tune`, so that they count",
                    show_bytes(sum(living)),
                    len(living),
                    show_bytes(self.size),
                )
            return
        size = self.size
        if living:
            self._device.allocator.failures()  # resets the count: the next line reports them
            raise PoolInUse(
                f"the step's pool of {show_bytes(size)} was lent between steps and cannot be taken back: a tensor of "
                f"{show_bytes(max(living))} still lies in it ({show_bytes(sum(living))} in all), and there is no other memory. "
                "Delete what was made between steps, or move it to the host (`.cpu()`), and call the step again"
            )
        raise torch.OutOfMemoryError(
            f"there is no memory for the pool of {show_bytes(size)}, which was lent between steps"
        )

    def open(self, budget: int | None) -> None:
        """Opens its memory to other code between steps. With a budget, code without gradients must
        keep to it, or the pool is lent."""
        # Freed memory is reused in the order of the stream that allocated it, and of no other.
        if self._handle is not None and self._device.stream() == self._stream:
            counted = budget if budget is not None and self._device.counts_all else -1
            self._device.allocator.pools().plimsoll_pool_open(self._handle, counted)

    def lend(self) -> bool:
        """Lends its memory to other code now; returns `True` if that succeeded."""
        return self._handle is None or bool(self._device.allocator.pools().plimsoll_pool_lend(self._handle))

    def _look(self) -> None:
        """Makes a tensor of it."""
        library = self._device.allocator.pools()
        library.plimsoll_window(library.plimsoll_pool_address(self._handle))
        self._bytes = torch.empty(self.size + 2 * ALIGNMENT, dtype=torch.uint8, device=self._device.where)
