"""A step next to other code of the process: allocators of other libraries, Ctrl-C, a fork, devices that it does not run on."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

import plimsoll
from plimsoll import devices, native

ALLOCATOR = """
#include <c10/core/CPUAllocator.h>
static c10::Allocator* theirs;
static int64_t count = 0;
struct Counting final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { count++; return theirs->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return theirs->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { theirs->copy_data(to, from, bytes); }
};
extern "C" void install() {
  theirs = c10::GetCPUAllocator();
  c10::SetCPUAllocator(new Counting, 100);
}
extern "C" int64_t counted() { return count; }
"""

HEAD = """
import ctypes, os, signal, sys, threading, time
import torch
from torch import nn
import plimsoll
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))
x = torch.randn(256, 64)
trained = [p for p in model.parameters()]

def loss(x):
    return model(x).square().mean()

def tuned():
    trace = plimsoll.trace(loss, model, x)
    budget = (trace.floor_bytes + trace.peak_bytes) // 2
    return plimsoll.tune(loss, model, None, x, budget, "20GB/s", seconds=0.5)

def check(step):
    model.zero_grad()
    planned, gradients = step(x), [p.grad.clone() for p in trained]
    model.zero_grad()
    eager = loss(x)
    eager.backward()
    assert torch.equal(planned, eager)
    assert all(map(torch.equal, gradients, (p.grad for p in trained)))

def run_out():
    try:
        torch.empty(1 << 50, dtype=torch.uint8)
    except RuntimeError:
        pass
"""


def run(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HEAD + code, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def other_allocator(tmp_path_factory):
    """A library that installs its allocator over PyTorch's."""
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("allocator")
    of = native.Torch.installed()
    (folder / "other.cpp").write_text(ALLOCATOR)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(of.has_new_strings)}"
    source, made = folder / "other.cpp", folder / "other.so"
    command = ["c++", f"-std={of.standard}", "-shared", "-fPIC", abi, f"-I{of.folder / 'include'}"]
    subprocess.run([*command, source, "-o", made, f"-L{of.folder / 'lib'}", "-lc10"], check=True)
    return made


@pytest.mark.slow
def test_an_allocator_that_was_there_first_serves_what_no_plan_has(other_allocator):
    run(
        """
other = ctypes.PyDLL(sys.argv[1])
other.install()
step = tuned()
check(step)
before = other.counted()
check(step)
assert step.fallback is None
assert other.counted() > before  # of eager
run_out()
assert step._memory.pool.is_lent
check(step)
assert step.fallback is None
""",
        other_allocator,
    )


def test_an_allocator_that_comes_later_is_refused_with_what_to_do(other_allocator):
    run(
        """
step = tuned()
check(step)
ctypes.PyDLL(sys.argv[1]).install()
model.zero_grad()
for work in (lambda: step(x), lambda: plimsoll.trace(loss, model, x)):
    try:
        work()
    except plimsoll.Refused as refused:
        assert "load that library first" in str(refused), refused
    else:
        raise AssertionError("it ran")
    assert all(p.grad is None for p in trained)
loss(x).backward()  # eager goes on
""",
        other_allocator,
    )


def test_ctrl_c_inside_a_step_gives_its_memory_back_and_eager_goes_on():
    run(
        """
step = tuned()
check(step)
check(step)
model.zero_grad()
bound = step.program._steps[5]
func = bound.func

def slow(*arguments, **keywords):
    made = func(*arguments, **keywords)
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    time.sleep(5)
    return made

bound.func = slow
started = time.perf_counter()
try:
    step(x)
except KeyboardInterrupt:
    assert time.perf_counter() - started < 4
else:
    raise AssertionError("it ran to its end")
bound.func = func
assert all(p.grad is None for p in trained)
loss(x).backward()
run_out()
assert step._memory.pool.is_lent
check(step)
assert step.fallback is None
"""
    )


def test_a_forked_process_trains_on_with_a_pool_that_was_lent():
    run(
        """
step = tuned()
check(step)
run_out()
assert step._memory.pool.is_lent
child = os.fork()
if child == 0:
    # Eager's backward pass would want a thread that is not there in a forked process.
    model.zero_grad()
    step.verify(0)
    step(x)
    os._exit(0 if step.fallback is None and not step._memory.pool.is_lent else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
check(step)
"""
    )


def test_a_device_that_no_step_runs_on_is_named():
    with pytest.raises(plimsoll.BadInput, match="on the CPU and on GPUs by CUDA, not on `xpu`"):
        devices.on(torch.device("xpu"))
