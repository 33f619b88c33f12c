"""Runs the process for one network, and a further one if an arm ended the process.

A section that is cut has written its rows. An arm that hangs, or ends its process, becomes a row; the next process gets the
rows so far, and continues with the next arm.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

AGAIN = 75
"""Exit code of a process that wrote the row of an arm after which its GPU no longer responds: a further process continues."""

PROCESSES = 12
"""Limit for one network."""

LEAST_SECONDS = 15.0
"""Time left below which no further process is begun: it imports PyTorch first."""

# Setting with which cuBLAS gives the same bits each time.
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# The setting of users who are short of memory. Bits are compared with PyTorch's defaults.
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
DEFAULTS = ("facts", "bits")


def read(path: Path) -> list[Row]:
    """Rows of a file; empty if the file does not exist. A truncated last line is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def settings(section: str, is_expandable: bool) -> dict[str, str]:
    """Environment of a section's processes. The caller's settings of PyTorch's allocator stay."""
    more = {**DETERMINISTIC, **(EXPANDABLE if is_expandable and section not in DEFAULTS else {})}
    return {**more, **os.environ, **DETERMINISTIC}


@dataclass
class Ended:
    """End of a process: the error, if any, and the arm that it was in."""

    wrong: str
    code: int | None
    """`None` if it was cut."""
    arm: dict[str, Any] | None
    """Its report of the start of the arm."""
    arm_seconds: float = 0.0


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, and those that it started (compilers, for example)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def watch(
    command: list[str], seconds: float, keep: Callable[[Row], None], environment: dict[str, str]
) -> Ended:
    """Runs a process to its end, or until its time or that of an arm is over. Hands over its rows as they come."""
    last: list[str] = []
    arm: dict[str, Any] | None = None
    begun = time.monotonic()
    end, unread = begun + seconds, b""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        while True:
            is_over = process.poll() is not None
            late = time.monotonic() > end or (
                arm is not None and time.monotonic() > min(end, begun + arm["seconds"])
            )
            unread += process.stdout.read() or b""
            *lines, unread = unread.split(b"\n")
            for line in (one.decode(errors="replace") for one in lines):
                if line.startswith("ROW "):
                    keep(json.loads(line[4:]))
                    arm = None
                elif line.startswith("ARM "):
                    arm, begun, late = json.loads(line[4:]), time.monotonic(), False
                elif line.strip():
                    last = [*last[-4:], line]
            spent = time.monotonic() - begun
            words = " | ".join(last)
            if is_over:
                code = process.returncode
                return Ended(f"exit code {code}: {words}" if code else "", code, arm, spent)
            if late and arm is not None:
                return Ended(f"cut after {spent:.0f} s", None, arm, spent)
            if late:
                return Ended(f"cut after {seconds:.0f} s: {words}", None, None)
            time.sleep(0.05)
    finally:
        kill(process)
        process.stdout.close()


def asked(
    section: str,
    network: str,
    command: Callable[[float, str], list[str]],
    seconds: float,
    keep: Callable[[Row], None],
    is_expandable: bool = True,
) -> str:
    """Runs a network for at most this many seconds; returns errors that belong to no arm.

    `command` makes the command of a process for this many seconds, with the file of the rows so far.
    """
    own: list[Row] = []
    end = time.monotonic() + seconds
    environment = settings(section, is_expandable)

    def kept(row: Row) -> None:
        own.append(row)
        keep(row)

    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done.jsonl"
        for _ in range(PROCESSES):
            left = end - time.monotonic()
            done.write_text("".join(json.dumps(row) + "\n" for row in own))
            ended = watch(command(left, str(done)), left, kept, environment)
            if ended.code == 0:
                return ""
            if ended.arm is not None:
                row = {**ended.arm["row"], "arm_seconds": ended.arm_seconds}
                kept({**row, ended.arm["fails"]: f"fails: its process ended: {ended.wrong}"})
            elif ended.code != AGAIN:
                return ended.wrong
            if end - time.monotonic() < LEAST_SECONDS:
                return f"cut after {seconds:.0f} s"
    return f"{PROCESSES} processes ended before their time"
