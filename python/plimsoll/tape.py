"""A tape: one forward and backward pass as a list of calls below autograd. Plain data, made by `recording`.

A tensor is a window on a *storage*. So a view is no call, but a further window. The step's own storages lie in the pool.
Storages that outlive the step do not: parameters, buffers, constants, gradients and the loss are *resident*.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from ._core import ALIGNMENT
from .torch_private import OpOverload, TreeSpec

SMALLEST_SECONDS = 1e-7
"""Lower limit of a call's time: a clock gives 0 now and then."""


def aligned(size: int) -> int:
    """Bytes of the pool for a storage of this size."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Role(enum.Enum):
    """Role of a storage in the step."""

    INPUT = "input"
    """A tensor of the sample: copied into the pool before the step."""
    MADE = "made"
    """Made by a call of the step, and unused after it."""
    RESULT = "result"
    """Made by a call of the step and used after it: a gradient or the loss."""
    GRADIENT = "gradient"
    """A gradient from before the step, which adds to it: `p.grad` as it is each time."""
    KEPT = "kept"
    """Existing before the step and after it: a parameter, a buffer, or a constant."""


@dataclass(slots=True)
class Storage:
    """A number of bytes, and their role."""

    size: int
    role: Role
    tensor: torch.Tensor | None = None
    """For a kept storage, a tensor on it."""
    is_on_host: bool = False
    """`True` if it lies in host memory in a step that runs on a different device."""

    @property
    def is_pooled(self) -> bool:
        """`True` if it lies in the pool."""
        return self.role in (Role.INPUT, Role.MADE) and self.size > 0 and not self.is_on_host


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor, as a window on a storage."""

    storage: int
    dtype: torch.dtype
    offset: int
    """In elements."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation of a call: one of its results, or a temporary."""

    bytes: int
    storage: int | None
    """`None` for a temporary."""
    offset: int
    """For a temporary, its offset in the workspace."""


@dataclass(slots=True)
class Random:
    """A call that draws random numbers."""

    generator: torch.Generator
    source: int
    """The call whose first run drew from the same state; itself if the state is new."""


@dataclass(slots=True)
class Call:
    """One call of an op."""

    func: OpOverload
    arguments: list[object]
    """Flattened; tensors are windows."""
    spec: TreeSpec
    reads: list[int]
    writes: list[int]
    allocations: list[Allocation]
    workspace_bytes: int
    phase: str
    layer: str
    line: str
    seconds: float
    random: Random | None = None
    reads_on_host: bool = False
    value: object = None
    """Value that the host read, for a call that reads on the host."""
    on_host: list[tuple[int, Window]] = field(default_factory=list)
    """In a step off the host: the tensors that the call makes on the host, with their positions among its results."""
    flops: int = 0
    """Floating-point operations as PyTorch counts them; 0 if PyTorch does not know the op."""

    @property
    def name(self) -> str:
        """Name of the op, such as `convolution`."""
        return self.func._schema.name.split("::")[1]

    @property
    def place(self) -> tuple[str, str, str]:
        """The op, its module and the line of the user's code, for a refusal."""
        return str(self.func), self.layer, self.line

    def signature(self) -> tuple[object, ...]:
        """Everything that must be the same in every run of the step."""
        source = self.random.source if self.random else None
        plain = [
            a if isinstance(a, Window | int | float | str | bool | None) else type(a) for a in self.arguments
        ]
        return (str(self.func), plain, self.reads, self.writes, self.allocations, self.phase, source)


