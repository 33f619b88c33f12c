"""Records a step that does not fit memory: its calls from fake tensors, and the memory and time of each call by running it
alone.

Fake tensors know shapes, layouts and aliases. Everything else is measured: each call runs alone, on tensors of the right
layout, so that memory holds the operands of one call at a time, which any plan must hold, too. Parameters, buffers and the
sample are the real ones; floating-point tensors that other calls would make hold 0.5, all others 0, which is a valid index
anywhere. Of equal calls on equal layouts only one runs.

Fake tensors are checked twice: a few samples are recorded both ways, and tensors that a call makes in memory must have
their layout on fake tensors. Values that the host reads are known from these few samples.

Nothing else here depends on values. A kernel that allocates differently for other values shows when the plan runs, as always.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from . import allocator, batches, devices, recording, shortage, timing
from ._core import show_bytes
from .devices import Device
from .errors import BadInput, NoPlan, Refused
from .operands import Operands, bound
from .ops import tensors_in
from .recorder import MOST_ON_HOST, NOTHING_KNOWN, Known, TooLarge, allocated, owners
from .recording import Loss
from .surroundings import Generators
from .tape import Allocation, Call, Role, Tape, Window
from .torch_private import below_autograd, storage_key, views_as_of_fakes

RUNS = 3
"""Timed runs of each call, after one that warms up; it takes its shortest time."""

LONG_SECONDS = 0.1
"""A call that takes longer is timed once."""


@dataclass(frozen=True)
class Measured:
    """Facts about a recording in pieces."""

    peak_bytes: int
    """Peak bytes that trying the calls allocated, in addition to existing memory."""
    tried: int
    """Number of calls that ran; the others are equal to one of them."""
    known: Known
    """Values that the host reads."""
    is_compared: bool
    """`True` if a few samples were recorded in memory, too, and made the same calls."""


@dataclass(frozen=True)
class _Taken:
    """Measurements of a call that ran alone."""

    seconds: float
    sizes: list[int]
    """Bytes of the storages that it made, in order."""
    windows: list[Window]
    """Tensors that it made; a storage's number is its place in `sizes`."""
    allocations: list[Allocation]
    """A storage's number is its place in `sizes`."""
    workspace_bytes: int
    on_host: list[tuple[int, int]]
    """In a step off the host: the tensors on the host, by position among all results and in `windows`."""


def known_of_few(
    fn: Loss, model: torch.nn.Module, sample: tuple[Any, ...], memory: int | None, adds: bool = False
) -> tuple[Known, bool]:
    """Returns the values that the host reads, from a recording of a few samples if that fits the memory, and `True` if
    there was one.

    Raises `Refused` if that recording has different calls than one on fake tensors.
    """
    few, size = batches.SMALL[0], batches.size_of(sample)
    if size <= few:
        return NOTHING_KNOWN, False
    part = batches.taken(sample, 0, few)
    try:
        if memory is not None and _held_bytes(fn, model, part, memory, adds) > memory:
            return NOTHING_KNOWN, False
        with views_as_of_fakes():
            real = recording.record(fn, model, part, adds, most_bytes=memory, graphs=False)
    except (Refused, BadInput):
        raise
    except (TooLarge, NoPlan):
        return NOTHING_KNOWN, False
    except Exception:  # the user's code may support only one batch size, or the device is too small
        allocator.failures()
        return NOTHING_KNOWN, False
    found = Known.of(real)
    _same_calls(recording.record_structure(fn, model, part, found, adds), real)
    return found, True


