"""Networks in sizes for a GPU, and tiny for the tests: each with its loss, one batch and its blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from models import GPT, Checkpointed, Llama, UNet
from torch import nn

LLAMAS = {"1B": (2048, 16, 32, 8192), "3B": (3072, 28, 24, 8192), "8B": (4096, 32, 32, 14336)}
"""Width, blocks, heads, and the inner width of the perceptron."""

WORDS, TOKENS = 128256, 4096
"""Llama's vocabulary, and the default length of a sequence."""

SMALL = (32, 3, 4, 48)


@dataclass
class Task:
    """A network, its loss, one batch, and the containers of its blocks."""

    model: Any
    loss: Callable[..., Any]
    batch: tuple[Any, ...]
    blocks: list[Any]
    autocast: Callable[[], Any] = contextlib.nullcontext


def has_logits(name: str) -> bool:
    """Returns `True` if a network is a language model, whose loss can be computed by slices of rows."""
    return name.startswith(("GPT", "Llama"))


@contextlib.contextmanager
def made_on(device: str, kind: torch.dtype = torch.float32) -> Iterator[None]:
    """Context in which tensors are made on this device, which draws their numbers: billions would
    take the CPU half a minute."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def llama(name: str, device: str, small: bool) -> nn.Module:
    """A network like Llama, of the size in its name; also on the device `meta`, to count its parameters."""
    with made_on(device, torch.bfloat16 if name.endswith("bf16 weights") else torch.float32):
        size = name.split()[1].rstrip(",")
        # As in Llama, only the largest has a separate head.
        return Llama(96 if small else WORDS, *(SMALL if small else LLAMAS[size]), tied=size != "8B")


def language(name: str, device: str, small: bool) -> Task:
    """A language model."""
    is_llama = name.startswith("Llama")
    if is_llama:
        words, size = 96 if small else WORDS, 1
        last = name.rsplit(" ", 1)[1]
        tokens = 1024 * int(last.rstrip("k")) if last.endswith("k") else TOKENS
        length = 256 if small else tokens
        model = llama(name, device, small)
    else:
        words, width, length, depth = (96, 32, 24, 3) if small else (50257, 768, 1024, 12)
        size = 4 if small else 8
        with made_on(device):
            model = GPT(words, width, length, depth)
    data = tuple(torch.randint(0, words, (size, length), device=device) for _ in range(2))
    is_half = name.endswith("bf16") or is_llama

    def autocast() -> Any:
        kind = torch.device(device).type
        return torch.autocast(kind, torch.bfloat16) if is_half else contextlib.nullcontext()

    def loss(x: Any, y: Any) -> Any:
        with autocast():
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return Task(model, loss, data, [model.blocks], autocast)


def build(name: str, device: str, small: bool) -> Task:
    """Builds the same network every time."""
    torch.manual_seed(0)
    if has_logits(name):
        return language(name, device, small)
    from torchvision import models

    image, size = (32, 4) if small else (224, 32 if name == "ViT-L/16" else 64)
    classes = 10 if small else 1000
    model: Any
    with made_on(device):
        if name == "U-Net":
            model = UNet(8 if small else 64, 3 if small else 5, 2)
            blocks = model.levels()
        elif name.startswith("ViT"):
            large = (16, 24, 16, 1024, 4096) if name == "ViT-L/16" else (16, 12, 12, 768, 3072)
            shape = (image, 16, 3, 4, 32, 64) if small else (image, *large)
            model = models.VisionTransformer(*shape, dropout=0.1, num_classes=classes)
            blocks = [model.encoder.layers]
        elif name == "own checkpoint":
            width = 3 * image * image
            body = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, width))
            model = nn.Sequential(nn.Flatten(), Checkpointed(body, nn.Linear(width, classes)))
            blocks = []
        elif name == "DenseNet-121":
            model = models.densenet121(num_classes=classes)
            blocks = []
        else:
            model = models.resnet18(num_classes=classes) if small else models.resnet50(num_classes=classes)
            blocks = [model.layer1, model.layer2, model.layer3, model.layer4]
    pixels = torch.randn(size, 3, image, image, device=device)
    labels = (size, image, image) if name == "U-Net" else (size,)
    targets = torch.randint(0, 2 if name == "U-Net" else classes, labels, device=device)
    return Task(model, lambda x, y: F.cross_entropy(model(x), y), (pixels, targets), blocks)


def optimizer_of(task: Task) -> Any:
    """AdamW with the usual settings."""
    return torch.optim.AdamW(task.model.parameters(), 1e-4, fused=True)


def of_size(batch: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """A batch of `count` samples, repeated from a batch."""
    return tuple(part[torch.arange(count, device=part.device) % len(part)] for part in batch)
