"""The seam: the differences between the devices that a step runs on. No other code knows which device it is."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _core
from ..allocator import Allocator
from ..link import Link
from .graphs import Graphs

Stopwatch = object
"""A device's record of a timed call."""

Transfers = _core.Transfers | _core.CudaTransfers


class HostSlab(abc.ABC):
    """Host memory for swapped tensors; it grows on demand."""

    size: int
    generation: int

    def holds(self, size: int) -> bool:
        """Returns `True` if it has at least this many bytes."""
        return size <= self.size and self.generation > 0

    def reserve(self, size: int) -> None:
        """Grows to at least this many bytes; growing loses the contents."""
        if not self.holds(size):
            self.give_back()  # first, so that both never exist at once
            self.take(size)
            self.size = size

    @abc.abstractmethod
    def take(self, size: int) -> None:
        """Allocates this many bytes; it is called only while none are held."""

    @abc.abstractmethod
    def give_back(self) -> None:
        """Frees them as soon as nothing uses them any more."""

    @property
    @abc.abstractmethod
    def address(self) -> int:
        """Address of its first used byte."""


class Device(abc.ABC):
    """A device that a step runs on: memory, copies, times, random numbers."""

    where: torch.device
    """PyTorch device of a step's tensors."""
    allocator: Allocator
    """Allocator whose allocations are recorded and planned."""
    calibrates: bool
    """`True` if a plan is run to measure its time, because a call takes a different time alone than within a step."""
    graphs: Graphs | None
    """Captures steps as graphs; `None` if a step is always run call by call."""
    counts_all: bool
    """`True` if the budget covers all allocations of PyTorch's allocator, which reports them."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Prepares the device before a step is recorded or planned. Raises `BadInput` or `Refused` if it cannot be used."""

    @abc.abstractmethod
    def default_generator(self) -> torch.Generator:
        """Returns the generator of ops that are given none."""

    @abc.abstractmethod
    def settings(self) -> tuple[object, ...]:
        """Settings that determine the kernels of ops, and where they run: each combination is a kind of batch."""

    @abc.abstractmethod
    def running(self) -> contextlib.AbstractContextManager[None]:
        """Context of a planned step: autocast off, and the device current."""

    @abc.abstractmethod
    def comparable(self) -> contextlib.AbstractContextManager[None]:
        """Context of the eager step that a planned one is compared with: the same kernels, where these depend on threads."""

    @abc.abstractmethod
    def synchronise(self) -> None:
        """Waits until all enqueued work has ended."""

    @abc.abstractmethod
    def run(self, func: Any, args: Any, kwargs: Any, reads_on_host: bool) -> tuple[Any, Stopwatch]:
        """Runs an op while a step is recorded, and times it."""

    @abc.abstractmethod
    def seconds(self, watches: list[Stopwatch]) -> list[float]:
        """Seconds of each call of a step, after the step has ended."""

    @abc.abstractmethod
    def seconds_in_graph(
        self, work: Callable[[], object], generators: Iterable[torch.Generator]
    ) -> float | None:
        """Seconds of a call as part of a graph, for which `work` runs a few times; `None` if it cannot be part of one."""

    @abc.abstractmethod
    def measure_link(self) -> Link:
        """Measures the rates of copies to the host and back."""

    @abc.abstractmethod
    def host_limit(self) -> int | None:
        """Default limit of host memory for swapped bytes; `None` means unlimited."""

    @abc.abstractmethod
    def pinnable(self, size: int) -> int:
        """Part of this many bytes of host memory that can be had for swapped tensors, found by trying."""

    @abc.abstractmethod
    def host_slab(self) -> HostSlab:
        """Returns host memory for swapped tensors, still empty."""

    @abc.abstractmethod
    def transfers(self, schedule: _core.Schedule, pool: int, host: HostSlab) -> Transfers:
        """Returns the copies of a schedule between a pool at this address and the slab."""

    @abc.abstractmethod
    def stream(self) -> int:
        """Handle of the stream that ops are now enqueued on; 0 if there is only one."""

    @abc.abstractmethod
    def trim(self) -> None:
        """Releases memory that PyTorch's allocator caches."""

    @abc.abstractmethod
    def held_bytes(self, known: Iterable[torch.Tensor], counted: int) -> int:
        """Bytes that PyTorch's allocator has allocated besides these tensors and `counted` bytes that are counted
        elsewhere, as far as the budget covers them."""

    @abc.abstractmethod
    def undo_bytes(self, updated: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> int:
        """Bytes within the budget of the copies by which a step that ends early is undone."""

    @abc.abstractmethod
    def living_in(self, address: int, size: int) -> list[tuple[int, int]]:
        """Allocations of PyTorch's allocator in this range, as far as it reports them: addresses and sizes."""

    @abc.abstractmethod
    def free_bytes(self) -> int | None:
        """Free memory; `None` if unknown."""

    @abc.abstractmethod
    def words(self) -> str:
        """Description of the device for a report."""

    @abc.abstractmethod
    def notes(self) -> list[str]:
        """Notes for readers of a report."""

    def clock(self) -> float:
        """Time in seconds after all enqueued work has ended."""
        self.synchronise()
        return time.perf_counter()
