"""Trains on sequences of varying length: each is padded to one of three lengths that have a plan.

python examples/sequences.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll

WORDS = 512


class Language(nn.Module):
    """Two layers of attention, and the logits of each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.logits = nn.Linear(64, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Logits by batch, position and word."""
        out: Tensor = self.logits(self.layers(self.words(words)))
        return out


def main() -> None:
    """Trains on eight batches of different lengths."""
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss(words: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(words).flatten(0, 1), targets.flatten(), ignore_index=-1)

    # Padding values, by the position of the tensor in the batch.
    buckets = plimsoll.Buckets([32, 64, 128], pad={0: 0, 1: -1})
    lengths = [128, 20, 61, 90, 32, 127, 45, 64]
    batches = [torch.randint(0, WORDS, (8, length + 1)) for length in lengths]
    sample = (batches[0][:, :-1], batches[0][:, 1:])
    step = plimsoll.tune(loss, model, optimizer, sample, "80%", "12GB/s", seconds=1, buckets=buckets)
    for length, words in zip(lengths, batches, strict=True):
        optimizer.zero_grad()
        value = step(words[:, :-1], words[:, 1:])
        optimizer.step()
        print(f"length {length}: loss {value.item():.4f}; {step.why}")


if __name__ == "__main__":
    main()
