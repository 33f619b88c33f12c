"""One network of one section, asked arm by arm in a process of its own: each row is written as soon as it is there.

What an arm raises is its row. What ends the process (a signal, an arm that hangs and is cut) ends that arm alone: the program
that started the process writes its row, and starts another that is given the rows so far and goes on behind them.
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .processes import AGAIN, Row

GRACE = 5.0
"""Seconds that an arm may have beside what it is given."""


class NotHere(Exception):
    """What an arm needs is not installed, or not there on this device: the row reads `not measured`."""


def how(error: BaseException) -> str:
    """How an arm failed, in words."""
    is_short = "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)
    kind = "does not fit" if is_short else "fails"
    return f"{kind}: {type(error).__name__}: {str(error)[:300]}"


def no_event(_row: Row, _fails: str, _seconds: float) -> None:
    """Nobody waits for the arms."""


class Ask:
    """A network, where it is asked, how much time is left, and the rows so far."""

    def __init__(
        self,
        network: str,
        device: str,
        small: bool,
        keep: Callable[[Row], None],
        seconds: float = math.inf,
        begin: Callable[[Row, str, float], None] = no_event,
        rows: list[Row] | None = None,
        known: list[Row] | None = None,
    ) -> None:
        self.network, self.device, self.small = network, device, small
        self.rows = list(rows or [])
        """Of this network in this section, those of a process before this one first."""
        self.known = list(known or [])
        """Of this network in other sections."""
        self._keep, self._begin = keep, begin
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until this process is ended."""
        return self._end - time.monotonic()

    def found(self, arm: str) -> Row | None:
        """The row of an arm, where there is one."""
        return next((row for row in self.rows if row.get("arm") == arm), None)

    def add(self, row: Row) -> Row:
        """Writes a row, unless a process before this one did."""
        old = self.found(row["arm"])
        if old is not None:
            return old
        self.rows.append(row)
        self._keep(row)
        return row

    def arm(
        self,
        arm: str,
        measure: Callable[[], Row],
        fails: str = "failed",
        seconds: float = math.inf,
        **more: Any,
    ) -> Row:
        """The row of what is measured; where it raises, of the error, under the key `fails`.

        `failed` is for a rival, whose failure is a result, and `error` for what must not fail. After so many seconds the arm is
        cut. A row that a process before this one wrote is not measured again.
        """
        old = self.found(arm)
        if old is not None:
            return old
        row: Row = {"arm": arm, **more}
        self._begin(row, fails, min(seconds, max(self.left(), 0.0)) + GRACE)
        begun = time.monotonic()
        emptied(self.device)
        try:
            row |= measure()
        except NotHere as missing:
            row["not_measured"] = f"not measured: {missing}"
        except Exception as error:  # the others are still asked
            row[fails] = how(error)
        row["arm_seconds"] = time.monotonic() - begun
        # With the error its frames are gone, and what they held.
        row = self.add(row)
        try:
            emptied(self.device)
        except Exception:  # such as an illegal address, after which a process can do nothing on its GPU
            sys.stdout.flush()
            raise SystemExit(AGAIN) from None
        return row


def emptied(device: str) -> None:
    """Gives back what no tensor holds on a GPU: what was compiled, the GPU's memory, and what is page-locked on the host."""
    if not device.startswith("cuda"):
        return
    import torch

    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    empty_host = getattr(torch._C, "_host_emptyCache", None)
    if empty_host is not None:
        empty_host()


@contextlib.contextmanager
def limited(device: str, size: int) -> Iterator[None]:
    """PyTorch's allocator takes at most so many bytes from the driver meanwhile. On the CPU nothing is limited."""
    if not device.startswith("cuda"):
        yield
        return
    import torch

    where = torch.device(device)
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(where).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, size / whole), where)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, where)
