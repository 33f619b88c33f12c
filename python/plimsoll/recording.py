"""Records a step as a tape, and leaves everything as it was.

The step runs three times, a short one up to ten. The first run warms up caches and lazy initialisation; the others must
make the same calls. A call takes its shortest time. Recording holds every storage of a run. For a step that does not fit
memory, the calls are recorded on fake tensors (`record_structure`), and each is then tried alone (`pieces`).
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import bypassing, devices, outputs, timing
from .devices import Device
from .errors import BadInput, Refused
from .ops import same_value, tensors_in
from .outputs import Given, Outputs
from .recorder import BYPASSED, NOTHING_KNOWN, Known, Recorder
from .surroundings import (
    Generators,
    Keeper,
    Modules,
    NoDetours,
    arrivals_noted,
    host_generators,
    host_generators_kept,
    without_accumulate_hooks,
)
from .tape import Role, Tape, Window
from .torch_private import (
    FAKE_ERRORS,
    FakeTensorMode,
    TreeSpec,
    held_by,
    hooks_on,
    storage_key,
    tree_flatten,
    tree_unflatten,
    uncompiled,
)

logger = logging.getLogger("plimsoll")

RUNS = 3
MOST_RUNS = 10
ENOUGH_SECONDS = 0.1
"""A step that is over sooner runs a few more times: short times are noisy."""

Loss = Callable[..., Given]


@host_generators_kept()
def record(
    fn: Loss,
    model: torch.nn.Module,
    sample: tuple[Any, ...],
    adds: bool = False,
    most_bytes: int | None = None,
    graphs: bool = True,
) -> Tape:
    """Returns the tape of `fn(*sample)` and its backward pass. Everything else is left as it was, even if this fails.

    If a parameter has a gradient, or with `adds`, the tape adds to it. `TooLarge` is raised as soon as a run has allocated
    more than `most_bytes`. With `graphs`, the calls of a step that can be a CUDA graph have their times within one.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = devices.of(model)
    _check_step(device, model, parameters, sample)
    device.prepare()
    saved = [(p, p.grad) for p in parameters]
    members = _members(model)
    tapes: list[Tape] = []
    try:
        start = time.perf_counter()
        while len(tapes) < RUNS or (len(tapes) < MOST_RUNS and time.perf_counter() - start < ENOUGH_SECONDS):
            for parameter, gradient in saved:
                there = parameter.detach() if gradient is None and adds else gradient
                parameter.grad = None if there is None else torch.zeros_like(there)
            tape = _record_once(
                device, fn, model, parameters, sample, most_bytes=most_bytes, is_first=not tapes
            )
            if _identities(_members(model)) != _identities(members):
                raise Refused(
                    "the step replaces a parameter or a buffer of a module; update it in place (`copy_`)"
                )
            if len(tapes) > 1:
                _compare(tapes[1], tape)
                for first, call in zip(tapes[1].calls, tape.calls, strict=True):
                    first.seconds = min(first.seconds, call.seconds)
            tapes.append(tape)
    finally:
        for parameter, gradient in saved:
            parameter.grad = gradient
        _put_back(model, members)
    if graphs:
        timing.in_graphs(tapes[1], sample, device)
    return tapes[1]


@host_generators_kept()
def record_shapes(
    fn: Loss, model: torch.nn.Module, sample: tuple[Any, ...], known: Known = NOTHING_KNOWN
) -> Tape:
    """Returns the tape of `fn(*sample)` and its backward pass without computing anything: shapes and bytes, no seconds and
    no scratch.

    The model may be larger than any memory, and may lie on the device `meta`. `known` has facts from a real recording of
    the step. Everything is left as it was, even if this fails.
    """
    saved = [(p, p.grad) for p in model.parameters()]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _replaced(model, _fake) as fakes:
        for parameter, gradient in saved:
            if gradient is not None:
                fakes[id(parameter)].grad = torch.zeros_like(fakes[id(parameter)])
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise BadInput("the model has no parameter that requires a gradient: nothing would be trained")
        device = devices.on(parameters[0].device)
        return _record_once(device, fn, model, parameters, _as_fakes(sample), known, mode)


