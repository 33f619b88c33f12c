"""Plans a network with a kernel that PyTorch does not see: here numpy's, as it could be Triton's or a C++ extension's.

python examples/kernels.py
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


@plimsoll.opaque
class Softsign(torch.autograd.Function):
    """`x / (1 + |x|)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Computes it with numpy."""
        made = torch.empty_like(x)
        numpy.divide(x.detach().numpy(), 1 + numpy.abs(x.detach().numpy()), out=made.numpy())
        ctx.save_for_backward(x)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Computes the gradient with numpy."""
        (x,) = ctx.saved_tensors
        made = torch.empty_like(x)
        numpy.divide(gradient.numpy(), (1 + numpy.abs(x.detach().numpy())) ** 2, out=made.numpy())
        return made


class Network(nn.Module):
    """Layers with that kernel between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))
        self.classes = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        for layer in self.layers:
            x = Softsign.apply(layer(x))
        out: Tensor = self.classes(x)
        return out


def main() -> None:
    """Trains a few steps in half of the activations' memory."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    step = plimsoll.tune(loss, model, optimizer, (x, y), "80%", "12GB/s", seconds=1)
    for number in range(3):
        optimizer.zero_grad()
        value = step(x, y)
        optimizer.step()
        print(f"step {number}: loss {value.item():.4f}; {step.why}")
    seen = {call.name for call in step.program.tape.calls if "Softsign" in call.name}
    print(f"ops of the kernel: {', '.join(sorted(seen))}; fallback: {step.fallback}")


if __name__ == "__main__":
    main()
