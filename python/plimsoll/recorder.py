"""Records every op that PyTorch dispatches below autograd as a call of a tape.

Refused: shapes that depend on values, tensors that are not plain strided memory, values that leave PyTorch and come back,
storage that changes its size, and a generator that the step seeds itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import allocator
from .devices import Device
from .devices.device import Stopwatch
from .errors import Refused
from .ops import (
    copies_whole,
    gives_a_value,
    indexes_by_position,
    leaves_blank,
    reads_operands,
    running_statistics,
    tensors_in,
    written,
)
from .surroundings import Generators, Keeper, Modules
from .tape import Allocation, Call, Random, Role, Storage, Tape, Window, aligned
from .torch_private import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    flops_of,
    storage_key,
    tree_flatten,
    tree_unflatten,
)

HOST = torch.device("cpu")
PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
RESIZES = {"resize_", "resize_as_", "set_"}

MOST_ON_HOST = 1 << 20
"""A larger tensor on the host, in a step on a GPU, is neither a seed nor a counter: the step would swap by hand."""


BYPASSED = (
    "{} that no recorded op wrote: a kernel that bypasses PyTorch's dispatcher (Triton, numba, a C++ extension) would not run "
    "again. Make the kernel an op (`torch.library.custom_op`), or its autograd function one (`plimsoll.opaque`)"
)

VALUES_DECIDE = "the shape of its result depends on values; a plan needs fixed shapes"

SEED_ON_FAKES = 0x506C696D736F6C6C
"""Base of the seed that a generator gets after each call that draws from it; the call's number is added."""


class TooLarge(Exception):
    """A run has allocated more than its limit."""


@dataclass(frozen=True)
class Known:
    """Facts from a real recording of a step that fake tensors do not have."""

    values: Sequence[object] = ()
    """Values that the host reads, in order."""
    on_host: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """In a step off the host, by call: positions of its results that lie on the host."""
    told_up_to: int = 0
    """Number of leading values that come from the whole batch, not from a small one."""

    @staticmethod
    def of(tape: Tape) -> Known:
        """Returns the facts of a tape."""
        on_host = {n: [at for at, _ in call.on_host] for n, call in enumerate(tape.calls) if call.on_host}
        return Known([call.value for call in tape.calls if call.reads_on_host], on_host)

    def told(self, tape: Tape, call: Call, value: object) -> Known:
        """Returns the same with a different value at this call. Raises `Refused` if it was corrected before."""
        reads = [one for one in tape.calls if one.reads_on_host]
        place = next(number for number, one in enumerate(reads) if one is call)
        if place < self.told_up_to:
            raise Refused("the host reads a value that is another in each run", *call.place)
        values = [*self.values[:place], value, *self.values[place + 1 :]]
        return Known(values, self.on_host, place + 1)


NOTHING_KNOWN = Known()


