"""The function of each section, and the process that runs it: it prints one row per line, and reports the start of each arm."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .asking import Ask, Row
from .batches import batch
from .bits import bits, facts
from .gauge import context
from .lengths import lengths
from .processes import read
from .racing import compile_, curve, long
from .sections import SECTIONS
from .states import state
from .table import about
from .truth import truths

MEASURES: dict[str, Callable[[Ask], None]] = {
    "facts": facts,
    "bits": bits,
    "curve": curve,
    "batch": batch,
    "lengths": lengths,
    "truth": truths,
    "curves": curve,
    **{name: state for name in SECTIONS if name.startswith("state")},
    **{name: long for name in SECTIONS if name.startswith("long")},
    **{name: compile_ for name in SECTIONS if name.startswith("compile")},
}


def say(word: str, what: Any) -> None:
    """Prints a separate line in one system call, whatever others print."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), f"\n{word} {json.dumps(what)}\n".encode())


def child(section: str, network: str, device: str, small: bool, seconds: float, files: list[str]) -> None:
    """Runs one network of one section. The first file has the rows of earlier processes, the others those of other runs."""
    logging.getLogger("plimsoll").setLevel(logging.ERROR)
    context(device)  # before anything is allocated
    where = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "cpu"
    base = {
        "section": section,
        "network": network,
        "device": where,
        "torch": torch.__version__,
        "small": small,
    }

    def is_known(row: Row) -> bool:
        return row.get("section") != section and about(row) == about(base)

    first, *more = files
    ask = Ask(
        network,
        device,
        small,
        lambda row: say("ROW", {**base, **row}),
        seconds,
        lambda row, fails, limit: say("ARM", {"row": {**base, **row}, "fails": fails, "seconds": limit}),
        read(Path(first)),
        [row for path in more for row in read(Path(path)) if is_known(row)],
    )
    MEASURES[section](ask)
