"""How users find the largest batch that fits: by trying until memory runs out. Two loops that trainers ship, in our words.

Accelerate's begins with a large batch and takes a tenth off each time that memory runs out. Lightning's doubles a small one
until memory runs out, then halves the gap. Both try a few steps, change no learning rate, and know nothing of how fast a batch
trains. `accept.py batch` runs them within the memory that ours has.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

FROM, UP_FROM = 1024, 2
"""Batches that the loops begin with."""

STEPS = 3
"""Of each try."""


class Tries:
    """Tries batches, and counts how often memory ran out. After so many seconds none is begun: `TimeoutError`."""

    def __init__(self, step: Callable[[int], Any], seconds: float) -> None:
        self.step, self.end = step, time.monotonic() + seconds
        self.count = self.ooms = 0

    def __call__(self, batch: int) -> bool:
        """Whether a few steps of a batch run."""
        if time.monotonic() > self.end:
            raise TimeoutError(
                f"the time is over after {self.count} tries, {self.ooms} of them out of memory"
            )
        self.count += 1
        try:
            for _ in range(STEPS):
                self.step(batch)
            return True
        except torch.OutOfMemoryError:
            self.ooms += 1
        # What the failed step held is let go with its error.
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
        return False


def shrinking(runs: Callable[[int], bool]) -> int:
    """A tenth less each time; 0 where not even one sample runs."""
    batch = FROM
    while batch and not runs(batch):
        batch = int(batch * 0.9)
    return batch


def doubling(runs: Callable[[int], bool]) -> int:
    """Twice as much until memory runs out, then the middle of what ran and what did not; 0 where nothing runs."""
    good, batch = 0, UP_FROM
    while runs(batch):
        good, batch = batch, 2 * batch
    bad = batch
    while bad - good > 1:
        middle = (good + bad) // 2
        if runs(middle):
            good = middle
        else:
            bad = middle
    return good


LOOPS = {"a tenth less each time, from 1024": shrinking, "doubled from 2, then bisected": doubling}
"""As Accelerate does it, and as Lightning does."""
