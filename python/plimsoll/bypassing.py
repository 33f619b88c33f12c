"""Autograd functions whose kernels bypass PyTorch's dispatcher, as Triton's do: each of their passes becomes an op.

While a step is recorded, `forward` and `backward` of such a function go through an op (`torch.library`), which runs them as
written. So a tape has their reads, writes and allocations, and a plan recomputes and swaps around them. At any other time
they are called directly.

The first run of a recording checks what an op cannot declare: that it writes into no undeclared tensor, and draws no random
numbers. State other than tensors that it keeps for its backward pass must be the same in every run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from .errors import BadInput, Refused
from .ops import tensors_in
from .surroundings import replaced
from .torch_private import (
    FakeTensor,
    TorchDispatchMode,
    TreeSpec,
    storage_key,
    tree_flatten,
    tree_unflatten,
    uncompiled,
    without_function_modes,
)

Written = Sequence[int] | Callable[[Any], Sequence[int]]
"""Positions; or a function that returns them from the context of `forward`."""

Kind = TypeVar("Kind", bound=type[torch.autograd.Function])

LIBRARY = torch.library.Library("plimsoll", "DEF")

SCHEMA = "(Tensor[] read, Tensor(a!)[] written, int use) -> Tensor[]"

FUNCTIONS: dict[type[torch.autograd.Function], Function] = {}

USES: list[Use] = []
"""By number: each way in which a function is called."""


class _Now:
    """State of this module: `True` while calls become ops (`taken`), and while they are checked (`checked`)."""

    taken = False
    checked = False


@contextlib.contextmanager
def taken(is_first: bool) -> Iterator[None]:
    """Context in which calls of opaque functions become ops; in the first run of a recording they are also checked."""
    if "liger_kernel.ops" in sys.modules:
        from .adapters import liger

        liger.mark()
    before = _Now.taken, _Now.checked
    _Now.taken, _Now.checked = True, is_first
    try:
        yield
    finally:
        _Now.taken, _Now.checked = before


def opaque(
    function: Kind, writes: Written = (), writes_saved: Written = (), writes_gradients: Written = ()
) -> Kind:
    """Records each pass of a `torch.autograd.Function` as one op: for functions whose kernels PyTorch's dispatcher does not
    see (Triton, numba, a C++ extension).

    `writes` are the positions of the arguments that `forward` writes into; `writes_saved` and `writes_gradients` are those
    of the saved tensors and of the incoming gradients that `backward` writes into. Each may be a function of the context
    that returns them. Returns the class, so that it can be used as a decorator. Raises `BadInput` for anything else than
    such a function.
    """
    if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        raise BadInput(f"{function!r} is no class that derives from `torch.autograd.Function`")
    if function.setup_context is not torch.autograd.Function.setup_context:
        raise BadInput(
            f"`{function.__name__}` has a `setup_context`; give its context to `forward`, as the first argument"
        )
    if function not in FUNCTIONS:
        FUNCTIONS[function] = Function(function, writes, writes_saved, writes_gradients)
    return function


class Context:
    """The context of `forward` and `backward`, in place of autograd's own."""

    def __init__(self, needs_input_grad: tuple[bool, ...], saved: Sequence[Any] = ()) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors = tuple(saved)
        self._not_differentiable: list[int] = []
        self._materializes = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Marks results that have no gradient."""
        self._not_differentiable += map(id, tensors)

    def mark_dirty(self, *tensors: Any) -> None:
        """Refuses: outside an op, autograd does not know that the argument has become the result."""
        raise Refused(
            "`ctx.mark_dirty` in a function that is recorded as an op: have `forward` give a new tensor, and leave its argument"
        )

    def set_materialize_grads(self, value: bool) -> None:
        """Sets whether a missing gradient is passed as zeros."""
        self._materializes = value

    def attributes(self) -> dict[str, object]:
        """Other attributes that were set."""
        own = ("needs_input_grad", "saved_tensors", "_not_differentiable", "_materializes")
        return {name: value for name, value in vars(self).items() if name not in own}


@dataclass(frozen=True)
class Of:
    """A result of a call: the tensor of this number among those that it made, or a view of an input, by shape,
    strides and offset from its first element."""

    number: int
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None

    def among(self, made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the tensor."""
        if self.view is None:
            return made[self.number]
        tensor = given[self.number]
        shape, strides, offset = self.view
        if (tuple(tensor.shape), tuple(tensor.stride()), 0) == self.view:
            return tensor
        return tensor.as_strided(shape, strides, int(tensor.storage_offset()) + offset)


