"""Liger's kernels (`liger-kernel`), Triton's, which bypass PyTorch's dispatcher: its losses and layers are taken as ops.

Whoever imports Liger gets this when a step is recorded, without a line. Which tensors a kernel writes into was read in
its source (0.8.5), and is checked in the first run of each recording.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..bypassing import FUNCTIONS, Written, opaque


def _loss_gradients(context: Any) -> tuple[int, ...]:
    """The loss over a linear layer scales the gradients that its forward pass made."""
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
"""By function: which arguments, which saved tensors and which incoming gradients it writes into."""


def mark() -> None:
    """Takes them as ops."""
    ops = importlib.import_module("liger_kernel.ops")
    for name, written in KERNELS.items():
        function = getattr(ops, name, None)
        if function is not None and function not in FUNCTIONS:
            opaque(function, *written)
