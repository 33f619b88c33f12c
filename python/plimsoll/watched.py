"""Python values that a step reads besides its batch, as far as they can be seen: a change makes a different kind of batch.

Checked before every step: the attributes of the model's modules that the step read when it was recorded, their hooks and
those of parameters, replaced `forward`s; and the values that the function reads through its closure, its defaults, its
globals and the object it is a method of: plain values, tensors, and modules outside the model. Values that the step itself
changes whenever it runs (a counter, a tensor that it remembers) are left out: the runs of a recording have shown that its
calls do not depend on them.

Not seen: values from elsewhere (files, the environment), attributes of classes, reads through `__dict__`, objects inside
objects, containers of more than `MOST_ITEMS`, hooks of autograd nodes, and reads by functions that such functions call.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from operator import is_
from typing import Any

import torch

from .allocator import Turn
from .surroundings import Modules, replaced
from .torch_private import FakeTensor, children_of, global_hooks, held_by, hooks_of, modules_of, tensor_hooks

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
"""Types whose values compare by content."""

MOST_ITEMS = 32
"""A container of more items is known by its identity and length alone."""

DEPTH = 2
"""Depth to which containers in containers are examined, and functions in closures of functions."""

NUMBERED = 64
"""Number of settings that are remembered."""

HASTY_AFTER = 4
"""After this many new settings in quick succession, the next ones are planned only once they have stayed."""

STAYS = 16
"""Number of batches after which unchanged settings have stayed."""

OWN_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
"""PyTorch's own attributes of a module, which are checked in other ways."""

OTHERS_CODE = ("torch", "numpy", "plimsoll")
"""Packages whose functions and modules read no settings of a step."""

recordings = Turn()
"""Lock of the threads whose recordings are watched: meanwhile an attribute of PyTorch is replaced, for all threads."""

MISSING = object()
"""Stands for an attribute that a module does not have."""

Label = tuple[object, ...]
Settings = dict[Label, object]


class Same:
    """An object by its identity; it is not kept alive if Python allows that."""

    __slots__ = ("_number", "_thing")

    def __init__(self, thing: object) -> None:
        self._number = id(thing)
        self._thing: Callable[[], object]
        try:
            self._thing = weakref.ref(thing)
        except TypeError:
            self._thing = lambda: thing

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Same) or self._number != other._number:
            return False
        mine = self._thing()
        return mine is not None and mine is other._thing()


def described(value: object, names: frozenset[str] = frozenset(), depth: int = DEPTH) -> object:
    """Hashable key that distinguishes values: of an object by these attributes, of a container by its contents."""
    if isinstance(value, float):
        return (type(value), value.hex())  # distinguishes -0.0 from 0.0, and equates NaN with NaN
    if isinstance(value, PLAIN):
        return (type(value), repr(value) if isinstance(value, complex) else value)
    if isinstance(value, torch.Tensor):
        return (Same(value), 0 if isinstance(value, FakeTensor) else value.data_ptr())
    if isinstance(value, tuple | list | dict | set | frozenset):
        if len(value) > MOST_ITEMS or depth == 0:
            return (Same(value), len(value))
        if isinstance(value, set | frozenset):
            return (type(value), frozenset(described(one, names, depth - 1) for one in value))
        items = [one for pair in value.items() for one in pair] if isinstance(value, dict) else value
        return (type(value), tuple(described(one, names, depth - 1) for one in items))
    return (Same(value), *_read_of(value, names, depth))


def _read_of(value: object, names: frozenset[str], depth: int) -> list[object]:
    """Attributes of an object that code reads by name."""
    if depth == 0 or isinstance(value, torch.nn.Module | type) or _is_others(value):
        return []
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict):
        return []
    return [(name, described(own[name], depth=depth - 1)) for name in sorted(names) if name in own]


def _is_others(value: object) -> bool:
    """Returns `True` if a function or a Python module belongs to a package that a step only calls."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    return str(name).split(".")[0] in OTHERS_CODE


@functools.lru_cache(maxsize=1024)
def _names_in(code: types.CodeType) -> frozenset[str]:
    """Names of globals and attributes that code uses, also in functions that it makes."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inner))


def _forward_names(kind: type) -> frozenset[str]:
    code = getattr(kind.forward, "__code__", None)  # type: ignore[attr-defined]
    return frozenset() if code is None else _names_in(code)


def _is_closed(value: object) -> bool:
    """Returns `True` if the same object always has the same value."""
    if isinstance(value, tuple):
        return all(map(_is_closed, value))
    return isinstance(value, (*PLAIN, types.FunctionType, types.MethodType, torch.nn.Module))