class Recorder(TorchDispatchMode):
    """Records every op that is dispatched below autograd.

    With a log of allocations the step really runs. With `fakes` it runs on fake tensors, which have shapes and no memory:
    nothing is computed, and the tape has neither seconds nor scratch. Values that the host reads are then taken from
    `known`, in order.
    """

    def __init__(
        self,
        device: Device,
        log: allocator.Log | None,
        modules: Modules,
        keeper: Keeper,
        generators: Generators,
        known: Known = NOTHING_KNOWN,
        fakes: FakeTensorMode | None = None,
        most_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.storages: list[Storage] = []
        self.phase = "forward"
        self.lifted: set[int] = set()
        self.results: list[list[Window]] = []
        """On fake tensors, by call: the tensors that it makes."""
        self._updated: dict[int, None] = {}
        self._device = device
        self._watches: list[Stopwatch] = []
        self._log = log
        self._known = known
        self._fakes = fakes
        self._most_bytes = most_bytes
        self._values = iter(known.values)
        self._modules = modules
        self._keeper = keeper
        self._generators = generators
        self._numbers: dict[int, int] = {}
        self._held: list[torch.UntypedStorage] = []
        self._layer, self._line = "", ""
        self._blank: set[int] = set()
        """Storages that a call made and none has written, although an unseen kernel may have."""

    @property
    def updated(self) -> list[torch.Tensor]:
        """On fake tensors: existing tensors that the step updates."""
        there = (self.storages[number].tensor for number in self._updated)
        return [tensor for tensor in there if tensor is not None]

    def number(self, tensor: torch.Tensor, role: Role) -> int:
        """Returns the number of a tensor's storage, which is added with this role if it is new."""
        key = storage_key(tensor)
        if key not in self._numbers:
            storage = tensor.untyped_storage()
            self._numbers[key] = len(self.storages)
            self._held.append(storage)
            kept = None
            if role is Role.KEPT:  # detached in a fake mode, a tensor in memory would become a fake one
                kept = tensor if self._fakes is not None else tensor.detach()
            on_host = tensor.device.type == "cpu" and self._device.where.type != "cpu"
            self.storages.append(Storage(storage.nbytes(), role, kept, on_host))
        return self._numbers[key]

    def window(self, tensor: torch.Tensor, role: Role = Role.KEPT) -> Window:
        """Returns a tensor as a window on its storage."""
        number = self.number(tensor, role)
        return Window(
            number, tensor.dtype, int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
        )

    def refuse(self, why: str, func: OpOverload | str) -> Refused:
        """Returns the exception that names op, module and line."""
        return Refused(why, str(func), self._layer, self._line)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the op and records it."""
        kwargs = kwargs or {}
        self._layer, self._line = self._modules.current()
        flat, spec = tree_flatten((args, kwargs))
        if self._fakes is not None:
            flat = [self._as_fake(leaf, func) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
            args, kwargs = tree_unflatten(flat, spec)
        given = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        self._check(func, given, args)
        mutated = written(func, args, kwargs)
        for tensor in mutated + running_statistics(func, args, kwargs):
            number = self.number(tensor, Role.KEPT)
            if self._role(tensor) is Role.KEPT and self._log:
                self._keeper.keep(tensor)
            elif self._role(tensor) is Role.KEPT:
                self._updated[number] = None
        if any(self._role(tensor) is Role.INPUT for tensor in mutated):
            raise self.refuse("the step writes into its sample; clone it first", func)
        random = self._random(func, flat)
        before = {storage_key(t) for t in given}
        places = [_place(t) for t in mutated if self._log]
        windows = [self.window(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        out, watch, events = self._run(func, args, kwargs)
        if random:
            if (
                self._fakes is not None
            ):  # nothing was drawn, and code that restores a state must find a different one
                random.generator.manual_seed(SEED_ON_FAKES + random.source)
            self._generators.after(random, len(self.calls))
        outs = tensors_in(out)
        if any(t.layout is not torch.strided or type(t) not in PLAIN for t in outs):
            raise self.refuse("the op makes a tensor that is no plain strided memory", func)
        made = [t for t in outs if storage_key(t) not in before]
        if places != [_place(t) for t in mutated if self._log]:
            raise self.refuse("the op changes the size of a tensor's memory", func)
        reads_on_host = not outs and not mutated and gives_a_value(func)
        if func is torch.ops.aten.lift_fresh.default:
            self.lifted.update(self._numbers[key] for key in before)
        if not made and not mutated and not reads_on_host:
            return out  # a view, or a check without a result
        for tensor in made:
            self.number(tensor, Role.MADE)
        self._check_written(func, given if reads_operands(func, kwargs) else [], mutated, made)
        for position in self._known.on_host.get(len(self.calls), ()):
            self.storages[self._numbers[storage_key(outs[position])]].is_on_host = True
        planned = [t for t in made if not self.storages[self._numbers[storage_key(t)]].is_on_host]
        allocations, workspace = self._allocations(func, events, planned) if self._log else ([], 0)
        call = Call(
            func=func,
            arguments=windows,
            spec=spec,
            reads=list(dict.fromkeys(self._numbers[key] for key in map(storage_key, given))),
            writes=list(dict.fromkeys(self._numbers[storage_key(t)] for t in mutated + made)),
            allocations=allocations,
            workspace_bytes=workspace,
            phase=self.phase,
            layer=self._layer,
            line=self._line,
            seconds=0.0,
            random=random,
            reads_on_host=reads_on_host,
            value=out if reads_on_host else None,
            on_host=self._on_host(func, outs, made),
            flops=flops_of(func, args, kwargs, out),
        )
        self.calls.append(call)
        self._watches.append(watch)
        if self._fakes is not None:
            self.results.append([self.window(tensor) for tensor in made])
        return out

    def _check_written(
        self,
        func: OpOverload,
        taken: list[torch.Tensor],
        mutated: list[torch.Tensor],
        made: list[torch.Tensor],
    ) -> None:
        """Checks that the memory which a call reads was written by a call."""
        written_now = {self._numbers[storage_key(t)] for t in mutated}
        reads = {self._numbers[storage_key(t)] for t in taken} - written_now
        blank = any(self.is_blank(number) for number in reads)
        if blank and not copies_whole(func):
            raise self.refuse(BYPASSED.format("it reads memory"), func)
        self._blank -= written_now
        if blank or leaves_blank(func):
            self._blank |= {self._numbers[storage_key(t)] for t in made}

    def is_blank(self, number: int) -> bool:
        """Returns `True` if no call has written a storage that a call made."""
        return number in self._blank and self.storages[number].size > 0

    def _as_fake(self, tensor: torch.Tensor, func: OpOverload) -> torch.Tensor:
        """Returns a tensor from memory, such as a constant, as a fake one, so that its views are on one storage."""
        assert self._fakes is not None
        if isinstance(tensor, FakeTensor) or type(tensor) not in PLAIN:
            return tensor
        if tensor.requires_grad:
            raise self.refuse(
                "it takes a tensor that requires a gradient and is no parameter of the model", func
            )
        fake = self._fakes.from_tensor(tensor, static_shapes=True)
        key = storage_key(fake)
        if key not in self._numbers:
            self._numbers[key] = self.number(tensor, Role.KEPT)
            self._held.append(fake.untyped_storage())
        return fake

    def settle(self) -> None:
        """Sets the seconds of the calls after the step has ended."""
        if self._log is not None:
            for call, seconds in zip(self.calls, self._device.seconds(self._watches), strict=True):
                call.seconds = seconds

    def _on_host(
        self, func: OpOverload, outs: list[torch.Tensor], made: list[torch.Tensor]
    ) -> list[tuple[int, Window]]:
        """Results of a call on a GPU that lie on the host."""
        new = {storage_key(t) for t in made}
        found = []
        for number, tensor in enumerate(outs):
            storage = self.storages[self._numbers[storage_key(tensor)]]
            if storage.is_on_host and storage_key(tensor) in new and storage.size > 0:
                if storage.size > MOST_ON_HOST:
                    raise self.refuse(
                        f"it makes a tensor of {storage.size} B on the host; what is swapped is the plan's to decide",
                        func,
                    )
                found.append((number, self.window(tensor)))
        return found

    def _run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Stopwatch, list[allocator.Event]]:
        """Returns the op's result, the stopwatch of its time, and its allocations."""
        if self._log is None:
            if gives_a_value(func):
                known = next(self._values, None)
                if known is None:
                    raise self.refuse("the host reads a value, which is not known before the step runs", func)
                return known, 0.0, []
            return func(*args, **kwargs), 0.0, []
        self._log.take()
        out, watch = self._device.run(func, args, kwargs, gives_a_value(func))
        events = self._log.take()
        if self._most_bytes is not None and self._log.peak_bytes > self._most_bytes:
            raise TooLarge
        return out, watch, events

    def _role(self, tensor: torch.Tensor) -> Role:
        return self.storages[self._numbers[storage_key(tensor)]].role

    def _check(self, func: Any, given: list[torch.Tensor], args: Any) -> None:
        if not isinstance(func, OpOverload):
            raise self.refuse("the op is not one of PyTorch's dispatcher", str(func))
        name = func._schema.name.split("::")[1]
        if name in RESIZES:
            raise self.refuse("the op changes the size of a tensor's memory", func)
        if torch.Tag.dynamic_output_shape in func.tags and not indexes_by_position(func, args):
            raise self.refuse(VALUES_DECIDE + instead_of(self._line), func)
        for tensor in given:
            if type(tensor) not in PLAIN:
                raise self.refuse(f"it takes a tensor of the class {type(tensor).__name__}", func)
            if (
                tensor.layout is not torch.strided
                or tensor.is_quantized
                or tensor.is_conj()
                or tensor.is_neg()
            ):
                raise self.refuse("it takes a tensor that is no plain strided memory", func)
            if tensor.device not in (self._device.where, HOST):
                raise self.refuse(
                    f"it takes a tensor on {tensor.device}; the step runs on {self._device.where}", func
                )

    def _random(self, func: OpOverload, flat: list[Any]) -> Random | None:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None
        generator = next(
            (leaf for leaf in flat if isinstance(leaf, torch.Generator)), self._default_generator(flat)
        )
        random = self._generators.before(generator, len(self.calls))
        if random is None:
            raise self.refuse("the step seeds the generator itself; seed it before the step", func)
        return random

    def _default_generator(self, flat: list[Any]) -> torch.Generator:
        """Returns the generator of an op that is given none: the device's, or the host's for an op on the host."""
        on_host = [leaf.device == HOST for leaf in flat if isinstance(leaf, torch.Tensor)]
        named = next((leaf for leaf in flat if isinstance(leaf, torch.device)), None)
        is_host = named == HOST or (named is None and all(on_host))
        return torch.default_generator if is_host else self._device.default_generator()

    def _allocations(
        self, func: OpOverload, events: list[allocator.Event], made: list[torch.Tensor]
    ) -> tuple[list[Allocation], int]:
        """Returns the call's allocations, in order, with a place in the workspace for each temporary.

        Results are alive at the end: an earlier temporary may have had the same address. Temporaries share bytes only if
        this thread itself freed one before it allocated the other.
        """
        owner = owners(events)
        results = {}
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage.nbytes() == 0:
                continue
            position = owner.get(storage.data_ptr(), -1)
            if position < 0:
                raise self.refuse("the memory of its result does not come from PyTorch's allocator", func)
            results[position] = self._numbers[storage_key(tensor)]
        return allocated(events, results)


def owners(events: list[allocator.Event]) -> dict[int, int]:
    """By address: the event that allocated the memory alive there at the end."""
    found: dict[int, int] = {}
    for position, (kind, address, _) in enumerate(events):
        if kind == allocator.ALLOCATED:
            found[address] = position
        else:
            found.pop(address, None)
    return found


def allocated(events: list[allocator.Event], results: dict[int, int]) -> tuple[list[Allocation], int]:
    """Returns a call's allocations, in order, and its workspace. `results` has the storages by the
    events that allocated them."""
    allocations: list[Allocation] = []
    taken: dict[int, tuple[int, int]] = {}  # by event: bytes of the workspace, half-open
    at_address: dict[int, int] = {}
    workspace = 0
    for position, (kind, address, size) in enumerate(events):
        if kind != allocator.ALLOCATED:
            freed = at_address.pop(address, None)
            if kind == allocator.FREED_HERE and freed is not None:
                taken.pop(freed, None)
        elif position in results:
            allocations.append(Allocation(size, results[position], 0))
        else:
            offset = _first_fit(sorted(taken.values()), aligned(size))
            taken[position] = (offset, offset + aligned(size))
            at_address[address] = position
            workspace = max(workspace, offset + aligned(size))
            allocations.append(Allocation(size, None, offset))
    return allocations, workspace


def instead_of(line: str) -> str:
    """Hint at a replacement for the library whose line is refused; empty if none is known."""
    if "/cut_cross_entropy/" not in line:
        return ""
    return ". `plimsoll.adapters.cut_cross_entropy.linear_cross_entropy` computes the same loss without that"


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _first_fit(taken: list[tuple[int, int]], size: int) -> int:
    at = 0
    for begin, end in taken:
        if begin - at >= size:
            break
        at = max(at, end)
    return at
