"""Each example runs as its first lines say, and prints its results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHOWN = {
    "accelerated": ["batch 8: loss ", "peak "],
    "accumulation": ["update 4: loss ", "peak "],
    "command_line": ["verdict   valid", "lower bound "],
    "ddp": ["rank 0: loss ", "rank 1: loss "],
    "fine_tuning": ["step 6: loss ", "floor ", "plan.pickle"],
    "kernels": ["step 2: loss ", "Softsign_backward", "fallback: None"],
    "hugging_face": ["8 steps, loss "],
    "lightning_module": ["8 steps, loss "],
    "limits": ["step 3: loss ", "in pieces: "],
    "fits": ["batch 256 fits in 24 GiB", "batch 256 does not fit in 1 GiB", "largest batch "],
    "own_model": ["loss ", "batch 64, lr unchanged, peak ", "eager's peak ", "floor "],
    "sequences": ["length 20: loss ", "length 127: loss "],
    "suggest": ["measured ", "plimsoll.tune("],
}


def test_every_example_is_run():
    # `digits` takes a minute, and runs after the tests.
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN, "digits"}


NEEDS = {"accelerated": "accelerate", "hugging_face": "transformers", "lightning_module": "lightning"}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    file = str(EXAMPLES / f"{name}.py")
    command = [sys.executable, file]
    if name == "ddp":
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            file,
        ]
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    alone = os.environ | {"OMP_NUM_THREADS": "1", "PATH": programs}  # other tests run at the same time
    # The program reads variables that begin with its name as options.
    alone = {name: value for name, value in alone.items() if not name.startswith("PLIMSOLL_")}
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for words in SHOWN[name]:
        assert words in done.stdout, done.stdout