@dataclass
class Tape:
    """A forward and a backward pass."""

    storages: list[Storage]
    calls: list[Call]
    inputs: list[Window]
    """One for each tensor of the sample, in order."""
    loss: Window
    gradients: list[tuple[torch.nn.Parameter, Window | None]]
    """`None` if the step gives a parameter no gradient."""
    updated: list[torch.Tensor]
    """Kept tensors that the step updates: running statistics, counters."""
    lifted: set[int] = field(default_factory=set)
    """Constants that the host makes in every step."""
    arrivals: list[int] = field(default_factory=list)
    """Parameters by number, in the order in which autograd has their gradients."""
    others: tuple[list[object], TreeSpec] | None = None
    """Results of the step other than its loss, flattened; tensors are windows. `None` if there are none."""
    made: list[list[Window]] = field(default_factory=list)
    """In a step on fake tensors, by call: the tensors that it makes."""
    undo_bytes: int = 0
    """Bytes within the budget of the copies by which a step that ends early is undone."""

    def is_recomputable(self, call: Call) -> bool:
        """Returns `True` if the call may run again: no other call writes the storages that it writes outside the pool."""
        return not call.reads_on_host and all(
            self.storages[s].is_pooled
            or (self.storages[s].role in (Role.MADE, Role.RESULT) and self._writers(s) == 1)
            for s in call.writes
        )

    def _writers(self, storage: int) -> int:
        return sum(storage in call.writes for call in self.calls if call.writes)

    def slots(self) -> dict[int, int]:
        """By storage: the number of the parameter whose slot it takes in the slab of gradients.

        Each parameter has one slot, the same in every tape of a model. A gradient on memory that is larger than the
        parameter has none; it is a result like others.
        """
        lies_on = [window.storage for _, window in self.gradients if window is not None]
        return {
            window.storage: number
            for number, (parameter, window) in enumerate(self.gradients)
            if window is not None
            and self.storages[window.storage].role is Role.RESULT
            and self.storages[window.storage].size == parameter.numel() * parameter.element_size()
            and lies_on.count(window.storage) == 1
        }

    def completions(self) -> list[tuple[int, int]]:
        """The parameters that get a gradient, by number, in the order in which autograd has them; each with the call after
        which its gradient and those before it are complete.

        No later call reads on the host: if the host reads a different value, no gradient of the step was handed over.
        """
        last = {storage: number for number, call in enumerate(self.calls) for storage in call.writes}
        arrived = {number: place for place, number in enumerate(self.arrivals)}
        order = sorted(range(len(self.gradients)), key=lambda number: arrived.get(number, len(arrived)))
        complete = max((number for number, call in enumerate(self.calls) if call.reads_on_host), default=0)
        found = []
        for number in order:
            _, window = self.gradients[number]
            if window is not None:
                complete = max(complete, last.get(window.storage, len(self.calls) - 1))
                found.append((number, complete))
        return found

    def adds_to_gradients(self) -> bool:
        """Returns `True` if a gradient existed before the step."""
        return any(storage.role is Role.GRADIENT for storage in self.storages)

    def resident_bytes(self) -> int:
        """Bytes that the step itself keeps outside the pool: a slot for each gradient, and all else that outlives the step."""
        slots = self.slots()
        others = sum(
            aligned(s.size)
            for number, s in enumerate(self.storages)
            if s.role in (Role.RESULT, Role.KEPT) and number not in slots and not s.is_on_host
        )
        return (
            others + self.undo_bytes + sum(aligned(p.numel() * p.element_size()) for p, _ in self.gradients)
        )


@dataclass(frozen=True)
class Document:
    """A tape as `trace/1`."""

    text: str
    tensors: dict[int, int]
    """By storage: its tensor of the trace."""


def to_document(
    tape: Tape, name: str, batch: int, other_resident_bytes: int, is_rounded: bool = True
) -> Document:
    """Writes a tape as `trace/1`: call i is op i. Bytes are rounded up as storages are, or the
    requested ones if not `is_rounded`."""
    rounded = aligned if is_rounded else int
    tensors: dict[int, int] = {}
    described: list[dict[str, object]] = []
    ops: list[dict[str, object]] = []
    dtypes: dict[int, torch.dtype] = {}
    for call in tape.calls:
        for argument in call.arguments:
            if isinstance(argument, Window):
                dtypes.setdefault(argument.storage, argument.dtype)

    def ids(storages: Iterable[int], call: Call, number: int) -> list[int]:
        found = []
        for storage in storages:
            if not tape.storages[storage].is_pooled:
                continue
            if storage not in tensors:
                tensors[storage] = len(described)
                one = _describe(tape.storages[storage], call, number, dtypes.get(storage))
                described.append({**one, "bytes": rounded(tape.storages[storage].size)})
            found.append(tensors[storage])
        return found

    for number, call in enumerate(tape.calls):
        ops.append(
            {
                "name": f"{number}.{call.name}",
                "layer": call.layer,
                "kind": call.name,
                "phase": call.phase,
                "seconds": max(call.seconds, SMALLEST_SECONDS),
                "reads": ids(call.reads, call, number),
                "writes": ids(call.writes, call, number),
                "workspace_bytes": rounded(call.workspace_bytes),
                "flops": call.flops,
                "recomputable": tape.is_recomputable(call),
            }
        )
    document = {
        "plimsoll": "trace/1",
        "name": name,
        "batch": batch,
        "resident_bytes": tape.resident_bytes() + other_resident_bytes,
        "tensors": described,
        "ops": ops,
    }
    return Document(json.dumps(document), tensors)


def _describe(storage: Storage, call: Call, number: int, dtype: torch.dtype | None) -> dict[str, object]:
    if storage.role is Role.INPUT:
        kind = "input"
    elif dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        kind = "other"
    else:
        kind = "activation" if call.phase == "forward" else "gradient"
    name = "input" if kind == "input" else f"{number}.{call.layer or call.name}.out"
    return {"name": name, "kind": kind}
