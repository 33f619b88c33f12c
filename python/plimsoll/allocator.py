"""Python interface to PyTorch's allocators under Plimsoll: one for the CPU and one for CUDA, built by `native`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from . import native
from .errors import NoCompiler, Refused

ALLOCATED, FREED_HERE, FREED_ELSEWHERE, UNPLANNED, CALL = range(5)

Event = tuple[int, int, int]
"""Kind, address, bytes."""


@dataclass(frozen=True)
class Counts:
    """Allocations of a replayed step."""

    served: int
    """Allocations that got the plan's address."""
    unplanned: int
    """Allocations that the plan did not foresee."""
    unplanned_bytes: int
    """Bytes of the unplanned allocations."""
    unused: int
    """Addresses of the plan that no allocation took."""
    faulty_call: int | None
    """The first call whose allocations differ from the plan."""

    @property
    def as_planned(self) -> bool:
        """`True` if the step's allocations were those of the plan."""
        return self.faulty_call is None


class Turn:
    """A lock that one thread at a time holds to record or replay a step."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # The thread that held the lock may not exist in a forked process.
        self._lock = threading.Lock()
        self._owner: int | None = None

    def check(self) -> None:
        """Refuses a step within a step."""
        if self._owner == threading.get_ident():
            raise Refused("a step was called, or recorded, inside of another step; call it outside")

    def __enter__(self) -> None:
        self.check()
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._lock.release()


turn = Turn()
"""The lock of all threads that record or replay steps."""


class Allocator:
    """Plimsoll's allocator in front of PyTorch's, `cpu` or `cuda`: built, loaded and installed at first use."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._loading = Turn()
        self._loaded: ctypes.PyDLL | None = None
        self._waiting: ctypes.CDLL | None = None

    def library(self) -> ctypes.PyDLL:
        """Returns the library."""
        if self._loaded is None:
            with self._loading:
                self._loaded = self._loaded or self._load()
        return self._loaded

    def _load(self) -> ctypes.PyDLL:
        if os.name != "posix":
            raise NoCompiler("Plimsoll's allocator is for Linux and macOS")
        path = native.build(self._kind)
        try:
            # PyDLL keeps the interpreter's lock: a call takes less time than releasing it would.
            loaded = ctypes.PyDLL(str(path))
        except OSError as error:
            raise NoCompiler(
                f"the allocator cannot be loaded ({error}); delete {path} and try again"
            ) from error
        loaded.plimsoll_events.restype = ctypes.c_int64
        loaded.plimsoll_failures.restype = ctypes.c_int64
        loaded.plimsoll_settle.restype = ctypes.c_int64
        loaded.plimsoll_read_events.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        loaded.plimsoll_begin.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        loaded.plimsoll_call.argtypes = [ctypes.c_int64]
        loaded.plimsoll_spare.argtypes = [ctypes.c_int64, ctypes.c_int64]
        if self._kind == "cuda":
            loaded.plimsoll_device.argtypes = [ctypes.c_int64]
        loaded.plimsoll_install()
        return loaded

    def pools(self) -> ctypes.CDLL:
        """Returns the library for calls that may wait for another thread: these release the interpreter's lock."""
        if self._waiting is None:
            waiting = ctypes.CDLL(self.library()._name)
            waiting.plimsoll_pool.argtypes = [ctypes.c_int64, ctypes.c_int64]
            waiting.plimsoll_pool.restype = ctypes.c_void_p
            waiting.plimsoll_pool_address.restype = ctypes.c_int64
            waiting.plimsoll_pool_open.argtypes = [ctypes.c_void_p, ctypes.c_int64]
            for name in ("address", "is_there", "lend", "take", "free"):
                getattr(waiting, f"plimsoll_pool_{name}").argtypes = [ctypes.c_void_p]
            waiting.plimsoll_window.argtypes = [ctypes.c_int64]
            self._waiting = waiting  # other threads may use it from here on
        return self._waiting

    def installed(self) -> ctypes.PyDLL:
        """Returns the library; refuses if another allocator is installed over it."""
        loaded = self.library()
        if not loaded.plimsoll_is_installed():
            raise Refused("another library installed an allocator over Plimsoll's: load that library first")
        return loaded

    def failures(self) -> int:
        """Number of its allocations that found no memory since the last call of this method."""
        return 0 if self._loaded is None else self._loaded.plimsoll_failures()

    @contextlib.contextmanager
    def recording(self) -> Iterator[Log]:
        """Logs the allocations of this thread."""
        loaded = self.installed()
        with turn:
            loaded.plimsoll_record(1)
            try:
                yield Log(loaded)
            finally:
                loaded.plimsoll_record(0)