@host_generators_kept()
def record_structure(
    fn: Loss,
    model: torch.nn.Module,
    sample: tuple[Any, ...],
    known: Known = NOTHING_KNOWN,
    adds: bool = False,
) -> Tape:
    """Returns the result of `record` for a step that does not fit memory: calls and storages from fake tensors, without
    seconds, scratch and allocations, on the existing parameters, buffers and constants.

    The step runs twice and must make the same calls. Everything is left as it was, even if this fails.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = devices.of(model)
    _check_step(device, model, parameters, sample)
    device.prepare()
    real: dict[int, torch.Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def as_fake(tensor: torch.Tensor) -> torch.Tensor:
            fake = mode.from_tensor(tensor, static_shapes=True)
            real.setdefault(storage_key(fake), tensor)
            return fake

        saved = [p.grad for p in parameters]
        with _replaced(model, as_fake):
            theirs = [p for p in model.parameters() if p.requires_grad]
            members = _identities(_members(model))
            tapes = []
            try:
                for _ in range(2):
                    for parameter, own, gradient in zip(parameters, theirs, saved, strict=True):
                        there = parameter.detach() if gradient is None and adds else gradient
                        own.grad = (
                            None
                            if there is None
                            else torch.zeros_like(mode.from_tensor(there, static_shapes=True))
                        )
                    tapes.append(_record_once(device, fn, model, theirs, _as_fakes(sample), known, mode))
                    if _identities(_members(model)) != members:
                        raise Refused(
                            "the step replaces a parameter or a buffer of a module; update it in place (`copy_`)"
                        )
            except FAKE_ERRORS as error:
                raise Refused(
                    "on fake tensors, by which a step is recorded that does not fit memory, it fails: "
                    f"{str(error).strip() or type(error).__name__}. Give the op a fake implementation "
                    "(`torch.library.register_fake`)",
                    str(getattr(error, "func", "")),
                ) from error
    _compare(*tapes)
    tape = tapes[0]
    tape.gradients = [(p, window) for p, (_, window) in zip(parameters, tape.gradients, strict=True)]
    for storage in tape.storages:
        if storage.role is Role.KEPT and storage.tensor is not None:
            fake = storage.tensor
            storage.tensor = real.get(storage_key(fake), fake).detach()
            tape.updated = [storage.tensor if tensor is fake else tensor for tensor in tape.updated]
    kept = [p.grad for p in parameters if p.grad is not None]
    tape.undo_bytes = device.undo_bytes(tape.updated, kept if tape.adds_to_gradients() else [])
    return tape


@contextlib.contextmanager
def _replaced(
    model: torch.nn.Module, as_fake: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[dict[int, torch.Tensor]]:
    """Context with fake tensors in place of parameters and buffers; yields them by the identities of the originals."""
    members = _members(model)
    saved = [(p, p.grad) for p in model.parameters()]
    fakes: dict[int, torch.Tensor] = {}
    try:
        for module in model.modules():
            for named in held_by(module):
                for name, tensor in named.items():
                    if tensor is not None:
                        if id(tensor) not in fakes:
                            fakes[id(tensor)] = fake = as_fake(tensor)
                            for hook in hooks_on(tensor):
                                fake.register_hook(hook)
                        named[name] = fakes[id(tensor)]
        yield fakes
    finally:
        for parameter, gradient in saved:
            parameter.grad = gradient
        _put_back(model, members)


def _as_fakes(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, spec = tree_flatten(sample)
    leaves = [_fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return tree_unflatten(leaves, spec)


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same shape without memory, dense even if the tensor is a slice; on the CPU if it is on `meta`."""
    dense = torch.empty_like(tensor, device="meta")
    where = torch.device("cpu") if tensor.is_meta else tensor.device
    made = torch.empty_strided(tuple(tensor.shape), dense.stride(), dtype=tensor.dtype, device=where)
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def _check_step(
    device: Device, model: torch.nn.Module, parameters: list[torch.nn.Parameter], sample: tuple[Any, ...]
) -> None:
    if not parameters:
        raise BadInput("the model has no parameter that requires a gradient: nothing would be trained")
    devices.check_sample(device, tensors_in(sample))
    for tensor in tensors_in(sample):
        if tensor.requires_grad:
            raise BadInput(
                "a tensor of the sample requires a gradient, which no step would keep: use `.detach()`"
            )


