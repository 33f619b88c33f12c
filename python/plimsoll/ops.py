"""Facts about a call from the schema of its op: the tensors that it writes, the values that it gives the host."""

from __future__ import annotations

import math
from typing import Any

import torch

from .torch_private import BATCH_NORMS, OpOverload, tree_flatten


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Tensors of nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def written(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors that the op writes in place according to its schema."""
    if not func._schema.is_mutable or torch.Tag.inplace_view in func.tags:
        return []
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += tensors_in(given)
    statistics = {id(t) for t in running_statistics(func, args, kwargs)}
    return [tensor for tensor in found if id(tensor) not in statistics]


def running_positions(func: OpOverload) -> set[int]:
    """Positions of a batch norm's running statistics among its arguments."""
    if func._schema.name.split("::")[1] not in BATCH_NORMS:
        return set()
    names = [argument.name for argument in func._schema.arguments]
    return {names.index(name) for name in ("running_mean", "running_var") if name in names}


def running_statistics(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Statistics that a batch norm updates, even if its schema does not say so."""
    names = [argument.name for argument in func._schema.arguments]
    positions = running_positions(func)
    return [t for p in positions for t in tensors_in(args[p] if p < len(args) else kwargs.get(names[p]))]


def leaves_blank(func: OpOverload) -> bool:
    """Returns `True` if the op makes memory and writes nothing into it."""
    return _name(func).removeprefix("new_").startswith("empty")


def copies_whole(func: OpOverload) -> bool:
    """Returns `True` if the op copies its whole operand to other memory."""
    return _name(func) in ("clone", "_to_copy")


def reads_operands(func: OpOverload, kwargs: Any) -> bool:
    """Returns `True` if the op reads its operands: some ops only use a shape, and an operand scaled
    by 0 (`baddbmm`) is not read."""
    name = _name(func)
    return not (name.endswith("_like") or name.startswith("new_") or kwargs.get("beta") == 0)


def _name(func: OpOverload) -> str:
    return func._schema.name.split("::")[1]


def gives_a_value(func: OpOverload) -> bool:
    """Returns `True` if the op gives the host only numbers, and no tensor: attention returns
    lengths, which are shapes, with its result."""
    returned = {str(value.type) for value in func._schema.returns}
    return bool(returned) and returned <= {"Scalar", "number", "bool", "int", "float"}


def indexes_by_position(func: OpOverload, args: Any) -> bool:
    """Returns `True` if an op that indexes by masks or positions was given positions, whose number is known."""
    name = func._schema.name.split("::")[1]
    if name not in ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"):
        return False
    return not any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))


def same_value(first: object, second: object) -> bool:
    """Returns `True` if two values that the host read are the same; two NaNs are."""
    both_nan = (
        isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)
    )
    return both_nan or (type(first) is type(second) and first == second)
