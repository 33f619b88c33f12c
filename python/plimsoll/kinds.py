"""Kinds of batches: what tells one from another as far as a plan is concerned."""

from __future__ import annotations

from typing import Any

import torch

from .torch_private import DROPOUT, tree_flatten

Kind = tuple[object, ...]


def addresses_of(modules: list[torch.nn.Module]) -> list[int]:
    """Where the modules' parameters and buffers lie."""
    members = (t for m in modules for named in (m._parameters, m._buffers) for t in named.values())
    return [tensor.data_ptr() for tensor in members if tensor is not None]


def kind_of(modules: list[torch.nn.Module], batch: tuple[Any, ...]) -> Kind:
    """All that decides which calls a step makes, as far as it can be seen from outside."""
    leaves, spec = tree_flatten(batch)
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
        tuple(module.training for module in modules),
        tuple(module.p for module in modules if isinstance(module, DROPOUT)),
        tuple(_gradient_kind(p) for module in modules for p in module._parameters.values() if p is not None),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _gradient_kind(parameter: torch.nn.Parameter) -> object:
    """Whether a step gives a gradient, sets it or adds to it."""
    there = parameter.grad
    return (
        parameter.requires_grad if there is None else (parameter.requires_grad, there.dtype, there.stride())
    )
