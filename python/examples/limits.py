"""A step that is recorded within its budget, piece by piece, and that may swap little: the rest is recomputed.

python examples/limits.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


def main() -> None:
    """Determines eager's memory, and trains halfway down to the floor."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(12))
    model = nn.Sequential(*blocks, nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    trace = plimsoll.trace(loss, model, x, y, optimizer=optimizer)
    budget = (trace.floor_bytes + trace.peak_bytes) // 2
    step = plimsoll.tune(
        loss, model, optimizer, (x, y), budget, "12GB/s", seconds=1, in_pieces=True, host_budget="2MiB"
    )
    for number in range(3):
        optimizer.zero_grad()
        value = step(x, y)
        optimizer.step()
        print(f"step {number + 1}: loss {value.item():.4f}")
    print(step.explain())


if __name__ == "__main__":
    main()