Members = list[tuple[torch.nn.Module, dict[str, Any], dict[str, Any]]]


def _members(model: torch.nn.Module) -> Members:
    """Parameters and buffers of each module, by name."""
    held = ((module, *held_by(module)) for module in model.modules())
    return [(module, dict(parameters), dict(buffers)) for module, parameters, buffers in held]


def _identities(members: Members) -> list[tuple[str, int]]:
    return [(name, id(value)) for _, *named in members for names in named for name, value in names.items()]


def _put_back(model: torch.nn.Module, members: Members) -> None:
    for module, parameters, buffers in members:
        for there, before in zip(held_by(module), (parameters, buffers), strict=True):
            there.clear()
            there.update(before)


def _record_once(
    device: Device,
    fn: Loss,
    model: torch.nn.Module,
    parameters: list[torch.nn.Parameter],
    sample: tuple[Any, ...],
    known: Known = NOTHING_KNOWN,
    fakes: FakeTensorMode | None = None,
    most_bytes: int | None = None,
    is_first: bool = False,
) -> Tape:
    """Records one run: on fake tensors if a mode for them is given, else a real one, which may
    allocate at most `most_bytes`."""
    keeper, modules = Keeper(), Modules(model)
    generators = Generators(torch.default_generator, device.default_generator())
    # Autocast's cache of an earlier run would be a constant of this one.
    torch.clear_autocast_cache()
    # Copies, so that a sample that is a slice of a data set is no larger than its elements.
    leaves, spec = tree_flatten(sample)
    copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    arrivals: list[int] = []
    try:
        with (
            torch.autograd.set_multithreading_enabled(False),
            torch.enable_grad(),
            without_accumulate_hooks(parameters),
            arrivals_noted(parameters, arrivals),
            uncompiled(),
            bypassing.taken(is_first),
            device.allocator.recording() if fakes is None else contextlib.nullcontext() as log,
            modules.watched(),
        ):
            recorder = Recorder(device, log, modules, keeper, generators, known, fakes, most_bytes)
            for tensor in [*model.parameters(), *model.buffers()]:
                recorder.number(tensor, Role.KEPT)
            for parameter in parameters:
                if parameter.grad is not None:
                    recorder.number(parameter.grad, Role.GRADIENT)
            inputs = [recorder.window(t, Role.INPUT) for t in copies if isinstance(t, torch.Tensor)]
            with NoDetours(), recorder:
                drawn = pickle.dumps(host_generators())
                given = fn(*tree_unflatten(copies, spec))
                if is_first and drawn != pickle.dumps(host_generators()):
                    logger.warning(
                        "the step draws from Python's `random` or NumPy's generator: a plan has the numbers that were drawn "
                        "when it was recorded; draw with `torch.rand`"
                    )
                has_others = isinstance(given, Outputs)
                made = outputs.of(given)
                _check_loss(made.loss)
                recorder.phase = "backward"
                made.loss.backward()
            recorder.settle()
            updated = keeper.kept if fakes is None else recorder.updated
            tape = _tape(recorder, inputs, made.loss, parameters, updated)
            there = [parameter.grad for parameter in parameters if parameter.grad is not None]
            tape.undo_bytes = device.undo_bytes(tape.updated, there if tape.adds_to_gradients() else [])
            tape.arrivals = arrivals
            if has_others:
                tape.others = _others(recorder, made.others)
            return tape
    finally:
        keeper.restore()
        generators.restore()
        torch.clear_autocast_cache()


