"""Takes an ordinary training loop, and trains within a memory budget after changing three lines.

python examples/own_model.py --budget 60%
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


def network() -> nn.Module:
    """A stand-in for your model: six convolutions with batch norm, and a classifier."""
    blocks = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """A stand-in for your `DataLoader`: images of 32 x 32, and their classes."""
    return [(torch.randn(64, 3, 32, 32), torch.randint(10, (64,))) for _ in range(count)]


def main() -> None:
    """Trains for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--budget", default="60%", help="a size such as 22GiB, or a share of what eager takes"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    loader = batches(8)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    step = plimsoll.tune(loss_of, model, optimizer, sample=loader[0], budget=arguments.budget)
    for x, y in loader:
        optimizer.zero_grad()
        loss = step(x, y)  # was: loss = loss_of(x, y); loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(step.explain())


if __name__ == "__main__":
    main()
