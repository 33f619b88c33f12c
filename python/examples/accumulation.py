"""Accumulates gradients over four batches in bf16, with clipping and a schedule: Plimsoll replaces only the backward pass.

python examples/accumulation.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


def main() -> None:
    """Trains for four updates; the step also returns the accuracy of each batch."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(8)]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    batches = [(torch.randn(256, 128), torch.randint(0, 10, (256,))) for _ in range(16)]

    def loss(x: Tensor, y: Tensor) -> plimsoll.Outputs:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
            right = (logits.argmax(1) == y).float().mean()
            return plimsoll.Outputs(F.cross_entropy(logits, y) / 4, right)

    step = plimsoll.tune(loss, model, optimizer, batches[0], "90%", "12GB/s", seconds=1)
    for number, batch in enumerate(batches, 1):
        out = step(*batch)
        if number % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            print(f"update {number // 4}: loss {4 * out.loss.item():.4f}, right {out.others.item():.1%}")
    print(step.why)


if __name__ == "__main__":
    main()
