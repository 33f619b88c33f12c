"""Makes a step that runs within a budget: `tune` for users, `make` also for the adapters' kinds of step."""

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
from .step import Step


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
    strict: bool = False,
) -> Step:
    """Plans a training step for a memory budget.

    `fn(*sample)` returns the loss, or `plimsoll.Outputs`. `budget` covers parameters, gradients, optimizer state and the
    step: `"22GiB"`, bytes, or `"60%"` of eager's memory. In a script that `plimsoll auto` runs, its `--budget` and `--link`
    replace these arguments. The first `verify` steps are compared with eager, bit for bit, which takes eager's memory and
    time in addition; with 0, none is. Model, optimizer and generators are not changed here.

    `link` is a rate such as `"12GB/s"`, measured by default, and `seconds` limits the search for each plan. Swapped tensors
    take at most `host_budget` of the host's memory (`"4GiB"`, or bytes); if that is short, plans recompute. `buckets` are
    the lengths of sequences that have a plan, such as `[128, 256]` or `plimsoll.Buckets`: the largest is planned here, the
    others when they first come, and a batch of a different length is padded or refused. Without buckets, each shape has a
    plan. On a GPU a step is captured as one CUDA graph in its second run, unless something in it forbids that
    (`Step.explain` gives the reason) or `graphs` is false.

    The step is recorded as a whole, which takes more memory than eager. If memory runs out, or at once with `in_pieces`, it
    is recorded within the budget: its calls on fake tensors, and the memory and time of each call by running it alone. It
    is then compared with eager at the largest batch that fits the budget in eager. `in_pieces=False` forbids this.

    `interconnect` is the network between processes under `torchrun`, such as `"10Gbit/s,30us"` (the rate at which one
    process sends, and the latency of a message); by default a few all-reduces measure it. The prediction includes the time
    of exchanging gradients.

    A later batch that cannot keep to a plan runs in eager, with one warning that says why and what eager takes; with
    `strict` it raises `Refused` instead. No batch is split: if no plan fits one, `NoPlan` names the largest that fits, for a
    loop that accumulates gradients, and a sufficient budget. Raises `Refused` for a step that cannot be recorded, `BadInput`
    for meaningless arguments, `NoCompiler` if the allocator cannot be built.
    """
    options = Options(
        budget, link, verify, seconds, host_budget, buckets, graphs, in_pieces, interconnect, strict
    )
    return make(Step, fn, model, optimizer, sample, options)


def make(
    kind: type[Step],
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    options: Options,
) -> Step:
    """Does the work of `tune`, for a kind of step. Raises on all ranks of a distributed training an error of one."""
    planning.check(model, optimizer)
    ranks = distributed.ranks_of(model)

    def made() -> Step:
        options.check()
        batch = planning.as_sample(sample)
        limit, rates = scripts.arguments(options.budget, options.link)
        step = kind(fn, model, optimizer, replace(options, budget=limit, link=rates), ranks)
        step.prepare(batch)
        return step

    step = made() if ranks is None else ranks.together(made)
    step.connect()
    scripts.keep(step)
    return step
