"""The seam: what differs between the devices that a step runs on. Nothing else knows which one it is."""

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
"""What a device keeps of a call that it timed."""

Transfers = _core.Transfers | _core.CudaTransfers


class HostSlab(abc.ABC):
    """The host's memory for what is swapped out, which grows when more is asked for."""

    size: int
    generation: int

    def holds(self, size: int) -> bool:
        """Whether so many bytes are there."""
        return size <= self.size and self.generation > 0

    def reserve(self, size: int) -> None:
        """Makes sure that so many bytes are there; what lay in them is lost where it grows."""
        if not self.holds(size):
            self.give_back()  # first, so that both are never there at once
            self.take(size)
            self.size = size

    @abc.abstractmethod
    def take(self, size: int) -> None:
        """Allocates so many bytes; none are held."""

    @abc.abstractmethod
    def give_back(self) -> None:
        """Frees them, as soon as nothing uses them any more."""

    @property
    @abc.abstractmethod
    def address(self) -> int:
        """The first address that is used."""


class Device(abc.ABC):
    """What a step runs on: memory, copies, times, random numbers."""

    where: torch.device
    """Where the tensors of a step are."""
    allocator: Allocator
    """Whose allocations are recorded and planned."""
    calibrates: bool
    """Whether a plan is run to learn how long it takes: where a call's time alone is not its time within a step."""
    graphs: Graphs | None
    """What captures a step as a graph; none where a step is always run call by call."""
    counts_all: bool
    """Whether the budget is over all that PyTorch's allocator gives out, and that can be asked for."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Makes it ready before a step is recorded or planned. Raises `BadInput` or `Refused` where it cannot be used."""

    @abc.abstractmethod
    def default_generator(self) -> torch.Generator:
        """What ops draw random numbers from where they are given no generator."""

    @abc.abstractmethod
    def settings(self) -> tuple[object, ...]:
        """What decides over the kernels that ops run, and over where they run: other settings are another kind of batch."""

    @abc.abstractmethod
    def running(self) -> contextlib.AbstractContextManager[None]:
        """Around a planned step: autocast off, and the device current."""

    @abc.abstractmethod
    def comparable(self) -> contextlib.AbstractContextManager[None]:
        """Around the eager step that a planned one is compared with: the same kernels, where threads decide over them."""

    @abc.abstractmethod
    def synchronise(self) -> None:
        """Waits until all that was enqueued has ended."""

    @abc.abstractmethod
    def run(self, func: Any, args: Any, kwargs: Any, reads_on_host: bool) -> tuple[Any, Stopwatch]:
        """Runs an op while a step is recorded, and times it."""

    @abc.abstractmethod
    def seconds(self, watches: list[Stopwatch]) -> list[float]:
        """How long the calls of a step took, after it has ended."""

    @abc.abstractmethod
    def seconds_in_graph(
        self, work: Callable[[], object], generators: Iterable[torch.Generator]
    ) -> float | None:
        """How long a call takes as part of a graph, which does the work a few times; none where it cannot be part of one."""

    @abc.abstractmethod
    def measure_link(self) -> Link:
        """Measures how fast bytes go to the host and back."""

    @abc.abstractmethod
    def host_limit(self) -> int | None:
        """What swapped bytes may take of the host where nobody says; none for any number."""

    @abc.abstractmethod
    def pinnable(self, size: int) -> int:
        """How much of so much of the host's memory can be had for what is swapped out, as it is tried."""

    @abc.abstractmethod
    def host_slab(self) -> HostSlab:
        """Memory of the host for what is swapped out; no bytes yet."""

    @abc.abstractmethod
    def transfers(self, schedule: _core.Schedule, pool: int, host: HostSlab) -> Transfers:
        """The copies of a schedule between a pool at this address and the slab."""

    @abc.abstractmethod
    def stream(self) -> int:
        """The handle of the stream that ops are enqueued on now; 0 where there is only one."""

    @abc.abstractmethod
    def trim(self) -> None:
        """Gives back what PyTorch's allocator holds without using it."""

    @abc.abstractmethod
    def held_bytes(self, known: Iterable[torch.Tensor], counted: int) -> int:
        """What PyTorch's allocator has given out beside these tensors, and so many bytes that are counted elsewhere, as far as
        the budget is over it."""

    @abc.abstractmethod
    def undo_bytes(self, updated: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> int:
        """What the copies take of the budget by which a step that ends early is undone."""

    @abc.abstractmethod
    def living_in(self, address: int, size: int) -> list[tuple[int, int]]:
        """What PyTorch's allocator has given out of these bytes, as far as it says: addresses and sizes."""

    @abc.abstractmethod
    def free_bytes(self) -> int | None:
        """Memory that is free; none where that is not known."""

    @abc.abstractmethod
    def words(self) -> str:
        """What it is, for a report."""

    @abc.abstractmethod
    def notes(self) -> list[str]:
        """What a reader of a report must know."""

    def clock(self) -> float:
        """Seconds, when all that was enqueued has ended."""
        self.synchronise()
        return time.perf_counter()
