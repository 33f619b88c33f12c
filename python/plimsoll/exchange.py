"""Gradient exchange of the ranks of a replica in a step, and the time that it adds to the prediction.

The prediction is an `exchange/1` next to the schedule, simulated together with it. This file decides only what PyTorch
alone knows: the gradients of each bucket, and the call after which each bucket is full.

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
    """Returns the exchange of the ranks in a step by a schedule; `None` for one process, and if there is nothing to reduce. If
    `is_early`, gradients are handed over as soon as they are complete, else at the end of the step."""
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
    # A bucket is reduced after those before it.
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
