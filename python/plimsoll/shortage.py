"""Out of memory within a step: its detection, and a few retries after memory was released."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from . import allocator

logger = logging.getLogger("plimsoll")

ATTEMPTS = 3
"""Number of attempts at the same work."""

SHARE = 0.9
"""Share of the pool that a smaller plan has."""

Result = TypeVar("Result")


def is_one(error: Exception) -> bool:
    """Returns `True` if memory ran out: by the error's class, or because PyTorch's allocators failed since the last call."""
    failed = allocator.failures()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or failed > 0


def retried(
    work: Callable[[], Result],
    give_back: Callable[[Exception], str | None],
    instead: Callable[[], Result] | None = None,
) -> Result:
    """Does some work. If memory runs out, it releases some and retries, with at most `ATTEMPTS` attempts.

    `give_back` returns a message about its remedy, or `None` if it has none left; the error is then raised, unless there is
    work that takes less memory to do `instead`.
    """
    allocator.failures()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Exception as error:
            if not is_one(error):
                raise
            done = give_back(error)
            if done is None:
                if instead is None:
                    raise
                break
            logger.warning(
                "out of memory in a step (%s): %s (%d of %d)", _first_line(error), done, attempt, ATTEMPTS
            )
    return work() if instead is None else instead()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
