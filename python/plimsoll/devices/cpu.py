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
        """The first address that is used."""
        return self._arena.address


class Cpu(Device):
    """The CPU."""

    where = torch.device("cpu")
    allocator = allocator.CPU
    calibrates = True
    graphs = None
    counts_all = False

    def prepare(self) -> None:
        """Nothing is to be done."""

    def default_generator(self) -> torch.Generator:
        """PyTorch's own."""
        return torch.default_generator

    def settings(self) -> tuple[object, ...]:
        """Autocast of the CPU."""
        return (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Autocast off."""
        with torch.autocast("cpu", enabled=False):
            yield

    def comparable(self) -> contextlib.AbstractContextManager[None]:
        """Kernels are the same in all threads."""
        return contextlib.nullcontext()

    def synchronise(self) -> None:
        """Calls have ended when they return."""

    def run(self, func: Any, args: Any, kwargs: Any, reads_on_host: bool) -> tuple[Any, Stopwatch]:
        """Runs and times an op."""
        start = time.perf_counter()
        out = func(*args, **kwargs)
        return out, time.perf_counter() - start

    def seconds(self, watches: list[Stopwatch]) -> list[float]:
        """As measured at once."""
        return [watch for watch in watches if isinstance(watch, float)]

    def seconds_in_graph(
        self, work: Callable[[], object], generators: Iterable[torch.Generator]
    ) -> float | None:
        """There are no graphs."""
        return None

    def measure_link(self) -> Link:
        """Copies in memory."""
        return Link.measured()

    def host_limit(self) -> int | None:
        """There is no other memory that could be short."""
        return None

    def pinnable(self, size: int) -> int:
        """All of it: there is no other memory that could be short."""
        return size

    def host_slab(self) -> HostSlab:
        """An allocation."""
        return CpuSlab()

    def transfers(self, schedule: _core.Schedule, pool: int, host: HostSlab) -> Transfers:
        """Copies on two threads."""
        return schedule.transfers(pool, host.address)

    def stream(self) -> int:
        """There is only one."""
        return 0

    def trim(self) -> None:
        """PyTorch's CPU allocator holds nothing."""

    def held_bytes(self, known: Iterable[torch.Tensor], counted: int) -> int:
        """The budget is over the step alone, not over all memory of the process."""
        return 0

    def undo_bytes(self, updated: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> int:
        """They count as the host's."""
        return 0

    def living_in(self, address: int, size: int) -> list[tuple[int, int]]:
        """The system says nothing."""
        return []

    def free_bytes(self) -> int | None:
        """As the system says."""
        if "SC_AVPHYS_PAGES" not in os.sysconf_names:
            return None
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def words(self) -> str:
        """Its name and PyTorch's version."""
        return f"CPU, PyTorch {torch.__version__}"

    def notes(self) -> list[str]:
        """That nothing is saved."""
        return [
            "The step runs on the CPU, where device and host are one memory: times and addresses are those of the plan, and no "
            "memory of the machine is saved."
        ]
