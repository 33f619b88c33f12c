"""Agreement of the ranks of a distributed training: a failure on one rank ends the step on all of them, with the same words.

Before any rank waits for reduced gradients, the ranks exchange whether their step ran: one number each, by gloo, on the
host. Nothing waits for a GPU. If one failed, all raise its error, which names the rank; if one planned with less, the
others log it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
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
    """A rank's message to the others."""

    rank: int
    kind: str
    """Class of its error; empty if its step ran."""
    words: str
    facts: dict[str, Any]
    """Attributes of its error."""
    begun: bool
    """`True` if it has begun a collective that all must end."""
    can_end: bool
    """`True` if it can end that."""


class Ranks:
    """The ranks of a process group, which agree after every step."""

    def __init__(self, of: dist.ProcessGroup) -> None:
        self._of = of
        self._rank = dist.get_rank(self._of)
        self._size = dist.get_world_size(self._of)
        # A separate group on the host: its messages never mix with the gradients.
        ranks = dist.get_process_group_ranks(self._of)
        group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)  # this rank is a member
        self._group = group
        self._news: list[str] = []

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def tell(self, words: str) -> None:
        """Queues a message, which the other ranks log when they next agree."""
        self._news.append(words)

    def together(self, work: Callable[[], Result]) -> Result:
        """Does some work, which other ranks do as well. Raises on all ranks an error that it raises on one."""
        try:
            done = work()
        except Exception as error:
            self.agree(error)
            raise
        self.agree(None)
        return done

    def least(self, number: int) -> int:
        """Smallest of the numbers that the ranks give."""
        least = torch.tensor([number], device="cpu")
        dist.all_reduce(least, dist.ReduceOp.MIN, self._group)
        return int(least.item())

    def agree(
        self,
        error: Exception | None,
        begun: bool = False,
        can_end: bool = True,
        end: Callable[[bool], None] | None = None,
    ) -> None:
        """Tells the others whether this rank failed. Raises on all ranks the error of one.

        A rank may have `begun` a collective that all must end. If one has and another failed, each first calls its `end`,
        with `True` if all ranks can.
        """
        if self._most(FAILED if error is not None else TOLD if self._news else RAN, error) != RAN:
            self._hear(error, begun, can_end, end)

    def all_can(self, can: bool) -> bool:
        """Returns `True` if all ranks can do something, before any of them does it. Raises on all ranks
        an error of one since they last agreed."""
        most = self._most(RAN if can else TOLD, None)
        if most == FAILED:
            self._hear(None, begun=False, can_end=True, end=None)
        return most == RAN

    def _most(self, flag: int, error: Exception | None) -> int:
        """Largest flag of all ranks."""
        most = torch.tensor([flag], device="cpu")
        with self._heard(error):
            dist.all_reduce(most, dist.ReduceOp.MAX, self._group)
        return int(most.item())

    @contextlib.contextmanager
    def _heard(self, error: Exception | None) -> Iterator[None]:
        """Context in which the ranks communicate. If another rank has ended, an error of this rank is raised all the same."""
        try:
            yield
        except RuntimeError as gone:
            if error is not None:
                raise error from None
            raise errors.OtherRank(
                f"another rank has ended and said nothing ({_first_line(gone)}): look at what it printed last"
            ) from gone

    def _hear(
        self, error: Exception | None, begun: bool, can_end: bool, end: Callable[[bool], None] | None
    ) -> None:
        """Receives the ranks' reports: logs the news, raises the first error."""
        reports: list[Report | None] = [None] * self._size
        with self._heard(error):
            dist.all_gather_object(reports, self._report(error, begun, can_end), self._group)
        self._news.clear()
        there = [report for report in reports if report is not None]
        for report in there:
            if not report.kind and report.words and report.rank != self._rank:
                logger.warning("rank %d: %s", report.rank, report.words)
        first = next((report for report in there if report.kind), None)
        if first is None:
            return
        if end is not None and any(report.begun for report in there):
            end(all(report.can_end for report in there))
        raise self._error(first) from error

    def _report(self, error: Exception | None, begun: bool, can_end: bool) -> Report:
        if error is None:
            return Report(self._rank, "", "; ".join(self._news), {}, begun, can_end)
        plain = (bool, int, float, str)
        facts = {name: value for name, value in vars(error).items() if isinstance(value, plain)}
        kind = type(error).__name__
        return Report(self._rank, kind, str(error) or kind, facts, begun, can_end)

    def _error(self, report: Report) -> errors.Error:
        """Error of a report, in its own class if that is one of ours."""
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
