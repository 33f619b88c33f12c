"""Fine-tunes small adapters next to frozen layers (LoRA): frozen parameters have no gradients, and the budget counts none.

python examples/fine_tuning.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


class Adapted(nn.Module):
    """A frozen layer, plus a trained product of two small matrices."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the same as the frozen layer at first."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def main() -> None:
    """Trains for five steps, compares the next one with eager, and writes a snapshot of the plan."""
    torch.manual_seed(0)
    layers = [nn.Sequential(Adapted(nn.Linear(256, 256)), nn.GELU()) for _ in range(10)]
    model = nn.Sequential(*layers, Adapted(nn.Linear(256, 10)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    batch = (torch.randn(512, 256), torch.randint(0, 10, (512,)))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    step = plimsoll.tune(loss, model, optimizer, batch, "70%", "12GB/s", seconds=1)
    for number in range(6):
        if number == 5:
            step.verify(1)  # raises `VerificationError` if a bit differs
        optimizer.zero_grad()
        value = step(*batch)
        optimizer.step()
        print(f"step {number + 1}: loss {value.item():.4f}")
    print(step.explain())
    step.report("report.html", seconds=1)
    step.memory_viz("plan.pickle")
    print("report.html is for a browser, and plan.pickle for pytorch.org/memory_viz")


if __name__ == "__main__":
    main()
