"""Cut Cross-Entropy (`cut-cross-entropy`) under a plan: its kernels, without the selection of words by `nonzero`.

Its own function computes only the words that count. Their number differs from batch to batch, and so does the memory. Here
every word is computed, and ignored words get no weight: the same loss, in a known amount of memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..bypassing import opaque


def linear_cross_entropy(
    e: torch.Tensor,
    c: torch.Tensor,
    targets: torch.Tensor,
    ignore_index: int = -100,
    softcap: float | None = None,
    reduction: str = "mean",
    shift: bool = False,
    filter_eps: float | str | None = "high",
) -> torch.Tensor:
    """Cross-entropy of the logits `e @ c.T`, which are never materialised as a whole: the result of
    `cut_cross_entropy.linear_cross_entropy`, by the same kernels. `reduction` is `mean`, `sum` or `none`."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"there is no reduction {reduction!r}; it is `mean`, `sum` or `none`")
    if shift:  # the last word of a sequence has no successor
        targets = torch.nn.functional.pad(targets[..., 1:], (0, 1), value=ignore_index)
    counts = targets != ignore_index
    words = torch.where(counts, targets, 0).flatten()
    rows = e.contiguous().flatten(0, -2)
    losses = _Losses.apply(rows, c, words, softcap, filter_eps).view(targets.shape)
    losses = torch.where(counts, losses, 0.0)
    if reduction == "none":
        return losses[..., :-1] if shift else losses
    total = losses.sum()
    return total / counts.sum() if reduction == "mean" else total


class _Losses(torch.autograd.Function):
    """The package's own function, over all words."""

    @staticmethod
    def forward(
        ctx: Any,
        e: torch.Tensor,
        c: torch.Tensor,
        words: torch.Tensor,
        softcap: float | None,
        filter_eps: float | str | None,
    ) -> torch.Tensor:
        cce, utils = _package()
        eps = utils._handle_eps(filter_eps, e.dtype)
        how = cce.CCEParams(words, None, softcap, "none", eps, False, words.shape)
        losses: torch.Tensor = cce.LinearCrossEntropyFunction.forward(ctx, e, c, how)
        ctx.params = replace(how, targets=None)  # they are among the saved tensors
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cce, _ = _package()
        of_e, of_c, _ = cce.LinearCrossEntropyFunction.backward(ctx, gradient.contiguous())
        return of_e, of_c, None, None, None


def _package() -> tuple[Any, Any]:
    import cut_cross_entropy.cce
    import cut_cross_entropy.utils

    return cut_cross_entropy.cce, cut_cross_entropy.utils


opaque(_Losses)
