"""Ranks agree: what one rank of a distributed training cannot do ends the step on all of them, with the same words.

Before gradients are reduced, which waits for every rank, the ranks tell each other whether their step ran: one number each, by
gloo, on the host. Nobody waits for a GPU. Where one failed, all raise its error, which names the rank; where one planned with
less, the others say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from . import errors

logger = logging.getLogger("plimsoll")

Result = TypeVar("Result")

RAN, TOLD, FAILED = range(3)


@dataclass(frozen=True)
class Report:
    """What a rank tells the others."""

    rank: int
    kind: str
    """The class of its error; empty where its step ran."""
    words: str
    facts: dict[str, Any]
    """The attributes of its error."""


class Ranks:
    """The ranks of a process group, which agree after every step."""

    def __init__(self, of: dist.ProcessGroup | None) -> None:
        self._of = dist.group.WORLD if of is None else of
        self._rank = dist.get_rank(self._of)
        self._size = dist.get_world_size(self._of)
        # A group of their own, on the host: what they say never stands among the gradients.
        ranks = dist.get_process_group_ranks(self._of)
        group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)  # this rank is one of them
        self._group = group
        self._news: list[str] = []

    def tell(self, words: str) -> None:
        """The other ranks log this when they next agree."""
        self._news.append(words)

    def together(self, work: Callable[[], Result]) -> Result:
        """Does some work, which other ranks do as well. Raises on all ranks what it raises on one."""
        done = self.alone(work)
        self._agree(None)
        return done

    def least(self, number: int) -> int:
        """The least of the numbers that the ranks give."""
        least = torch.tensor([number], device="cpu")
        dist.all_reduce(least, dist.ReduceOp.MIN, self._group)
        return int(least.item())

    def alone(self, work: Callable[[], Result]) -> Result:
        """The same where the other ranks do not agree afterwards: they learn what it raises when they next do."""
        try:
            return work()
        except Exception as error:
            self._agree(error)
            raise

    def _agree(self, error: Exception | None) -> None:
        flag = torch.tensor([FAILED if error is not None else TOLD if self._news else RAN], device="cpu")
        reports: list[Report | None] = [None] * self._size
        try:
            dist.all_reduce(flag, dist.ReduceOp.MAX, self._group)
            if flag.item() == RAN:
                return
            dist.all_gather_object(reports, self._report(error), self._group)
        except RuntimeError as gone:
            if error is not None:
                raise error from None
            raise errors.OtherRank(
                f"another rank has ended and said nothing ({_first_line(gone)}): look at what it printed last"
            ) from gone
        self._news.clear()
        there = [report for report in reports if report is not None]
        for report in there:
            if not report.kind and report.words and report.rank != self._rank:
                logger.warning("rank %d: %s", report.rank, report.words)
        first = next((report for report in there if report.kind), None)
        if first is not None:
            raise self._error(first) from error

    def _report(self, error: Exception | None) -> Report:
        if error is None:
            return Report(self._rank, "", "; ".join(self._news), {})
        plain = (bool, int, float, str)
        facts = {name: value for name, value in vars(error).items() if isinstance(value, plain)}
        return Report(self._rank, type(error).__name__, str(error) or type(error).__name__, facts)

    def _error(self, report: Report) -> errors.Error:
        """What a rank told, in its own class where that is one of ours."""
        known = getattr(errors, report.kind, None)
        kind: type[errors.Error] = errors.OtherRank
        words = f"{report.kind}: {report.words}"
        if isinstance(known, type) and issubclass(known, errors.Error):
            kind, words = known, report.words
        made = kind(f"rank {report.rank} of {self._size} ended the step for all: {words}")
        vars(made).update(report.facts)
        return made


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
