"""Exceptions of Plimsoll. Each message says how to fix the problem."""

from __future__ import annotations


class Error(Exception):
    """The base of all exceptions of Plimsoll."""


class BadInput(Error, ValueError):
    """An unusable argument or document."""


class NoTorch(Error, ImportError):
    """PyTorch is missing, too old, or newer than this version of Plimsoll supports."""


class NoCompiler(Error):
    """The allocator cannot be built or loaded on this machine."""


class DeviceError(Error):
    """The GPU or its driver cannot be used, or refused a call."""


class HostMemoryError(DeviceError, MemoryError):
    """The host cannot page-lock this much memory."""


class NoPlan(Error):
    """No plan fits the budget, or none was found; the words and numbers are the planner's."""

    op: str
    """Name of the op that needs most memory."""
    layer: str
    """Layer of that op."""
    needs_bytes: int
    """Bytes that the op needs, resident bytes included."""
    short_by_bytes: int
    """Bytes by which this exceeds the budget."""
    floor_bytes: int
    """Smallest feasible budget, in bytes."""
    budget_bytes: int
    is_proved: bool
    """`True` if it is proved that no plan fits; `False` if none was found."""
    largest_batch: int | None = None
    """Largest batch that fits, also if its gradients are added up; `None` if there is none or it is unknown."""
    enough_bytes: int | None = None
    """A sufficient budget for the batch; `None` if unknown."""


class Refused(Error):
    """The step does something that cannot be recorded."""

    def __init__(self, why: str, op: str = "", layer: str = "", line: str = "") -> None:
        """Takes the reason, and the op, the module and the line of the user's code if known."""
        places = [f"op `{op}`" if op else "", f"module `{layer}`" if layer else "", line]
        place = ", ".join(filter(None, places))
        super().__init__(f"{why} ({place})" if place else why)
        self.op = op
        self.layer = layer
        self.line = line


class PoolInUse(Error):
    """The step's memory was lent to code between steps, and a tensor still lies in it."""


class OtherRank(Error):
    """Another process of a distributed training ended the step for all, by an error that is not Plimsoll's, or has exited."""


class VerificationError(Error):
    """A planned step has different bits than the same step in eager."""
