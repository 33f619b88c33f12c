"""Obstacles to capturing a planned step as one CUDA graph.

A graph repeats enqueued work: kernels, copies, fills, waits. It does not repeat the host's work between two calls: reading
a value, computing on the host, resetting a generator. Other obstacles show when the capture is tried.
"""

from __future__ import annotations

from ._core import Schedule
from .tape import Call, Tape
from .torch_private import tree_unflatten

OWN_NAMESPACES = {"aten", "prims"}
"""PyTorch's own ops, whose work on the host is known."""


def obstacle(tape: Tape, schedule: Schedule) -> str | None:
    """Reason why the step cannot become a graph; `None` if none is known."""
    for compute in schedule.computes():
        call = tape.calls[compute.op]
        if why := obstacle_of(tape, call):
            return why
        if call.random is not None and (compute.again or call.random.source != compute.op):
            return f"{_place(call)} draws the same random numbers again, for which the host puts the generator back"
    return None


def obstacle_of(tape: Tape, call: Call) -> str | None:
    """Reason why a call cannot be part of a graph, in any schedule; `None` if none is known."""
    if call.reads_on_host:
        line = f" at {call.line}" if call.line else ""
        return f"the host reads a value (`{call.name}`{line})"
    if call.func.namespace not in OWN_NAMESPACES:
        return f"`{call.func}` is no op of PyTorch's own, and what it does on the host would not be repeated"
    if _is_without_dropout(call):
        return None  # its seeds, which lie on the host, are unused
    if any(tape.storages[storage].is_on_host for storage in (*call.reads, *call.writes)):
        return f"{_place(call)} takes or gives a tensor on the host"
    return None


def _place(call: Call) -> str:
    return f"`{call.name}`" + (f" of module `{call.layer}`" if call.layer else "")


def _is_without_dropout(call: Call) -> bool:
    """Returns `True` if the call is attention without dropout, forward or backward."""
    names = [argument.name for argument in call.func._schema.arguments]
    if "dropout_p" not in names:
        return False
    at = names.index("dropout_p")
    arguments, keywords = tree_unflatten(call.arguments, call.spec)
    given = arguments[at] if at < len(arguments) else keywords.get("dropout_p", 0.0)
    return bool(given == 0)
