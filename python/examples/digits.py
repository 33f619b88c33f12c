"""Trains a small DenseNet on handwritten digits twice, in eager and within a fraction of its memory, and compares every bit.

python examples/digits.py --epochs 2 --pool 25%
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll

DIGITS = Path(__file__).resolve().parents[2] / "runtime/data/digits/digits.bin"
RECORD = 65  # the label, and 8 x 8 pixels of 17 grey levels
HELD_OUT = 5  # one sample in this many of each class is for testing


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and labels to train on, and those to test with."""
    records = torch.frombuffer(bytearray(DIGITS.read_bytes()), dtype=torch.uint8).view(-1, RECORD)
    labels, images = records[:, 0].long(), records[:, 1:].float().view(-1, 1, 8, 8) / 16 - 0.5
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        held_out[(labels == label).nonzero().flatten()[HELD_OUT - 1 :: HELD_OUT]] = True
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


class Layer(nn.Module):
    """Adds `growth` channels to its input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenates the new channels: every layer reads all channels before it."""
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


def densenet(growth: int = 6, layers: int = 10) -> nn.Module:
    """Two dense blocks with a pooling between them."""
    channels = 2 * growth
    parts: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1, bias=False)]
    for _ in range(2):
        for _ in range(layers):
            parts.append(Layer(channels, growth))
            channels += growth
        parts += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)]
        channels //= 2
    return nn.Sequential(*parts, nn.Dropout(0.1), nn.Flatten(), nn.Linear(4 * channels, 10))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[Tensor, Tensor], Tensor], epochs: int
) -> float:
    """Trains, and returns the share of the test images that are classified correctly."""
    (images, labels), (test_images, test_labels) = digits()
    torch.manual_seed(1)
    batch = 64
    for epoch in range(epochs):
        order = torch.randperm(len(labels))
        total, start = 0.0, time.perf_counter()
        # The last batch is smaller, and has a separate plan.
        for chosen in order.split(batch):
            loss = step(images[chosen], labels[chosen])
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(chosen)
        seconds = time.perf_counter() - start
        print(f"  epoch {epoch + 1}: loss {total / len(labels):.4f}, {seconds:.1f} s")
    model.eval()
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    """Trains twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pool", default="25%", help="of what feature maps and scratch take in eager")
    arguments = parser.parse_args()
    (images, labels), _ = digits()
    sample = (images[:64], labels[:64])

    print("eager")
    torch.manual_seed(0)
    eager = densenet()
    optimizer = torch.optim.SGD(eager.parameters(), 0.05, momentum=0.9)

    def plain(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(eager(x), y)
        loss.backward()
        return loss

    right = train(eager, optimizer, plain, arguments.epochs)

    torch.manual_seed(0)
    model = densenet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    trace = plimsoll.trace(loss, model, *sample, optimizer=optimizer, name="densenet")
    share = float(arguments.pool.rstrip("%")) / 100
    pool = int(share * (trace.peak_bytes - trace.resident_bytes))
    step = plimsoll.tune(loss, model, optimizer, sample, budget=trace.resident_bytes + pool, seconds=10)
    print(step.explain())
    planned_right = train(model, optimizer, step, arguments.epochs)
    print(f"read right: {right:.1%} in eager, {planned_right:.1%} by the plan")
    bits = all(map(torch.equal, eager.state_dict().values(), model.state_dict().values()))
    print(f"all parameters and buffers equal, bit for bit: {'yes' if bits else 'NO'}")
    if not bits:
        raise SystemExit(6)


if __name__ == "__main__":
    main()
