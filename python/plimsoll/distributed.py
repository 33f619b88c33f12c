"""Steps of several processes, each with a replica of the model: `DistributedDataParallel` under `torchrun`.

Each process plans its own copy of the wrapped module. Planned gradients are handed to the wrapper's own reducer, in eager's
order, and, if that can be undone, as soon as they are complete: buckets are reduced during the backward pass. Communication
hooks, `no_sync` and unused parameters are handled by the wrapper, so that the bits are the wrapper's too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .errors import Refused
from .interconnect import Interconnect
from .outputs import Given
from .program import Gradients, Taker
from .ranks import Ranks
from .recording import Loss
from .surroundings import replaced, without_gradient_hooks
from .tape import aligned
from .torch_private import (
    DDP_FORWARD,
    abort,
    accumulate_hooks,
    broadcast_buffers_next,
    expect_gradients,
    has_communication_hook,
    version_of,
)

logger = logging.getLogger("plimsoll")


def replica_of(model: torch.nn.Module) -> DistributedDataParallel | None:
    """Returns the wrapper if the model is one, else `None`. Raises `Refused` for other kinds of distribution."""
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
                "sharded parameters (FSDP, DTensor) cannot be planned; train with DDP, or without a plan"
            )
    return wrapper


def ranks_of(model: torch.nn.Module) -> Ranks | None:
    """Returns the ranks that train a model together; `None` if this process trains it alone."""
    replica = replica_of(model)
    return None if replica is None else Ranks(replica.process_group)


def inside(wrapper: DistributedDataParallel, fn: Loss) -> Loss:
    """Returns a function that calls the wrapper, with the wrapped module called in its place."""

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return wrapper.module(*arguments, **keywords)

    def loss(*batch: Any) -> Given:
        with replaced(wrapper, "forward", forward):
            return fn(*batch)

    return loss


def module_of(model: torch.nn.Module) -> torch.nn.Module:
    """The module that trains: the wrapped one if the model is a replica."""
    replica = replica_of(model)
    return model if replica is None else replica.module


def inner_of(model: torch.nn.Module, fn: Loss) -> Loss:
    """The function on the module that trains."""
    replica = replica_of(model)
    return fn if replica is None else inside(replica, fn)


def reducing_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes that reducing gradients takes, and the part of them that exists from the wrapper's construction on."""
    replica = replica_of(model)
    return (0, 0) if replica is None else (own_bytes(replica), bucket_bytes(replica))


def bucket_bytes(wrapper: DistributedDataParallel) -> int:
    """Bytes of the wrapper's buckets, which exist from its construction on."""
    return sum(aligned(p.numel() * p.element_size()) for p in wrapper.module.parameters() if p.requires_grad)


def own_bytes(wrapper: DistributedDataParallel) -> int:
    """Bytes that reducing takes: the wrapper's own gradients, and its buckets, unless the gradients are views of these."""
    gradients = bucket_bytes(wrapper)
    return gradients if wrapper.gradient_as_bucket_view else 2 * gradients


def interconnect(wrapper: DistributedDataParallel, ranks: Ranks, given: Interconnect | None) -> Interconnect:
    """Network between the ranks: as given, if all ranks were given one, else as they measure it together."""
    if ranks.least(int(given is not None)) and given is not None:
        return given
    where = next(wrapper.module.parameters()).device
    measured = Interconnect.measured(wrapper.process_group, where)
    # All predict by the slowest rank.
    rate = ranks.least(int(measured.bytes_per_second))
    latency = -ranks.least(-round(measured.latency_seconds * 1e9)) / 1e9
    return Interconnect(max(1, rate), latency, is_measured=True)