def _check_loss(loss: object) -> None:
    if not isinstance(loss, torch.Tensor):
        raise BadInput(f"the step gives a {type(loss).__name__}; it must give the loss, one tensor")
    if loss.numel() != 1:
        raise BadInput(
            f"the step gives a tensor of the shape {tuple(loss.shape)}; the loss is one number: use `.mean()`"
        )
    if not loss.requires_grad:
        raise BadInput("the loss does not depend on a parameter that requires a gradient")


def _tape(
    recorder: Recorder,
    inputs: list[Window],
    loss: torch.Tensor,
    parameters: list[torch.nn.Parameter],
    updated: list[torch.Tensor],
) -> Tape:
    gradients = [(p, None if p.grad is None else recorder.window(p.grad)) for p in parameters]
    for _, gradient in gradients:
        if gradient is not None and recorder.storages[gradient.storage].role is not Role.GRADIENT:
            _outlives(recorder, gradient, "a gradient")
    window = recorder.window(loss)
    _outlives(recorder, window, "the loss")
    tape = Tape(recorder.storages, recorder.calls, inputs, window, gradients, updated, recorder.lifted)
    tape.made = recorder.results
    there = sum(storage.role is Role.GRADIENT for storage in tape.storages)
    added = [w for _, w in gradients if w and tape.storages[w.storage].role is Role.GRADIENT]
    results = sum(w is not None for _, w in gradients) - len(added)
    if len(added) < there or (there and len(tape.slots()) < results):
        raise Refused("a gradient that is there before the step is replaced, not added to; use `zero_grad()`")
    return tape


def _others(recorder: Recorder, others: Any) -> tuple[list[object], TreeSpec]:
    leaves, spec = tree_flatten(others)
    windows = [recorder.window(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    for window in windows:
        if isinstance(window, Window):
            _outlives(recorder, window, "an output")
    return windows, spec


def _outlives(recorder: Recorder, window: Window, what: str) -> None:
    storage = recorder.storages[window.storage]
    if storage.is_on_host:
        raise Refused(f"{what} is on the host, and the step runs elsewhere; give it as the step has it")
    if recorder.is_blank(window.storage):
        raise Refused(BYPASSED.format(f"{what} is memory"))
    if storage.role is Role.MADE:
        storage.role = Role.RESULT
    elif storage.role is not Role.RESULT:
        raise Refused(f"{what} is memory that no recorded op made; clone it in the step")


def _compare(first: Tape, second: Tape) -> None:
    """Refuses a step that differs between two runs."""
    for one, other in zip(first.calls, second.calls, strict=False):
        if one.signature() != other.signature():
            if one.func is other.func:
                raise Refused(
                    f"`{one.func}` had other arguments in a second run of the step. A value from Python (`random`, a counter) "
                    "cannot change between runs: pass it as a tensor",
                    *other.place,
                )
            why = "the step does something else in a second run"
            raise Refused(f"{why}: it called `{one.func}`, then `{other.func}` here", *other.place)
        if one.reads_on_host and not same_value(one.value, other.value):
            raise Refused("the host reads a value that is another in a second run of the step", *one.place)
    if len(first.calls) != len(second.calls):
        raise Refused(f"the step made {len(first.calls)} calls, then {len(second.calls)} in a second run")
    for number, (one_, other_) in enumerate(zip(first.storages, second.storages, strict=True)):
        if one_.role is not Role.KEPT or one_.tensor is None or other_.tensor is None:
            continue
        if storage_key(one_.tensor) == storage_key(other_.tensor):
            continue
        reader = next((c for c in first.calls if number in c.reads), None)
        place = reader.place if reader else ("", "", "")
        if number not in first.lifted:
            raise Refused(
                "it reads a tensor that code outside of PyTorch's dispatcher makes in the step", *place
            )
        if not torch.equal(one_.tensor, other_.tensor):
            raise Refused(
                "it reads a constant that the host makes anew, with another value, in every step", *place
            )
