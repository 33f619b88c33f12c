"""Gradients that are silently wrong: `torch.compile` with a memory budget compared with a planned step, dropout on.

python benches/silent.py            # prints the table
python benches/silent.py --write    # and puts it into README.md

Each side computes the gradients of one batch twice from one seed: keeping everything, and recomputing within a budget.
Recomputing draws the dropout again; if it draws different numbers, the loss stays the same and the gradients do not.

Ours has its lowest share in place of 0.3: no plan for the whole batch takes less of all bytes, parameters and gradients
included.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

HERE = Path(__file__).parent
BEGIN, END = "<!-- silent -->", "<!-- end of silent -->"
WIDTH, BLOCKS, CLASSES = 64, 4, 10
SHARES = (0.3, 0.4, 0.5)
"""Shares of the bytes that keeping everything takes: of saved bytes for `torch.compile`, of all bytes for
ours, which does not know saved bytes."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A perceptron with dropout, added to its input."""

    def __init__(self) -> None:
        """Makes the inner layer four times as wide."""
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(0.1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input plus the perceptron's output."""
        return x + self.inner(x)


def fresh() -> tuple[nn.Module, Loss]:
    """Builds the same model every time."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES))
    return model, lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """The same batch every time."""
    torch.manual_seed(2)
    return torch.randn(32, 16, WIDTH), torch.randint(0, CLASSES, (32, 16))


def gradients(model: nn.Module, step: Loss) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients of the batch, with the dropout of one seed."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = step(*batch())
    if loss.requires_grad:
        loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def compiled(share: float) -> tuple[float, list[torch.Tensor]]:
    """`torch.compile`, which may save this share of the backward pass's inputs; without a compiler of kernels."""
    torch._dynamo.reset()
    model, loss = fresh()
    with torch._functorch.config.patch(activation_memory_budget=share):
        return gradients(model, torch.compile(loss, backend="aot_eager_decomp_partition"))


def in_eager() -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients in eager."""
    return gradients(*fresh())


def lowest() -> float:
    """The lowest share, in whole percent, of a plan for the whole batch."""
    model, loss = fresh()
    trace = plimsoll.trace(loss, model, *batch())
    return math.ceil(100 * trace.floor_bytes / trace.peak_bytes) / 100


def planned(share: float) -> tuple[float, list[torch.Tensor], int]:
    """Loss and gradients by a plan within this share of eager's memory, over a link so slow that it
    recomputes; and the number of recomputed ops."""
    model, loss = fresh()
    step = plimsoll.tune(loss, model, None, batch(), budget=f"{100 * share:.0f}%", link="1KB/s", verify=0)
    assert step.fallback is None, step.fallback
    ops = step.program.schedule.recomputed_ops
    return *gradients(model, step), ops


def row(
    who: str,
    share: float,
    kept: tuple[float, list[torch.Tensor]],
    other: tuple[float, list[torch.Tensor]],
    note: str,
) -> str:
    """A line of the table with the differences of the gradients."""
    pairs = list(zip(kept[1], other[1], strict=True))
    differ = sum(not torch.equal(one, two) for one, two in pairs)
    most = max(((one - two).norm() / one.norm()).item() for one, two in pairs)
    loss = "equal" if kept[0] == other[0] else f"{kept[0]:.4f}, {other[0]:.4f}"
    return f"| {who} | {100 * share:.0f}% | {note} | {loss} | {differ} of {len(pairs)} | {most:.2g} |"


def table() -> str:
    """Both sides at each share."""
    lines = [
        f"`python benches/silent.py --write`, torch {torch.__version__}.",
        "",
        "| who recomputes | may keep | recomputed | loss | gradients that differ | by at most, of their norm |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kept = compiled(1.0)
    for share in SHARES:
        lines.append(
            row(
                "`torch.compile`, `activation_memory_budget`",
                share,
                kept,
                compiled(share),
                "its choice",
            )
        )
    eager = in_eager()
    for share in (lowest(), *SHARES[1:]):
        loss, own, ops = planned(share)
        lines.append(row("plimsoll", share, eager, (loss, own), f"{ops} ops"))
    return "\n".join(lines)


def main() -> None:
    """Prints the table, and writes it on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    write = parser.parse_args().write
    text = table()
    print(text)
    if write:
        page = HERE / "README.md"
        pattern = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
        assert pattern.search(page.read_text()), f"{page} lacks {BEGIN}"
        page.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page.read_text()))


if __name__ == "__main__":
    main()
