"""Steps on a GPU, on stand-ins of CUDA's driver and runtime: everything but the kernels runs (`runtime/steps.py`,
`runtime/graphs.py`).

Needs a torch that is built with CUDA, no GPU, a C compiler, and the stand-in of the driver, which `test.sh` builds and
names in the environment variable PLIMSOLL_STANDIN.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plimsoll import native

HERE = Path(__file__).parent
STANDIN = os.environ.get("PLIMSOLL_STANDIN", "")


def why_not():
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if torch.cuda.is_available():
        return "there is a GPU"
    if shutil.which("cc") is None:
        return "there is no C compiler"
    if not Path(STANDIN).is_file():
        return (
            "PLIMSOLL_STANDIN names no stand-in of the driver (`cargo build --release -p plimsoll-standin`)"
        )
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The runtime's stand-in, built and loaded before PyTorch; the driver's, on Plimsoll's search path."""
    folder = tmp_path_factory.mktemp("runtime")
    library = folder / "runtime.so"
    headers = native.cuda_headers(Path(torch.__file__).parent)
    command = ["cc", "-O1", "-shared", "-fPIC", f"-I{headers}", f"-I{native.FOLDER}"]
    subprocess.run([*command, HERE / "runtime/runtime.c", "-o", library, "-ldl"], check=True)
    for name, target in (("driver", Path(STANDIN)), ("torch", library)):
        (folder / name).mkdir()
        (folder / name / "libcuda.so.1").symlink_to(target.resolve())
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(folder / "torch"),
        "PLIMSOLL_CUDA_LIBRARIES": str(folder / "driver"),
    }


def run(environment, tmp_path, *arguments, of="steps", **more):
    command = [sys.executable, HERE / f"runtime/{of}.py", *arguments]
    settings = {**environment, **more}
    done = subprocess.run(
        command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr


@pytest.mark.parametrize("networks", [("gpt", "gpt_bf16"), ("attention_dropout", "resnet18")])
def test_what_is_allocated_copied_and_drawn_is_as_planned(environment, tmp_path, networks):
    run(environment, tmp_path, "planned", *networks)


@pytest.mark.parametrize(
    "network",
    [
        "attention_dropout",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt", "gpt_bf16", "resnet18")),
    ],
)
def test_a_recording_in_pieces_is_the_recording_of_a_whole_step(environment, tmp_path, network):
    run(environment, tmp_path, "in_pieces", network)


def test_a_driver_that_is_too_old_is_told_so(environment, tmp_path):
    run(environment, tmp_path, "old_driver", PLIMSOLL_CUDA_LIBRARIES=environment["LD_LIBRARY_PATH"])


@pytest.mark.parametrize("what", ["life", "ended_early+compared", "refused", "asked"])
def test_on_a_gpu_that_computes_nothing(environment, tmp_path, what):
    run(environment, tmp_path, what)


@pytest.mark.parametrize(
    "visible, total, name",
    [
        pytest.param("GPU-5ca1ab1e", 4, "Plimsoll stand-in, ", marks=pytest.mark.slow),
        ("MIG-5ca1ab1e-0000-4000-8000-000000000002", 1, "Plimsoll stand-in MIG 1g.1gb, "),
    ],
)
def test_a_gpu_and_a_slice_by_name(environment, tmp_path, visible, total, name):
    run(environment, tmp_path, "named", str(total), name, CUDA_VISIBLE_DEVICES=visible)


@pytest.mark.parametrize("what", ["launched+waits+moves", "refused+forbidden"])
def test_a_step_as_one_graph(environment, tmp_path, what):
    run(environment, tmp_path, what, of="graphs")


def test_between_steps_the_pool_is_lent_and_comes_back(environment, tmp_path):
    run(environment, tmp_path, "lent")


def test_what_an_optimizer_keeps_does_not_lie_in_the_pool(environment, tmp_path):
    run(environment, tmp_path, "lent_after_the_optimizer")


def test_what_the_host_page_locks_is_measured_and_the_plan_recomputes_the_rest(environment, tmp_path):
    run(environment, tmp_path, "host_is_short", PLIMSOLL_STANDIN_PINNED=str(9 << 20))


@pytest.mark.slow
def test_a_host_that_refuses_once_is_asked_again(environment, tmp_path):
    run(environment, tmp_path, "host_refuses_once", PLIMSOLL_STANDIN_ANSWER="cuMemHostRegister_v2:0:2")


def test_a_batch_that_no_plan_runs_has_the_memory_of_the_plan(environment, tmp_path):
    run(environment, tmp_path, "in_eager")


def test_calls_of_a_graph_are_timed_in_graphs(environment, tmp_path):
    run(environment, tmp_path, "timed", of="graphs")


def test_another_allocator_is_refused(environment, tmp_path):
    run(environment, tmp_path, "other_allocator", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
