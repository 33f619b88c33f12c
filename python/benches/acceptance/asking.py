"""One network of one section, run arm by arm in a separate process: each row is written at once.

An error of an arm becomes its row. If the process ends early (by a signal, or because a hanging arm is cut), only that arm
is lost: the parent program writes its row, and starts a further process that gets the rows so far and continues after them.
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
"""Seconds that an arm may take beyond its limit."""


class NotHere(Exception):
    """A dependency of an arm is not installed, or not available on this device: the row reads `not measured`."""


def how(error: BaseException) -> str:
    """Description of an arm's failure."""
    is_short = "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)
    kind = "does not fit" if is_short else "fails"
    return f"{kind}: {type(error).__name__}: {str(error)[:300]}"


def no_event(_row: Row, _fails: str, _seconds: float) -> None:
    """Ignores the start of an arm."""


class Ask:
    """A network, its device, the time left, and the rows so far."""

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
        """Rows of this network in this section, those of earlier processes first."""
        self.known = list(known or [])
        """Rows of this network in other sections."""
        self._keep, self._begin = keep, begin
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until this process is ended."""
        return self._end - time.monotonic()

    def found(self, arm: str) -> Row | None:
        """The row of an arm, if there is one."""
        return next((row for row in self.rows if row.get("arm") == arm), None)

    def add(self, row: Row) -> Row:
        """Writes a row, unless an earlier process did."""
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
        """Runs an arm and returns its row; if it raises, the row has the error under the key `fails`.

        `failed` is for a rival, whose failure is a result, and `error` for an arm that must not fail. After `seconds` the
        arm is cut. A row of an earlier process is not measured again.
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
        except Exception as error:  # the other arms still run
            row[fails] = how(error)
        row["arm_seconds"] = time.monotonic() - begun
        # Dropping the error drops its frames and their tensors.
        row = self.add(row)
        try:
            emptied(self.device)
        except Exception:  # such as an illegal address, after which the process cannot use its GPU any more
            sys.stdout.flush()
            raise SystemExit(AGAIN) from None
        return row


def emptied(device: str) -> None:
    """Releases unused memory on a GPU: compiled code, the GPU's memory, and page-locked memory of the host."""
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
    """Context in which PyTorch's allocator takes at most this many bytes from the driver. On the CPU nothing is limited."""
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
