"""What a step gives: its loss, and beside it what else its caller wants of the same forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .torch_private import tree_map_only


@dataclass
class Outputs:
    """A loss, and other tensors of the same forward pass: predictions, an accuracy, the terms of the loss.

    The function that is tuned may return it in place of the loss, and the step then gives it, too: the loss without its graph,
    and copies of the others. What is no tensor in `others` is as it was when the step was recorded.
    """

    loss: torch.Tensor
    others: Any
    """Tensors in lists, tuples and dictionaries."""


Given = torch.Tensor | Outputs


def of(given: Given) -> Outputs:
    """What a function gave, with copies of the others, which then are tensors of their own."""
    if not isinstance(given, Outputs):
        return Outputs(given, None)
    copied = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), given.others)
    return Outputs(given.loss, copied)


def backward(given: Given) -> Given:
    """Runs the backward pass of what a function gave, and gives it without its graph."""
    made = of(given)
    made.loss.backward()
    made.loss = made.loss.detach()
    return made if isinstance(given, Outputs) else made.loss
