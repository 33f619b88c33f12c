"""A loop of Accelerate within a budget. Needs accelerate.

python examples/accelerated.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

import plimsoll.adapters.accelerate


def main() -> None:
    """Trains for four updates of two batches each."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    hidden = (nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(8))
    model = nn.Sequential(nn.Linear(64, 256), *hidden, nn.Linear(256, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
    x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    step = plimsoll.adapters.accelerate.tune(
        accelerator, loss, model, optimizer, (x, y), budget="70%", seconds=1
    )
    for number in range(8):
        with accelerator.accumulate(model):
            value = step(x, y)  # in place of the forward pass and `accelerator.backward(loss)`
            optimizer.step()
            optimizer.zero_grad()
        print(f"batch {number + 1}: loss {value.item():.4f}")
    print(step.why)


if __name__ == "__main__":
    main()
