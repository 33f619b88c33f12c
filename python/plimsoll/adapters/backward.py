"""The loss of code that runs the backward pass itself, and gradients that are withheld until `backward` is called."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import planning
from ..errors import Refused
from ..surroundings import replaced

logger = logging.getLogger("plimsoll")

_said: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def must_step_first(optimizer: torch.optim.Optimizer) -> bool:
    """Returns `True` if the optimizer must step before anything can be planned, since the size of
    its state is unknown; logs it once."""
    if planning.is_state_known(optimizer):
        return False
    if optimizer not in _said:
        _said.add(optimizer)
        name = type(optimizer).__name__
        logger.warning(
            "how much state %s keeps is known after its first step: until then steps run in eager", name
        )
    return True


def what_backward_gets(run: Callable[[], object]) -> torch.Tensor:
    """Runs code that calls `loss.backward()` once, skips the backward pass, and returns that loss."""
    losses: list[torch.Tensor] = []
    backward, thread = torch.Tensor.backward, threading.get_ident()

    def keep(loss: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        if threading.get_ident() != thread:
            backward(loss, *arguments, **keywords)
            return
        if arguments or any(keywords.values()):
            raise Refused("`backward` is called with arguments; a plan has the backward pass of one loss")
        losses.append(loss)

    with replaced(torch.Tensor, "backward", keep):
        run()
    if len(losses) != 1:
        raise Refused(
            f"the trainer called `Tensor.backward` {len(losses)} times in a step; a plan has the backward pass of one loss"
        )
    return losses[0]


def after_backward(loss: torch.Tensor, parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """Takes the gradients away, and returns a loss whose `backward` puts them back."""
    taken = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in taken:
        parameter.grad = None

    def put_back(_gradient: torch.Tensor) -> None:
        for parameter, gradient in taken:
            parameter.grad = gradient
        taken.clear()  # who keeps this loss holds no gradient

    loss = loss.detach().requires_grad_()
    loss.register_hook(put_back)
    return loss
