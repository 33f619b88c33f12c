"""Rates of copies to the host and back, and whether both directions run at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import _core
from .errors import BadInput

SAMPLE_BYTES = 32 << 20
SAMPLES = 5


@dataclass(frozen=True)
class Link:
    """Rates of copies to the host and back, in bytes per second."""

    offload: float
    prefetch: float
    half_duplex: bool = False
    """`True` if both directions share the link, so that one copies at a time."""

    @property
    def rates(self) -> tuple[float, float, bool]:
        """The arguments of the planner."""
        return (self.offload, self.prefetch, self.half_duplex)

    def __str__(self) -> str:
        """The link in words."""
        out, back = (f"{_core.show_bytes(round(rate))}/s" for rate in (self.offload, self.prefetch))
        return f"{out} out, {back} in, {'one way at a time' if self.half_duplex else 'both ways at once'}"

    @staticmethod
    def parse(link: Link | str | None, measure: Callable[[], Link] | None = None) -> Link:
        """Parses one rate for both directions, such as `12GB/s`; `None` is measured, by `measure` or
        in this machine's memory."""
        if isinstance(link, Link):
            return link
        if link is None:
            return (measure or Link.measured)()
        if not isinstance(link, str):
            raise BadInput(f"a link is a rate such as '12GB/s' or a `plimsoll.Link`, not {link!r}")
        rate = _core.parse_rate(link)
        return Link(rate, rate)

    @staticmethod
    def measured() -> Link:
        """Median rate of a few copies in this machine's memory, which is both device and host of a step on the CPU."""
        source = torch.zeros(SAMPLE_BYTES, dtype=torch.uint8)
        target = torch.zeros_like(source)
        seconds = []
        for _ in range(SAMPLES):
            start = time.perf_counter()
            target.copy_(source)
            seconds.append(time.perf_counter() - start)
        rate = SAMPLE_BYTES / sorted(seconds)[SAMPLES // 2]
        return Link(rate, rate)
