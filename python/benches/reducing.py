"""Two ranks under DDP: eager, and planned steps whose gradients are reduced at their end or during the backward pass.

torchrun --standalone --nproc-per-node=2 benches/reducing.py            # over the loopback interface
sudo bash ../benches/shaped_link.sh 400mbit python benches/reducing.py  # over a link of a given rate, see there

The three ways take turns, step by step, from the same state; both ranks begin each step together, and the first one's clock
counts. Prints one row of the table in `docs/pytorch/steps.md`: medians, with the quartiles in brackets.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rows import images
from torch.nn.parallel import DistributedDataParallel
from torchvision import models

import plimsoll

FIRST = "10.9.0.1"
"""Address of the first rank behind a shaped link."""


def join() -> None:
    """Joins the other rank: by torchrun's settings, or by the numbers of the launcher behind a shaped link."""
    if "RANK" not in os.environ:
        rank = os.environ["PMI_RANK"]
        os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": FIRST, "MASTER_PORT": "29511"}
        os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")
    dist.init_process_group("gloo")


def replica(batch: int) -> tuple[DistributedDataParallel, Callable[..., torch.Tensor], tuple[Any, ...]]:
    """A network with 11 million parameters, in buckets of 4 MiB, and a batch of this rank."""
    torch.manual_seed(0)
    network = images(models.resnet18(num_classes=10), 64)
    model = DistributedDataParallel(network.model, bucket_cap_mb=4)
    g = torch.Generator().manual_seed(dist.get_rank())
    sample = (
        torch.randn(batch, 3, 64, 64, generator=g),
        torch.randint(0, 10, (batch,), generator=g),
    )
    return model, lambda x, y: F.cross_entropy(model(x), y), sample


def main() -> None:
    """Measures, and prints the row on the first rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--budget", default="90%")
    parser.add_argument("--name", default="loopback", help="what the row calls the link")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    join()
    model, loss, sample = replica(options.batch)
    step = plimsoll.tune(loss, model, None, sample, options.budget, "12GB/s", verify=0, seconds=5)
    taker = step._reducing.taker

    def eager(*batch: Any) -> None:
        loss(*batch).backward()

    def at_the_end(*batch: Any) -> None:
        step._reducing.taker = lambda order: None
        step(*batch)

    def overlapped(*batch: Any) -> None:
        step._reducing.taker = taker
        step(*batch)

    ways = {"eager": eager, "at the end": at_the_end, "overlapped": overlapped}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    left: dict[str, list[torch.Tensor]] = {}
    for run in range(2 + options.runs):
        for name, way in ways.items():
            for parameter in model.parameters():
                parameter.grad = None
            dist.barrier()
            start = time.perf_counter()
            way(*sample)
            if run >= 2:
                seconds[name].append(time.perf_counter() - start)
            assert step.fallback is None, step.fallback
            left[name] = [parameter.grad.clone() for parameter in model.parameters()]
    for name in ways:
        assert all(map(torch.equal, left["eager"], left[name])), f"{name} leaves other bits than eager"
    if dist.get_rank() == 0:
        cells = []
        for name in ways:
            low, middle, high = statistics.quantiles(seconds[name], n=4)
            cells.append(f"{1e3 * middle:.0f} ms ({1e3 * low:.0f} to {1e3 * high:.0f})")
        gain = statistics.median(seconds["at the end"]) / statistics.median(seconds["overlapped"])
        predicted = 1e3 * step.predicted_seconds
        print("|", options.name, "|", " | ".join(cells), f"| {gain:.2f} | {predicted:.0f} ms |", flush=True)
        print(step.explain(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
