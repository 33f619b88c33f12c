"""Steps on a GPU as CUDA graphs: captured once, on a separate stream, and launched with one call.

A capture runs nothing. It is PyTorch's own (`torch.cuda.CUDAGraph`), so that random ops draw from the states of their
generators at launch. Every allocation of a step is a planned one, so that the private pool that PyTorch opens for a capture
stays empty. Captures are per thread: other threads may do anything meanwhile (a loader may page-lock memory).

The memory of a graph is kept until its last launch has ended.
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
"""Launches of work that is timed as a graph; the shortest counts."""


class Graph:
    """A captured step. Dropping it waits for its last launch."""

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
        """The stream that captures; a graph runs on the stream that launches it."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._where)
        return self._stream

    def prepare(self) -> None:
        """Allocates in advance, so that this does not count as part of a step."""
        if self._byte is None:
            self._byte = torch.empty(1, dtype=torch.uint8, device=self._where)

    def capture(
        self, enqueue: Callable[[int], None], generators: Iterable[torch.Generator], keeps: Iterable[object]
    ) -> Graph:
        """Captures as a graph the work that `enqueue` enqueues on the stream whose handle it is given, drawing from these
        generators.

        Raises the errors of `enqueue`, and `DeviceError` if something in it cannot be captured. Nothing has run then.
        """
        graph = torch.cuda.CUDAGraph()
        default = torch.cuda.default_generators[self._where.index]
        for generator in generators:
            if generator != default:  # every capture knows the default one
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
                    warnings.simplefilter("ignore")  # an empty capture warns
                    self._end(graph, pool)
                if isinstance(error, RuntimeError):
                    raise DeviceError(_first_line(error)) from error
                raise
            self._end(graph, pool)
        # Beginning a capture writes the generators' states on its stream.
        torch.cuda.synchronize(self._where)
        return Graph(graph, self._where, keeps)

    def seconds(self, work: Callable[[], object], generators: Iterable[torch.Generator]) -> float | None:
        """Seconds of some work on the GPU, by two events of the graph that it is captured as: the shortest of some launches
        after one that warms up. `None` if it cannot be captured, or if this torch captures no such events."""
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
        """Repairs PyTorch's allocator and generators after a capture that could not begin or end, which leaves them as if it
        went on. A capture that ends well resets the generators."""
        assert self._byte is not None
        end_failed_capture(failed, self._where, pool)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode=OF_THIS_THREAD)
        self._byte.zero_()
        graph.capture_end()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Suspends garbage collection: freeing may wait for the GPU, which is forbidden during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
