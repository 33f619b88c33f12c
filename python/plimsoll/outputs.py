"""Results of a step: its loss, and other tensors of the same forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .torch_private import tree_map_only


@dataclass
class Outputs:
    """A loss, and other tensors of the same forward pass: predictions, an accuracy, the terms of the loss.

    The tuned function may return it in place of the loss. The step then returns it, too: the loss without its graph, and
    copies of the other tensors. Values in `others` that are not tensors stay as they were when the step was recorded.
    """

    loss: torch.Tensor
    others: Any
    """Tensors in lists, tuples and dictionaries."""


Given = torch.Tensor | Outputs


def of(given: Given) -> Outputs:
    """Returns a function's result, with separate copies of the other tensors."""
    if not isinstance(given, Outputs):
        return Outputs(given, None)
    copied = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), given.others)
    return Outputs(given.loss, copied)


def backward(given: Given) -> Given:
    """Runs the backward pass of a function's result, and returns it without its graph."""
    made = of(given)
    made.loss.backward()
    made.loss = made.loss.detach()
    return made if isinstance(given, Outputs) else made.loss
