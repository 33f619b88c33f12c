"""A small run of the bench, so that it does not rot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_bench_of_many_networks_writes_its_table(tmp_path):
    for file in BENCHES.glob("*.[pm][yd]"):
        shutil.copy(file, tmp_path)
    name = "torchvision: squeezenet1_1"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "wide.py", "--only", name, "--write"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    row = json.loads((tmp_path / "wide.json").read_text())[name]
    assert row["bits"]
    assert row["unplanned"] == 0
    assert f"| {name} | 0.4, 2, AdamW, f32, 20MB/s | {row['calls']} | yes |" in done.stdout
    assert "1 networks: 1 run by their plans with the bits of eager" in (tmp_path / "README.md").read_text()


@pytest.mark.slow  # sixteen times recording and planning
def test_the_bench_of_all_combinations_writes_its_table(tmp_path):
    for file in BENCHES.glob("*.[pm][yd]"):
        shutil.copy(file, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "matrix.py", "--only", "MLP", "--write"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    row = json.loads((tmp_path / "matrix.json").read_text())["MLP"]
    assert (row["of"], row["equal"], row["in_eager"], row["unplanned"]) == (16, 16, 0, 0)
    assert "| MLP | 16 | 16 | 0 | 0 |" in done.stdout
    assert "16 of 16 combinations leave the bits of eager" in (tmp_path / "README.md").read_text()


def test_gradients_of_recomputed_dropout_are_eagers_where_others_are_not(tmp_path):
    for file in BENCHES.glob("*.[pm][yd]"):
        shutil.copy(file, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "silent.py", "--write"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
    text = (tmp_path / "README.md").read_text()
    ours = [line.split(" | ") for line in text.splitlines() if line.startswith("| plimsoll | ")]
    # No plan for the whole batch takes 30 %: the lowest feasible share replaces it.
    lowest, *others = [int(row[1].rstrip("%")) for row in ours]
    assert 30 < lowest < 40 and others == [40, 50]
    for row in ours:
        assert int(row[2].split()[0]) > 0
        assert row[3:] == ["equal", "0 of 26", "0 |"]
    # PyTorch's results are measured, not checked.
    theirs = [line.split(" | ") for line in text.splitlines() if line.startswith("| `torch.compile`, `act")]
    assert [row[1] for row in theirs] == ["30%", "40%", "50%"]


@pytest.mark.parametrize(
    "command",
    [
        *("wide.py", "../accept.py"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("steps.py", "matrix.py")),
    ],
)
def test_a_network_that_is_not_there_is_told(command):
    path, environment = BENCHES / command, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, path, "--only", "nowhere"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no network's name contains `nowhere`" in done.stderr


@pytest.mark.slow  # two processes
def test_the_bench_of_reducing_prints_its_row():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, "reducing.py", "--runs", "2", "--batch", "2", "--budget", "100%"],
        cwd=BENCHES,
        env=environment,
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    row = next(line for line in ended.stdout.splitlines() if line.startswith("| loopback |"))
    cells = row.strip("| ").split(" | ")
    assert len(cells) == 6, row
    assert all(" ms (" in cell for cell in cells[1:4]), row
