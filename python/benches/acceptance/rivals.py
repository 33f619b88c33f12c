"""Remedies of PyTorch's users when a step does not fit: the rivals that `accept.py` times and compares with planned steps.

Each rival changes a freshly built task in place; its step is then forward and backward as in eager. A family is one rival
at several settings: all of them are tried, and the time for that counts. Losses and gradients are those of eager, which
`tests/test_rivals.py` checks on the CPU. Buffers are not compared: recomputed batch norm counts its batch twice.
`torch.compile` is compared with eager only without dropout, since it draws different numbers.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .asking import NotHere

if TYPE_CHECKING:
    from .tasks import Task

GROUPS = (1, 2, 3)
"""Blocks under one checkpoint."""

SLICES = (4, 16)
"""Slices of a chunked loss."""

SHARES = (0.7, 0.5, 0.3, 0.1)
"""Shares of the saved bytes that `torch.compile` may keep."""

LEAST_BYTES, LEAVING = 1024, 5
"""Smaller tensors are not offloaded; at most this many wait for their copies to the host."""

aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
)
# A convolution is a matrix product, too: without it nothing of a ResNet would be saved.
PRODUCTS = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
)
SAVED = {"attention": ATTENTION, "products and attention": PRODUCTS + ATTENTION}
"""Ops whose results selective checkpoints save."""

Change = Callable[["Task"], None]
Call = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
"""Calls some blocks with their input."""


@dataclass(frozen=True)
class Rival:
    """One setting of one family."""

    family: str
    setting: str
    change: Change
    """Changes the task in place."""

    @property
    def arm(self) -> str:
        """Name of its row."""
        return f"{self.family} {self.setting}".strip()


class Group(nn.Sequential):
    """Some blocks that are called in a different way."""

    def __init__(self, call: Call, blocks: list[nn.Module]) -> None:
        super().__init__(*blocks)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        """The result of the blocks."""
        return self.call(super().forward, x)


def group(task: Task, count: int, call: Call) -> None:
    """Puts `count` blocks at a time into a group, in place."""
    for container in task.blocks:
        blocks = list(container)
        for key in list(container._modules):
            del container._modules[key]
        for at in range(0, len(blocks), count):
            container.add_module(str(at), Group(call, blocks[at : at + count]))


def checkpointed(task: Task, count: int) -> None:
    """`torch.utils.checkpoint` over groups of this many blocks."""
    group(task, count, functools.partial(checkpoint, use_reentrant=False))


def selective(task: Task, saved: tuple[Any, ...]) -> None:
    """A checkpoint over each block that saves the results of some operations."""
    contexts = functools.partial(create_selective_checkpoint_contexts, list(saved))
    group(task, 1, functools.partial(checkpoint, use_reentrant=False, context_fn=contexts))


def offloaded_checkpoints(task: Task, count: int) -> None:
    """A checkpoint over groups of this many blocks, whose input is kept on the host.

    The hooks are set outside the checkpoint, so they see only its input: the checkpoint drops the tensors that the blocks save.
    """
    pin = task.batch[0].is_cuda

    def call(blocks: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with save_on_cpu(pin_memory=pin):
            return checkpoint(blocks, x, use_reentrant=False)

    group(task, count, call)


def all_on_cpu(task: Task) -> None:
    """Keeps all saved tensors of autograd on the host."""
    loss, pin = task.loss, task.batch[0].is_cuda

    def saved(*batch: Any) -> Tensor:
        with save_on_cpu(pin_memory=pin):
            return loss(*batch)

    task.loss = saved


class OffloadActivations(saved_tensors_hooks):
    """Keeps saved tensors of autograd in pinned memory of the host, copied on a separate stream, as the classes of this name in
    torchtune and TRL. Parameters and buffers stay. Without a GPU the copies are made at once."""

    def __init__(self, model: nn.Module, is_cuda: bool) -> None:
        self.stays = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers())}
        self.beside = torch.cuda.Stream() if is_cuda else None
        self.leaving: deque[tuple[Tensor, Any]] = deque()
        super().__init__(self.pack, self.unpack)

    def let_go(self, most: int) -> None:
        """Releases the memory of all but this many tensors, once they are copied."""
        while len(self.leaving) > most:
            _, copied = self.leaving.popleft()
            torch.cuda.current_stream().wait_event(copied)

    def pack(self, x: Tensor) -> Any:
        """Copies to the host."""
        if x.nbytes < LEAST_BYTES or x.untyped_storage().data_ptr() in self.stays:
            return x
        if self.beside is None:
            return x.device, x.clone()
        self.let_go(LEAVING - 1)
        host = torch.empty_like(x, device="cpu", pin_memory=True)
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            host.copy_(x, non_blocking=True)
            self.leaving.append((x, self.beside.record_event()))
        return x.device, host

    def unpack(self, packed: Any) -> Tensor:
        """Copies back to the device; the copy may overlap with work that was enqueued before."""
        if isinstance(packed, Tensor):
            return packed
        device, host = packed
        if self.beside is None:
            return host
        self.let_go(0)
        with torch.cuda.stream(self.beside):
            x = host.to(device, non_blocking=True)
        now = torch.cuda.current_stream()
        now.wait_stream(self.beside)
        x.record_stream(now)
        return x


def offload_activations(task: Task) -> None:
    """Keeps all saved tensors of autograd on the host, by copies that overlap."""
    loss, is_cuda = task.loss, task.batch[0].is_cuda

    def saved(*batch: Any) -> Tensor:
        with OffloadActivations(task.model, is_cuda):
            return loss(*batch)

    task.loss = saved


def offload_checkpoints(task: Task) -> None:
    """The same with every block under a checkpoint: only its input, and tensors outside blocks, are saved."""
    checkpointed(task, 1)
    offload_activations(task)


def sum_of_losses(head: nn.Module, hidden: Tensor, words: Tensor) -> Tensor:
    """Losses of one slice of rows."""
    return F.cross_entropy(head(hidden), words, reduction="sum")


def chunk_loss(task: Task, slices: int) -> None:
    """Computes logits and loss of a language model by slices of rows, each under a checkpoint: the
    logits never exist as a whole."""
    head, task.model.head = task.model.head, nn.Identity()
    # It stays one of the model's modules, since its weight may not be shared.
    task.model.chunked_head = head

    def language(x: Tensor, y: Tensor) -> Tensor:
        with task.autocast():
            hidden, words = task.model(x).flatten(0, 1), y.flatten()
            pairs = zip(hidden.chunk(slices), words.chunk(slices), strict=True)
            losses = [checkpoint(sum_of_losses, head, h, w, use_reentrant=False) for h, w in pairs]
            return torch.stack(losses).sum() / len(words)

    task.loss = language


def with_chunks(change: Change, slices: int) -> Change:
    """A rival with a chunked loss, which comes first since a rival may wrap the loss."""

    def both(task: Task) -> None:
        chunk_loss(task, slices)
        change(task)

    return both


def compiled(task: Task, share: float) -> None:
    """`torch.compile`, which may keep this share of the bytes that it would save."""
    import torch._functorch.config as settings

    torch._dynamo.reset()
    # Read when the first step compiles, so it stays set.
    settings.activation_memory_budget = share
    task.model.compile()


def rivals(has_logits: bool) -> list[Rival]:
    """All rivals but `torch.compile`; with a chunked loss at the end, if a network has logits of many rows."""

    def rival(family: str, setting: Any, change: Callable[..., None], *values: Any) -> Rival:
        return Rival(family, str(setting), lambda task: change(task, *values))

    plain = [
        *(rival("checkpoint every", n, checkpointed, n) for n in GROUPS),
        *(rival("selective checkpoint,", name, selective, ops) for name, ops in SAVED.items()),
        *(rival("offloaded checkpoint every", n, offloaded_checkpoints, n) for n in GROUPS),
        rival("OffloadActivations", "", offload_activations),
        rival("OffloadActivations,", "checkpoint every 1", offload_checkpoints),
        rival("save_on_cpu", "", all_on_cpu),
    ]
    if not has_logits:
        return plain
    alone = [rival("chunked loss, slices", n, chunk_loss, n) for n in SLICES]
    most = SLICES[-1]
    both = [Rival(f"chunked loss, {r.family}", r.setting, with_chunks(r.change, most)) for r in plain]
    return [*plain, *alone, *both]


def trainers_offload(task: Task) -> None:
    """Offloads as transformers' `Trainer` does for `gradient_checkpointing_kwargs={"offload": True}`, by its own code."""
    try:
        from transformers import PretrainedConfig, PreTrainedModel
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError as error:
        raise NotHere(f"transformers is not installed, or too old ({error})") from None
    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", None)
    enable = enable or PreTrainedModel.gradient_checkpointing_enable
    if "offload" not in inspect.signature(enable).parameters:
        raise NotHere("transformers has no `offload` of checkpoints (it came with 5.17)")

    class Layer(GradientCheckpointingLayer):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x)

    class Holder(PreTrainedModel):
        supports_gradient_checkpointing = True
        main_input_name = "hidden"

        def __init__(self, layers: list[nn.Module]) -> None:
            super().__init__(PretrainedConfig())
            self.layers = nn.ModuleList(layers)

    for container in task.blocks:
        layers: list[nn.Module] = [Layer(block) for block in container]
        for key, layer in zip(list(container._modules), layers, strict=True):
            container._modules[key] = layer
        enable(Holder(layers), {"use_reentrant": False}, offload=True)


