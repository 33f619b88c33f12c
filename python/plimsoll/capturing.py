"""Whether a planned step can be one CUDA graph, and what forbids it.

A graph repeats what was enqueued: kernels, copies, fills, waits. What the host does between two calls is not repeated: reading
a value, computing on the host, putting a generator back. Whatever else cannot be captured shows when it is tried.
"""

from __future__ import annotations

from ._core import Schedule
from .tape import Call, Tape
from .torch_private import tree_unflatten

OWN_NAMESPACES = {"aten", "prims"}
"""PyTorch's own ops, of which it is known what they do on the host."""


def obstacle(tape: Tape, schedule: Schedule) -> str | None:
    """What forbids that the step becomes a graph; none where nothing is known to."""
    for compute in schedule.computes():
        call = tape.calls[compute.op]
        if why := obstacle_of(tape, call):
            return why
        if call.random is not None and (compute.again or call.random.source != compute.op):
            return f"{_place(call)} draws the same random numbers again, for which the host puts the generator back"
    return None


def obstacle_of(tape: Tape, call: Call) -> str | None:
    """What forbids that a call is part of a graph, in whatever schedule; none where nothing is known to."""
    if call.reads_on_host:
        line = f" at {call.line}" if call.line else ""
        return f"the host reads a value (`{call.name}`{line})"
    if call.func.namespace not in OWN_NAMESPACES:
        return f"`{call.func}` is no op of PyTorch's own, and what it does on the host would not be repeated"
    if _is_without_dropout(call):
        return None  # its seeds, which lie on the host, mean nothing
    if any(tape.storages[storage].is_on_host for storage in (*call.reads, *call.writes)):
        return f"{_place(call)} takes or gives a tensor on the host"
    return None


def _place(call: Call) -> str:
    return f"`{call.name}`" + (f" of module `{call.layer}`" if call.layer else "")


def _is_without_dropout(call: Call) -> bool:
    """Whether it is attention that drops nothing, forward or backward."""
    names = [argument.name for argument in call.func._schema.arguments]
    if "dropout_p" not in names:
        return False
    at = names.index("dropout_p")
    arguments, keywords = tree_unflatten(call.arguments, call.spec)
    given = arguments[at] if at < len(arguments) else keywords.get("dropout_p", 0.0)
    return bool(given == 0)
