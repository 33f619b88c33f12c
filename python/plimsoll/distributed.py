"""Steps of several processes, each with a replica of the model: `DistributedDataParallel` under `torchrun`.

The module inside is planned, each process for itself. A step is the forward pass of the wrapper, so that buffers are broadcast
as it does; then a backward pass gives the planned gradients to the wrapper's own reducer, in the order in which eager has them.
Communication hooks, `no_sync` and unused parameters are the wrapper's, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .errors import Refused
from .outputs import Given, Outputs
from .ranks import Ranks
from .recording import Loss
from .surroundings import replaced
from .tape import aligned
from .torch_private import DDP_FORWARD, broadcast_buffers_next, is_sharded

Gradients = list[tuple[torch.nn.Parameter, torch.Tensor]]


def replica_of(model: torch.nn.Module) -> DistributedDataParallel | None:
    """The wrapper, where the model is one. Raises `Refused` for what is distributed in another way."""
    wrapper = model if isinstance(model, DistributedDataParallel) else None
    inner = model if wrapper is None else wrapper.module
    if wrapper is not None and (wrapper.static_graph or wrapper.mixed_precision is not None):
        raise Refused(
            "`static_graph` and `mixed_precision` of DDP cannot be planned; leave them out, and use autocast"
        )
    if any(isinstance(module, DistributedDataParallel) for module in inner.modules()):
        raise Refused("a part of the model is wrapped in DDP; wrap the whole model, and give the wrapper")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.tensor import DTensor

        sharded = any(isinstance(module, FullyShardedDataParallel) for module in inner.modules())
        if sharded or any(isinstance(parameter, DTensor) for parameter in inner.parameters()):
            raise Refused(
                "parameters that are sharded in this way cannot be planned; for a model that `fully_shard` (FSDP2) shards, "
                "`plimsoll.tune` swaps by hooks; else train with DDP, or without a plan"
            )
    return wrapper


def ranks_of(model: torch.nn.Module) -> Ranks | None:
    """The ranks that train a model together; none where this process trains it alone."""
    if is_sharded(model):
        return Ranks(None)
    replica = replica_of(model)
    return None if replica is None else Ranks(replica.process_group)


def inside(wrapper: DistributedDataParallel, fn: Loss) -> Loss:
    """A function that calls the wrapper, with the module inside called in its place."""

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return wrapper.module(*arguments, **keywords)

    def loss(*batch: Any) -> Given:
        with replaced(wrapper, "forward", forward):
            return fn(*batch)

    return loss


def module_of(model: torch.nn.Module) -> torch.nn.Module:
    """The module that trains: the one inside, where the model is a replica."""
    replica = replica_of(model)
    return model if replica is None else replica.module


def inner_of(model: torch.nn.Module, fn: Loss) -> Loss:
    """The function on the module that trains."""
    replica = replica_of(model)
    return fn if replica is None else inside(replica, fn)


def reducing_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """What reducing gradients takes, and how much of it is there from the wrapper's making on."""
    replica = replica_of(model)
    return (0, 0) if replica is None else (own_bytes(replica), bucket_bytes(replica))


def bucket_bytes(wrapper: DistributedDataParallel) -> int:
    """What the wrapper's buckets take, which are there from its making on."""
    return sum(aligned(p.numel() * p.element_size()) for p in wrapper.module.parameters() if p.requires_grad)


def own_bytes(wrapper: DistributedDataParallel) -> int:
    """What reducing takes: gradients of the wrapper's own, and its buckets, unless the gradients lie in them."""
    gradients = bucket_bytes(wrapper)
    return gradients if wrapper.gradient_as_bucket_view else 2 * gradients


def reduced(
    wrapper: DistributedDataParallel,
    step: Callable[[], Given],
    arrived: Callable[[], list[torch.nn.Parameter]],
) -> Given:
    """Runs a step of the module inside, and has the wrapper reduce its gradients or add them to those that are there.

    `arrived` gives what got a gradient in the step that ran, in that order.
    """
    trained = [p for p in wrapper.module.parameters() if p.requires_grad]
    given: list[Given] = []

    def run() -> torch.Tensor:
        there = [p.grad for p in trained]
        for parameter in trained:
            parameter.grad = None
        try:
            given.append(step())
            gradients = [(p, p.grad) for p in trained if p.grad is not None]
        finally:
            for parameter, gradient in zip(trained, there, strict=True):
                parameter.grad = gradient
        return _with_gradients(_loss_of(given[0]), _in_order(gradients, arrived()))

    try:
        with replaced(wrapper, DDP_FORWARD, run):
            loss = wrapper()
    except BaseException:
        # Ranks may have ended after unequally many steps; the next one begins alike on all.
        broadcast_buffers_next(wrapper)
        raise
    loss.backward()
    return given[0]


def _loss_of(given: Given) -> torch.Tensor:
    return given.loss if isinstance(given, Outputs) else given


class _Give(torch.autograd.Function):
    """Its backward pass gives a parameter this gradient."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, _parameter: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        ctx.gradient = gradient
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, passed_on: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return passed_on, ctx.gradient, None


def _with_gradients(loss: torch.Tensor, gradients: Gradients) -> torch.Tensor:
    """A loss whose backward pass gives these gradients in this order: what was applied last runs first."""
    for parameter, gradient in reversed(gradients):
        loss = _Give.apply(loss, parameter, gradient)
    return loss


def _in_order(gradients: Gradients, arrived: list[torch.nn.Parameter]) -> Gradients:
    """Gradients in the order in which eager has them: the wrapper fills its buckets in that order."""
    order = {id(parameter): place for place, parameter in enumerate(arrived)}
    return sorted(gradients, key=lambda entry: order.get(id(entry[0]), len(order)))
