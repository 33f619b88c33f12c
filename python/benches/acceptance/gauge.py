"""The clock and the memory of a device, and a step's use of both."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from .tasks import Task

WARM, RUNS = 2, 7
"""Steps that warm up, and steps that are timed."""

LEAST_RUNS, ENOUGH_SECONDS = 3, 6.0
"""Long steps are timed less often: no more after this many seconds, once there are this many."""


class Gauge:
    """The clock and the memory of a device."""

    def __init__(self, device: str) -> None:
        self.is_cuda = torch.device(device).type == "cuda"
        self._cuda = torch.cuda

    def clock(self) -> float:
        """Time in seconds after all enqueued work has ended."""
        if self.is_cuda:
            self._cuda.synchronize()
        return time.perf_counter()

    def reset(self) -> None:
        """Resets the peaks."""
        if self.is_cuda:
            self._cuda.empty_cache()
            self._cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int]:
        """Most bytes that PyTorch's allocator has allocated, and reserved; empty on the CPU, where it has no count."""
        if not self.is_cuda:
            return {}
        return {
            "peak_bytes": self._cuda.max_memory_allocated(),
            "reserved_bytes": self._cuda.max_memory_reserved(),
        }

    def ooms(self) -> int | None:
        """Number of times that PyTorch's allocator has run out of memory; `None` on the CPU, where it has no count."""
        return self._cuda.memory_stats().get("num_ooms", 0) if self.is_cuda else None

    def driver(self) -> dict[str, Any]:
        """The driver's current count for this process, or for the whole device if it does not tell processes apart."""
        if not self.is_cuda:
            return {"driver": "not measured: no GPU"}
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = self._cuda.get_device_properties(self._cuda.current_device()).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return {"driver_bytes": process.usedGpuMemory, "driver": "this process"}
            return {"driver_bytes": self._cuda.device_memory_used(), "driver": "whole device"}
        except Exception as error:  # NVML is missing, or denied, in many ways
            return {"driver": f"not measured: {type(error).__name__}: {error}"}


@functools.cache
def context(device: str) -> dict[str, Any]:
    """The driver's count before PyTorch has allocated anything, at the first call: CUDA's context."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return Gauge(device).driver()


def plan_seconds(small: bool) -> float:
    """Seconds of the search for each plan."""
    return 1.0 if small else 5.0


def measured(gauge: Gauge, task: Task, step: Callable[..., Any], optimizer: Any = None) -> dict[str, Any]:
    """Median time of some steps, including the optimizer's update if there is one, and their peak.

    The first step is listed separately: some compile in it. The driver is asked after each step: the allocator keeps memory
    from it until the next reset.
    """
    samples, counts = [], []
    for number in range(WARM + RUNS):
        task.model.zero_grad()
        if number == WARM:
            gauge.reset()
        start = gauge.clock()
        step(*task.batch)
        if optimizer is not None:
            optimizer.step()
        samples.append(gauge.clock() - start)
        if number >= WARM:
            counts.append(gauge.driver())
            if len(counts) >= LEAST_RUNS and sum(samples[WARM:]) > ENOUGH_SECONDS:
                break
    driver = max(counts, key=lambda count: count.get("driver_bytes", 0))
    times = samples[WARM:]
    return {
        "seconds": statistics.median(times),
        "first_seconds": samples[0],
        "samples": times,
        **gauge.peaks(),
        **driver,
    }
