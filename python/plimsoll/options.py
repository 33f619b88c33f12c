"""Options of a step's plan: the arguments of `tune` after the function, the model, the optimizer and the sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .buckets import Buckets
from .errors import BadInput
from .interconnect import Interconnect
from .link import Link


@dataclass(frozen=True)
class Options:
    """Options as described by `plimsoll.tune`."""

    budget: int | str | None
    link: Link | str | None = None
    verify: int = 2
    seconds: float | None = None
    host_budget: int | str | None = None
    buckets: Buckets | Sequence[int] | None = None
    graphs: bool = True
    in_pieces: bool | None = None
    interconnect: Interconnect | str | None = None
    strict: bool = False

    def check(self) -> None:
        """Refuses meaningless values."""
        if self.verify < 0:
            raise BadInput(f"{self.verify} steps cannot be verified; give 0 or more")
        Interconnect.parse(self.interconnect)
