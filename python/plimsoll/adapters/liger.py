"""Liger's kernels (`liger-kernel`), written in Triton, bypass PyTorch's dispatcher: its losses and layers are recorded as ops.

This needs no code from users who import Liger: it happens when a step is recorded. Which tensors a kernel writes into was
read from its source (0.8.5), and is checked in the first run of each recording.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..bypassing import FUNCTIONS, Written, opaque


def _loss_gradients(context: Any) -> tuple[int, ...]:
    """Saved tensors that the loss over a linear layer scales in its backward pass: gradients that its forward pass made."""
    return () if getattr(context, "defer_grads", False) else (0, 1, 2)


def _in_place(context: Any) -> tuple[int, ...]:
    return (0,) if context.in_place else ()


KERNELS: dict[str, tuple[Written, Written, Written]] = {
    "LigerFusedLinearCrossEntropyFunction": ((), _loss_gradients, ()),
    "LigerCrossEntropyFunction": ((0,), (0,), ()),
    "LigerRMSNormFunction": ((), (), _in_place),
    "LigerLayerNormFunction": ((), (), ()),
    "LigerSiLUMulFunction": ((), (0, 1), ()),
    "LigerGELUMulFunction": ((), (0, 1), ()),
    "LigerRopeFunction": ((0, 1), (), (0, 1)),
}
"""By function: positions of the arguments, saved tensors and incoming gradients that it writes into."""


def mark() -> None:
    """Registers them as ops."""
    ops = importlib.import_module("liger_kernel.ops")
    for name, written in KERNELS.items():
        function = getattr(ops, name, None)
        if function is not None and function not in FUNCTIONS:
            opaque(function, *written)
