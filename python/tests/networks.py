"""Small networks, one for each feature of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from beside import eager_step as eager
from models import GPT, Checkpointed
from torch import Tensor, nn

BATCH = 4

SMALL_GPT = {"words": 96, "width": 32, "length": 24, "depth": 3}


@dataclass
class Task:
    """A model, its loss, and batches to train it on."""

    model: nn.Module
    loss: Callable[..., Tensor]
    batches: list[tuple[Tensor, ...]]


def _images(size: int) -> list[tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(1)
    shape = (BATCH, 3, size, size)
    return [(torch.randn(shape, generator=g), torch.randint(0, 8, (BATCH,), generator=g)) for _ in range(3)]


def _vectors(width: int) -> list[tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(2)
    shape = (BATCH, width)
    return [(torch.randn(shape, generator=g), torch.randint(0, 8, (BATCH,), generator=g)) for _ in range(3)]


def _words() -> list[tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(3)
    shape = (BATCH, 24)
    return [tuple(torch.randint(0, 96, shape, generator=g) for _ in range(2)) for _ in range(3)]


def _classifier(model: nn.Module, batches: list[tuple[Tensor, ...]]) -> Task:
    return Task(model, lambda x, y: F.cross_entropy(model(x), y), batches)


def mlp() -> Task:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    return _classifier(nn.Sequential(*layers, nn.Linear(32, 8)), _vectors(32))


def convolutions() -> Task:
    layers: list[nn.Module] = []
    for inputs, outputs in [(3, 8), (8, 8), (8, 16)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    head = [nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 64, 8)]
    return _classifier(nn.Sequential(*layers, *head), _images(16))


def gpt() -> Task:
    model = GPT(**SMALL_GPT)
    return Task(model, lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), _words())


def gpt_bf16() -> Task:
    model = GPT(**SMALL_GPT)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return Task(model, loss, _words())


def checkpointed() -> Task:
    body = [
        nn.Linear(16, 64),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.Dropout(0.2),
        nn.Linear(64, 16),
    ]
    return _classifier(Checkpointed(nn.Sequential(*body), nn.Linear(16, 8)), _vectors(16))


def frozen() -> Task:
    task = mlp()
    for parameter in list(task.model.parameters())[:4]:
        parameter.requires_grad_(False)
    return task


def resnet18() -> Task:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    return _classifier(models.resnet18(num_classes=8), _images(32))


def vit() -> Task:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    sizes = {"num_layers": 3, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64}
    return _classifier(models.VisionTransformer(16, 4, dropout=0.1, num_classes=8, **sizes), _images(16))


def of_torchvision(name: str) -> Task:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    torch.manual_seed(0)
    return _classifier(models.get_model(name, num_classes=8), _images(64))


ALL = {
    task.__name__: task for task in (mlp, convolutions, gpt, gpt_bf16, checkpointed, frozen, resnet18, vit)
}


def build(name: str) -> Task:
    """Builds the same task every time."""
    torch.manual_seed(0)
    return ALL[name]()


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    if name == "sgd":
        return torch.optim.SGD(trained, 0.05, momentum=0.9)
    return torch.optim.AdamW(trained, 1e-3)


def train(task: Task, optimizer: torch.optim.Optimizer, step: Callable[..., Tensor]) -> list[Tensor]:
    """Losses of one step per batch."""
    torch.manual_seed(7)
    losses = []
    for batch in task.batches:
        losses.append(step(*batch).detach().clone())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def budget_at(share: float, task: Task, optimizer: torch.optim.Optimizer | None, adds: bool = False) -> int:
    """A budget at this position between floor and peak, of a step that sets gradients or of one that adds to them."""
    import plimsoll

    if adds:
        eager(task)(*task.batches[0])
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0], optimizer=optimizer)
    if adds:
        task.model.zero_grad()
    return int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
