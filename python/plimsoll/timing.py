"""Seconds of the calls of a step that becomes a CUDA graph: each call is captured alone, between two events of its graph.

Times from recording a step include the host's, which a graph does not need. A step with a call that cannot be captured
keeps those times, since it runs call by call. On the CPU nothing is captured.
"""

from __future__ import annotations

from typing import Any

import torch

from . import allocator
from .capturing import obstacle_of
from .devices import Device
from .operands import Operands, bound
from .surroundings import Generators
from .tape import Call, Tape
from .torch_private import below_autograd


def in_graphs(tape: Tape, sample: tuple[Any, ...], device: Device) -> bool:
    """Sets each call's seconds to its time in a graph, and returns `True` if it did: for all calls, or none.

    Equal calls are timed once, on made-up operands. Generators are left as they were.
    """
    if device.graphs is None or any(obstacle_of(tape, call) for call in tape.calls):
        return False
    drawn = [call.random.generator for call in tape.calls if call.random is not None]
    generators = Generators(torch.default_generator, device.default_generator(), *drawn)
    known: dict[object, float] = {}
    found: list[float] = []
    try:
        with device.running(), torch.no_grad():
            operands = Operands(tape, sample, device)
            for call in tape.calls:
                key = operands.key(call)
                if key not in known:
                    seconds = _alone(call, operands, device)
                    if seconds is None:
                        return False
                    known[key] = seconds
                found.append(known[key])
    finally:
        generators.restore()
        device.trim()  # memory that captures took for themselves
    for call, seconds in zip(tape.calls, found, strict=True):
        call.seconds = seconds
    return True


def _alone(call: Call, operands: Operands, device: Device) -> float | None:
    drawn = [] if call.random is None else [call.random.generator]
    try:
        arguments, keywords = bound(call, operands.storages(call))

        def work() -> object:
            with below_autograd():
                return call.func(*arguments, **keywords)

        work()  # kernels are loaded when they first run, which no capture allows
        return device.seconds_in_graph(work, drawn)
    except RuntimeError:  # it cannot run on such operands, or finds no memory next to them
        allocator.failures()
        return None
