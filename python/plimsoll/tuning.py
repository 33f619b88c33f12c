"""Makes a step that runs within a budget: `tune` for users, `make` also for the adapters' own kinds of step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from . import distributed, planning, scripts
from .buckets import Buckets
from .link import Link
from .options import Options
from .recording import Loss
from .sharded import ShardedStep
from .step import Step
from .torch_private import is_sharded


def tune(
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    budget: int | str | None = None,
    link: Link | str | None = None,
    verify: int = 2,
    seconds: float | None = None,
    host_budget: int | str | None = None,
    buckets: Buckets | Sequence[int] | None = None,
    graphs: bool = True,
    in_pieces: bool | None = None,
    interconnect: str | None = None,
) -> Step:
    """Plans a training step for a memory budget.

    `fn(*sample)` gives the loss, or `plimsoll.Outputs`. `budget` is all that parameters, gradients, optimizer state and the
    step may take: `"22GiB"`, bytes, or `"60%"` of what eager takes; in a script that `plimsoll auto` runs, its `--budget` and
    `--link` stand for what is given here. The first `verify` steps are compared with eager, bit for bit, which takes eager's
    memory and time once more; with 0 none is. Nothing of model, optimizer and generators changes here.

    `link` is a rate such as `"12GB/s"`, measured where none is given, and `seconds` bounds the search for each plan. What is
    swapped takes at most `host_budget` of the host's memory (`"4GiB"`, or bytes); where that is short, plans recompute.
    `buckets` are the lengths of sequences that have a plan, such as `[128, 256]` or `plimsoll.Buckets`: the largest is planned
    here, the others when they first come, and a batch of another length is padded or refused. Without, each shape has a plan.
    On a GPU a step is captured as one CUDA graph in its second run, unless something in it forbids that (`Step.explain` says
    what) or `graphs` is false.

    The step is recorded as a whole, which takes more than eager takes. Where memory runs out, and with `in_pieces` at once, it
    is recorded within the budget: what it calls on fake tensors, and what each call takes by running it alone. It is then
    compared with eager at the largest batch that fits the budget in eager. With `in_pieces=False` it is never.

    `interconnect` is the network between processes under `torchrun`, such as `"10Gbit/s,30us"` (what one can send, and what a
    message takes besides); where it is not given, a few all-reduces measure it. What exchanging gradients adds to a step is
    part of the prediction.

    A batch that no plan fits is split into the fewest parts that one fits, where its loss is the mean or the sum of theirs.
    Raises `NoPlan` where nothing fits, `Refused` for a step that cannot be recorded, `BadInput` for arguments
    that mean nothing, `NoCompiler` where the allocator cannot be built.
    """
    options = Options(budget, link, verify, seconds, host_budget, buckets, graphs, in_pieces, interconnect)
    return make(Step, fn, model, optimizer, sample, options)


def make(
    kind: type[Step],
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    options: Options,
) -> Step:
    """What `tune` does, for a kind of step. Raises on all ranks of a distributed training what it raises on one."""
    planning.check(model, optimizer)
    ranks = distributed.ranks_of(model)

    def made() -> Step:
        options.check()
        batch = planning.as_sample(sample)
        limit, rates = scripts.arguments(options.budget, options.link)
        wanted = ShardedStep if kind is Step and is_sharded(model) else kind
        step = wanted(fn, model, optimizer, replace(options, budget=limit, link=rates), ranks)
        step.prepare(batch)
        return step

    step = made() if ranks is None else ranks.together(made)
    step.connect()
    scripts.keep(step)
    return step
