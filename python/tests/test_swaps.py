"""Swapping on CUDA's streams, on the stand-in of the driver: the values that Python and Rust exchange.

The orders of waits are tested in Rust (`tools/standin/tests/swaps.rs`). Needs no CUDA in torch; `test.sh` builds the
stand-in and names it in the environment variable PLIMSOLL_STANDIN.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import plimsoll
from plimsoll import _core

STANDIN = os.environ.get("PLIMSOLL_STANDIN", "")

needs_standin = pytest.mark.skipif(
    not Path(STANDIN).is_file(), reason="PLIMSOLL_STANDIN names no stand-in of the driver"
)

BEGIN = """
import ctypes, os, torch
import plimsoll
from plimsoll import _core, errors
from networks import build, budget_at

def raised(kind, work):
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError("it ran")
"""


def run(tmp_path, script, **more):
    """Runs a script in a process that finds the stand-in in the driver's place."""
    (tmp_path / "libcuda.so.1").symlink_to(Path(STANDIN).resolve())
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent / "benches"), *sys.path])
    environment = {**os.environ, "PLIMSOLL_CUDA_LIBRARIES": str(tmp_path), "PYTHONPATH": path, **more}
    subprocess.run([sys.executable, "-c", BEGIN + script], env=environment, check=True, timeout=120)


@needs_standin
def test_a_schedule_is_enqueued_and_timed(tmp_path):
    run(
        tmp_path,
        """
task = build("convolutions")
trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
schedule = plimsoll.plan(trace, budget_at(0.1, task, None), "20GB/s")
streams = _core.SwapStreams(0)
offload, prefetch, _ = streams.link(1 << 20)
assert offload > 0 and prefetch > 0
driver = ctypes.CDLL(os.environ["PLIMSOLL_CUDA_LIBRARIES"] + "/libcuda.so.1")
pool = ctypes.c_uint64()
assert driver.cuMemAlloc_v2(ctypes.byref(pool), ctypes.c_size_t(schedule.pool_bytes)) == 0
slab = streams.pinned(schedule.host_bytes)
assert slab.address > 0 and slab.bytes == schedule.host_bytes > 0
transfers = schedule.cuda_transfers(streams, pool.value, slab)
assert len(transfers) > 0 and transfers.spans() == ([], [], [])
for is_timed in (False, True, False):
    transfers.start(is_timed, 0)
    for compute in schedule.computes():
        transfers.wait(compute.offloads, compute.prefetches)
        transfers.began()
        transfers.computed()
    transfers.finish()
    computes, out, back = transfers.spans()
    if is_timed:
        assert len(computes) == len(schedule.computes()) and len(out) + len(back) == len(transfers)
        assert all(0 <= start <= end for start, end in computes + out + back)
assert transfers.copying_seconds > 0 and transfers.stalled_seconds >= 0
transfers.start(True, 0)
transfers.computed()
transfers.abort()
transfers.finish()
too_small = streams.pinned(256)
said = raised(errors.BadInput, lambda: schedule.cuda_transfers(streams, pool.value, too_small))
assert "are page-locked" in said
""",
    )


@needs_standin
def test_memory_that_is_not_page_locked_is_an_error_of_memory(tmp_path):
    run(
        tmp_path,
        """
streams = _core.SwapStreams(0)
said = raised(errors.HostMemoryError, lambda: streams.pinned(4096))
assert "pinned host memory" in said
assert issubclass(errors.HostMemoryError, MemoryError) and issubclass(errors.HostMemoryError, errors.DeviceError)
assert streams.pinned(4096).bytes == 4096
said = raised(errors.HostMemoryError, lambda: streams.pinned(1 << 60))
""",
        PLIMSOLL_STANDIN_ANSWER="cuMemHostRegister_v2:0:2",
    )


@needs_standin
def test_a_gpu_that_is_not_there_is_told_so(tmp_path):
    run(
        tmp_path,
        """assert "the only one is cuda:0" in raised(errors.DeviceError, lambda: _core.SwapStreams(7))""",
    )


def test_the_host_says_what_is_available():
    assert _core.available_host_bytes() > 1 << 20


@needs_standin
@pytest.mark.parametrize("is_shared", [False, True])
def test_whether_both_ways_share_the_link_is_measured(tmp_path, is_shared):
    run(
        tmp_path,
        f"""
driver = ctypes.CDLL(os.environ["PLIMSOLL_CUDA_LIBRARIES"] + "/libcuda.so.1")
driver.plimsoll_standin_link(ctypes.c_uint64(64 << 20), ctypes.c_bool({is_shared}))  # a copy takes 64 ms
link = plimsoll.Link(*_core.SwapStreams(0).link(4 << 20))
assert link.half_duplex == {is_shared}, link
assert all(32 << 20 < rate < 65 << 20 for rate in link.rates[:2]), link
assert ("one way at a time" in str(link)) == {is_shared}
""",
    )


def test_on_a_link_of_one_way_at_a_time_no_copies_overlap():
    from networks import budget_at, build

    task = build("convolutions")
    link = plimsoll.Link(2e8, 2e8, half_duplex=True)
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
    schedule = plimsoll.plan(trace, budget_at(0.1, task, None), link)
    assert json.loads(schedule.to_json())["link"]["duplex"] == "half"
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], schedule.budget_bytes, link, verify=1)
    assert "one way at a time" in step.explain()
    for batch in task.batches:
        task.model.zero_grad()
        step(*batch)
    assert step.fallback is None and step.program.schedule.prefetched_bytes > 0
    _, out, back = step.program.spans
    assert out and back
    assert all(a[1] <= b[0] or b[1] <= a[0] for a in out for b in back)