CPU = Allocator("cpu")
CUDA = Allocator("cuda")


def failures() -> int:
    """Number of PyTorch's allocations that found no memory since the last call of this function."""
    return CPU.failures() + CUDA.failures()


class Log:
    """This thread's allocations and frees since `recording` began."""

    def __init__(self, loaded: ctypes.PyDLL) -> None:
        self._library = loaded
        self._seen = 0
        self._alive: dict[int, int] = {}
        self.alive_bytes = 0
        """Bytes allocated and not freed, up to the last `take`."""
        self.peak_bytes = 0
        """Maximum of `alive_bytes` so far."""

    def take(self) -> list[Event]:
        """Returns the events since the last call."""
        end = self._library.plimsoll_events()
        count = end - self._seen
        flat = (ctypes.c_int64 * (3 * count))()
        self._library.plimsoll_read_events(self._seen, end, flat)
        self._seen = end
        events = [(flat[3 * i], flat[3 * i + 1], flat[3 * i + 2]) for i in range(count)]
        for kind, address, size in events:
            if kind == ALLOCATED:
                self._alive[address] = size
                self.alive_bytes += size
                self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
            else:
                self.alive_bytes -= self._alive.pop(address, 0)
        return events


class Plan:
    """Planned addresses of a program's allocations, call by call."""

    def __init__(self, of: Allocator, calls: list[list[tuple[int, int]]]) -> None:
        """Takes address and bytes of each allocation of each call."""
        self._allocator = of
        self._library = of.library()
        flat = [number for call in calls for slot in call for number in slot]
        first = [0]
        for call in calls:
            first.append(first[-1] + len(call))
        self._slots = (ctypes.c_int64 * max(len(flat), 1))(*flat)
        self._first = (ctypes.c_int64 * len(first))(*first)
        self.call = self._library.plimsoll_call
        """Sets the call that this thread makes next."""
        self.pause = self._library.plimsoll_pause
        """Suspends the plan for this thread until the next call."""
        self._settle = self._library.plimsoll_settle
        self._events = (ctypes.c_int64 * 0)()

    def allocated(self) -> list[list[Event]]:
        """Allocations of the last step, call by call: planned and unplanned."""
        flat = self._events
        calls: list[list[Event]] = []
        for at in range(0, len(flat), 3):
            if flat[at] == CALL:
                calls.append([])
            else:
                calls[-1].append((flat[at], flat[at + 1], flat[at + 2]))
        return calls

    def settled(self) -> int | None:
        """Ends a call, and pauses. Returns the first call so far whose allocations differ from the plan, or `None`."""
        faulty = self._settle()
        return faulty if faulty >= 0 else None

    def begin(self) -> None:
        """Begins a step. The caller holds the `turn`."""
        self._allocator.installed().plimsoll_begin(self._slots, self._first)

    def spare(self, address: int, size: int) -> None:
        """Provides these bytes, until the next call, for single numbers that no plan foresees; the step is being captured."""
        self._library.plimsoll_spare(address, size)

    def end(self) -> Counts:
        """Ends the step."""
        count = self._library.plimsoll_events()
        self._events = (ctypes.c_int64 * (3 * count))()
        self._library.plimsoll_read_events(0, count, self._events)
        out = (ctypes.c_int64 * 5)()
        self._library.plimsoll_end(out)
        served, unplanned, unplanned_bytes, unused, faulty = out
        return Counts(served, unplanned, unplanned_bytes, unused, faulty if faulty >= 0 else None)