def _held_bytes(fn: Loss, model: torch.nn.Module, part: tuple[Any, ...], memory: int, adds: bool) -> int:
    """Bytes that recording a few samples allocates, without the model. If this cannot be known before it runs, since the host
    reads a value, a recording that stops at half of the memory measures it."""
    try:
        tape = recording.record_structure(fn, model, part, adds=adds)
    except Refused:
        with views_as_of_fakes():
            tape = recording.record(fn, model, part, adds, most_bytes=memory // 2, graphs=False)
    else:
        measure(tape, part, devices.of(model))
    held = sum(storage.size for storage in tape.storages if storage.role is not Role.KEPT)
    return held + max(call.workspace_bytes for call in tape.calls)


def _same_calls(fake: Tape, real: Tape) -> None:
    for one, other in zip(fake.calls, real.calls, strict=False):
        if _signature(one) != _signature(other):
            raise Refused(
                f"on fake tensors, by which a step is recorded that does not fit memory, it calls `{one.func}` where in memory "
                f"it calls `{other.func}`, or the operands differ",
                str(other.func),
                other.layer,
            )
    if len(fake.calls) != len(real.calls):
        raise Refused(
            f"on fake tensors, by which a step is recorded that does not fit memory, it makes {len(fake.calls)} calls, and in "
            f"memory {len(real.calls)}"
        )


def _signature(call: Call) -> tuple[object, ...]:
    func, arguments, reads, writes, _, phase, source = call.signature()
    return func, arguments, reads, writes, phase, source


def measure(tape: Tape, sample: tuple[Any, ...], device: Device) -> tuple[int, int]:
    """Sets seconds, allocations and workspace of each call of a tape on fake tensors, and the bytes of each storage in memory.
    Returns the peak bytes that this allocated, and the number of calls that ran."""
    drawn = [call.random.generator for call in tape.calls if call.random is not None]
    generators = Generators(torch.default_generator, device.default_generator(), *drawn)
    try:
        with device.running(), torch.no_grad(), device.allocator.recording() as log:
            bench = _Bench(tape, sample, device, log)
            for number in range(len(tape.calls)):
                bench.measure(number)
            peak = log.peak_bytes
    finally:
        generators.restore()
    timing.in_graphs(tape, sample, device)
    return peak, len(bench.known)


class _Bench:
    """Runs the calls of a tape one by one."""

    def __init__(self, tape: Tape, sample: tuple[Any, ...], device: Device, log: allocator.Log) -> None:
        self.known: dict[object, _Taken] = {}
        self._tape = tape
        self._device = device
        self._log = log
        self._operands = Operands(tape, sample, device)
        self._mended: dict[Window, Window] = {}
        self._opaque: set[int] = set()

    def measure(self, number: int) -> None:
        """Measures a call, unless an equal one was measured before."""
        call = self._tape.calls[number]
        self._mend(call)
        key = self._operands.key(call)
        taken = self.known.get(key)
        if taken is None:
            taken = self._try(call)
            self.known[key] = taken
        made = list(dict.fromkeys(window.storage for window in self._tape.made[number]))
        self._check(call, self._tape.made[number], made, taken)
        for storage, size in zip(made, taken.sizes, strict=True):
            self._tape.storages[storage].size = size
        call.seconds = taken.seconds
        call.workspace_bytes = taken.workspace_bytes
        call.allocations = [
            Allocation(a.bytes, None if a.storage is None else made[a.storage], a.offset)
            for a in taken.allocations
        ]

    def _mend(self, call: Call) -> None:
        """Sets the layouts of the call's operands to those in memory."""
        for position, argument in enumerate(call.arguments):
            if isinstance(argument, Window):
                call.arguments[position] = self._mended.get(argument, argument)
                if argument.storage in self._opaque and argument not in self._mended:
                    raise self._differs(call, "other bytes of an operand", "too few")

    def _check(self, call: Call, fake: list[Window], made: list[int], taken: _Taken) -> None:
        """Refuses a call whose results have other layouts in memory than on fake tensors. Bytes that only other kernels read,
        such as those that cuDNN keeps for the backward pass, may be more: the step does not compute with them."""
        if len(fake) != len(taken.windows) or len(made) != len(taken.sizes):
            raise self._differs(call, f"{len(taken.windows)} tensors", f"{len(fake)}")
        # Fake tensors may be on a different device: the seed of attention lies on the host.
        call.on_host = [(given, fake[place]) for given, place in taken.on_host]
        for _, window in call.on_host:
            self._tape.storages[window.storage].is_on_host = True
        for one, there in zip(fake, taken.windows, strict=True):
            real = Window(made[there.storage], there.dtype, there.offset, there.shape, there.strides)
            if real == one:
                continue
            if one.dtype == real.dtype == torch.uint8 and len(one.shape) == len(real.shape) == 1:
                self._opaque.add(one.storage)
            elif _elements(one) != _elements(real):
                raise self._differs(call, _words(real), _words(one))
            self._mended[one] = real

    def _differs(self, call: Call, real: str, fake: str) -> Refused:
        return Refused(
            f"it makes {real} in memory and {fake} on fake tensors, by which a step is recorded that does not fit memory. Give "
            "more memory, or a smaller batch",
            str(call.func),
            call.layer,
        )

    def _try(self, call: Call) -> _Taken:
        """Runs a call on separate operands."""
        try:
            storages = self._operands.storages(call)
            self._log.take()
            first = self._run(call, storages)
            taken = self._run(call, storages)
            if (first.allocations, first.sizes) != (taken.allocations, taken.sizes):
                first, taken = (
                    taken,
                    self._run(call, storages),
                )  # the first run of a kernel may keep memory
            if (first.allocations, first.sizes) != (taken.allocations, taken.sizes):
                raise Refused("it allocates otherwise in a second run", *call.place)
            seconds = taken.seconds
            for _ in range(RUNS - 1 if seconds < LONG_SECONDS else 0):
                seconds = min(seconds, self._run(call, storages).seconds)
            return replace(taken, seconds=seconds)
        except Refused:
            raise
        except Exception as error:
            if shortage.is_one(error):
                alive = show_bytes(self._log.alive_bytes)
                raise NoPlan(
                    f"`{call.func}` of layer `{call.layer}` finds no memory alone, beside its operands of {alive}: "
                    "lower the batch"
                ) from error
            raise Refused(
                "it cannot be tried alone, on operands whose values are made up, which a step needs that does not fit memory: "
                f"{error}",
                str(call.func),
                call.layer,
            ) from error

    def _run(self, call: Call, storages: dict[int, torch.UntypedStorage]) -> _Taken:
        arguments, keywords = bound(call, storages)
        before = {storage_key(leaf) for leaf in tensors_in((arguments, keywords))}
        with below_autograd():
            out, watch = self._device.run(call.func, arguments, keywords, call.reads_on_host)
        (seconds,) = self._device.seconds([watch])
        events = self._log.take()
        outs = tensors_in(out)
        made = [tensor for tensor in outs if storage_key(tensor) not in before]
        where = {id(tensor): number for number, tensor in enumerate(outs)}
        keys = list(dict.fromkeys(map(storage_key, made)))
        owner = owners(events)
        results: dict[int, int] = {}
        sizes = [0] * len(keys)
        windows: list[Window] = []
        on_host = []
        for tensor in made:
            place, storage = keys.index(storage_key(tensor)), tensor.untyped_storage()
            layout = (int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
            windows.append(Window(place, tensor.dtype, *layout))
            sizes[place] = storage.nbytes()
            if tensor.device != self._device.where and 0 < storage.nbytes() <= MOST_ON_HOST:
                on_host.append((where[id(tensor)], len(windows) - 1))
            if tensor.device != self._device.where or storage.nbytes() == 0:
                continue
            position = owner.get(storage.data_ptr(), -1)
            if position < 0:
                why = "the memory of its result does not come from PyTorch's allocator"
                raise Refused(why, *call.place)
            results[position] = place
        allocations, workspace = allocated(events, results)
        return _Taken(seconds, sizes, windows, allocations, workspace, on_host)


def _elements(window: Window) -> tuple[object, ...]:
    """Positions of its elements. The stride of a size of 1 is meaningless, and may differ on fake tensors."""
    steps = [(size, stride) for size, stride in zip(window.shape, window.strides, strict=True) if size != 1]
    return window.dtype, window.offset, window.shape, steps


def _words(window: Window) -> str:
    return f"{window.dtype} of {window.shape} with strides {window.strides}"
