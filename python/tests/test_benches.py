"""The bench runs, small, so that it does not rot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

BENCHES = Path(__file__).parents[1] / "benches"


def test_the_bench_writes_its_table(tmp_path):
    for file in BENCHES.glob("*.[pm][yd]"):
        shutil.copy(file, tmp_path)
    command = [sys.executable, "steps.py", "--only", "MLP", "--only", "LSTM", "--runs", "2", "--write"]
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([*command, "--seconds", "1"], cwd=tmp_path, env=environment, check=True, timeout=300)
    rows = [
        line.split(" | ")
        for line in (tmp_path / "README.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    mlp = next(row for row in rows if row[0] == "| MLP")
    assert mlp[2] == "yes / yes"
    assert mlp[4:6] == ["0", "yes"]
    lstm = next(row for row in rows if "LSTM" in row[0])
    assert lstm[2] == "yes (in eager) / yes (in eager)"
    assert (tmp_path / "samples.json").exists()
