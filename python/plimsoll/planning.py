"""From a tape to a trace and from a trace to a schedule: the inputs of the planner, which alone decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from . import _core, devices, pieces, recording
from .batches import size_of
from .devices import Device
from .errors import BadInput
from .kinds import check_leaves
from .link import Link
from .ops import tensors_in
from .recorder import Known
from .recording import Loss
from .tape import Call, Document, Tape, aligned, to_document
from .torch_private import parts_of, tree_flatten


def budget_bytes(budget: int | str | None, peak: int) -> int:
    """Bytes of a budget such as `22GiB`, or `60%` of eager's memory."""
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise BadInput(
            f"a budget is a size such as '22GiB', a share such as '60%' or a number of bytes, not {budget!r}"
        )
    if isinstance(budget, int):
        if budget <= 0:
            raise BadInput(f"a budget of {budget} bytes holds nothing; it must be above 0")
        return budget
    return _core.parse_size(budget, peak)


def check(model: object, optimizer: object) -> None:
    """Refuses a model or an optimizer of the wrong class."""
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the model is a {type(model).__name__}, not a `torch.nn.Module`")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(
            f"the optimizer is a {type(optimizer).__name__}, not a `torch.optim.Optimizer`; pass None if there is no optimizer"
        )


def host_bytes(budget: int | str | None) -> int | None:
    """Bytes of a host memory budget such as `4GiB`; 0 means no swapping, and `None` means unlimited."""
    if budget is None:
        return None
    if isinstance(budget, str) and "%" not in budget:
        return _core.parse_size(budget, 0)
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    raise BadInput(f"a host budget is a size such as '4GiB' or a number of bytes from 0 on, not {budget!r}")


def host_limit(device: Device, budget: int | str | None) -> int | None:
    """Host memory limit for swapped tensors: the given one, or else the device's; `None` means unlimited."""
    said = host_bytes(budget)
    return device.host_limit() if said is None else said


def as_sample(sample: Any) -> tuple[Any, ...]:
    """The arguments that a step is called with."""
    arguments = tuple(sample) if isinstance(sample, tuple | list) else (sample,)
    check_leaves(tree_flatten(arguments)[0])
    if not tensors_in(arguments):
        raise BadInput("the sample has no tensor; give what the loss is called with, such as `sample=(x, y)`")
    return arguments


def optimizer_bytes(optimizer: torch.optim.Optimizer | None, where: torch.device | None = None) -> int:
    """Bytes of an optimizer's state: as it is, or, before its first step, as follows from its class. With `where` only tensors
    there count, which also works for optimizers that work elsewhere."""
    return 0 if optimizer is None else sum(_own_bytes(one, where) for one in _parts(optimizer))


def _own_bytes(optimizer: torch.optim.Optimizer, where: torch.device | None) -> int:
    there = _state_in_memory(optimizer)
    if there:
        counted = [tensor for tensor in there if where is None or tensor.device == where]
        return sum(aligned(t.untyped_storage().nbytes()) for t in counted)
    total = 0
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.requires_grad and (where is None or p.device == where)]
        if trained or where is None:
            copies, counters = _state_of(optimizer, group)
            total += sum(
                copies * aligned(p.untyped_storage().nbytes()) + counters * aligned(1) for p in trained
            )
    return total


def _parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that one without its own state hands its parameters to, such as torchao's
    offloading one; else itself alone."""
    if hasattr(optimizer, "state"):
        return [optimizer]
    held = [one for value in vars(optimizer).values() for one in _values(value)]
    return [one for one in held if isinstance(one, torch.optim.Optimizer)]


def _values(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


def _state_in_memory(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of its state, on any device."""
    states = [tensors_in(dict(one.state)) for one in _parts(optimizer)]
    return [part for tensors in states for tensor in tensors for part in parts_of(tensor)]


def resident_beside(
    device: Device,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    counted: int = 0,
) -> int:
    """Resident bytes besides the step's own: the optimizer state, and the device's other allocations if they count against the
    budget, less `counted` bytes that are counted elsewhere."""
    device.prepare()
    known = {id(t): t for t in (*model.parameters(), *model.buffers())}
    known |= {id(p.grad): p.grad for p in model.parameters() if p.grad is not None}
    known |= {id(t): t for t in ([] if optimizer is None else _state_in_memory(optimizer))}
    on_device = [tensor for tensor in known.values() if tensor.device == device.where]
    return state_bytes(device, optimizer) + device.held_bytes(on_device, counted)


