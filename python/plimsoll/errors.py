"""The exceptions of Plimsoll. Each message says what to do."""

from __future__ import annotations


class Error(Exception):
    """The base of all exceptions of Plimsoll."""


class BadInput(Error, ValueError):
    """An argument or a document that cannot be used."""


class NoTorch(Error, ImportError):
    """PyTorch is missing, too old, or newer than what this version of Plimsoll knows."""


class NoCompiler(Error):
    """The allocator cannot be built or loaded on this machine."""


class DeviceError(Error):
    """The GPU, or its driver, cannot be used or refused a call."""


class HostMemoryError(DeviceError, MemoryError):
    """The host cannot page-lock so much memory."""


class NoPlan(Error):
    """No plan fits the budget, or none was found; the words and numbers are the planner's."""

    op: str
    """The name of the op that needs most."""
    layer: str
    """The layer of that op."""
    needs_bytes: int
    """What it needs, resident bytes included."""
    short_by_bytes: int
    """By how much that exceeds the budget."""
    floor_bytes: int
    """What no plan fits below."""
    budget_bytes: int
    """The budget."""
    is_proved: bool
    """Whether no plan of any kind fits; else none was found."""
    largest_batch: int | None = None
    """The largest batch that fits, where it is known and the batch was not to be split."""
    enough_bytes: int | None = None
    """A budget that is enough, where not even one sample fits; none where it is not known."""


class Refused(Error):
    """The step does something that cannot be recorded."""

    def __init__(self, why: str, op: str = "", layer: str = "", line: str = "") -> None:
        """Says why, with the op, the module and the line of the user's code where they are known."""
        places = [f"op `{op}`" if op else "", f"module `{layer}`" if layer else "", line]
        place = ", ".join(filter(None, places))
        super().__init__(f"{why} ({place})" if place else why)
        self.op = op
        self.layer = layer
        self.line = line


class PoolInUse(Error):
    """The memory of the step was lent to code between steps, and a tensor still lies in it."""


class OtherRank(Error):
    """Another process of a distributed training ended the step for all, by an error that is none of Plimsoll's, or is gone."""


class VerificationError(Error):
    """A planned step gave other bits than the same step in eager."""
