"""Checks whether a step fits a memory budget before anything large runs. The model lies on `meta` and takes no memory.

python examples/fits.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


def network() -> nn.Module:
    """Eight blocks of 64 channels, and a classifier."""
    blocks = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(8)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), *blocks, *head)


def main() -> None:
    """Checks 256 images of 224 x 224 with three budgets."""
    with torch.device("meta"):
        model = network()
        sample = (torch.empty(256, 3, 224, 224), torch.empty(256, dtype=torch.long))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    for budget in ("24GiB", "8GiB", "1GiB"):
        print(plimsoll.fits(loss, model, *sample, budget=budget))


if __name__ == "__main__":
    main()
