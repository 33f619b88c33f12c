"""What the ranks of a replica exchange in a step, and what that adds to the time that is predicted for it.

The prediction is the house's: an `exchange/1` beside the schedule, simulated with it. What is decided here is what PyTorch
alone knows: which gradients lie in which bucket, and after which call each bucket is full.

What it deliberately does not do: predict a communication hook, which may send other bytes, or ranks that wait for a slower one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _core
from .interconnect import Interconnect
from .tape import Tape
from .torch_private import buckets_of


def of(
    wrapper: DistributedDataParallel,
    tape: Tape,
    schedule: _core.Schedule,
    interconnect: Interconnect,
    is_early: bool,
) -> _core.Exchange | None:
    """What the ranks exchange in a step by a schedule, whose gradients are handed over as soon as they are complete where that
    `is_early`, and at the end of the step where it is not; none for one process, and where there is nothing to reduce."""
    ranks = dist.get_world_size(wrapper.process_group)
    complete = tape.completions()
    if ranks < 2 or not complete:
        return None
    parameters = [tape.gradients[number][0] for number, _ in complete]
    last = len(tape.calls) - 1
    after = [call if is_early else last for _, call in complete]
    after[-1] = last  # it is handed over once the ranks have agreed
    buckets = [
        (sum(_bytes(parameters[n]) for n in bucket), max(after[n] for n in bucket))
        for bucket in buckets_of(wrapper, parameters)
    ]
    # A bucket is reduced once those before it are.
    full = [max(op for _, op in buckets[: number + 1]) for number in range(len(buckets))]
    staged = parameters[0].device.type == "cuda" and dist.get_backend(wrapper.process_group) == "gloo"
    return _core.Exchange(
        schedule,
        [(size, op) for (size, _), op in zip(buckets, full, strict=True)],
        ranks,
        interconnect.bytes_per_second,
        interconnect.latency_seconds,
        staged,
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