def long_rivals() -> list[Rival]:
    """All rivals of a language model, `torch.compile` included, ordered for one long sequence.

    Those with a chunked loss come first, since the logits of 64k tokens alone take more than most GPUs have; of them, the
    common settings come before the rest of the sweep.
    """
    some = [*rivals(True), *compilers(True)]
    name = "transformers' checkpoint every 1, offload"
    chunks = with_chunks(trainers_offload, SLICES[-1])
    some += [Rival(name, "", trainers_offload), Rival(f"chunked loss, {name}", "", chunks)]
    first = (
        "chunked loss, checkpoint every 1",
        "chunked loss, offloaded checkpoint every 1",
        f"chunked loss, {name}",
        "chunked loss, selective checkpoint, attention",
        "chunked loss, OffloadActivations, checkpoint every 1",
        "chunked loss, torch.compile, budget 0.5",
        "chunked loss, selective checkpoint, products and attention",
        "chunked loss, torch.compile, budget 0.3",
    )

    def place(rival: Rival) -> int:
        if rival.arm in first:
            return first.index(rival.arm)
        return len(first) + (0 if rival.family.startswith("chunked loss") else 1)

    return sorted(some, key=place)


def compilers(has_logits: bool) -> list[Rival]:
    """`torch.compile` at several budgets; with a chunked loss, too, if a network has logits of many rows."""

    def family(name: str, wrap: Callable[[Change], Change]) -> list[Rival]:
        changes = ((share, functools.partial(compiled, share=share)) for share in SHARES)
        return [Rival(name, str(share), wrap(change)) for share, change in changes]

    plain = family("torch.compile, budget", lambda change: change)
    if not has_logits:
        return plain
    return [*plain, *family("chunked loss, torch.compile, budget", lambda c: with_chunks(c, SLICES[-1]))]
