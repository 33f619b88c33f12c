"""What surrounds the ops of a step while it is recorded: the module and the line that run, the generators, what the step
changes that was there before it, and the ways out of PyTorch.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import Refused
from .tape import Random
from .torch_private import accumulate_hooks, gradient_hooks, node_number, sequence_number, storage_key

LEAVES_TORCH = {"numpy", "tolist", "__array__", "__dlpack__"}
TORCH_FOLDER = str(Path(torch.__file__).parent)
OWN_FOLDER = str(Path(__file__).parent)


def user_line() -> str:
    """The line of the user's code that is running: the innermost frame that is neither torch's nor Plimsoll's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((TORCH_FOLDER, OWN_FOLDER, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Gives an object or a class another attribute for a while."""
    own = vars(owner)
    had, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def without_accumulate_hooks(parameters: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Within it nothing runs as soon as a parameter's gradient is there: that is the user's, and is due after a whole step."""
    return _without([hooks for parameter in parameters if (hooks := accumulate_hooks(parameter))])


def without_gradient_hooks(parameter: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Within it a gradient of the parameter stays as it is: the user's hooks have seen it in the step."""
    return _without([gradient_hooks(parameter)])


@contextlib.contextmanager
def _without(all_hooks: list[dict[int, Any]]) -> Iterator[None]:
    held = [(hooks, dict(hooks)) for hooks in all_hooks]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in held:
            hooks.update(own)


@contextlib.contextmanager
def arrivals_noted(parameters: list[torch.nn.Parameter], arrivals: list[int]) -> Iterator[None]:
    """Notes the order in which parameters get their gradients, by number."""
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: arrivals.append(number))
        for number, parameter in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()  # as autograd runs them
def run_accumulate_hooks(arrived: list[torch.nn.Parameter]) -> None:
    """Runs the user's hooks of the parameters that got a gradient in a whole batch: once each, in the order of arrival. With
    DDP, autograd does so when gradients are reduced."""
    for parameter in dict.fromkeys(arrived):
        for hook in list(accumulate_hooks(parameter).values()):
            if parameter.grad is not None:
                hook(parameter)


class _Running(threading.local):
    """The names of the modules that this thread is in."""

    def __init__(self) -> None:
        self.names: list[str] = []


class Modules:
    """Which module runs, and which line of the user's code: by hooks and the stack in the forward pass, by the node of
    autograd in the backward pass. The hooks see the modules of all threads."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self._running = _Running()
        self._of_node: dict[int, tuple[str, str]] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the modules of the model."""
        module = torch.nn.modules.module
        before = module.register_module_forward_pre_hook(self._enter)
        after = module.register_module_forward_hook(self._leave, always_call=True)
        try:
            with warnings.catch_warnings():
                # These hooks firing twice for a compiled module is no harm.
                warnings.filterwarnings("ignore", message="Using `torch.compile")
                yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module, _arguments: object) -> None:
        running = self._running.names
        running.append(self._names.get(module, running[-1] if running else ""))

    def _leave(self, _module: torch.nn.Module, _arguments: object, _result: object) -> None:
        if self._running.names:  # a thread may have entered the module before its hooks were set
            self._running.names.pop()

    def current(self) -> tuple[str, str]:
        """The name of the module whose op is dispatched now, and the line that called for it.

        In the backward pass both are of the op of the forward pass that is differentiated.
        """
        node, running = node_number(), self._running.names
        if node is not None and not running:
            return self._of_node.get(node, ("", ""))
        place = (running[-1] if running else "", user_line())
        self._of_node.setdefault(sequence_number(), place)
        return place


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

    def __init__(self, *known: torch.Generator) -> None:
        self._before: dict[tuple[int, bytes], int] = {}
        self._now: dict[int, bytes] = {}
        self._first: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        for generator in known:
            self._see(generator)

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


def host_generators() -> tuple[Any, Any]:
    """The states of Python's `random` and of NumPy's own generator, where NumPy is in use."""
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    return random.getstate(), None if numpy is None else numpy.get_state(legacy=False)


def put_back_host_generators(states: tuple[Any, Any]) -> None:
    """Gives Python's `random` and NumPy's own generator states that they had."""
    python, numpy = states
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


@contextlib.contextmanager
def host_generators_kept() -> Iterator[None]:
    """Leaves Python's `random` and NumPy's own generator as they were."""
    states = host_generators()
    try:
        yield
    finally:
        put_back_host_generators(states)


class NoDetours(TorchFunctionMode):
    """Refuses calls that take values out of PyTorch, where no dispatcher sees what becomes of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LEAVES_TORCH:
            raise Refused(
                f"`Tensor.{name}` takes values out of PyTorch inside the step", name, "", user_line()
            )
        return func(*args, **(kwargs or {}))