@dataclass(slots=True)
class _Look:
    """The attributes of a module that the step reads, as last seen."""

    names: list[str]
    values: list[object]
    open: list[str]
    """Names of attributes that can change while they stay the same object."""
    code: frozenset[str]
    """Names that its `forward` uses."""
    settings: dict[str, object]

    @classmethod
    def of(cls, module: torch.nn.Module, reads: set[str]) -> _Look:
        """Looks at these attributes of a module, which a step reads."""
        own, code = vars(module), _forward_names(type(module))
        names = sorted(reads - OWN_OF_MODULES)
        settings = {name: described(own[name], code) for name in names if name in own}
        is_open = [name for name in settings if not _is_closed(own[name])]
        return cls(names, [own.get(name, MISSING) for name in names], is_open, code, settings)

    def is_of(self, module: torch.nn.Module) -> bool:
        """Returns `True` if the module is unchanged."""
        own = vars(module)
        if not all(map(is_, map(own.get, self.names, repeat(MISSING)), self.values)):
            return False
        return not self.open or all(
            described(own[name], self.code) == self.settings[name] for name in self.open
        )


class _Reader:
    """Notes the values that a function reads, and those that these read in turn."""

    def __init__(self, known: set[int]) -> None:
        """`known` are the identities of modules that are checked in other ways."""
        self._known = known
        self.settings: Settings = {}
        self.outside: dict[int, torch.nn.Module] = {}
        """The other modules, by identity."""

    def read(self, value: Any, label: Label, names: frozenset[str], depth: int) -> None:
        """Notes a value, of which code reads attributes of these names."""

        def read(part: object, *name: object, deeper: int = 1) -> None:
            self.read(part, (*label, *name), names, depth - deeper)

        if isinstance(value, torch.nn.Module):
            self.settings[label] = Same(value)
            if id(value) not in self._known:
                self.outside[id(value)] = value
        elif isinstance(value, types.MethodType):
            code = getattr(value.__func__, "__code__", None)
            names = names if code is None else _names_in(code)
            if isinstance(value.__self__, torch.nn.Module):
                read(value.__self__, "self", deeper=0)
            else:
                self._read_object(value.__self__, (*label, "self"), names, depth)
            read(value.__func__, deeper=0)
        elif isinstance(value, functools.partial):
            for name, part in (("func", value.func), *enumerate(value.args), *value.keywords.items()):
                read(part, name, deeper=0)
        elif isinstance(value, types.FunctionType):
            self.settings[label] = Same(value.__code__)
            if depth < 0 or (_is_others(value) and label != ("fn",)):
                return
            names = _names_in(value.__code__)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # a cell that is still empty
                    read(cell.cell_contents, name)
            for name, part in (*enumerate(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()):
                read(part, "default", name)
            for name in names & value.__globals__.keys():
                read(value.__globals__[name], name)
        elif isinstance(value, tuple | list | dict) and len(value) <= MOST_ITEMS:
            self.settings[label] = described(value, names)
            for part in value.values() if isinstance(value, dict) else value:
                if isinstance(part, torch.nn.Module):
                    read(part, id(part))
        elif callable(value) and isinstance(type(value).__call__, types.FunctionType):
            read(types.MethodType(type(value).__call__, value), deeper=0)
        else:
            self._read_object(value, label, names, depth)

    def _read_object(self, value: Any, label: Label, names: frozenset[str], depth: int) -> None:
        """Notes an object, and those of its attributes that code reads by name."""
        self.settings[label] = described(value, names)
        own = getattr(value, "__dict__", None)
        if depth >= 0 and isinstance(own, dict) and not _is_others(value):
            for name in names & own.keys():
                if isinstance(own[name], torch.nn.Module | types.FunctionType | types.MethodType):
                    self.read(own[name], (*label, name), names, depth - 1)


class Watched:
    """Numbers the states of the Python values that a step reads."""

    def __init__(self, fn: Callable[..., Any], beside: torch.nn.Module | None = None) -> None:
        """`beside` is a module that the function calls and that changes in every step, such as a replica's wrapper."""
        self._fn = fn
        self._beside = beside
        self._modules: list[torch.nn.Module] = []
        self._known: set[int] = set()
        self._reads: dict[int, set[str]] = {}
        """By the module's identity: the attributes of each module that recorded steps have read."""
        self._looks: list[_Look] = []
        self._rest: Settings | None = None
        self._own: set[Label] = set()
        """Labels of values that the step itself changes."""
        self._last: Settings = {}
        self._numbers: OrderedDict[frozenset[tuple[Label, object]], int] = OrderedDict()
        self._number = -1
        self._next = 0
        self._planned: set[int] = set()
        self._stayed = 0
        self._hasty = 0
        self.changed = ""
        """Description of the last change."""

    def begin(self, modules: list[torch.nn.Module]) -> None:
        """Takes the modules of the model."""
        self._modules = modules
        self._known = {id(module) for module in modules} | {id(self._beside)}
        self._own.clear()
        self._reads.clear()
        self._numbers.clear()
        self._hasty = 0
        self.forget()

    def forget(self) -> None:
        """Drops all references to seen values, before the step runs in eager, which may free them."""
        self._looks, self._rest = [], None

    def number(self) -> int:
        """Returns the number of the current settings: the same for equal settings, for as long as these are remembered."""
        rest = self._seen_elsewhere()
        is_same = rest == self._rest and len(self._looks) == len(self._modules)
        if not is_same or not all(map(_Look.is_of, self._looks, self._modules)):
            self._look_again(rest)
        return self._number

    def next_batch(self) -> int:
        """Returns the same, for the next batch."""
        number = self.number()
        self._stayed += 1
        return number

    def _look(self, module: torch.nn.Module) -> _Look:
        return _Look.of(module, self._reads.get(id(module), set()))

    def _look_again(self, rest: Settings) -> None:
        self._looks = [self._look(module) for module in self._modules]
        self._rest = rest
        now = {label: value for label, value in self._all().items() if label not in self._own}
        key = frozenset(now.items())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            if len(self._numbers) > NUMBERED:
                self._planned.discard(self._numbers.popitem(last=False)[1])
        self._numbers.move_to_end(key)
        if number != self._number:
            labels = [label for label in {**self._last, **now} if self._last.get(label) != now.get(label)]
            self.changed = self._words(labels)
            if number not in self._planned:
                self._hasty = 0 if self._stayed >= STAYS else self._hasty + 1
            self._stayed = 0
        self._number, self._last = number, now

    def _all(self) -> Settings:
        settings: Settings = dict(self._rest or {})
        for place, look in enumerate(self._looks):
            settings.update({("model", place, name): value for name, value in look.settings.items()})
        return settings

    def is_hasty(self) -> bool:
        """Returns `True` if settings change so often that a plan for the current ones would not pay."""
        return self._number not in self._planned and self._hasty > HASTY_AFTER and self._stayed < STAYS

    def is_changed(self) -> bool:
        """Returns `True` if these settings have no plan, and others have."""
        return bool(self._planned) and self._number not in self._planned

    def plan_made(self) -> None:
        """Notes that the current settings have a plan."""
        self._planned.add(self._number)

    @contextlib.contextmanager
    def recording(self, fn: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """Yields the function to record. Meanwhile notes the attributes of modules that the step reads, and those that it
        changes itself in every run. The first run does not show the latter: in it modules make state that they keep."""
        seen: list[Settings] = []

        def look() -> None:
            self._looks, self._rest = (
                [self._look(module) for module in self._modules],
                self._read_by_function(),
            )
            seen.append(self._all())
            self.forget()

        def watched(*batch: Any) -> Any:
            look()
            return fn(*batch)

        def noting(module: torch.nn.Module, name: str) -> object:
            self._reads.setdefault(id(module), set()).add(name)
            return object.__getattribute__(module, name)

        self.forget()
        try:
            with recordings, replaced(torch.nn.Module, "__getattribute__", noting):
                yield watched
        finally:
            if seen:
                look()
                for one, other in pairwise(seen[1:]):
                    both = one.keys() & other.keys()  # an earlier run may have read less
                    self._own |= {label for label in both if one[label] != other[label]}
            self.forget()

    def _seen_elsewhere(self) -> Settings:
        """Hooks, the code of modules, and the values that the function reads."""
        settings = self._read_by_function()
        kinds = dict.fromkeys(map(type, self._modules))
        settings["types",] = tuple(map(type, self._modules))
        for kind in kinds:
            forward: object = vars(kind).get("forward", getattr(kind, "forward", None))
            settings["code", kind] = (Same(forward), Same(kind.__call__))
        # A recording of a different thread has its own hooks.
        everywhere = [
            hook for hook in global_hooks() if not isinstance(getattr(hook[2], "__self__", None), Modules)
        ]
        hooks = [*everywhere, *hooks_of(self._modules), *tensor_hooks(self._modules)]
        settings["hooks",] = tuple((place, name, Same(hook)) for place, name, hook in hooks)
        return settings

    def _read_by_function(self) -> Settings:
        reader = _Reader(self._known)
        reader.read(self._fn, ("fn",), frozenset(), DEPTH)
        settings = reader.settings
        for root in reader.outside.values():
            for module in modules_of(root):
                if id(module) in self._known:
                    continue
                here = ("outside", id(module))
                look = self._look(module)
                settings.update({(*here, name): value for name, value in look.settings.items()})
                for named in held_by(module):
                    settings.update({(*here, "tensor", name): described(one) for name, one in named.items()})
                settings[(*here, "modules")] = tuple((n, Same(one)) for n, one in children_of(module).items())
                hooks = [*hooks_of([module]), *tensor_hooks([module])]
                settings[(*here, "hooks")] = tuple((name, Same(hook)) for _, name, hook in hooks)
        return settings

    def _words(self, labels: list[Label]) -> str:
        """Names of the changed values."""
        names = [str(label[-1]) for label in labels if isinstance(label[-1], str)]
        return ", ".join(f"`{name}`" for name in dict.fromkeys(names[:3])) or "its code"
