"""Memory that runs out inside a step: whether it did, and the same work again, a few times, after some was given back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from . import allocator

logger = logging.getLogger("plimsoll")

ATTEMPTS = 3
"""So often the same work is tried again."""

SHARE = 0.9
"""The share of the pool that a plan with less has."""

Result = TypeVar("Result")


def is_one(error: Exception) -> bool:
    """Whether an error is that memory ran out: by its class, or as PyTorch's allocators failed since this was last asked."""
    failed = allocator.failures()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or failed > 0


def retried(
    work: Callable[[], Result],
    give_back: Callable[[Exception], str | None],
    instead: Callable[[], Result] | None = None,
) -> Result:
    """Does some work. Where memory runs out it gives some back, and does the same again, at most `ATTEMPTS` times.

    `give_back` says what it did about the error, or gives None where it can do nothing more; the error is raised then, unless
    there is something that takes less memory to do `instead`.
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
