"""Models shared by the bench and the tests, which set their sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A block of a transformer, with PyTorch's own attention and dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the perceptron."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """A language model whose embedding is also its head."""

    def __init__(self, words: int, width: int, length: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        """The logits."""
        x = self.embedding(words) + self.position[:, : words.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """A block as in Llama: RMS norm, rotated positions, fewer keys than queries, a gated perceptron, no dropout."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, heads // 4, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, self.keys * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def rotated(self, x: Tensor) -> Tensor:
        """Rotates by position, pair by pair."""
        half, length = self.size // 2, x.shape[2]
        rates = 500000 ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(length, device=x.device)[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the perceptron."""
        batch, length, width = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(batch, length, heads, self.size).transpose(1, 2)

        y = self.norm1(x)
        query = self.rotated(split(self.query(y), self.heads))
        pairs = (self.rotated(split(self.key(y), self.keys)), split(self.value(y), self.keys))
        key, value = (one.repeat_interleave(self.heads // self.keys, 1) for one in pairs)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A language model like Llama's; with tied weights its embedding is also its head."""

    def __init__(self, words: int, width: int, depth: int, heads: int, inner: int, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, inner) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        """The logits."""
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Checkpointed(nn.Module):
    """Recomputes its body by PyTorch's own means, dropout included."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.head(F.dropout(checkpoint(self.body, x, use_reentrant=False), 0.1))


def convolved(before: int, after: int) -> nn.Sequential:
    """Two convolutions, each with batch norm and ReLU."""
    pairs = ((before, after), (after, after))
    layers = [(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairs]
    return nn.Sequential(*(layer for three in layers for layer in three))


class UNet(nn.Module):
    """Segments images: each level on the way up also reads the result of the same level on the way down."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth)]
        self.down = nn.ModuleList(convolved(a, b) for a, b in zip([3, *widths], widths, strict=False))
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(convolved(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def levels(self) -> list[nn.Sequential]:
        """Containers whose layers follow one another."""
        return [level for side in (self.down, self.up) for level in side if isinstance(level, nn.Sequential)]

    def forward(self, x: Tensor) -> Tensor:
        """The logits of each pixel."""
        kept = []
        for number, level in enumerate(self.down):
            x = level(F.max_pool2d(x, 2) if number else x)
            kept.append(x)
        for grow, level, other in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = level(torch.cat([grow(x), other], 1))
        return self.head(x)
