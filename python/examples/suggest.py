"""Measures batch sizes within a memory budget, and suggests how to train: the loop stays as it is.

python examples/suggest.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


def main() -> None:
    """Suggests the split of a batch that is too large, and the batch that trains the most samples per second."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    sample = (torch.randn(512, 256), torch.randint(0, 10, (512,)))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    for keep_batch in (True, False):
        found = plimsoll.suggest(loss, model, optimizer, sample, "7MiB", "12GB/s", keep_batch=keep_batch)
        print(found)
        print(found.code)


if __name__ == "__main__":
    main()
