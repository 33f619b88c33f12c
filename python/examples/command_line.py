"""A step as files: its trace, for every verb of the command line, and schedules made by Python and by the program.

python examples/command_line.py
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll


def main() -> None:
    """Writes `step.trace.json`, plans it, and has the program check the plan."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6)), nn.Flatten()
    )
    x, y = torch.randn(8, 8, 16, 16), torch.randint(0, 10, (8,))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    trace = plimsoll.trace(loss, model, x, y)
    trace.save("step.trace.json")
    budget = (trace.floor_bytes + trace.peak_bytes) // 2
    schedule = plimsoll.plan(trace, budget, "1GB/s")
    Path("step.schedule.json").write_text(schedule.to_json())
    print(f"{schedule.recomputed_ops} ops recomputed, {schedule.offloaded_bytes} B swapped out")
    for line in (
        "check step.trace.json step.schedule.json",
        f"plan step.trace.json --budget {budget} --link 1GB/s",
    ):
        subprocess.run(["plimsoll", *line.split()], check=True)


if __name__ == "__main__":
    main()
