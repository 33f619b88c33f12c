"""A few steps of a network, in eager or by a plan, and their results for benches and acceptance to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

STEPS = 3
"""Steps whose bits are compared."""


class Trained(Protocol):
    """A model, its loss and one batch."""

    model: Any
    loss: Callable[..., Any]
    batch: tuple[Any, ...]


def eager_step(task: Trained) -> Callable[..., Any]:
    """Forward and backward, as a user writes them."""

    def step(*batch: Any) -> Any:
        loss = task.loss(*batch)
        loss.backward()
        return loss

    return step


def train(task: Trained, optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> list[torch.Tensor]:
    """Results of a few steps, on the host: losses, parameters, buffers, states of generators."""
    torch.manual_seed(1)
    left = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        left.append(step(*task.batch).detach().cpu().clone())
        optimizer.step()
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]
    return [*left, *(value.cpu().clone() for value in task.model.state_dict().values()), *states]
