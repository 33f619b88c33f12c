"""Swapping without a plan: autograd hooks that copy saved tensors to the host and back, storage by storage.

A storage is numbered when a tensor on it is first saved in a step, and steps save in the same order: the number tells
whether it goes to the host, and which storage is needed next in the backward pass. A weak reference tells a storage from a
later one at its address, and its version tells it from itself before an in-place update. A storage that does not come in
the known order and size stays in place, so that the bits are eager's in any case. A storage is copied when the op that
saved it has ended: some ops write a saved tensor only then (the noise of `rrelu`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .devices import Device
from .torch_private import StorageWeakRef, sequence_number, storage_key, version_of

SMALLEST_BYTES = 1024
"""Smaller storages stay."""


class Stored:
    """A storage that was saved: on the host, or in place."""

    def __init__(self, number: int, storage: torch.UntypedStorage, is_swapped: bool) -> None:
        self.number = number
        self.size = storage.nbytes()
        self.is_swapped = is_swapped
        self.alive = StorageWeakRef(storage)
        self.windows = 0
        """Number of saved tensors on it that were not yet requested."""
        self.back: torch.Tensor | None = None
        """Its bytes, back on the device."""


@dataclass(frozen=True)
class Saved:
    """A tensor on a storage that was swapped out."""

    stored: Stored
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class SavedSwaps:
    """The hooks of one kind of step, on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.sizes: list[int] = []
        """By number: bytes of a storage that may be swapped; 0 for one that stays, such as a parameter."""
        self._order: list[int] = []
        """Numbers, in the order in which the backward pass first requests them."""
        self._swapped: set[int] = set()
        self._host: dict[int, torch.Tensor] = {}
        self._streams: list[torch.cuda.Stream] = []
        self._leaving: list[tuple[int, Stored, torch.Tensor]] = []
        """Storages that go to the host once the op of this number has ended."""
        self._known: dict[tuple[int, int], Stored] = {}
        self._numbered: list[Stored] = []
        self._next = 0
        self._stay: set[int] | None = None
        self._model: torch.nn.Module | None = None
        self._swaps_all = False
        self._missed = 0

    @property
    def chosen(self) -> set[int]:
        """Numbers of the storages that go to the host."""
        return self._swapped

    @property
    def swapped_bytes(self) -> int:
        """Bytes that go to the host."""
        return sum(self.sizes[number] for number in self._swapped)

    def choose(self, numbers: set[int]) -> None:
        """Chooses the storages that go to the host from now on, and allocates host memory for them."""
        self._swapped = numbers
        self._host = {}  # first, so that both never exist at once
        self._host = {number: self._host_memory(self.sizes[number]) for number in numbers}
        if self._device.where.type == "cuda" and not self._streams:
            self._streams = [torch.cuda.Stream(self._device.where) for _ in range(2)]

    def _host_memory(self, size: int) -> torch.Tensor:
        if self._device.where.type == "cuda":
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return torch.frombuffer(
            bytearray(size), dtype=torch.uint8
        )  # not from PyTorch's allocator, so that it does not count as device memory

    @contextlib.contextmanager
    def learning(self, model: torch.nn.Module, swaps_all: bool = False) -> Iterator[None]:
        """Context of a step whose saved storages are noted, and swapped with `swaps_all`. Parameters stay, also
        those that are whole only for a while."""
        self.choose(set())
        self.sizes, self._order = [], []
        self._model, self._swaps_all = model, swaps_all
        try:
            with self.active():
                yield
        finally:
            self._model, self._swaps_all = None, False

    @property
    def missed(self) -> int:
        """Number of storages that stayed in the last step although they were chosen, since they did
        not come in the known order and size."""
        return self._missed

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of a step that swaps."""
        self._known, self._numbered, self._leaving, self._next = {}, [], [], 0
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._missed = len(self._swapped) - sum(stored.is_swapped for stored in self._numbered)
            self._known, self._numbered, self._leaving = {}, [], []

    def _pack(self, tensor: torch.Tensor) -> Any:
        self._leave(sequence_number())
        if tensor.device != self._device.where or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return tensor
        key = (storage_key(tensor), version_of(tensor))
        stored = self._known.get(key)
        if stored is None or stored.alive.expired():
            stored = self._known[key] = self._number(tensor)
        if not stored.is_swapped and self._model is None:
            return tensor
        stored.windows += 1
        offset = int(tensor.storage_offset())
        window = Saved(stored, tensor.dtype, offset, tuple(tensor.shape), tuple(tensor.stride()))
        return window if stored.is_swapped else (stored, tensor)

    def _number(self, tensor: torch.Tensor) -> Stored:
        storage, number = tensor.untyped_storage(), len(self._numbered)
        if self._model is not None:
            parameters = {storage_key(p) for p in self._model.parameters() if type(p) is torch.nn.Parameter}
            stays = storage_key(tensor) in parameters or storage.nbytes() < SMALLEST_BYTES
            self.sizes.append(0 if stays else storage.nbytes())
            if self._swaps_all and not stays:
                self._swapped.add(number)
                self._host[number] = self._host_memory(storage.nbytes())
        is_known = number < len(self.sizes) and self.sizes[number] == storage.nbytes()
        stored = Stored(number, storage, is_known and number in self._swapped)
        self._numbered.append(stored)
        if stored.is_swapped:
            self._leaving.append((sequence_number(), stored, tensor))
        return stored

    def _leave(self, now: int | None = None) -> None:
        """Copies to the host the storages that earlier ops saved; with `None`, those of all ops."""
        while self._leaving and self._leaving[0][0] != now:
            _, stored, tensor = self._leaving.pop(0)
            self._out(stored, tensor, tensor.untyped_storage())

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        if isinstance(packed, tuple):  # while learning
            stored, tensor = packed
            if stored.number not in self._order:
                self._order.append(stored.number)
            return tensor
        self._leave()
        stored = packed.stored
        if self._model is not None and stored.number not in self._order:
            self._order.append(stored.number)
        back = self._ready(stored)
        self._ahead(stored.number)
        stored.windows -= 1
        if stored.windows == 0:
            stored.back = None  # the requester holds it now
        made = torch.empty(0, dtype=packed.dtype, device=back.device)
        return made.set_(back.untyped_storage(), packed.offset, packed.shape, packed.strides)

    def _ahead(self, number: int) -> None:
        """Begins to copy back the storage that is requested next."""
        if not self._streams or number not in self._order:
            return
        following = self._order[self._order.index(number) + 1 :]
        later = next((n for n in following if n in self._swapped and n < len(self._numbered)), None)
        if later is not None and self._numbered[later].is_swapped and self._numbered[later].windows > 0:
            self._back(self._numbered[later])

    def _out(self, stored: Stored, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (stored.size,), (1,))
        host = self._host[stored.number]
        if not self._streams:
            host.copy_(whole)
            return
        out = self._streams[0]
        out.wait_stream(torch.cuda.current_stream(self._device.where))
        with torch.cuda.stream(out), torch.no_grad():
            host.copy_(whole, non_blocking=True)
        tensor.record_stream(out)

    def _back(self, stored: Stored) -> None:
        if stored.back is not None:
            return
        with torch.no_grad():
            stored.back = torch.empty(stored.size, dtype=torch.uint8, device=self._device.where)
            host = self._host[stored.number]
            if not self._streams:
                stored.back.copy_(host)
                return
            out, back = self._streams
            # After earlier uses of these bytes, and after the copy to the host.
            back.wait_stream(torch.cuda.current_stream(self._device.where))
            back.wait_stream(out)
            with torch.cuda.stream(back):
                stored.back.copy_(host, non_blocking=True)
            stored.back.record_stream(back)  # it may never be requested

    def _ready(self, stored: Stored) -> torch.Tensor:
        self._back(stored)
        assert stored.back is not None
        if self._streams:
            torch.cuda.current_stream(self._device.where).wait_stream(self._streams[1])
        return stored.back
