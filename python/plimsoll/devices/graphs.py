"""Steps on a GPU as CUDA graphs: captured once, on a stream of their own, and launched with one call.

A capture runs nothing. It is PyTorch's own (`torch.cuda.CUDAGraph`), so that random ops draw from where their generators are
when the graph is launched. Every allocation of a step is a planned one, so that the private pool that PyTorch opens for a
capture stays empty. Captures are of one thread: what other threads do meanwhile (a loader that page-locks memory) is no fault.

What lies at the addresses of a graph is kept until its last launch has ended.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator

import torch

from ..errors import DeviceError
from ..torch_private import end_failed_capture, timing_events

OF_THIS_THREAD = "thread_local"

TIMED_LAUNCHES = 3
"""Of work that is timed as a graph, the least of so many launches counts."""


class Graph:
    """A captured step. When it is dropped, its last launch is waited for."""

    def __init__(self, captured: torch.cuda.CUDAGraph, where: torch.device, keeps: Iterable[object]) -> None:
        self._captured = captured
        end = weakref.finalize(self, _end, captured, where, tuple(keeps))
        end.atexit = False  # the process frees everything

    def launch(self) -> None:
        """Enqueues the whole step on the current stream."""
        self._captured.replay()


def _end(captured: torch.cuda.CUDAGraph, where: torch.device, _keeps: tuple[object, ...]) -> None:
    torch.cuda.synchronize(where)
    captured.reset()


class Graphs:
    """Captures the steps of one GPU."""

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._stream: torch.cuda.Stream | None = None
        self._byte: torch.Tensor | None = None

    @property
    def stream(self) -> torch.cuda.Stream:
        """The stream that captures; a graph runs on the stream that it is launched on."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._where)
        return self._stream

    def prepare(self) -> None:
        """Takes what it needs, so that this is no part of what a step takes."""
        if self._byte is None:
            self._byte = torch.empty(1, dtype=torch.uint8, device=self._where)

    def capture(
        self, enqueue: Callable[[int], None], generators: Iterable[torch.Generator], keeps: Iterable[object]
    ) -> Graph:
        """The graph of what `enqueue` enqueues on the stream whose handle it is given, drawing from these generators.

        Raises what `enqueue` raises, and `DeviceError` where something in it cannot be captured. Nothing has run then.
        """
        graph = torch.cuda.CUDAGraph()
        default = torch.cuda.default_generators[self._where.index]
        for generator in generators:
            if generator != default:  # which every capture knows
                graph.register_generator_state(generator)
        pool = torch.cuda.graph_pool_handle()
        self.prepare()
        torch.cuda.synchronize(self._where)
        with torch.cuda.stream(self.stream), _no_collection():
            try:
                graph.capture_begin(pool=pool, capture_error_mode=OF_THIS_THREAD)
                enqueue(self.stream.cuda_stream)
            except BaseException as error:
                with contextlib.suppress(DeviceError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that nothing may have been captured
                    self._end(graph, pool)
                if isinstance(error, RuntimeError):
                    raise DeviceError(_first_line(error)) from error
                raise
            self._end(graph, pool)
        # Beginning a capture writes the generators' states on its stream.
        torch.cuda.synchronize(self._where)
        return Graph(graph, self._where, keeps)

    def seconds(self, work: Callable[[], object], generators: Iterable[torch.Generator]) -> float | None:
        """How long some work takes on the GPU, by two events of the graph that it is captured as: the least of some launches
        after one that warms up. None where it cannot be captured, or where this torch captures no such events.
        """
        events = timing_events()
        if events is None:
            return None
        begin, end = events

        def enqueue(_stream: int) -> None:
            begin.record(self.stream)
            work()
            end.record(self.stream)

        try:
            graph = self.capture(enqueue, generators, ())
        except DeviceError:
            return None
        least = float("inf")
        for launch in range(TIMED_LAUNCHES + 1):
            graph.launch()
            torch.cuda.synchronize(self._where)
            if launch > 0:
                least = min(least, begin.elapsed_time(end) / 1e3)
        return least

    def _end(self, graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        try:
            graph.capture_end()
        except RuntimeError as error:
            self._recover(graph, pool)
            raise DeviceError(_first_line(error)) from error

    def _recover(self, failed: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        """A capture that cannot be begun or ended leaves PyTorch's allocator and generators as if it went on. A capture that
        ends well puts the generators right."""
        assert self._byte is not None
        end_failed_capture(failed, self._where, pool)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode=OF_THIS_THREAD)
        self._byte.zero_()
        graph.capture_end()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """What Python frees may wait for the GPU, which nobody may while a capture goes on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
