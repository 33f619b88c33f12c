"""Planned steps compared with eager: bits, memory and time, network by network. Writes the table of `README.md` and the raw
samples.

python benches/steps.py                     # all networks, prints the table
python benches/steps.py --only GPT --write  # some of them; their rows replace those of README.md
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from beside import eager_step, train
from rows import NETWORKS, Network

import plimsoll

HERE = Path(__file__).parent
BEGIN, END = "<!-- table -->", "<!-- end of the table -->"
SHARES = (0.4, 0.1)

LOAD = re.compile(r" \(load ([\d.]+)\)")

OPTIMIZERS: dict[float, Callable[..., torch.optim.Optimizer]] = {
    0.4: lambda p: torch.optim.AdamW(p, 1e-3),
    0.1: lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
}


def build(name: str) -> Network:
    """Builds the same network every time."""
    torch.manual_seed(0)
    return NETWORKS[name]()


def seconds_of(
    step: Callable[..., torch.Tensor], network: Network, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one step."""
    network.model.zero_grad()
    start = clock()
    step(*network.batch)
    return clock() - start


def highest_byte(program: plimsoll.step.Program) -> int:
    """The highest byte of the pool that the allocator gave out in the last run, or that a copy into the pool wrote."""
    pool = range(program.pool_address, program.pool_address + program.schedule.pool_bytes)
    ends = [at + size - pool.start for call in program.allocated() for _, at, size in call if at in pool]
    schedule = json.loads(program.schedule.to_json())
    tensors = {number: program.tape.storages[storage].size for storage, number in program.tensors.items()}
    for buffer in schedule["buffers"]:
        opens = buffer.get("opens")
        if "tensor" in buffer and (opens is None or schedule["commands"][opens]["do"] == "prefetch"):
            whole = tensors[buffer["tensor"]] - (buffer.get("first_byte") or 0)
            ends.append(buffer["offset"] + (buffer.get("bytes") or whole))
    return max(ends, default=0)


def measure(name: str, runs: int, seconds: float) -> dict[str, Any]:
    """The row of a network."""
    network = build(name)
    start = time.perf_counter()
    trace = plimsoll.trace(network.loss, network.model, *network.batch)
    row: dict[str, Any] = {"calls": len(trace), "keep_bytes": trace.peak_bytes - trace.resident_bytes}
    row["record_seconds"] = time.perf_counter() - start
    roomy = 2 * trace.peak_bytes
    keep = plimsoll.tune(network.loss, network.model, None, network.batch, roomy, verify=0, seconds=seconds)
    kept = keep.program.schedule
    assert (kept.recomputed_ops, kept.offloaded_bytes) == (0, 0)
    row["shares"] = {}
    for share in SHARES:
        row["shares"][str(share)] = at_share(name, share, runs, seconds)
    plain = eager_step(network)
    samples: dict[str, list[float]] = {"eager": [], "keep": []}
    for _ in range(runs):
        samples["eager"].append(seconds_of(plain, network, time.thread_time))
        samples["keep"].append(seconds_of(keep, network, time.thread_time))
    row["samples"] = samples
    row["keep_fallback"] = keep.fallback
    return row


def at_share(name: str, share: float, runs: int, seconds: float) -> dict[str, Any]:
    """Bits, memory and time at a budget at this position between floor and peak."""
    reference, network = build(name), build(name)
    left = train(reference, OPTIMIZERS[share](reference.model.parameters()), eager_step(reference))
    optimizer = OPTIMIZERS[share](network.model.parameters())
    trace = plimsoll.trace(network.loss, network.model, *network.batch, optimizer=optimizer)
    budget = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
    start = time.perf_counter()
    step = plimsoll.tune(
        network.loss, network.model, optimizer, network.batch, budget, verify=0, seconds=seconds
    )
    tuning = time.perf_counter() - start
    fallbacks: set[str] = set()

    def checked(*batch: Any) -> torch.Tensor:
        loss = step(*batch)
        if step.fallback is not None:
            fallbacks.add(step.fallback)
        return loss

    planned = train(network, optimizer, checked)
    program, schedule = step.program, step.program.schedule
    counts = program.counts
    samples, hidden = [], []
    for _ in range(runs):
        samples.append(seconds_of(step, network))
        if program.copying_seconds > 0:
            hidden.append(1 - min(1.0, program.stalled_seconds / program.copying_seconds))
    return {
        "bits": all(map(torch.equal, left, planned)),
        "fallbacks": sorted(fallback.replace(f"{HERE}/", "") for fallback in fallbacks),
        "pool_bytes": schedule.pool_bytes,
        "highest_byte": highest_byte(program),
        "unplanned": None if counts is None else counts.unplanned + counts.unused,
        "recomputed_ops": schedule.recomputed_ops,
        "offloaded_bytes": schedule.offloaded_bytes,
        "predicted_seconds": schedule.makespan_seconds,
        "tune_seconds": tuning,
        "samples": samples,
        "hidden": hidden,
    }


