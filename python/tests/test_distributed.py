"""DDP under torchrun: the bits of eager DDP, on two processes of this machine and on three."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("ddp_worker.py")

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)


def run(processes, *cases):
    benches = WORKER.parents[1] / "benches"
    path = os.pathsep.join([str(WORKER.parent), str(benches), *sys.path])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, str(WORKER), *cases], env=environment, timeout=500, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize("processes", [2, 3])
def test_what_ends_a_step_on_one_rank_ends_it_on_all(processes):
    run(processes, "agreed", "short")


def test_ranks_with_budgets_of_their_own_recommend_one_batch():
    run(2, "batch")


def test_two_processes_leave_the_bits_of_eager_ddp():
    run(2, "buffers", "accumulated", "refused")


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sharded_models_swap_by_hooks_with_the_bits_of_eager(processes):
    run(processes, "sharded")


@pytest.mark.slow
def test_views_unused_parameters_and_communication_hooks():
    run(2, "views", "unused", "hook")


@pytest.mark.slow
def test_the_trainer_of_transformers():
    pytest.importorskip("transformers", reason="transformers is not installed")
    run(2, "trainer")


@pytest.mark.slow
def test_of_three_processes_the_order_of_sums_is_eager_s():
    run(3, "buffers", "accumulated")
