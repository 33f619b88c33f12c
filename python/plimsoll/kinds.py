"""Kinds of batches: the properties of a batch that its plan depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .errors import BadInput
from .torch_private import held_by, tree_flatten
from .watched import PLAIN

Kind = tuple[object, ...]


def addresses_of(modules: list[torch.nn.Module]) -> list[int]:
    """Addresses of the modules' parameters and buffers."""
    members = (t for m in modules for named in held_by(m) for t in named.values())
    return [tensor.data_ptr() for tensor in members if tensor is not None]


def check_leaves(leaves: list[Any]) -> None:
    """Refuses leaves of a batch that may hold hidden tensors, which would be constants of the step."""
    for leaf in leaves:
        if isinstance(leaf, (torch.Tensor, *PLAIN)):
            continue
        name = type(leaf).__name__
        if isinstance(leaf, Mapping):
            instead = "pass `dict(batch)`"
        elif type(leaf).__module__.split(".")[0] == "numpy":
            instead = "pass `torch.as_tensor(...)` of it"
        else:
            instead = (
                "pass its tensors in a tuple or a dictionary, or register its class "
                "(`torch.utils._pytree.register_pytree_node`)"
            )
        is_or_has = "is" if len(leaves) == 1 else "has"
        raise BadInput(f"the sample {is_or_has} a {name}, inside which PyTorch finds no tensors: {instead}")


def kind_of(modules: list[torch.nn.Module], batch: tuple[Any, ...]) -> Kind:
    """Key of everything, except for what `watched` sees, that determines the calls of a step: the
    batch, gradients, PyTorch's settings."""
    leaves, spec = tree_flatten(batch)
    check_leaves(leaves)
    described: list[object] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            dense = torch.empty_like(leaf, device="meta")
            described.append(
                (tuple(leaf.shape), leaf.dtype, tuple(dense.stride()), leaf.requires_grad, leaf.device)
            )
        else:
            described.append((type(leaf), repr(leaf)))
    return (
        str(spec),
        tuple(described),
        tuple(_gradient_kind(p) for module in modules for p in held_by(module)[0].values() if p is not None),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _gradient_kind(parameter: torch.nn.Parameter) -> object:
    """Key of how a step treats a gradient: no gradient, set, or added to."""
    there = parameter.grad
    return (
        parameter.requires_grad if there is None else (parameter.requires_grad, there.dtype, there.stride())
    )
