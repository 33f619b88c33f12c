"""Steps on a GPU by CUDA: ops on PyTorch's current stream, copies on two further streams, page-locked host memory.

It has never run on a GPU: see `docs/pytorch/gpu.md`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import _core, allocator
from ..errors import BadInput, Refused
from ..link import Link
from ..tape import aligned
from ..torch_private import cuda_sleep, float32_precision
from .device import Device, HostSlab, Stopwatch, Transfers
from .graphs import Graphs

logger = logging.getLogger("plimsoll")

SLEEP_CYCLES = 400_000
"""About 200 us of sleep on the GPU before a timed call, so that the call is enqueued by the time it begins."""

LINK_SAMPLE_BYTES = 64 << 20

MOST_CAPTURED_BYTES = 256 << 20
"""While calls are timed in graphs, at most this much memory of the GPU may be held unused."""

HOST_SHARE = 0.8
"""Share of the host's available memory that is page-locked by default."""

ROUNDING = 512
"""Granularity to which PyTorch's allocator rounds up."""


class CudaSlab(HostSlab):
    """Page-locked memory of exactly its size."""

    def __init__(self, device: Cuda) -> None:
        self._device = device
        self.slab: _core.PinnedSlab | None = None
        self.size = 0
        self.generation = 0

    def take(self, size: int) -> None:
        """Page-locks."""
        self.slab = self._device.swap_streams().pinned(size)

    def give_back(self) -> None:
        """Releases it; it is freed with the last transfers that use it."""
        self.slab = None
        self.size = 0
        self.generation += 1

    @property
    def address(self) -> int:
        """Address of its first byte."""
        return 0 if self.slab is None else self.slab.address


