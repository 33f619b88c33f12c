"""`plimsoll auto script.py`: runs a script, and reports each step that its calls of `plimsoll.tune` planned.

A script calls `plimsoll.tune`, and otherwise runs as under `python script.py`. Options of the command line replace the
arguments of those calls, so that a budget can be tried without an edit.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import errors
from ._core import Script
from .reporting import COMPARING_SECONDS

if TYPE_CHECKING:
    from .link import Link
    from .step import Step

logger = logging.getLogger("plimsoll")

EXITS: list[tuple[type[errors.Error], int]] = [
    (errors.NoPlan, 3),
    (errors.NoCompiler, 4),
    (errors.DeviceError, 4),
    (errors.VerificationError, 6),
    (errors.Error, 2),
]
"""Exit codes of the program, by the way in which the script ended."""

INTERRUPTED = 130


@dataclass
class Session:
    """A running script, and its planned steps, which are held until they are reported."""

    budget: int | str | None
    link: float | None
    steps: list[Step] = field(default_factory=list)


_session: Session | None = None


def arguments(budget: int | str | None, link: Link | str | None) -> tuple[int | str, Link | str | None]:
    """Returns the budget and the link for a call of `plimsoll.tune` with these arguments."""
    if _session is not None:
        if _session.budget is not None:
            if budget is not None and budget != _session.budget:
                logger.info("the budget is the command line's, %s, not %s", _session.budget, budget)
            budget = _session.budget
        if _session.link is not None:
            link = f"{_session.link:.0f}B/s"
    if budget is None:
        raise errors.BadInput(
            'no budget is given: say `plimsoll.tune(..., budget="22GiB")`, or run the script by `plimsoll auto SCRIPT '
            "--budget 22GiB`"
        )
    return budget, link


def keep(step: Step) -> None:
    """Keeps a step for the report, if a script runs."""
    if _session is not None:
        _session.steps.append(step)


def run(script: Script) -> int:
    """Runs a script, writes the reports of its steps, prints their paths, and returns the exit code."""
    global _session
    _session = session = Session(script.budget, script.link)
    if not script.quiet:
        logger.setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("plimsoll: %(message)s"))
        logger.addHandler(handler)
    path, folder = os.fspath(script.path), Path(script.folder).absolute()
    sys.argv = [path, *map(os.fsdecode, script.arguments)]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        code = _execute(path)
    finally:
        _session = None
    if session.steps:
        # After an interrupt, no comparison is made.
        seconds = 0.0 if code == INTERRUPTED else COMPARING_SECONDS
        return _report(session.steps, folder, seconds) or code
    if code == 0:
        _say(
            f"{path} ended without a call of `plimsoll.tune`: nothing was planned, and nothing can be reported"
        )
    return code or 2


def _report(steps: list[Step], folder: Path, seconds: float) -> int:
    """Writes the reports and prints their paths; returns the exit code, 0 for success."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, step in enumerate(steps, 1):
            place = folder / ("report.html" if number == 1 else f"report-{number}.html")
            step.report(place, seconds)
            print(f"report  {place}")
    except OSError as error:
        _say(f"the report cannot be written: {error}; name another folder with --study")
        return 2
    except KeyboardInterrupt:
        _say("stopped before the report was written")
        return INTERRUPTED
    return 0


def _say(words: str) -> None:
    print(f"error: {words}", file=sys.stderr)


def _execute(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return INTERRUPTED
    except errors.Error as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        place = f" ({path}:{frames[-1].lineno})" if frames else ""
        _say(f"{error}{place}")
        return next(code for kind, code in EXITS if isinstance(error, kind))
    except Exception:
        traceback.print_exc()
        return 1
    return 0
