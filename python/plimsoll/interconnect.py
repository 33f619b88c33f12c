"""The network between the ranks of a distributed training: as given, or as measured by a few all-reduces."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from . import _core
from .errors import BadInput

LARGE_BYTES = 4 << 20
SMALL_BYTES = 4
RUNS = 5
"""All-reduces of which the median counts, after one that warms up."""


@dataclass(frozen=True)
class Interconnect:
    """The network between ranks: the rate at which one rank sends while it receives as much, and the latency of a message."""

    bytes_per_second: float
    latency_seconds: float
    is_measured: bool = False

    @staticmethod
    def parse(interconnect: Interconnect | str | None) -> Interconnect | None:
        """Parses `10Gbit/s` or `10Gbit/s,30us`; `None` stays `None`."""
        if interconnect is None or isinstance(interconnect, Interconnect):
            return interconnect
        if not isinstance(interconnect, str):
            raise BadInput(f"an interconnect is a rate such as '10Gbit/s,30us', not {interconnect!r}")
        return Interconnect(*_core.parse_interconnect(interconnect))

    @staticmethod
    def measured(group: dist.ProcessGroup, where: torch.device) -> Interconnect:
        """Measures a few all-reduces of a group on this rank; all ranks of the group measure at once.

        In an all-reduce, each of N ranks sends 2 (N - 1) messages, and (N - 1) / N of the bytes in each of its two rounds.
        """
        others = dist.get_world_size(group) - 1
        small, large = (_seconds(group, size, where) for size in (SMALL_BYTES, LARGE_BYTES))
        sent = 2 * LARGE_BYTES * others / (others + 1)
        # A large all-reduce cannot be faster than a small one, whatever the clock says.
        rate = sent / max(large - small, large / 100)
        return Interconnect(rate, small / (2 * others), is_measured=True)

    def __str__(self) -> str:
        """The network in words."""
        words = _core.show_interconnect(self.bytes_per_second, self.latency_seconds)
        return f"{words} (measured)" if self.is_measured else words


def _seconds(group: dist.ProcessGroup, size: int, where: torch.device) -> float:
    """Median seconds of an all-reduce."""
    summed = torch.zeros(size // 4, device=where)
    seconds = []
    for _ in range(1 + RUNS):
        start = time.perf_counter()
        dist.all_reduce(summed, group=group)
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