class Cuda(Device):
    """One GPU."""

    allocator = allocator.CUDA
    calibrates = False
    counts_all = True

    def __init__(self, where: torch.device) -> None:
        self.where = where
        self.graphs: Graphs = Graphs(where)
        self._streams: _core.SwapStreams | None = None
        self._known_users: set[tuple[int, int]] = set()
        self._free_at_most = 0

    def swap_streams(self) -> _core.SwapStreams:
        """The two streams for copies, on PyTorch's context."""
        if self._streams is None:
            self._streams = _core.SwapStreams(self.where.index)
        return self._streams

    def prepare(self) -> None:
        """Installs Plimsoll's allocator in front of PyTorch's, and has libraries allocate their
        workspaces now, outside of any plan."""
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise BadInput(
                f"PyTorch's CUDA allocator is `{backend}`, and Plimsoll plans for the native one: leave `backend` out of "
                "PYTORCH_CUDA_ALLOC_CONF, and install no other allocator (RMM's, say) for PyTorch"
            )
        if torch.cuda.is_current_stream_capturing():
            raise Refused(
                "the stream is captured as a CUDA graph; call the step outside of `torch.cuda.graph`"
            )
        loaded = self.allocator.installed()
        loaded.plimsoll_device(self.where.index)
        self.graphs.prepare()
        thread = threading.get_ident()
        for stream in (torch.cuda.current_stream(self.where), self.graphs.stream):
            if (thread, stream.cuda_stream) not in self._known_users:
                self._take_workspaces(stream)
                self._known_users.add((thread, stream.cuda_stream))

    def _take_workspaces(self, stream: torch.cuda.Stream) -> None:
        """Runs the first products of a thread on a stream: in torch 2.11 (no longer in 2.15), cuBLAS keeps a workspace for each
        such pair, of 32 MiB on a Hopper, and allocates it at first use."""
        with torch.cuda.stream(stream), torch.no_grad(), torch.autocast("cuda", enabled=False):
            square = torch.zeros(16, 16, device=self.where)
            torch.addmm(square[0], square, square)
            torch.mm(square, square)

    def default_generator(self) -> torch.Generator:
        """Returns the GPU's generator."""
        return torch.cuda.default_generators[self.where.index]

    def settings(self) -> tuple[object, ...]:
        """Autocast, precision, the choice of kernels, and the stream: libraries have a workspace for each. A step
        within a graph capture is never planned."""
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        return (
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            float32_precision(),
            (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
            (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
            cuda.cudnn_sdp_enabled(),
            self.stream(),
            torch.cuda.is_current_stream_capturing(),
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context with autocast off, and this GPU current."""
        self.prepare()
        with torch.cuda.device(self.where), torch.autocast("cuda", enabled=False):
            yield

    def comparable(self) -> contextlib.AbstractContextManager[None]:
        """Runs the backward pass in this thread: cuBLAS and cuDNN choose kernels by handles, and each thread has its own."""
        return torch.autograd.set_multithreading_enabled(False)

    def synchronise(self) -> None:
        """Waits for all streams of the GPU."""
        torch.cuda.synchronize(self.where)

    def run(self, func: Any, args: Any, kwargs: Any, reads_on_host: bool) -> tuple[Any, Stopwatch]:
        """Runs an op. Its time is measured between events on a GPU that does not wait for the host; if the host
        reads the result, the time is the host's."""
        if reads_on_host:
            start = self.clock()
            out = func(*args, **kwargs)
            return out, time.perf_counter() - start
        stream = torch.cuda.current_stream(self.where)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cuda_sleep(SLEEP_CYCLES)
        begin.record(stream)
        start = time.perf_counter()
        out = func(*args, **kwargs)
        host = time.perf_counter() - start
        end.record(stream)
        return out, (begin, end, host)

    def seconds(self, watches: list[Stopwatch]) -> list[float]:
        """The GPU's time of each call. If the host takes longer for all calls than the GPU, each call takes the longer of both
        times: the GPU then waits for the host."""
        self.synchronise()
        on_gpu, on_host = [], []
        for watch in watches:
            if isinstance(watch, float):
                on_gpu.append(watch)
                on_host.append(watch)
            elif isinstance(watch, tuple):
                begin, end, host = watch
                on_gpu.append(begin.elapsed_time(end) / 1e3)
                on_host.append(host)
        if sum(on_host) <= sum(on_gpu):
            return on_gpu
        return [max(pair) for pair in zip(on_gpu, on_host, strict=True)]

    def seconds_in_graph(
        self, work: Callable[[], object], generators: Iterable[torch.Generator]
    ) -> float | None:
        """Time between events inside a captured graph, where nothing waits for the host; the shortest of a few launches."""
        seconds = self.graphs.seconds(work, generators)
        # Each capture has private memory, which nothing else uses before it is released.
        if self._free_at_most - self._free() > MOST_CAPTURED_BYTES:
            self.trim()
            self._free_at_most = 0
        self._free_at_most = max(self._free_at_most, self._free())
        return seconds

    def _free(self) -> int:
        return int(torch.cuda.mem_get_info(self.where)[0])

    def measure_link(self) -> Link:
        """Measures copies between page-locked memory and the GPU, each way alone and both at once."""
        link = Link(*self.swap_streams().link(LINK_SAMPLE_BYTES))
        if link.half_duplex:
            logger.info("the link copies one way at a time: %s", link)
        return link

    def host_limit(self) -> int | None:
        """Most of the system's available memory. The driver may page-lock less, which shows when it is asked."""
        available = _core.available_host_bytes()
        return None if available is None else int(HOST_SHARE * available)

    def pinnable(self, size: int) -> int:
        """Bytes that the driver page-locks, found by trying; it takes a second for some gigabytes, which are released again."""
        return self.swap_streams().pinnable(size)

    def host_slab(self) -> HostSlab:
        """Returns a slab of page-locked memory."""
        return CudaSlab(self)

    def transfers(self, schedule: _core.Schedule, pool: int, host: HostSlab) -> Transfers:
        """Returns copies on the two streams."""
        assert isinstance(host, CudaSlab)
        streams = self.swap_streams()
        return schedule.cuda_transfers(streams, pool, host.slab or streams.pinned(0))

    def stream(self) -> int:
        """Handle of PyTorch's current stream."""
        return torch.cuda.current_stream(self.where).cuda_stream

    def trim(self) -> None:
        """Empties the allocator's cache."""
        torch.cuda.empty_cache()

    def held_bytes(self, known: Iterable[torch.Tensor], counted: int) -> int:
        """Workspaces of libraries, batches, other models: the budget covers all that PyTorch's allocator has allocated."""
        gc.collect()  # programs are reference cycles: an earlier step's memory is free only after this
        storages = {s.data_ptr(): s.nbytes() for s in map(torch.Tensor.untyped_storage, known)}
        taken = sum(-(-size // ROUNDING) * ROUNDING for size in storages.values())
        return max(0, torch.cuda.memory_allocated(self.where) - taken - counted)

    def undo_bytes(self, updated: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> int:
        """Bytes of these copies, which lie on the GPU."""
        return sum(aligned(t.untyped_storage().nbytes()) for t in (*updated, *gradients))

    def living_in(self, address: int, size: int) -> list[tuple[int, int]]:
        """The blocks of PyTorch's allocator that are in use there."""
        found = []
        for segment in torch.cuda.memory_snapshot():
            at = segment["address"]
            for block in segment["blocks"]:
                if (
                    block["state"] == "active_allocated"
                    and at < address + size
                    and address < at + block["size"]
                ):
                    found.append((at, block["size"]))
                at += block["size"]
        return found

    def free_bytes(self) -> int | None:
        """Free memory of the driver and of PyTorch's allocator."""
        cached = torch.cuda.memory_reserved(self.where) - torch.cuda.memory_allocated(self.where)
        return torch.cuda.mem_get_info(self.where)[0] + cached

    def words(self) -> str:
        """Name of the GPU, versions of PyTorch and CUDA."""
        name = torch.cuda.get_device_name(self.where)
        return f"{name}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"

    def notes(self) -> list[str]:
        """Note on GPU memory outside the budget."""
        return [
            "The budget is over what PyTorch's allocator gives out: CUDA's context and the kernels that it loads come on top."
        ]