class Reducing:
    """Hands gradients of a replica's steps to the wrapper's own reducer, which fills buckets and reduces each as soon as it
    is full.

    A step runs inside the wrapper's forward pass, so that buffers are broadcast as usual. A gradient is handed over by a
    backward pass that consists of its accumulation, which the reducer waits for; in eager's order, since buckets follow the
    order of the first arrivals. The last gradient makes the reducer wait for the other ranks: it is handed over once all
    ranks have agreed that they have reached this point.

    If a step fails, zeros replace the gradients that this rank has not handed over, so that no rank waits for it; then all
    drop the reduced gradients. So nothing may depend on gradients before the ranks agree. Gradients are handed over earlier
    only if there is no gradient that they would be added to, no hook of the user's runs for each gradient, and a step has
    shown that reducing leaves the parameters unchanged: a plan that recomputes reads parameters later than eager does.

    A communication hook may wait for the other ranks. With one, the ranks first exchange before each step whether they may
    hand over gradients early, and do so only if all may: else one would wait in its hook for a rank that waits for it to
    agree. All must hold back the same gradient then, so that none hands over early if parameters may be unused.
    """

    def __init__(self, wrapper: DistributedDataParallel, ranks: Ranks) -> None:
        self._wrapper = wrapper
        self._ranks = ranks
        self._leaves_parameters = False
        """`True` if reducing a step has left the parameters unchanged."""
        self._is_early = False
        """`True` if gradients of the running step may be handed over before the ranks agree."""
        self._trained: list[torch.nn.Parameter] = []
        self._order: list[torch.nn.Parameter] = []
        """Parameters in the order of handing over, in the running or the last step."""
        self._taken: set[int] = set()
        """Identities of the parameters whose gradient was handed over in the running step."""

    def run(self, step: Callable[[], Given], arrived: Callable[[], list[torch.nn.Parameter]]) -> Given:
        """Runs a step of the wrapped module, and has the wrapper reduce its gradients or add them to existing ones.

        `arrived` returns the parameters that got a gradient in the step, in order of arrival. If one rank raises, all raise
        its error, and gradients are restored. A step that reduces nothing raises on this rank alone if a hook runs for each
        gradient: the others may wait for this rank in such a hook, and would not come to agree.
        """
        given: list[Given] = []
        reduces = self._wrapper.require_backward_grad_sync
        self._trained = [p for p in self._wrapper.module.parameters() if p.requires_grad]
        has_hooks = any(map(accumulate_hooks, self._trained))
        without_its_own = contextlib.ExitStack()

        def run() -> torch.Tensor:
            # The step runs eager code, whose gradients are not for the reducer, which learns later what to expect.
            without_its_own.enter_context(self._wrapper.no_sync())
            given.append(self._run(step, arrived, reduces, has_hooks))
            return torch.empty(0)

        try:
            with without_its_own, replaced(self._wrapper, DDP_FORWARD, run):
                self._wrapper()
        except BaseException:
            # Ranks may have ended after different numbers of steps; the next one begins alike on all.
            broadcast_buffers_next(self._wrapper, reduces or not has_hooks)
            raise
        if reduces:
            broadcast_buffers_next(self._wrapper)
        return given[0]

    def taker(self, order: list[torch.nn.Parameter]) -> Taker | None:
        """Returns itself if gradients that complete in this order may be handed over during the running step, else `None`."""
        if not self._is_early or not order:
            return None
        if not self.has_begun:
            self._order = order
        return self

    @property
    def has_begun(self) -> bool:
        """`True` if a gradient of the running step was handed over."""
        return bool(self._taken)

    def take(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Hands over a gradient, unless that was done, or it is the last."""
        if not self.took(parameter) and parameter is not self._order[-1]:
            self._hand_over(parameter, gradient)

    def took(self, parameter: torch.nn.Parameter) -> bool:
        """Returns `True` if its gradient was handed over."""
        return id(parameter) in self._taken

    def _run(
        self,
        step: Callable[[], Given],
        arrived: Callable[[], list[torch.nn.Parameter]],
        reduces: bool,
        has_hooks: bool,
    ) -> Given:
        trained = self._trained
        there = [(parameter, parameter.grad) for parameter in trained]
        may_fill = self._leaves_parameters and not has_hooks
        self._is_early = reduces and may_fill and all(gradient is None for _, gradient in there)
        if has_communication_hook(self._wrapper):
            can = self._is_early and not self._wrapper.find_unused_parameters
            may_fill = self._is_early = reduces and self._ranks.all_can(can)
        self._taken = set()
        for parameter in trained:
            parameter.grad = None
        is_done = False
        try:
            try:
                given = step()
                gradients = [(p, p.grad) for p in trained if p.grad is not None and not self.took(p)]
                for parameter, gradient in there:
                    if not self.took(parameter):
                        parameter.grad = gradient
                left = _in_order(gradients, self._order if self.has_begun else arrived())
                if reduces and not self.has_begun:
                    self._order = [parameter for parameter, _ in left]
                if self._is_early:
                    for parameter, gradient in left[:-1]:
                        self._hand_over(parameter, gradient)
                    left = left[-1:]
            except Exception as error:
                if reduces or not has_hooks:
                    self._fail(error, may_fill)
                raise
            if reduces:
                self._ranks.agree(None, self.has_begun, end=self._end)
                self._reduce(left)
            else:
                for parameter, gradient in left:
                    _accumulate(parameter, gradient)
            is_done = True
            return given
        finally:
            if not is_done:
                for parameter, gradient in there:
                    parameter.grad = gradient

    def _reduce(self, left: Gradients) -> None:
        """Hands over the remaining gradients, which end with those that all ranks have."""
        versions = [version_of(parameter) for parameter in self._trained]
        for parameter, gradient in left:
            self._hand_over(parameter, gradient)
        self._leaves_parameters = versions == [version_of(parameter) for parameter in self._trained]

    def _hand_over(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        if not self.has_begun:
            expect_gradients(self._wrapper, self._order)
        self._taken.add(id(parameter))
        _accumulate(parameter, gradient)

    def _fail(self, error: Exception, may_fill: bool) -> None:
        """Reports an error of this rank to the others, to be raised on all. If they may wait for this rank in a communication
        hook that it cannot run, they find out when this process ends."""
        can_end = True
        if may_fill:
            try:
                self._fill()
            except Exception:  # such as a lost GPU; the reported error says more
                logger.exception("this rank cannot take part in reducing any more")
                if has_communication_hook(self._wrapper):
                    return  # ranks that wait for this one in the hook do not come to agree
                can_end = False
        self._ranks.agree(error, self.has_begun, can_end, self._end)

    def _end(self, can_end: bool) -> None:
        """Ends reducing a step that failed on a rank; if a rank cannot take part, aborts the running collectives for good."""
        if not can_end:
            abort(self._wrapper.process_group)
            return
        self._fill()
        last = self._order[-1]
        self._hand_over(last, torch.zeros_like(last))

    def _fill(self) -> None:
        """Hands over zeros in place of all gradients not yet handed over, except the last."""
        if not self.has_begun:
            # The order of the last step; the gradient that ranks wait for comes last here, too.
            place = {id(parameter): number for number, parameter in enumerate(self._order)}
            self._order = sorted(self._trained, key=lambda p: place.get(id(p), -1))
        for parameter in self._order[:-1]:
            if not self.took(parameter):
                parameter.grad = None
                self._hand_over(parameter, torch.zeros_like(parameter))
        self._order[-1].grad = None


def _accumulate(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """Accumulates the gradient of a parameter as autograd does."""
    with without_gradient_hooks(parameter):
        torch.autograd.backward([parameter], [gradient])


def _in_order(gradients: Gradients, arrived: list[torch.nn.Parameter]) -> Gradients:
    """Gradients in eager's order: the wrapper fills its buckets in that order."""
    order = {id(parameter): place for place, parameter in enumerate(arrived)}
    return sorted(gradients, key=lambda entry: order.get(id(entry[0]), len(order)))
