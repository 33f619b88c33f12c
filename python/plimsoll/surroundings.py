"""Surroundings of a step's ops while it is recorded: the module and the line that run, the generators, existing state that the
step changes, and the ways out of PyTorch."""

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
    """The running line of the user's code: the innermost frame that is neither torch's nor Plimsoll's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((TORCH_FOLDER, OWN_FOLDER, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Context in which an attribute of an object or a class is replaced."""
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
    """Context without the user's hooks that run as soon as a parameter's gradient exists: they are due after a whole step."""
    return _without([hooks for parameter in parameters if (hooks := accumulate_hooks(parameter))])


def without_gradient_hooks(parameter: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Context without the user's hooks on a parameter's gradient, which have seen it in the step."""
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
    """Context that notes the order in which parameters get their gradients, by number."""
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
    DDP, autograd runs them when gradients are reduced."""
    for parameter in dict.fromkeys(arrived):
        for hook in list(accumulate_hooks(parameter).values()):
            if parameter.grad is not None:
                hook(parameter)


class _Running(threading.local):
    """Names of the modules that this thread is in."""

    def __init__(self) -> None:
        self.names: list[str] = []


class Modules:
    """Finds the running module and the running line of the user's code: by hooks and the stack in the forward pass, by the node
    of autograd in the backward pass. The hooks see the modules of all threads."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self._running = _Running()
        self._of_node: dict[int, tuple[str, str]] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context that watches the modules of the model."""
        module = torch.nn.modules.module
        before = module.register_module_forward_pre_hook(self._enter)
        after = module.register_module_forward_hook(self._leave, always_call=True)
        try:
            with warnings.catch_warnings():
                # It does no harm that these hooks fire twice for a compiled module.
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
        """Returns the name of the module whose op is being dispatched, and the line that called it.

        In the backward pass both belong to the op of the forward pass that is differentiated.
        """
        node, running = node_number(), self._running.names
        if node is not None and not running:
            return self._of_node.get(node, ("", ""))
        place = (running[-1] if running else "", user_line())
        self._of_node.setdefault(sequence_number(), place)
        return place


class Keeper:
    """Copies state outside the pool just before the step changes it, and restores it."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.UntypedStorage]] = {}

    def keep(self, tensor: torch.Tensor) -> None:
        """Copies a storage as it is now, unless it was copied already."""
        key = storage_key(tensor)
        if key not in self._copies:
            self._copies[key] = (tensor, tensor.untyped_storage().clone())

    def restore(self) -> None:
        """Restores everything."""
        for tensor, copy in self._copies.values():
            tensor.untyped_storage().copy_(copy)

    @property
    def kept(self) -> list[torch.Tensor]:
        """The changed tensors, one for each storage."""
        return [tensor for tensor, _ in self._copies.values()]


def _state_bytes(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


class Generators:
    """States of generators, and the call that first drew from each state."""

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
        """Returns the source of the state that call `number` draws from; `None` if the step seeded the generator."""
        self._see(generator)
        state = _state_bytes(generator)
        known = self._before.setdefault((id(generator), state), number)
        if state == self._now[id(generator)]:
            return Random(generator, number)
        # The step restored an earlier state, as `torch.utils.checkpoint` does.
        return None if known == number else Random(generator, known)

    def after(self, random: Random, number: int) -> None:
        """Records that call `number` has drawn. Code that restored an earlier state will restore this one, too."""
        if random.source == number:
            self._now[id(random.generator)] = _state_bytes(random.generator)

    def restore(self) -> None:
        """Restores all states to those before the step."""
        for generator, state in self._first.values():
            generator.set_state(state)


def host_generators() -> tuple[Any, Any]:
    """States of Python's `random` and of NumPy's own generator, if NumPy is in use."""
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    return random.getstate(), None if numpy is None else numpy.get_state(legacy=False)


def put_back_host_generators(states: tuple[Any, Any]) -> None:
    """Restores these states of Python's `random` and NumPy's own generator."""
    python, numpy = states
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


@contextlib.contextmanager
def host_generators_kept() -> Iterator[None]:
    """Context that leaves Python's `random` and NumPy's own generator as they were."""
    states = host_generators()
    try:
        yield
    finally:
        put_back_host_generators(states)


class NoDetours(TorchFunctionMode):
    """Refuses calls that take values out of PyTorch, past which the dispatcher cannot follow them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LEAVES_TORCH:
            raise Refused(
                f"`Tensor.{name}` takes values out of PyTorch inside the step", name, "", user_line()
            )
        return func(*args, **(kwargs or {}))
