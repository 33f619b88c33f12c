"""Trains in several processes: each plans for itself, and DDP reduces the gradients at the same time.

torchrun --nproc-per-node 2 examples/ddp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import plimsoll


def main() -> None:
    """Trains for five steps on each rank's data, and compares the parameters of all ranks."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(8)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(1 + rank)
    batches = [(torch.randn(256, 128), torch.randint(0, 10, (256,))) for _ in range(5)]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    step = plimsoll.tune(loss, model, optimizer, batches[0], "90%", "12GB/s", seconds=1)
    for batch in batches:
        optimizer.zero_grad()
        value = step(*batch)
        optimizer.step()
    print(f"rank {rank}: loss {value.item():.4f}; {step.why}")

    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    first = mine.clone()
    dist.broadcast(first, 0)
    if not torch.equal(mine, first):
        raise SystemExit(f"rank {rank} has other parameters than rank 0")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
