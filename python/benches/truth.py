"""Who trains something else than eager, without a word: loss, gradients, buffers and generators of one small step.

Each row is a way to save memory on a network that it may be wrong on: numbers that are drawn again (dropout, RReLU),
statistics that are updated again (batch norm), storages that have two names (tied weights, views). Ours is planned to
recompute. `torch.compile` is compared with what it compiles without a budget, since it draws other numbers than eager anyway;
its backend needs no compiler of kernels. Without a GPU `save_on_cpu` copies nothing, so its row says little there.
Sharding is not asked: of what Accelerate does under FSDP2 there is the checkpoint that keeps no generator's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from models import GPT
from rivals import all_on_cpu, checkpointed, group, offload_activations
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import plimsoll

if TYPE_CHECKING:
    from accept import Task

WIDTH, BLOCKS, CLASSES, BATCH = 64, 4, 10, 32
SHARE = 0.3
"""Of the saved bytes that `torch.compile` may keep."""

KINDS: dict[str, Callable[[], list[nn.Module]]] = {
    "dropout": lambda: [nn.GELU(), nn.Dropout(0.1)],
    "RReLU": lambda: [nn.RReLU()],
    "batch norm": lambda: [nn.BatchNorm1d(4 * WIDTH), nn.ReLU()],
}
"""What is inside of each block."""

TIED = "tied weights, views"

Change = Callable[["Task"], None]
Parts = dict[str, list[Tensor]]
"""What a step leaves, by kind."""


def network(name: str, device: str) -> tuple[nn.Module, Callable[..., Tensor], tuple[Tensor, ...], list[Any]]:
    """The same model every time: it, its loss, a batch, and the container of its blocks."""
    torch.manual_seed(0)
    if name == TIED:
        language = GPT(96, 32, 24, 3).to(device)
        words = tuple(torch.randint(0, 96, (4, 24), device=device) for _ in range(2))
        loss = lambda x, y: F.cross_entropy(language(x).flatten(0, 1), y.flatten())  # noqa: E731
        return language, loss, words, [language.blocks]
    inner = [
        (nn.Linear(WIDTH, 4 * WIDTH), *KINDS[name](), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)
    ]
    blocks = nn.Sequential(*(nn.Sequential(*layers) for layers in inner))
    model = nn.Sequential(blocks, nn.Linear(WIDTH, CLASSES)).to(device)
    batch = torch.randn(BATCH, WIDTH, device=device), torch.randint(0, CLASSES, (BATCH,), device=device)
    return model, lambda x, y: F.cross_entropy(model(x), y), batch, [blocks]


def left(task: Task, step: Callable[..., Tensor]) -> Parts:
    """What one step leaves, with the random numbers of one seed."""
    torch.manual_seed(1)
    loss = step(*task.batch)
    states = [torch.get_rng_state()]
    if task.batch[0].is_cuda:
        states.append(torch.cuda.get_rng_state(task.batch[0].device))
    return {
        "loss": [loss.detach().clone()],
        "gradients": [p.grad.clone() for p in task.model.parameters() if p.grad is not None],
        "buffers": [value.clone() for value in task.model.buffers()],
        "generators": states,
    }


def trained(task: Task, change: Change) -> Parts:
    """What forward and backward leave of a task that was changed."""
    change(task)

    def step(*batch: Any) -> Tensor:
        loss = task.loss(*batch)
        loss.backward()
        return loss

    return left(task, step)


def compared(expected: Parts, found: Parts) -> dict[str, Any]:
    """How many tensors of each kind are other bits."""
    pairs = {kind: list(zip(expected[kind], found[kind], strict=True)) for kind in expected}
    differ = {kind: sum(not torch.equal(a, b) for a, b in some) for kind, some in pairs.items()}
    return {
        "equal": not any(differ.values()),
        "differ": {kind: count for kind, count in differ.items() if count},
    }


def without_states(task: Task) -> None:
    """A checkpoint over each block that draws its random numbers as they come, as Accelerate has FSDP2 do."""
    group(task, 1, functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False))


def compiled(task: Task, share: float) -> None:
    """By `torch.compile`, which may keep such a share of what it would save."""
    inner = task.loss

    def loss(*batch: Any) -> Tensor:
        # Read when the first step compiles.
        with torch._functorch.config.patch(activation_memory_budget=share):
            return again(*batch)

    torch._dynamo.reset()
    again = torch.compile(inner, backend="aot_eager_decomp_partition")
    task.loss = loss


RIVALS: dict[str, Change] = {
    "eager again": lambda task: None,
    "checkpoint": lambda task: checkpointed(task, 1),
    "checkpoint, preserve_rng_state=False": without_states,
    "save_on_cpu": all_on_cpu,
    "OffloadActivations": offload_activations,
}


def planned(task: Task) -> tuple[Parts, int]:
    """By a plan between the floor and what eager takes, over a link so slow that it recomputes; and how many ops it does."""
    trace = plimsoll.trace(task.loss, task.model, *task.batch)
    budget = int(trace.floor_bytes + 0.4 * (trace.peak_bytes - trace.floor_bytes))
    step = plimsoll.tune(task.loss, task.model, None, task.batch, budget, link="1MB/s", verify=0, seconds=2)
    assert step.fallback is None, step.fallback
    return left(task, step), step.program.schedule.recomputed_ops


def rows(fresh: Callable[[], Task], has_compile: bool) -> Iterator[dict[str, Any]]:
    """One row for each way, and ours last, on freshly built tasks of one network."""
    eager = trained(fresh(), lambda task: None)
    for arm, change in RIVALS.items():
        yield {"arm": arm, **compared(eager, trained(fresh(), change))}
    if has_compile:
        kept, other = (trained(fresh(), functools.partial(compiled, share=share)) for share in (1.0, SHARE))
        yield {"arm": f"torch.compile, budget {SHARE}", **compared(kept, other)}
    found, ops = planned(fresh())
    row = compared(eager, found)
    yield {"arm": "plimsoll", "bits_equal": row["equal"], "recomputed_ops": ops, **row}


def said(row: dict[str, Any]) -> str:
    """A row in words."""
    counts = ", ".join(f"{count} of {kind}" for kind, count in row["differ"].items())
    return f"{row['arm']}: {'as eager' if row['equal'] else f'**other** {counts}'}"
