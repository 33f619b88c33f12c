"""Records a step as a tape, and leaves everything as it was.

The step runs three times. The first run warms up caches and lazy initialisation; every run must make the same calls. A call
takes the least of its times. Recording holds every storage of a run: a step that does not fit without a plan cannot be
recorded.

What is refused: shapes that depend on values, tensors that are no plain strided memory, values that leave PyTorch and come
back, storage that changes its size, and a generator that the step seeds itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import allocator
from .errors import BadInput, Refused
from .tape import Allocation, Call, Random, Role, Storage, Tape, Window, aligned
from .torch_private import (
    BATCH_NORMS,
    OpOverload,
    TorchDispatchMode,
    has_accumulate_hooks,
    node_number,
    sequence_number,
    storage_key,
    tree_flatten,
    tree_unflatten,
)

RUNS = 3

Loss = Callable[..., torch.Tensor]

RESIZES = {"resize_", "resize_as_", "set_"}
LEAVES_TORCH = {"numpy", "tolist", "__array__", "__dlpack__"}
TORCH_FOLDER = str(Path(torch.__file__).parent)
OWN_FOLDER = str(Path(__file__).parent)


def tensors_in(tree: object) -> list[torch.Tensor]:
    """The tensors of nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def user_line() -> str:
    """The line of the user's code that is running: the innermost frame that is neither torch's nor Plimsoll's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((TORCH_FOLDER, OWN_FOLDER, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class Modules:
    """Which module runs: by hooks in the forward pass, by the node of autograd in the backward pass."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self._running: list[str] = []
        self._of_node: dict[int, str] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the modules of the model."""
        module = torch.nn.modules.module
        before = module.register_module_forward_pre_hook(self._enter)
        after = module.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module, _arguments: object) -> None:
        self._running.append(self._names.get(module, self._running[-1] if self._running else ""))

    def _leave(self, _module: torch.nn.Module, _arguments: object, _result: object) -> None:
        self._running.pop()

    def current(self) -> str:
        """The name of the module whose op is dispatched now."""
        node = node_number()
        if node is not None and not self._running:
            return self._of_node.get(node, "")
        layer = self._running[-1] if self._running else ""
        self._of_node.setdefault(sequence_number(), layer)
        return layer


class Keeper:
    """Keeps a copy of what the step changes outside of the pool, just before it does, and puts it back."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.UntypedStorage]] = {}

    def keep(self, tensor: torch.Tensor) -> None:
        """Remembers a storage as it is now, unless it is remembered already."""
        key = storage_key(tensor)
        if key not in self._copies:
            self._copies[key] = (tensor, tensor.untyped_storage().clone())

    def restore(self) -> None:
        """Puts everything back."""
        for tensor, copy in self._copies.values():
            tensor.untyped_storage().copy_(copy)

    @property
    def kept(self) -> list[torch.Tensor]:
        """What changed, one tensor a storage."""
        return [tensor for tensor, _ in self._copies.values()]


