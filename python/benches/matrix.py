"""Bits of planned steps compared with eager for every network of `rows.py`, at all combinations: two budgets, one and two
threads, SGD and AdamW, f32 and bf16 autocast, with the network's dropout on. Bits do not depend on the machine's other load.

python benches/matrix.py --write              # all networks; each row is kept at once
python benches/matrix.py --only MLP --write   # some of them
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from beside import eager_step, train
from rows import NETWORKS, Network
from steps import OPTIMIZERS, SHARES, build, machine, named

import plimsoll

HERE = Path(__file__).parent
BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"
LINK = {0.4: "20GB/s", 0.1: "20MB/s"}
"""On the fast link plans swap, on the slow one they recompute more."""

Optimizer = Callable[..., torch.optim.Optimizer]
BY_NAME: dict[str, Optimizer] = {"AdamW": OPTIMIZERS[0.4], "SGD": OPTIMIZERS[0.1]}
PRECISIONS = ("f32", "bf16")


def network_of(name: str, precision: str) -> Network:
    """The network with its loss in this precision."""
    network = build(name)
    if precision == "f32":
        return network
    loss = network.loss

    def cast(*batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(*batch)

    return Network(network.model, cast, network.batch)


def planned(name: str, precision: str, optimizer: Optimizer, share: float, seconds: float) -> dict[str, Any]:
    """Results of three steps by a plan, and the way in which they ran."""
    network = network_of(name, precision)
    rule = optimizer(network.model.parameters())
    trace = plimsoll.trace(network.loss, network.model, *network.batch, optimizer=rule)
    budget = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
    how = {"verify": 0, "seconds": seconds}
    step = plimsoll.tune(network.loss, network.model, rule, network.batch, budget, LINK[share], **how)
    fallbacks: set[str] = set()

    def checked(*batch: Any) -> torch.Tensor:
        loss = step(*batch)
        if step.fallback is not None:
            fallbacks.add(step.fallback)
        return loss

    left = train(network, rule, checked)
    counts = step.program.counts
    unplanned = 0 if counts is None else counts.unplanned + counts.unused
    return {"left": left, "in_eager": bool(fallbacks), "unplanned": unplanned}


def row(name: str, seconds: float) -> dict[str, Any]:
    """Number of combinations with the bits of eager, by a plan and in eager, and those without."""
    found: dict[str, Any] = {"equal": 0, "in_eager": 0, "unplanned": 0, "of": 0, "differ": [], "spread": []}
    for threads, precision, rule in itertools.product((1, 2), PRECISIONS, BY_NAME):
        torch.set_num_threads(threads)

        def eager(rule: str = rule, precision: str = precision) -> list[Any]:
            network = network_of(name, precision)
            return train(network, BY_NAME[rule](network.model.parameters()), eager_step(network))

        wanted = eager()
        for share in SHARES:
            got = planned(name, precision, BY_NAME[rule], share, seconds)
            combination = f"f {share}, {threads} threads, {rule}, {precision}"
            found["of"] += 1
            found["in_eager"] += got["in_eager"]
            found["unplanned"] += 0 if got["in_eager"] else got["unplanned"]
            if all(map(torch.equal, wanted, got["left"])):
                found["equal"] += 1
            elif all(map(torch.equal, wanted, eager())):
                found["differ"].append(combination)
            else:
                found["spread"].append(combination)
    return found


HEADER = """| network | combinations | bits equal | run in eager | unplanned |
| --- | --- | --- | --- | --- |"""


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    words = str(row["equal"])
    if row["differ"]:
        words += f"; **differ**: {'; '.join(row['differ'])}"
    if row["spread"]:
        words += f"; eager differs from eager: {'; '.join(row['spread'])}"
    unplanned = "" if row["in_eager"] == row["of"] else row["unplanned"]
    return f"| {name} | {row['of']} | {words} | {row['in_eager']} | {unplanned} |"


def write(rows: dict[str, Any], readme: Path) -> None:
    """Puts the table into the file."""
    done = [name for name in NETWORKS if name in rows]
    missing = [name for name in NETWORKS if name not in rows]
    equal, of = (sum(rows[name][key] for name in done) for key in ("equal", "of"))
    said = f"{equal} of {of} combinations leave the bits of eager. `python benches/matrix.py --write`; "
    said += "; ".join(sorted({rows[name]["machine"] for name in done})) + "."
    if missing:
        said += f" Not run yet: {', '.join(missing)}."
    said += " `matrix.json` has all networks; those that differ, or run in eager:"
    shown = [name for name in done if rows[name]["equal"] < rows[name]["of"] or rows[name]["in_eager"]]
    table = "\n".join([HEADER, *(line(name, rows[name]) for name in shown)])
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{said}\n\n{table}\n{END}{after}")


def main() -> None:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="networks whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.5, help="of looking for each plan")
    parser.add_argument("--write", action="store_true", help="write README.md's summary and matrix.json")
    arguments = parser.parse_args()
    logging.getLogger("plimsoll").setLevel(logging.ERROR)
    file, readme = HERE / "matrix.json", HERE / "README.md"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    print(HEADER, flush=True)
    for name in named(arguments.only, NETWORKS):
        try:
            rows[name] = row(name, arguments.seconds)
        except ImportError as missing:
            print(f"{name}: {missing.name} is not installed", flush=True)
            continue
        where = machine().partition(" (load")[0]
        rows[name]["machine"] = f"{where}, torch {torch.__version__}"
        print(line(name, rows[name]), flush=True)
        if arguments.write:
            file.write_text(json.dumps(rows, indent=1) + "\n")
            write(rows, readme)


if __name__ == "__main__":
    main()
