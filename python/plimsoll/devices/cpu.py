"""Steps on the CPU: device and host are one memory, and calls end before they return."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import _core, allocator
from ..link import Link
from ..memory import Arena
from .device import Device, HostSlab, Stopwatch, Transfers


class CpuSlab(HostSlab):
    """An allocation of PyTorch's."""

    def __init__(self) -> None:
        self._arena = Arena(torch.device("cpu"))
        self.size = 0
        self.generation = 0

    def take(self, size: int) -> None:
        """Allocates."""
        self._arena.reserve(size)

    def give_back(self) -> None:
        """Frees."""
        self._arena.give_back()
        self.size = 0
        self.generation += 1

    @property
    def address(self) -> int:
        """Address of its first used byte."""
        return self._arena.address


class Cpu(Device):
    """The CPU."""

    where = torch.device("cpu")
    allocator = allocator.CPU
    calibrates = True
    graphs = None
    counts_all = False

    def prepare(self) -> None:
        """Does nothing."""

    def default_generator(self) -> torch.Generator:
        """Returns PyTorch's own generator."""
        return torch.default_generator

    def settings(self) -> tuple[object, ...]:
        """Autocast state of the CPU."""
        return (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context without autocast."""
        with torch.autocast("cpu", enabled=False):
            yield

    def comparable(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing: kernels are the same in all threads."""
        return contextlib.nullcontext()

    def synchronise(self) -> None:
        """Does nothing: calls have ended when they return."""

    def run(self, func: Any, args: Any, kwargs: Any, reads_on_host: bool) -> tuple[Any, Stopwatch]:
        """Runs and times an op."""
        start = time.perf_counter()
        out = func(*args, **kwargs)
        return out, time.perf_counter() - start

    def seconds(self, watches: list[Stopwatch]) -> list[float]:
        """Times that were measured at once."""
        return [watch for watch in watches if isinstance(watch, float)]

    def seconds_in_graph(
        self, work: Callable[[], object], generators: Iterable[torch.Generator]
    ) -> float | None:
        """Returns `None`: there are no graphs."""
        return None

    def measure_link(self) -> Link:
        """Measures copies in memory."""
        return Link.measured()

    def host_limit(self) -> int | None:
        """Returns `None`: device and host share one memory."""
        return None

    def pinnable(self, size: int) -> int:
        """Returns all of it: device and host share one memory."""
        return size

    def host_slab(self) -> HostSlab:
        """Returns an allocation."""
        return CpuSlab()

    def transfers(self, schedule: _core.Schedule, pool: int, host: HostSlab) -> Transfers:
        """Returns copies on two threads."""
        return schedule.transfers(pool, host.address)

    def stream(self) -> int:
        """Returns 0: there is only one stream."""
        return 0

    def trim(self) -> None:
        """Does nothing: PyTorch's CPU allocator caches nothing."""

    def held_bytes(self, known: Iterable[torch.Tensor], counted: int) -> int:
        """Returns 0: the budget covers the step alone, not the whole process."""
        return 0

    def undo_bytes(self, updated: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> int:
        """Returns 0: they count as the host's."""
        return 0

    def living_in(self, address: int, size: int) -> list[tuple[int, int]]:
        """Returns nothing: the system does not report it."""
        return []

    def free_bytes(self) -> int | None:
        """Free memory as reported by the system."""
        if "SC_AVPHYS_PAGES" not in os.sysconf_names:
            return None
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def words(self) -> str:
        """Name of the CPU and PyTorch's version."""
        return f"CPU, PyTorch {torch.__version__}"

    def notes(self) -> list[str]:
        """Note that no memory is saved."""
        return [
            "The step runs on the CPU, where device and host are one memory: times and addresses are those of the plan, and no "
            "memory of the machine is saved."
        ]