def row_of(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    if "why" in row:
        return f"| {name} | {row['why']} | | | | | | | | |"
    at = row["shares"]
    bits = ["yes" if at[str(s)]["bits"] else "**no**" for s in SHARES]
    why = [fallback for s in SHARES for fallback in at[str(s)]["fallbacks"]]
    if why:
        bits = [
            f"{b} (in eager)" if at[str(s)]["fallbacks"] else b for b, s in zip(bits, SHARES, strict=True)
        ]
    megabytes = " -> ".join(
        f"{b / 1e6:.2f}" for b in (row["keep_bytes"], *(at[str(s)]["pool_bytes"] for s in SHARES))
    )
    cells = [name, str(row["calls"]), " / ".join(bits), megabytes]
    if why:
        return f"| {' | '.join(cells)} | | | | | | |"
    gap = max(at[str(s)]["pool_bytes"] - at[str(s)]["highest_byte"] for s in SHARES)
    cells.append(str(sum(at[str(s)]["unplanned"] for s in SHARES)))
    cells.append("yes" if 0 <= gap < 256 else f"{gap} B below")
    cells.append(f"{least(row['samples']['keep']) / least(row['samples']['eager']):.2f}")
    cells.append(
        " / ".join(f"{least(at[str(s)]['samples']) / at[str(s)]['predicted_seconds']:.2f}" for s in SHARES)
    )
    hidden = [statistics.median(at[str(s)]["hidden"]) for s in SHARES if at[str(s)]["hidden"]]
    cells.append(" / ".join(f"{h:.0%}" for h in hidden) or "-")
    cells.append(" / ".join(f"{at[str(s)]['tune_seconds']:.1f}" for s in SHARES))
    return f"| {' | '.join(cells)} |"


def least(samples: list[float]) -> float:
    """Smallest sample: other work on the machine only adds time."""
    return min(samples)


HEADER = """| network | calls | bits equal (f .4 / .1) | pool: all kept -> f .4 -> f .1, MB | unplanned | peak = pool | \
all kept / eager, time | measured / predicted (f .4 / .1) | copies hidden | `tune`, s (f .4 / .1) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def machine() -> str:
    """The machine and the commit of the numbers."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False
    ).stdout.strip()
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return (
        f"{model}, {os.cpu_count()} cores (load {load:.1f}), {torch.get_num_threads()} thread, torch {torch.__version__}, "
        f"Python {platform.python_version()}, commit {commit or 'unknown'}"
    )


def named(parts: list[str] | None, networks: Iterable[str]) -> list[str]:
    """Networks whose names contain one of these parts; all without any. Ends the program if a part is in no name."""
    names = list(networks)
    for part in parts or []:
        if not any(part in name for name in names):
            raise SystemExit(f"no network's name contains `{part}`; there are {', '.join(names)}")
    return [name for name in names if not parts or any(part in name for part in parts)]


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="networks whose name contains this")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of looking for each plan")
    parser.add_argument("--write", action="store_true", help="write README.md's table and samples.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger("plimsoll").setLevel(logging.ERROR)
    samples_file, readme = HERE / "samples.json", HERE / "README.md"
    rows: dict[str, Any] = json.loads(samples_file.read_text()) if samples_file.exists() else {}
    print(HEADER, flush=True)
    for name in named(arguments.only, NETWORKS):
        try:
            rows[name] = measure(name, arguments.runs, arguments.seconds)
        except ImportError as missing:
            rows[name] = {"why": f"not measured: {missing.name} is not installed"}
        except plimsoll.Refused as refused:
            rows[name] = {"why": f"refused: {refused}"}
        rows[name]["machine"] = machine()
        print(row_of(name, rows[name]), flush=True)
    if arguments.write:
        samples_file.write_text(json.dumps(rows, indent=1) + "\n")
        table = "\n".join([HEADER, *(row_of(name, rows[name]) for name in NETWORKS if name in rows)])
        places = [LOAD.sub("", row["machine"]).rsplit(", commit ", 1) for row in rows.values()]
        machines, commits = (sorted(set(of)) for of in zip(*places, strict=True))
        loads = [float(LOAD.search(row["machine"])[1]) for row in rows.values()]
        where, which = "; ".join(machines), ", ".join(commits)
        said = f"Measured on {where} (commits {which}), with a load of {min(loads)} to {max(loads)} by all that ran there."
        text = readme.read_text()
        before, rest = text.split(BEGIN)
        _, after = rest.split(END)
        readme.write_text(f"{before}{BEGIN}\n{said}\n\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()