@dataclass(frozen=True)
class Outcome:
    """Results of a call, and its state for the backward pass; the same in every run."""

    results: list[object]
    spec: TreeSpec
    saved: list[object]
    attributes: dict[str, object]
    not_differentiable: list[int]
    materializes: bool


@dataclass
class Use:
    """One way in which a pass of a function is called: its arguments except for the contents of tensors."""

    function: Function
    is_backward: bool
    leaves: list[object]
    spec: TreeSpec
    tensors: Sequence[tuple[object, ...]]
    """For each tensor, whose place among the leaves is empty: size, strides, type, device, `requires_grad`."""
    positions: list[int]
    needs_input_grad: tuple[bool, ...]
    autocast: tuple[bool, torch.dtype]
    forward: Use | None = None
    """For a backward pass: the use of the forward pass."""
    number: int = field(default=-1, compare=False)
    outcome: Outcome | None = field(default=None, compare=False)
    written: list[int] = field(default_factory=list, compare=False)
    """Positions among the tensors."""

    def call(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Calls the op."""
        read = [t for n, t in enumerate(tensors) if n not in self.written]
        written = [tensors[n] for n in self.written]
        op = self.function.backward_op if self.is_backward else self.function.forward_op
        return op(read, written, self.number)

    def run(self, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Does the work of the op."""
        others, changed = iter(read), dict(zip(self.written, written, strict=True))
        given = [changed[n] if n in changed else next(others) for n in range(len(self.tensors))]
        leaves = list(self.leaves)
        for position, tensor, about in zip(self.positions, given, self.tensors, strict=True):
            # In a planned step, windows on memory take the places of tensors that require gradients.
            leaves[position] = tensor.detach().requires_grad_() if about[-1] else tensor
        arguments = tree_unflatten(leaves, self.spec)
        context, passed = self._context(arguments)
        enabled, kind = self.autocast
        where = given[0].device.type if given else "cpu"
        was, _Now.taken = _Now.taken, False
        try:
            with (
                without_function_modes(),
                uncompiled(),
                torch.no_grad(),
                torch.autocast(where, kind, enabled=enabled, cache_enabled=False),
                self._looked_at(given) if _Now.checked and was else contextlib.nullcontext(),
            ):
                result = self.function.passes[self.is_backward](context, *passed)
        finally:
            _Now.taken = was
        outcome, made = self._outcome(context, result, given)
        if (
            self.outcome is None or was
        ):  # the last recording counts; a plan from before that differs goes on in eager
            self.outcome = outcome
        elif outcome != self.outcome:
            from .program import Unplanned

            raise Unplanned(f"`{self.function.name}` gives or keeps something else than when it was recorded")
        return made

    def _context(self, arguments: Any) -> tuple[Context, Sequence[object]]:
        if self.forward is None:
            return Context(self.needs_input_grad), arguments
        saved, gradients = arguments
        context = Context(self.needs_input_grad, saved)
        assert self.forward.outcome is not None
        vars(context).update(self.forward.outcome.attributes)
        return context, gradients

    def _outcome(
        self, context: Context, result: object, given: list[torch.Tensor]
    ) -> tuple[Outcome, list[torch.Tensor]]:
        extents = [_extent(tensor) for tensor in given]
        made: list[torch.Tensor] = []

        def of(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            begin, _ = _extent(leaf)
            inside = [n for n, (first, end) in enumerate(extents) if first <= begin < end]
            if inside:
                number = next((n for n in inside if extents[n][0] == begin), inside[0])
                if leaf.dtype != given[number].dtype:
                    raise Refused(f"`{self.function.name}` gives a tensor of its own as another type")
                offset = (begin - extents[number][0]) // leaf.element_size()
                return Of(number, (tuple(leaf.shape), tuple(leaf.stride()), offset))
            found = next((n for n, tensor in enumerate(made) if tensor is leaf), None)
            if found is None:
                found = len(made)
                made.append(leaf)
            return Of(found)

        results, spec = tree_flatten(result)
        plain = [n for n, leaf in enumerate(results) if id(leaf) in context._not_differentiable]
        saved = [] if self.is_backward else [of(leaf) for leaf in context.saved_tensors]
        attributes = {} if self.is_backward else context.attributes()
        if tensors_in(attributes):
            raise Refused(
                f"`{self.function.name}` keeps a tensor in its context beside `save_for_backward`; save it there"
            )
        outcome = Outcome(
            [of(leaf) for leaf in results], spec, saved, attributes, plain, context._materializes
        )
        return outcome, [tensor.detach() for tensor in made]

    @contextlib.contextmanager
    def _looked_at(self, given: list[torch.Tensor]) -> Iterator[None]:
        """Refuses effects that a plan would have to know."""
        kept = [None if n in self.written else tensor.clone() for n, tensor in enumerate(given)]
        states = [torch.get_rng_state()]
        states += torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        yield
        now = [torch.get_rng_state()]
        now += torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        if not all(map(torch.equal, states, now)):
            raise Refused(f"`{self.function.name}` draws random numbers, which would be others in each run")
        for number, (before, tensor) in enumerate(zip(kept, given, strict=True)):
            if before is not None and not _is_same(before, tensor):
                raise Refused(
                    f"`{self.function.name}` writes into {self._in_words(number)}; declare that: "
                    "`plimsoll.opaque(function, writes=..., writes_saved=..., writes_gradients=...)`"
                )

    def _in_words(self, number: int) -> str:
        position = self.positions[number]
        if self.forward is None:
            return f"argument {position}"
        saved, _ = tree_unflatten(list(range(len(self.leaves))), self.spec)
        if position < len(saved):
            return f"saved tensor {position}"
        return f"incoming gradient {position - len(saved)}"


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the first address of a tensor's elements, and the one after the last. A planned step
    has many tensors in one storage."""
    size = tensor.element_size()
    if isinstance(tensor, FakeTensor):
        first = (storage_key(tensor) << 48) + int(tensor.storage_offset()) * size
    else:
        first = tensor.data_ptr()
    if tensor.numel() == 0:
        return first, first
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(*(tensor.flatten().view(torch.uint8) for tensor in (one, other)))


class Function:
    """An autograd function that is recorded as ops."""

    def __init__(
        self, cls: type[torch.autograd.Function], writes: Written, saved: Written, gradients: Written
    ) -> None:
        self.name = cls.__name__
        self.passes = (cls.forward, cls.backward)
        self._writes, self._saved, self._gradients = writes, saved, gradients
        name = f"{cls.__module__}_{cls.__qualname__}".replace(".", "_").replace("<", "_").replace(">", "_")
        if hasattr(torch.ops.plimsoll, name):  # the class was created twice
            name += f"_{len(FUNCTIONS)}"
        self.forward_op = self._op(name)
        self.backward_op = self._op(f"{name}_backward")
        cls.forward = staticmethod(self._forward)  # type: ignore[method-assign]
        cls.backward = staticmethod(self._backward)  # type: ignore[method-assign]

    @staticmethod
    def _op(name: str) -> Any:
        LIBRARY.define(name + SCHEMA)
        LIBRARY.impl(name, _run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"plimsoll::{name}", _run_on_fakes, lib=LIBRARY)
        return getattr(torch.ops.plimsoll, name).default

    def _forward(self, ctx: Any, *arguments: Any) -> Any:
        if not _Now.taken:
            return self.passes[0](ctx, *arguments)
        use, tensors = self._use(arguments, ctx.needs_input_grad)
        made = use.call(tensors)
        outcome = use.outcome
        assert outcome is not None
        for name, value in outcome.attributes.items():
            setattr(ctx, name, value)
        ctx.plimsoll_use = use
        ctx.set_materialize_grads(outcome.materializes)
        ctx.save_for_backward(*_filled(outcome.saved, made, tensors))
        results = _filled(outcome.results, made, tensors)
        ctx.mark_non_differentiable(*(results[n] for n in outcome.not_differentiable))
        return tree_unflatten(results, outcome.spec)

    def _backward(self, ctx: Any, *gradients: Any) -> Any:
        forward = getattr(ctx, "plimsoll_use", None)
        if forward is None:
            return self.passes[1](ctx, *gradients)
        use, tensors = self._use((list(ctx.saved_tensors), gradients), ctx.needs_input_grad, forward)
        made = use.call(tensors)
        assert use.outcome is not None
        return tree_unflatten(_filled(use.outcome.results, made, tensors), use.outcome.spec)

    def _use(
        self, arguments: Any, needs: tuple[bool, ...], forward: Use | None = None
    ) -> tuple[Use, list[torch.Tensor]]:
        """Returns how it is called, as one of the known uses, and the tensors among its arguments."""
        leaves, spec = tree_flatten(arguments)
        positions = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[n] for n in positions]
        about = [
            (tuple(t.shape), tuple(t.stride()), t.dtype, t.device.type, t.requires_grad) for t in tensors
        ]
        plain = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        where = tensors[0].device.type if tensors else "cpu"
        autocast = (torch.is_autocast_enabled(where), torch.get_autocast_dtype(where))
        use = Use(self, forward is not None, plain, spec, about, positions, tuple(needs), autocast, forward)
        known = next((one for one in USES if one == use), None)
        if known is None:
            known = use
            use.number = len(USES)
            use.written = self._written(use, arguments)
            USES.append(use)
        return known, tensors

    def _written(self, use: Use, arguments: Any) -> list[int]:
        """Returns the positions of the tensors that are written."""
        if use.forward is None:
            places = set(_positions(self._writes, SimpleNamespace()))
        else:
            assert use.forward.outcome is not None
            saved, kept = len(arguments[0]), SimpleNamespace(**use.forward.outcome.attributes)
            places = set(_positions(self._saved, kept))
            places |= {saved + n for n in _positions(self._gradients, kept)}
        return [n for n, position in enumerate(use.positions) if position in places]


def _positions(written: Written, context: SimpleNamespace) -> Sequence[int]:
    return written(context) if callable(written) else written


def _filled(leaves: list[object], made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[Any]:
    return [leaf.among(made, given) if isinstance(leaf, Of) else leaf for leaf in leaves]


def _run(read: list[torch.Tensor], written: list[torch.Tensor], use: int) -> list[torch.Tensor]:
    return USES[use].run(read, written)


def _run_on_fakes(read: list[torch.Tensor], written: list[torch.Tensor], use: int) -> list[torch.Tensor]:
    """Does the same without memory: kernels are not launched, and a number that the host reads is 1,
    since it decides no shape."""
    checked, _Now.checked = _Now.checked, False
    try:
        with _without_kernels(), _Ones():
            return USES[use].run(read, written)
    except RuntimeError as error:
        function = USES[use].function.name
        raise Refused(
            f"`{function}` does not run on fake tensors ({error}); record the step as a whole"
        ) from error
    finally:
        _Now.checked = checked


def _without_kernels() -> contextlib.AbstractContextManager[None]:
    """Context in which Triton launches nothing."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return contextlib.nullcontext()
    return replaced(jit.KernelInterface, "__getitem__", lambda _kernel, _grid: lambda *_a, **_k: None)


class _Ones(TorchDispatchMode):
    """A mode in which a number that the host reads from fake tensors is 1, and two fake tensors are never equal."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.equal.default:
            return False
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            return _one(args[0].dtype)
        if func is torch.ops.aten.is_nonzero.default:
            return True
        return func(*args, **(kwargs or {}))


def _one(kind: torch.dtype) -> bool | int | float:
    if kind is torch.bool:
        return True
    return 1.0 if kind.is_floating_point else 1
