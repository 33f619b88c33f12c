"""Acceptance of planned steps on a GPU: bits, memory, time, and the best alternatives of PyTorch's users.

    python3 accept.py                       # the rows that matter most, in 12 minutes at most
    python3 accept.py facts bits            # some sections; all but `facts bits curve` run only when they are named
    python3 accept.py --small --device cpu  # tiny sizes on the CPU: does everything run?
    python3 accept.py --table rows.jsonl    # the table of `benches/README.md`, of the rows of one run or of several

It needs the wheel of plimsoll, torch, torchvision, a C++ compiler and the folder `benches` next to it, and no network. Each
row is a JSON object on a separate line, printed and appended to `$OUT/python-accept.jsonl` at once. Each network runs in a
separate process for a limited time. A failure, a hang or a lack of memory there becomes a row, and a further process runs
the rest of the network; a rival's failure does not change the exit code. All sections but `facts` and `bits` run with
`expandable_segments:True`. The driver's count of memory needs nvidia-ml-py, and some rivals need torchao, transformers or
accelerate: without them, rows give the reason why something was not measured.

Exit codes: 0 all was run and all bits were equal, 1 a row failed or was cut, 6 a bit differed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEGUN = time.monotonic()
HERE = Path(__file__).resolve().parent
# `plimsoll` must be the wheel's, not the folder of its sources next to this file.
sys.path[:] = [str(HERE / "benches"), *(path for path in sys.path if Path(path).resolve() != HERE)]

from acceptance.processes import asked, read  # noqa: E402
from acceptance.sections import SECONDS, SECTIONS, USUAL  # noqa: E402
from acceptance.table import table  # noqa: E402

SLOWER = 4
"""Factor of the seconds for small networks, since they also run on slower machines."""


def parsed() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sections", nargs="*", help=f"of {', '.join(SECTIONS)}; without any: {', '.join(USUAL)}"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--only", help="networks whose name contains this")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all sections together")
    parser.add_argument(
        "--known", type=Path, nargs="+", default=[], metavar="ROWS", help="rows of other runs, for verdicts"
    )
    parser.add_argument(
        "--plain-segments", action="store_true", help="leave PyTorch's allocator at its defaults"
    )
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="ROWS", help="print the table of these rows, and run nothing"
    )
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser, parser.parse_args()


def main() -> int:
    """Runs sections."""
    parser, arguments = parsed()
    if arguments.child:
        from acceptance.measures import child

        section, network, *files = arguments.child
        left = arguments.seconds - (time.monotonic() - BEGUN)  # importing PyTorch takes seconds
        child(section, network, arguments.device, arguments.small, left, files)
        return 0
    missing = [path for path in (arguments.table or []) + arguments.known if not path.is_file()]
    if missing:
        parser.error(f"there is no file {missing[0]}: give the rows of a run, `python-accept.jsonl`")
    if arguments.table:
        print(table([row for path in arguments.table for row in read(path)]))
        return 0
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section is called {', '.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    networks = {network for name in arguments.sections or USUAL for network in SECTIONS[name].networks}
    if arguments.only and not any(arguments.only in network for network in networks):
        parser.error(
            f"no network's name contains `{arguments.only}`: there are {', '.join(sorted(networks))}"
        )
    return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Runs each network of each section, and writes the rows; returns the exit code."""
    out = Path(os.environ.get("OUT", ".")) / "python-accept.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    end, code = time.monotonic() + arguments.seconds, 0

    def keep(row: dict[str, Any]) -> None:
        nonlocal code
        if row.get("bits_equal") is False and row.get("eager_repeats", True) and row.get("arm") != "eager":
            code = 6
        if "error" in row:
            code = code or 1
        line = json.dumps(row)
        print(line, flush=True)
        with out.open("a") as file:
            file.write(line + "\n")

    for name in arguments.sections or USUAL:
        for network in SECTIONS[name].networks:
            if arguments.only and arguments.only not in network:
                continue

            def command(seconds: float, done: str, name: str = name, network: str = network) -> list[str]:
                more = ["--small"] if arguments.small else []
                more += ["--device", arguments.device, "--seconds", str(seconds)]
                files = [done, str(out), *map(str, arguments.known)]
                return [sys.executable, __file__, *more, "--child", name, network, *files]

            left = end - time.monotonic()
            limit = min(SECTIONS[name].seconds * (SLOWER if arguments.small else 1), left)
            wrong = "cut: the time for all sections is over"
            if left > 0:
                wrong = asked(name, network, command, limit, keep, not arguments.plain_segments)
            if wrong:
                keep({"section": name, "network": network, "error": wrong})
    return code


if __name__ == "__main__":
    sys.exit(main())
