"""Steps of several processes, each with a replica of the model: `DistributedDataParallel` under `torchrun`.

The module inside is planned, each process for itself. Planned gradients are handed to the wrapper's own reducer, in the order
in which eager has them, and where that can be undone, as soon as they are complete: buckets are reduced while the backward pass
goes on. Communication hooks, `no_sync` and unused parameters are the wrapper's, and so are the bits.
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
    is_sharded,
    version_of,
)

logger = logging.getLogger("plimsoll")


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


def interconnect(wrapper: DistributedDataParallel, ranks: Ranks, given: Interconnect | None) -> Interconnect:
    """The network between the ranks: as they were told, if all were, else as they measure it together."""
    if ranks.least(int(given is not None)) and given is not None:
        return given
    where = next(wrapper.module.parameters()).device
    measured = Interconnect.measured(wrapper.process_group, where)
    # All predict by the slowest rank.
    rate = ranks.least(int(measured.bytes_per_second))
    latency = -ranks.least(-round(measured.latency_seconds * 1e9)) / 1e9
    return Interconnect(max(1, rate), latency, is_measured=True)


class Reducing:
    """Gradients of a replica's steps on their way to the wrapper's own reducer, which fills buckets and reduces each as soon as
    it is full.

    A step runs inside of the wrapper's forward pass, so that buffers are broadcast as it does. A gradient is handed over by a
    backward pass that is nothing but its accumulation, which the reducer waits for; in the order in which eager has them, since
    buckets follow the order of the first arrivals. The last one has the reducer wait for the other ranks: it is handed over
    once all ranks have agreed that they have come so far.

    Where a step fails, zeros stand for what this rank has not handed over, so that no rank waits for it; then all drop what was
    reduced. So nothing may depend on gradients before the ranks agree. They are handed over earlier only where no gradient is
    there that they would be added to, where no hook of the user's runs for each gradient, and after a step that has shown that
    reducing leaves the parameters as they are: a plan that recomputes reads parameters later than eager does.

    A communication hook may wait for the other ranks. With one, the ranks tell each other before each step whether they may
    hand over gradients early, and do so only where all may: else one would wait in its hook for another that waits for it to
    agree. They must hold back the same gradient then, so that none does where parameters may be unused.
    """

    def __init__(self, wrapper: DistributedDataParallel, ranks: Ranks) -> None:
        self._wrapper = wrapper
        self._ranks = ranks
        self._leaves_parameters = False
        """Whether reducing a step has left the parameters as they were."""
        self._is_early = False
        """Whether gradients of the step that runs may be handed over before the ranks agree."""
        self._trained: list[torch.nn.Parameter] = []
        self._order: list[torch.nn.Parameter] = []
        """What is handed over, in this order: in the step that runs, or in the last one."""
        self._taken: set[int] = set()
        """The identities of those whose gradient was handed over in the step that runs."""

    def run(self, step: Callable[[], Given], arrived: Callable[[], list[torch.nn.Parameter]]) -> Given:
        """Runs a step of the module inside, and has the wrapper reduce its gradients or add them to those that are there.

        `arrived` gives what got a gradient in the step that ran, in that order. Raises on all ranks what one raises; gradients
        are as they were then. A step that reduces nothing raises it on this rank alone where a hook runs for each gradient: the
        others may wait for this rank in such a hook, and would not come to agree.
        """
        given: list[Given] = []
        reduces = self._wrapper.require_backward_grad_sync
        self._trained = [p for p in self._wrapper.module.parameters() if p.requires_grad]
        has_hooks = any(map(accumulate_hooks, self._trained))
        without_its_own = contextlib.ExitStack()

        def run() -> torch.Tensor:
            # The step runs eager code, whose gradients are not for the reducer: it is told later what to expect.
            without_its_own.enter_context(self._wrapper.no_sync())
            given.append(self._run(step, arrived, reduces, has_hooks))
            return torch.empty(0)

        try:
            with without_its_own, replaced(self._wrapper, DDP_FORWARD, run):
                self._wrapper()
        except BaseException:
            # Ranks may have ended after unequally many steps; the next one begins alike on all.
            broadcast_buffers_next(self._wrapper, reduces or not has_hooks)
            raise
        if reduces:
            broadcast_buffers_next(self._wrapper)
        return given[0]

    def taker(self, order: list[torch.nn.Parameter]) -> Taker | None:
        """Itself, where gradients that are complete in this order may be handed over in the middle of the step that runs."""
        if not self._is_early or not order:
            return None
        if not self.has_begun:
            self._order = order
        return self

    @property
    def has_begun(self) -> bool:
        """Whether a gradient of the step that runs was handed over."""
        return bool(self._taken)

    def take(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Hands over a gradient, unless that was done, or it is the last."""
        if not self.took(parameter) and parameter is not self._order[-1]:
            self._hand_over(parameter, gradient)

    def took(self, parameter: torch.nn.Parameter) -> bool:
        """Whether its gradient was handed over."""
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
        """Hands over what is left, which ends with the gradients that all ranks have."""
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
        """Tells the others an error of this rank, which is to be raised on all; or lets them find out when this process ends,
        where they may wait for it in a communication hook that it cannot run."""
        can_end = True
        if may_fill:
            try:
                self._fill()
            except Exception:  # such as a GPU that is gone; the error that is told says more
                logger.exception("this rank cannot take part in reducing any more")
                if has_communication_hook(self._wrapper):
                    return  # ranks that wait for this one in the hook do not come to agree
                can_end = False
        self._ranks.agree(error, self.has_begun, can_end, self._end)

    def _end(self, can_end: bool) -> None:
        """Ends reducing a step that failed on a rank; where one cannot take part, what is under way is given up for good."""
        if not can_end:
            abort(self._wrapper.process_group)
            return
        self._fill()
        last = self._order[-1]
        self._hand_over(last, torch.zeros_like(last))

    def _fill(self) -> None:
        """Hands over zeros in place of all gradients that are not, but the last."""
        if not self.has_begun:
            # As the last step had them; what ranks wait for last comes last here, too.
            place = {id(parameter): number for number, parameter in enumerate(self._order)}
            self._order = sorted(self._trained, key=lambda p: place.get(id(p), -1))
        for parameter in self._order[:-1]:
            if not self.took(parameter):
                parameter.grad = None
                self._hand_over(parameter, torch.zeros_like(parameter))
        self._order[-1].grad = None


def _accumulate(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """What autograd does with the gradient of a parameter at last."""
    with without_gradient_hooks(parameter):
        torch.autograd.backward([parameter], [gradient])


def _in_order(gradients: Gradients, arrived: list[torch.nn.Parameter]) -> Gradients:
    """Gradients in the order in which eager has them: the wrapper fills its buckets in that order."""
    order = {id(parameter): place for place, parameter in enumerate(arrived)}
    return sorted(gradients, key=lambda entry: order.get(id(entry[0]), len(order)))