def state_bytes(device: Device, optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of an optimizer's state on a device: not all of it, if the optimizer delegates to others on the host."""
    is_all_there = optimizer is None or hasattr(optimizer, "state")
    return optimizer_bytes(optimizer, None if is_all_there else device.where)


def is_state_known(optimizer: torch.optim.Optimizer) -> bool:
    """Returns `True` if the bytes of the optimizer's state are known: for some classes only after the first step."""
    try:
        optimizer_bytes(optimizer)
    except BadInput:
        return False
    return True


def is_state_there(optimizer: torch.optim.Optimizer | None) -> bool:
    """Returns `True` if the optimizer has all of its state in memory, or has none."""
    return optimizer is None or bool(_state_in_memory(optimizer)) or optimizer_bytes(optimizer) == 0


def _state_of(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> tuple[int, int]:
    """State that an optimizer keeps for each parameter: the number of tensors of its size, and of single numbers."""
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW | torch.optim.NAdam | torch.optim.RAdam):
        return (3 if group.get("amsgrad") else 2), 1 + isinstance(optimizer, torch.optim.NAdam)
    if isinstance(optimizer, torch.optim.SGD):
        return (1 if group.get("momentum") else 0), 0
    if isinstance(optimizer, torch.optim.RMSprop):
        return 1 + bool(group.get("momentum")) + bool(group.get("centered")), 1
    if isinstance(optimizer, torch.optim.Adagrad):
        return 1, 1
    if isinstance(optimizer, torch.optim.Adamax | torch.optim.Adadelta | torch.optim.Rprop):
        return 2, 1
    if isinstance(optimizer, torch.optim.ASGD):
        return 1, 3
    name = type(optimizer).__name__
    raise BadInput(
        f"how much state {name} keeps is not known before its first step: call `optimizer.step()` once before this, or give "
        f"no optimizer and take its state off the budget"
    )


def place_of(layer: str) -> str:
    """Description of an op's place: the layer, by its module's name. The loss usually lies in no module."""
    return f"layer `{layer}`" if layer else "outside all modules, as the loss"


LOGITS = {"_log_softmax", "_log_softmax_backward_data", "nll_loss_backward", "nll_loss_forward"}
"""Ops for which the floor comes from tensors as large as all logits."""


def logits_decide(trace: _core.Trace) -> bool:
    """Returns `True` if the logits determine the floor."""
    return trace.floor_op in LOGITS


def floor_hint(trace: _core.Trace) -> str:
    """Further way to lower the floor; empty if none is known."""
    if not logits_decide(trace):
        return ""
    return (
        "the loss over the logits decides: `F.linear_cross_entropy(..., options=torch.nn.LinearCrossEntropyOptions())` "
        "(torch 2.15), Liger's `liger_fused_linear_cross_entropy` and `plimsoll.adapters.cut_cross_entropy` never hold all of "
        "them, and run by a plan"
    )


def rate_rule(optimizer: torch.optim.Optimizer) -> str:
    """Rule by which an optimizer's learning rate follows the batch: `square root` if its steps are
    scaled by their own size, `linear` for SGD."""
    optimizer = (_parts(optimizer) or [optimizer])[0]
    scaled = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)
    if isinstance(optimizer, (*scaled, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta)):
        return "square root"
    if isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD):
        return "linear"
    raise BadInput(
        f"how the learning rate of {type(optimizer).__name__} follows the batch is not known; set it by hand"
    )


def rate_of(optimizer: torch.optim.Optimizer) -> float:
    """Learning rate of the first group of parameters, before a scheduler changed it."""
    group = optimizer.param_groups[0]
    return float(group.get("initial_lr", group["lr"]))


def rate_at(optimizer: torch.optim.Optimizer, size: int, batch: int) -> float:
    """Learning rate for a batch of `batch`, derived from the optimizer's, which is for a batch of `size`."""
    return _core.learning_rate(rate_rule(optimizer), size, rate_of(optimizer), batch)


