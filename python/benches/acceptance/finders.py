"""Two loops by which users find the largest batch that fits: they try until memory runs out. Trainers ship them; these are
our versions.

Accelerate's begins with a large batch and reduces it by a tenth each time that memory runs out. Lightning's doubles a small
one until memory runs out, then halves the gap. Both try a few steps, keep the learning rate, and do not measure a batch's
speed. `accept.py batch` runs them within Plimsoll's memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

FROM, UP_FROM = 1024, 2
"""First batches of the loops."""

STEPS = 3
"""Steps of each try."""


class Tries:
    """Tries batches, and counts how often memory ran out. After `seconds` no try is begun: `TimeoutError`."""

    def __init__(self, step: Callable[[int], Any], seconds: float) -> None:
        self.step, self.end = step, time.monotonic() + seconds
        self.count = self.ooms = 0

    def __call__(self, batch: int) -> bool:
        """Returns `True` if a few steps of a batch run."""
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
        # Dropping the error drops the failed step's tensors.
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
        return False


def shrinking(runs: Callable[[int], bool]) -> int:
    """Reduces the batch by a tenth each time; 0 if not even one sample runs."""
    batch = FROM
    while batch and not runs(batch):
        batch = int(batch * 0.9)
    return batch


def doubling(runs: Callable[[int], bool]) -> int:
    """Doubles the batch until memory runs out, then bisects; 0 if nothing runs."""
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
"""The loops of Accelerate and Lightning."""
