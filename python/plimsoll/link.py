"""How fast bytes go to the host and come back."""

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
    """How fast bytes go to the host and come back, in bytes per second."""

    offload: float
    prefetch: float

    @staticmethod
    def parse(link: Link | str | None, measure: Callable[[], Link] | None = None) -> Link:
        """A link of one rate such as `12GB/s`; measured where none is given, by `measure` or in this machine's memory."""
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
        """The median of a few copies in this machine's memory, which is both device and host of a step on the CPU."""
        source = torch.zeros(SAMPLE_BYTES, dtype=torch.uint8)
        target = torch.zeros_like(source)
        seconds = []
        for _ in range(SAMPLES):
            start = time.perf_counter()
            target.copy_(source)
            seconds.append(time.perf_counter() - start)
        rate = SAMPLE_BYTES / sorted(seconds)[SAMPLES // 2]
        return Link(rate, rate)