@dataclass(frozen=True)
class Recorded:
    """A tape and its trace for the planner."""

    tape: Tape
    document: Document
    trace: _core.Trace
    measured: pieces.Measured | None = None
    """Facts about a recording in pieces; `None` for a step that ran as a whole."""

    def told(self, call: Call, value: object) -> Recorded:
        """Returns the same for a new recording, in which the host reads this value at a call instead
        of that of the few samples."""
        assert self.measured is not None
        return self._with(self.measured.known.told(self.tape, call, value))

    def of_few(self) -> Recorded:
        """Returns the same for recording a different batch, where the host may read other values."""
        assert self.measured is not None
        return self._with(replace(self.measured.known, told_up_to=0))

    def _with(self, known: Known) -> Recorded:
        assert self.measured is not None
        return replace(self, measured=replace(self.measured, known=known))


def record(
    fn: Loss,
    model: torch.nn.Module,
    sample: tuple[Any, ...],
    other_resident_bytes: int,
    name: str | None = None,
    adds: bool = False,
    graphs: bool = True,
) -> Recorded:
    """Records a step; with `adds`, as if every parameter had a gradient that it adds to."""
    tape = recording.record(fn, model, sample, adds, graphs=graphs)
    document = to_document(tape, name or type(model).__name__, size_of(sample), other_resident_bytes)
    return Recorded(tape, document, _core.Trace(document.text))


def record_in_pieces(
    fn: Loss,
    model: torch.nn.Module,
    sample: tuple[Any, ...],
    other_resident_bytes: int,
    budget: int | str,
    adds: bool = False,
    known: pieces.Measured | None = None,
) -> Recorded:
    """Records a step that does not fit memory, within the budget. If no plan fits, nothing is measured, and planning
    reports it.

    `known` is from a different batch of the same step.
    """
    device = devices.of(model)
    if known is None:
        room = None
        if not str(budget).endswith("%"):
            room = budget_bytes(budget, 0) - other_resident_bytes - _model_bytes(model)
        values, is_compared = pieces.known_of_few(fn, model, sample, room, adds)
    else:
        values, is_compared = known.known, known.is_compared
    tape = recording.record_structure(fn, model, sample, values, adds)

    def recorded(peak_bytes: int, tried: int) -> Recorded:
        document = to_document(tape, type(model).__name__, size_of(sample), other_resident_bytes)
        measured = pieces.Measured(peak_bytes, tried, values, is_compared)
        return Recorded(tape, document, _core.Trace(document.text), measured)

    shapes = recorded(0, 0)
    if shapes.trace.floor_bytes > budget_bytes(budget, shapes.trace.peak_bytes):
        return shapes
    return recorded(*pieces.measure(tape, sample, device))


def _model_bytes(model: torch.nn.Module) -> int:
    kept = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    return sum(aligned(t.untyped_storage().nbytes()) for t in kept)


def trace(
    fn: Loss,
    model: torch.nn.Module,
    *sample: Any,
    optimizer: torch.optim.Optimizer | None = None,
    name: str | None = None,
) -> _core.Trace:
    """Returns the `trace/1` of one training step, `fn(*sample)` and its backward pass.

    The model, its gradients and the generators are left as they were. With an optimizer, its state counts as resident.
    `trace.save("step.trace.json")` writes a file that every verb of the command line takes.
    """
    beside = resident_beside(devices.of(model), model, optimizer)
    return record(fn, model, as_sample(sample), beside, name).trace


def plan(
    trace: _core.Trace,
    budget: int | str,
    link: Link | str | None = None,
    seconds: float | None = None,
    host_budget: int | str | None = None,
) -> _core.Schedule:
    """Returns the best schedule for a trace that the planner finds within a budget, proved valid.

    `budget` is a size such as `"22GiB"`, a share of the trace's peak such as `"60%"`, or bytes. `link` is a rate such as
    `"12GB/s"`; without it the machine's is measured. `seconds` limits the search. Swapped tensors take at most `host_budget` of
    the host's memory, a size or bytes; if that is short, the plan recomputes. Raises `NoPlan` if nothing fits.
    """
    rates = Link.parse(link)
    limit, host = budget_bytes(budget, trace.peak_bytes), host_bytes(host_budget)
    return trace.plan(limit, rates.offload, rates.prefetch, seconds, host, rates.half_duplex)
