"""Check of the PyTorch version before anything of it is used: missing, too old, or newer than Plimsoll knows."""

from __future__ import annotations

import functools
import importlib
import logging
import re
from types import ModuleType

from .errors import NoTorch

logger = logging.getLogger("plimsoll")

OLDEST = (2, 6)
NEWEST_SEEN = (2, 15)
"""The tests ran with the versions between these two that CI names."""

KNOWN = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST_SEEN[0]}.{NEWEST_SEEN[1]}"


@functools.cache
def _warn_of_newer(said: str) -> None:
    newest = f"{NEWEST_SEEN[0]}.{NEWEST_SEEN[1]}"
    logger.warning("torch %s is newer than %s, the newest that Plimsoll was tested with", said, newest)


def imported(name: str) -> ModuleType:
    """Imports a module of this package that needs PyTorch. Raises `NoTorch` if this PyTorch is unusable."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise NoTorch(f"PyTorch is not installed in this Python: install one of torch {KNOWN}") from None
    said = str(torch.__version__)
    numbers = re.match(r"(\d+)\.(\d+)", said)
    version = (int(numbers[1]), int(numbers[2])) if numbers else NEWEST_SEEN
    if version < OLDEST:
        raise NoTorch(f"torch {said} is too old for Plimsoll: install one of torch {KNOWN}")
    if version > NEWEST_SEEN:
        _warn_of_newer(said)
    try:
        return importlib.import_module(name)
    except (ImportError, AttributeError) as error:
        if version <= NEWEST_SEEN:
            raise
        raise NoTorch(
            f"torch {said} is newer than what this Plimsoll knows and lacks something that it uses ({error}): "
            f"install one of torch {KNOWN}, or a newer Plimsoll"
        ) from error
