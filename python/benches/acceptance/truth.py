"""Section `truth`: ways to save memory that silently train something else than eager. One small step is compared, tensor by
tensor.

Each row is a way to save memory on a network that it may be wrong on: numbers that are drawn again (dropout, RReLU),
statistics that are updated again (batch norm), storages that have two names (tied weights, views). Ours is planned to
recompute. `torch.compile` is compared with its own result without a budget, since it draws different numbers than eager
anyway; its backend needs no compiler of kernels. Without a GPU `save_on_cpu` copies nothing, so its row says little there.
FSDP2 runs in a group of this one process, with the checkpoint that PyTorch's wrapper makes, and with the one that
Accelerate requests of that wrapper, which keeps no generator's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from beside import eager_step
from models import GPT
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import plimsoll

from .asking import Ask, NotHere, Row
from .rivals import all_on_cpu, checkpointed, group, offload_activations
from .tasks import Task

WIDTH, BLOCKS, CLASSES, BATCH = 64, 4, 10, 32
SHARE = 0.3
"""Share of the saved bytes that `torch.compile` may keep."""

KINDS: dict[str, Callable[[], list[nn.Module]]] = {
    "dropout": lambda: [nn.GELU(), nn.Dropout(0.1)],
    "RReLU": lambda: [nn.RReLU()],
    "batch norm": lambda: [nn.BatchNorm1d(4 * WIDTH), nn.ReLU()],
}
"""Contents of each block."""

TIED = "tied weights, views"

Change = Callable[[Task], None]
Parts = dict[str, list[Tensor]]
"""Results of a step, by kind."""


def network(name: str, device: str) -> tuple[nn.Module, Callable[..., Tensor], tuple[Tensor, ...], list[Any]]:
    """Builds the same model every time: the model, its loss, a batch, and the container of its blocks."""
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
    """Results of one step, with the random numbers of one seed."""
    torch.manual_seed(1)
    loss = step(*task.batch)
    states = [torch.get_rng_state()]
    if task.batch[0].is_cuda:
        states.append(torch.cuda.get_rng_state(task.batch[0].device))
    return {
        "loss": [loss.detach().clone()],
        "gradients": [whole(p.grad).clone() for p in task.model.parameters() if p.grad is not None],
        "buffers": [value.clone() for value in task.model.buffers()],
        "generators": states,
    }


def whole(x: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def trained(task: Task, change: Change) -> Parts:
    """Results of forward and backward of a task that was changed."""
    change(task)
    return left(task, eager_step(task))


def compared(expected: Parts, found: Parts) -> dict[str, Any]:
    """Number of tensors of each kind that differ in bits."""
    pairs = {kind: list(zip(expected[kind], found[kind], strict=True)) for kind in expected}
    differ = {kind: sum(not torch.equal(a, b) for a, b in some) for kind, some in pairs.items()}
    return {
        "equal": not any(differ.values()),
        "differ": {kind: count for kind, count in differ.items() if count},
    }


def without_states(task: Task) -> None:
    """A checkpoint over each block that does not restore random states, as Accelerate has FSDP2 do."""
    group(task, 1, functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False))


def compiled(task: Task, share: float) -> None:
    """`torch.compile`, which may keep this share of the bytes that it would save."""
    inner = task.loss

    def loss(*batch: Any) -> Tensor:
        # Read when the first step compiles.
        with torch._functorch.config.patch(activation_memory_budget=share):
            return again(*batch)

    torch._dynamo.reset()
    again = torch.compile(inner, backend="aot_eager_decomp_partition")
    task.loss = loss


def sharded(task: Task, **how: Any) -> None:
    """FSDP2, block by block, each under the checkpoint of PyTorch's wrapper."""
    import torch.distributed as group_of
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise NotHere(f"this torch has no FSDP2 ({error})") from None
    kind = task.batch[0].device.type
    if not group_of.is_initialized():
        backend = "nccl" if kind == "cuda" else "gloo"
        group_of.init_process_group(backend, store=group_of.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(kind, (1,))
    for container in task.blocks:
        for key, block in container._modules.items():
            wrapped = checkpoint_wrapper(block, **how)
            container._modules[key] = wrapped
            fully_shard(wrapped, mesh=mesh)
    fully_shard(task.model, mesh=mesh)


RIVALS: dict[str, Change] = {
    "eager again": lambda task: None,
    "checkpoint": lambda task: checkpointed(task, 1),
    "checkpoint, preserve_rng_state=False": without_states,
    "save_on_cpu": all_on_cpu,
    "OffloadActivations": offload_activations,
}

SHARDED: dict[str, Change] = {
    "FSDP2, checkpoint": sharded,
    "FSDP2, checkpoint, preserve_rng_state=False": functools.partial(sharded, preserve_rng_state=False),
}


def planned(task: Task) -> tuple[Parts, int]:
    """Results by a plan between the floor and eager's memory, over a link so slow that it
    recomputes; and the number of recomputed ops."""
    trace = plimsoll.trace(task.loss, task.model, *task.batch)
    budget = int(trace.floor_bytes + 0.4 * (trace.peak_bytes - trace.floor_bytes))
    step = plimsoll.tune(task.loss, task.model, None, task.batch, budget, link="1MB/s", verify=0, seconds=2)
    assert step.fallback is None, step.fallback
    return left(task, step), step.program.schedule.recomputed_ops


def truths(ask: Ask) -> None:
    """Adds one row for each way to save memory, and ours last."""
    torch.use_deterministic_algorithms(True, warn_only=True)

    def fresh() -> Task:
        return Task(*network(ask.network, ask.device))

    eager = trained(fresh(), lambda task: None)
    has_dropout = ask.network == "dropout"
    for arm, change in {**RIVALS, **(SHARDED if has_dropout else {})}.items():
        ask.arm(arm, lambda change=change: compared(eager, trained(fresh(), change)))  # type: ignore[misc]

    def other() -> Row:
        kept, less = (trained(fresh(), functools.partial(compiled, share=share)) for share in (1.0, SHARE))
        return compared(kept, less)

    if has_dropout:
        ask.arm(f"torch.compile, budget {SHARE}", other)

    def ours() -> Row:
        found, ops = planned(fresh())
        row = compared(eager, found)
        return {"bits_equal": row["equal"], "recomputed_ops": ops, **row}

    ask.arm("plimsoll", ours, fails="error")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
