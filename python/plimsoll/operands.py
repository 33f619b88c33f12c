"""Operands for a call of a tape that runs alone, to be measured: of the right layout, in separate memory.

Parameters, buffers and the sample are the real ones, or copies if the call writes them. Floating-point tensors that other
calls would make hold 0.5, all others 0, which is a valid index anywhere.
"""

from __future__ import annotations

from typing import Any

import torch

from .devices import Device
from .ops import running_positions, tensors_in
from .tape import Call, Role, Tape, Window
from .torch_private import tree_unflatten

VALUE = 0.5
"""Value of floating-point operands: not denormal, and within the domain of logarithms, roots and probabilities."""


class Operands:
    """Operands for the calls of a tape."""

    def __init__(self, tape: Tape, sample: tuple[Any, ...], device: Device) -> None:
        self._tape = tape
        self._device = device
        self._inputs = {
            window.storage: (window, tensor)
            for window, tensor in zip(tape.inputs, tensors_in(sample), strict=True)
        }

    def key(self, call: Call) -> object:
        """Key that is equal for calls with equal operands."""
        places: dict[int, int] = {}
        described: list[object] = []
        for argument in call.arguments:
            if not isinstance(argument, Window):
                described.append((type(argument), repr(argument)))
                continue
            storage = self._tape.storages[argument.storage]
            place = places.setdefault(argument.storage, len(places))
            # Tensors from before the step have the step's own values: one may be an index.
            own = argument.storage if storage.role in (Role.KEPT, Role.INPUT) and is_index(argument) else None
            layout = (argument.dtype, argument.offset, argument.shape, argument.strides)
            described.append((place, own, layout, storage.size, storage.is_on_host))
        return (str(call.func), str(call.spec), call.reads_on_host, tuple(described))

    def storages(self, call: Call) -> dict[int, torch.UntypedStorage]:
        """Allocates memory for the operands of a call; a call never writes the model's."""
        statistics = {
            window.storage
            for position in running_positions(call.func)
            if isinstance(window := call.arguments[position], Window)
        }
        found: dict[int, torch.UntypedStorage] = {}
        for window in call.arguments:
            if not isinstance(window, Window) or window.storage in found:
                continue
            storage = self._tape.storages[window.storage]
            there = storage.tensor if storage.role is Role.KEPT else None
            if there is not None and window.storage not in {*call.writes, *statistics}:
                found[window.storage] = there.untyped_storage()
                continue
            where = torch.device("cpu") if storage.is_on_host else self._device.where
            own = torch.empty(storage.size, dtype=torch.uint8, device=where).untyped_storage()
            if there is not None:
                own.copy_(there.untyped_storage())
            elif window.storage in self._inputs:
                whole, tensor = self._inputs[window.storage]
                at(own, whole).copy_(tensor)
            else:
                count = storage.size // window.dtype.itemsize
                flat = Window(window.storage, window.dtype, 0, (count,), (1,))
                at(own, flat).fill_(0 if is_index(window) else VALUE)
            found[window.storage] = own
        return found


def bound(call: Call, storages: dict[int, torch.UntypedStorage]) -> tuple[Any, Any]:
    """Arguments of a call on these storages, and its keywords."""
    leaves = [at(storages[a.storage], a) if isinstance(a, Window) else a for a in call.arguments]
    arguments, keywords = tree_unflatten(leaves, call.spec)
    return arguments, keywords


def at(storage: torch.UntypedStorage, window: Window) -> torch.Tensor:
    """Tensor of a window on this storage."""
    empty = torch.empty(0, dtype=window.dtype, device=storage.device)
    return empty.set_(storage, window.offset, window.shape, window.strides)


def is_index(window: Window) -> bool:
    """Returns `True` if the values may be positions or masks, which restricts them."""
    return not (window.dtype.is_floating_point or window.dtype.is_complex)
