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


def test_two_processes_leave_the_bits_of_eager_refuse_sharded_models_and_recommend_one_batch():
    # One start for all: it takes seconds.
    run(2, "buffers", "accumulated", "refused", "sharded", "agreed", "short", "middle", "batch", "exchanged")


def test_ranks_whose_communication_hook_waits_for_the_others_do_not_wait_for_each_other():
    run(2, "unlike", "either", "gone, waiting")


def test_what_ends_a_step_on_one_rank_of_three_ends_it_on_all():
    run(3, "agreed", "short", "middle", "middle, waiting", "gone")


@pytest.mark.slow
def test_views_unused_parameters_and_communication_hooks():
    run(2, "views", "unused", "hook", "waiting", "updating", "doubled")


@pytest.mark.slow
def test_the_trainer_of_transformers():
    pytest.importorskip("transformers", reason="transformers is not installed")
    run(2, "trainer")


@pytest.mark.slow
def test_of_three_processes_the_order_of_sums_is_eager_s():
    run(3, "buffers", "accumulated")