def _state_bytes(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


class Generators:
    """The states of generators: which call drew from which state."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, bytes], int] = {}
        self._now: dict[int, bytes] = {}
        self._first: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self._see(torch.default_generator)

    def _see(self, generator: torch.Generator) -> None:
        if id(generator) not in self._first:
            state = generator.get_state()
            self._first[id(generator)] = (generator, state)
            self._now[id(generator)] = _state_bytes(generator)

    def before(self, generator: torch.Generator, number: int) -> Random | None:
        """The source of the state that call `number` draws from; none where the step seeded the generator."""
        self._see(generator)
        state = _state_bytes(generator)
        known = self._before.setdefault((id(generator), state), number)
        if state == self._now[id(generator)]:
            return Random(generator, number)
        # Somebody put an earlier state back, as `torch.utils.checkpoint` does.
        return None if known == number else Random(generator, known)

    def after(self, random: Random, number: int) -> None:
        """Call `number` has drawn. Whoever put an earlier state back puts this one back, too."""
        if random.source == number:
            self._now[id(random.generator)] = _state_bytes(random.generator)

    def restore(self) -> None:
        """Puts all states back to where the step found them."""
        for generator, state in self._first.values():
            generator.set_state(state)


class NoDetours(TorchFunctionMode):
    """Refuses calls that take values out of PyTorch, where no dispatcher sees what becomes of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LEAVES_TORCH:
            raise Refused(
                f"`Tensor.{name}` takes values out of PyTorch inside the step", name, "", user_line()
            )
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Writes down every op that is dispatched below autograd."""

    def __init__(self, log: allocator.Log, modules: Modules, keeper: Keeper, generators: Generators) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.storages: list[Storage] = []
        self.phase = "forward"
        self.lifted: set[int] = set()
        self._log = log
        self._modules = modules
        self._keeper = keeper
        self._generators = generators
        self._numbers: dict[int, int] = {}
        self._held: list[torch.UntypedStorage] = []
        self._layer = ""

    def number(self, tensor: torch.Tensor, role: Role) -> int:
        """The number of a tensor's storage, which is new with this role where it was not seen before."""
        key = storage_key(tensor)
        if key not in self._numbers:
            storage = tensor.untyped_storage()
            self._numbers[key] = len(self.storages)
            self._held.append(storage)
            kept = tensor.detach() if role is Role.KEPT else None
            self.storages.append(Storage(storage.nbytes(), role, kept))
        return self._numbers[key]

    def window(self, tensor: torch.Tensor, role: Role = Role.KEPT) -> Window:
        """A tensor as a window on its storage."""
        number = self.number(tensor, role)
        return Window(
            number, tensor.dtype, int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
        )

    def refuse(self, why: str, func: OpOverload | str) -> Refused:
        """The exception that names op, module and line."""
        line = user_line() if self.phase == "forward" else ""
        return Refused(why, str(func), self._layer, line)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the op and writes it down."""
        kwargs = kwargs or {}
        self._layer = self._modules.current()
        flat, spec = tree_flatten((args, kwargs))
        given = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        self._check(func, given, args)
        mutated = _mutated(func, args, kwargs)
        for tensor in mutated + _running_statistics(func, args, kwargs):
            if self.number(tensor, Role.KEPT) is not None and self._role(tensor) is Role.KEPT:
                self._keeper.keep(tensor)
        if any(self._role(tensor) is Role.INPUT for tensor in mutated):
            raise self.refuse("the step writes into its sample; clone it first", func)
        random = self._random(func, flat)
        before = {storage_key(t) for t in given}
        places = [(t, t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in mutated]
        windows = [self.window(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        self._log.take()
        start = time.perf_counter()
        out = func(*args, **kwargs)
        seconds = time.perf_counter() - start
        events = self._log.take()
        if random:
            self._generators.after(random, len(self.calls))
        outs = tensors_in(out)
        made = [t for t in outs if storage_key(t) not in before]
        if any(
            (t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) != (at, n) for t, at, n in places
        ):
            raise self.refuse("the op changes the size of a tensor's memory", func)
        reads_on_host = not outs and not mutated and _gives_a_value(func)
        if func is torch.ops.aten.lift_fresh.default:
            self.lifted.update(self._numbers[key] for key in before)
        if not made and not mutated and not reads_on_host:
            return out  # a view, or a check that gives nothing
        for tensor in made:
            if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
                raise self.refuse("the op makes a tensor that is no plain strided memory", func)
            self.number(tensor, Role.MADE)
        allocations, workspace = self._allocations(func, events, made)
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
            line=user_line() if reads_on_host else "",
            seconds=seconds,
            random=random,
            reads_on_host=reads_on_host,
            value=out if reads_on_host else None,
        )
        self.calls.append(call)
        return out

    def _role(self, tensor: torch.Tensor) -> Role:
        return self.storages[self._numbers[storage_key(tensor)]].role

    def _check(self, func: Any, given: list[torch.Tensor], args: Any) -> None:
        if not isinstance(func, OpOverload):
            raise self.refuse("the op is not one of PyTorch's dispatcher", str(func))
        name = func._schema.name.split("::")[1]
        if name in RESIZES:
            raise self.refuse("the op changes the size of a tensor's memory", func)
        if torch.Tag.dynamic_output_shape in func.tags and not _indexes_by_position(func, args):
            raise self.refuse("the shape of its result depends on values; a plan needs fixed shapes", func)
        for tensor in given:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                raise self.refuse(f"it takes a tensor of the class {type(tensor).__name__}", func)
            if (
                tensor.layout is not torch.strided
                or tensor.is_quantized
                or tensor.is_conj()
                or tensor.is_neg()
            ):
                raise self.refuse("it takes a tensor that is no plain strided memory", func)
            if tensor.device.type != "cpu":
                raise self.refuse(
                    f"it takes a tensor on {tensor.device}; Plimsoll runs steps on the CPU", func
                )

    def _random(self, func: OpOverload, flat: list[Any]) -> Random | None:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None
        generator = next(
            (leaf for leaf in flat if isinstance(leaf, torch.Generator)), torch.default_generator
        )
        random = self._generators.before(generator, len(self.calls))
        if random is None:
            raise self.refuse("the step seeds the generator itself; seed it before the step", func)
        return random

    def _allocations(
        self, func: OpOverload, events: list[allocator.Event], made: list[torch.Tensor]
    ) -> tuple[list[Allocation], int]:
        """What the call allocated, in order, with a place in the workspace for each temporary.

        A result is what is alive at the end: an earlier temporary may have had the same address. Temporaries share bytes
        only where this thread itself freed one before it allocated the other.
        """
        owner: dict[int, int] = {}  # by address: the event that allocated what is alive there
        for position, (kind, address, _) in enumerate(events):
            if kind == allocator.ALLOCATED:
                owner[address] = position
            else:
                owner.pop(address, None)
        results = {}
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage.nbytes() == 0:
                continue
            position = owner.get(storage.data_ptr(), -1)
            if position < 0:
                raise self.refuse("the memory of its result does not come from PyTorch's allocator", func)
            results[position] = self._numbers[storage_key(tensor)]
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


def _first_fit(taken: list[tuple[int, int]], size: int) -> int:
    at = 0
    for begin, end in taken:
        if begin - at >= size:
            break
        at = max(at, end)
    return at


def _mutated(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that the op's schema says it writes in place."""
    if not func._schema.is_mutable or torch.Tag.inplace_view in func.tags:
        return []
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += tensors_in(given)
    statistics = {id(t) for t in _running_statistics(func, args, kwargs)}
    return [tensor for tensor in found if id(tensor) not in statistics]


def running_positions(func: OpOverload) -> set[int]:
    """The positions of a batch norm's running statistics among its arguments."""
    if func._schema.name.split("::")[1] not in BATCH_NORMS:
        return set()
    names = [argument.name for argument in func._schema.arguments]
    return {names.index(name) for name in ("running_mean", "running_var") if name in names}


def _running_statistics(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What a batch norm updates, whether its schema says so or not."""
    names = [argument.name for argument in func._schema.arguments]
    positions = running_positions(func)
    return [t for p in positions for t in tensors_in(args[p] if p < len(args) else kwargs.get(names[p]))]


def _gives_a_value(func: OpOverload) -> bool:
    returned = {str(value.type) for value in func._schema.returns}
    return bool(returned & {"Scalar", "number", "bool", "int", "float"})


def _indexes_by_position(func: OpOverload, args: Any) -> bool:
    """Whether an op that takes masks or positions as indices was given positions, whose number is known."""
    name = func._schema.name.split("::")[1]
    if name not in ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"):
        return False
    return not any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))


def _same_value(first: object, second: object) -> bool:
    both_nan = (
        isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)
    )
    return both_nan or (type(first) is type(second) and first == second)


def record(fn: Loss, model: torch.nn.Module, sample: tuple[Any, ...]) -> Tape:
    """The tape of `fn(*sample)` and its backward pass. Everything else is left as it was, also where this fails."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    _check_step(model, parameters, sample)
    saved = [(p, p.grad) for p in parameters]
    members = _members(model)
    tapes: list[Tape] = []
    try:
        for _ in range(RUNS):
            tape = _record_once(fn, model, parameters, sample)
            if _identities(_members(model)) != _identities(members):
                raise Refused(
                    "the step replaces a parameter or a buffer of a module; update it in place (`copy_`)"
                )
            if tapes:
                _compare(tapes[0], tape)
                for first, call in zip(tapes[0].calls, tape.calls, strict=True):
                    first.seconds = min(first.seconds, call.seconds) if len(tapes) > 1 else call.seconds
            tapes.append(tape)
    finally:
        for parameter, gradient in saved:
            parameter.grad = gradient
        _put_back(model, members)
    return tapes[0]


def _check_step(
    model: torch.nn.Module, parameters: list[torch.nn.Parameter], sample: tuple[Any, ...]
) -> None:
    if not parameters:
        raise BadInput("the model has no parameter that requires a gradient: nothing would be trained")
    for name, parameter in model.named_parameters():
        if has_accumulate_hooks(parameter):
            raise Refused(f"`{name}` has a hook that runs as soon as its gradient is there; remove the hook")
        if parameter.device.type != "cpu":
            raise BadInput(
                f"`{name}` is on {parameter.device}; Plimsoll runs steps on the CPU: use `model.cpu()`"
            )
    for tensor in tensors_in(sample):
        if tensor.requires_grad:
            raise BadInput(
                "a tensor of the sample requires a gradient, which no step would keep: use `.detach()`"
            )


Members = list[tuple[torch.nn.Module, dict[str, Any], dict[str, Any]]]


def _members(model: torch.nn.Module) -> Members:
    """Which parameter and which buffer stands under which name."""
    return [(module, dict(module._parameters), dict(module._buffers)) for module in model.modules()]


def _identities(members: Members) -> list[tuple[str, int]]:
    return [(name, id(value)) for _, *named in members for names in named for name, value in names.items()]


def _put_back(model: torch.nn.Module, members: Members) -> None:
    for module, parameters, buffers in members:
        for there, before in ((module._parameters, parameters), (module._buffers, buffers)):
            there.clear()
            there.update(before)


def _record_once(
    fn: Loss, model: torch.nn.Module, parameters: list[torch.nn.Parameter], sample: tuple[Any, ...]
) -> Tape:
    keeper, generators, modules = Keeper(), Generators(), Modules(model)
    for parameter in parameters:
        parameter.grad = None
    # What autocast remembers of an earlier run would be a constant of this one.
    torch.clear_autocast_cache()
    # Copies, so that a sample that is a slice of a data set is no larger than its elements.
    leaves, spec = tree_flatten(sample)
    copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    try:
        with (
            torch.autograd.set_multithreading_enabled(False),
            torch.enable_grad(),
            allocator.recording() as log,
            modules.watched(),
        ):
            recorder = Recorder(log, modules, keeper, generators)
            for tensor in [*model.parameters(), *model.buffers()]:
                recorder.number(tensor, Role.KEPT)
            inputs = [recorder.window(t, Role.INPUT) for t in copies if isinstance(t, torch.Tensor)]
            with NoDetours(), recorder:
                loss = fn(*tree_unflatten(copies, spec))
                _check_loss(loss)
                recorder.phase = "backward"
                loss.backward()
            return _tape(recorder, inputs, loss, parameters, keeper)
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
    keeper: Keeper,
) -> Tape:
    gradients = [(p, None if p.grad is None else recorder.window(p.grad)) for p in parameters]
    for _, gradient in gradients:
        if gradient is not None:
            _outlives(recorder, gradient, "a gradient")
    window = recorder.window(loss)
    _outlives(recorder, window, "the loss")
    return Tape(recorder.storages, recorder.calls, inputs, window, gradients, keeper.kept, recorder.lifted)


def _outlives(recorder: Recorder, window: Window, what: str) -> None:
    storage = recorder.storages[window.storage]
    if storage.role is Role.MADE:
        storage.role = Role.RESULT
    elif storage.role is not Role.RESULT:
        raise Refused(f"{what} is memory that no recorded op made; clone it in the step")


def _compare(first: Tape, second: Tape) -> None:
    """Refuses a step that is not the same in two runs."""
    for one, other in zip(first.calls, second.calls, strict=False):
        if one.signature() != other.signature():
            why = "the step does something else when it runs again"
            raise Refused(
                f"{why}: it called `{one.func}`, then `{other.func}` here", str(other.func), other.layer
            )
        if one.reads_on_host and not _same_value(one.value, other.value):
            raise Refused(
                "the host reads a value that is another when the same step runs again",
                str(one.func),
                one.layer,
                one.line,
            )
    if len(first.calls) != len(second.calls):
        raise Refused(f"the step made {len(first.calls)} calls, then {len(second.calls)} when it ran again")
    for number, (one_, other_) in enumerate(zip(first.storages, second.storages, strict=True)):
        if one_.role is not Role.KEPT or one_.tensor is None or other_.tensor is None:
            continue
        if storage_key(one_.tensor) == storage_key(other_.tensor):
            continue
        reader = next((c for c in first.calls if number in c.reads), None)
        place = (str(reader.func), reader.layer) if reader else ("", "")
        if number not in first.lifted:
            raise Refused(
                "it reads a tensor that code outside of PyTorch's dispatcher makes in the step", *place
            )
        if not torch.equal(one_.tensor, other_.tensor):
            raise Refused(
                "it reads a constant that the host makes anew, with another value, in every step", *place
            )
