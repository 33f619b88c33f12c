"""A program: a schedule bound to memory. Running it runs the step.

Every argument of every call is a window on the pool that was made once, and every allocation of a call gets its address
from the schedule. Running is a loop over calls; the two swap streams run at the same time (`_core.Transfers`).

Nothing is decided here: the order, the addresses and the waits are the schedule's, which passed `check`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from . import allocator, capturing
from ._core import Compute, CudaTransfers, Schedule
from .devices import Device
from .devices.device import Transfers
from .devices.graphs import Graph
from .errors import DeviceError
from .memory import Memory
from .ops import running_positions, same_value, tensors_in
from .outputs import Given, Outputs
from .tape import Call, Document, Role, Tape, Window, aligned
from .torch_private import below_autograd, tree_unflatten

logger = logging.getLogger("plimsoll")

Gradients = list[tuple[torch.nn.Parameter, torch.Tensor]]

Spans = tuple[list[tuple[float, float]], list[tuple[float, float]], list[tuple[float, float]]]
"""Start and end of each command of the compute, the swap-out and the swap-in stream, in seconds from the start of the step."""

ENOUGH_LAUNCHES = 8
MOST_CAPTURES = 3
"""A step whose memory moves is captured again; not any more if it moved this often before a graph was launched often enough."""

SPARE_BYTES = 1024
"""Bytes for single numbers that calls make on the device only while they are captured."""


def seconds_of(spans: Spans) -> float:
    """Seconds from the start of the step to the end of its last command."""
    return max(end for stream in spans for _, end in stream)


class Taker(Protocol):
    """Takes gradients while a step runs."""

    def take(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Takes a complete gradient, or leaves it. Gradients come in order; one that was taken must not be given again."""

    def took(self, parameter: torch.nn.Parameter) -> bool:
        """Returns `True` if it took the gradient of this parameter."""


class Diverged(Exception):
    """The host would have read a different value than when the step was recorded, so that other calls might follow."""

    def __init__(self, call: Call, value: object) -> None:
        """Takes the call and the value."""
        self.call = call
        self.value = value
        self.place = f"`{call.name}`" + (f" at {call.line}" if call.line else "")
        super().__init__(f"{self.place} gave {value!r}, and {call.value!r} when the step was recorded")


class Unplanned(Exception):
    """A call's allocations differ from those that were recorded."""


@dataclass(frozen=True)
class Place:
    """Start of a storage: a storage of PyTorch's, and an offset in bytes."""

    storage: torch.UntypedStorage
    offset: int

    @property
    def address(self) -> int:
        """The address as a number."""
        return self.storage.data_ptr() + self.offset


class Windows:
    """Makes tensors on memory, one for equal windows."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], torch.Tensor] = {}

    def at(self, place: Place, window: Window) -> torch.Tensor:
        """Tensor of a window on a storage at this place."""
        key = (place.address, window.dtype, window.offset, window.shape, window.strides)
        if key not in self._made:
            empty = torch.empty(0, dtype=window.dtype, device=place.storage.device)
            first = place.offset // empty.element_size() + window.offset
            self._made[key] = empty.set_(place.storage, first, window.shape, window.strides)
        return self._made[key]


def _slot_bytes(parameter: torch.nn.Parameter) -> int:
    return aligned(parameter.numel() * parameter.element_size())


Special = Callable[[int], None]


@dataclass(slots=True)
class Step:
    """One call, bound to memory."""

    func: Any
    arguments: Any
    keywords: Any
    wait: tuple[int, int] | None
    special: Special | None
    """Runs calls that draw random numbers or read on the host."""


class Program:
    """One step, ready to run."""

    def __init__(
        self, tape: Tape, document: Document, schedule: Schedule, memory: Memory, graphs: bool = True
    ) -> None:
        self.tape = tape
        self.schedule = schedule
        self._tensors = document.tensors
        self._memory = memory
        self._device = memory.device
        self._host = torch.device("cpu")
        self._transfers: Transfers | None = None
        self._bound_to: tuple[int, ...] | None = None
        self._states: dict[int, torch.Tensor] = {}
        self._running: dict[int, Place] = {}
        # Copies of tensors that the step changes in place, to restore if the step ends early.
        self._saved = [torch.empty_like(t) for t in tape.updated]
        self._added_to = [
            p for p, w in tape.gradients if w is not None and tape.storages[w.storage].role is Role.GRADIENT
        ]
        self._saved_gradients: list[torch.Tensor] = []
        self._slots_of = tape.slots()
        self._gradient_bytes = sum(_slot_bytes(p) for p, _ in tape.gradients)
        self.uses = 0
        """Number of its windows in the memory of gradients."""
        self._results = [
            number
            for number, storage in enumerate(tape.storages)
            if storage.role is Role.RESULT and number not in self._slots_of
        ]
        self._result_bytes = sum(aligned(tape.storages[number].size) for number in self._results)
        self._spare_bytes = 0 if memory.device.graphs is None else SPARE_BYTES
        self._needed_states = self._sources()
        self._graphs = self._device.graphs if graphs else None
        self._graph: Graph | None = None
        self._launches = 0
        self._captures = 0
        self.no_graph = "" if graphs else "`graphs=False`"
        """Reason why the step runs call by call although graphs are available; empty if none is known."""
        if self._graphs is not None:
            self.no_graph = capturing.obstacle(tape, schedule) or ""
        self.counts: allocator.Counts | None = None
        """Allocations of the last run; of its capture, if the step is a graph."""
        self.runs = 0
        """Number of runs that began."""
        self.finished = 0
        """Number of runs that ended well."""
        self.spans: Spans | None = None
        """Times of each command in the fastest of the timed runs, which are 1, 2, 4, 8, ...: other work only adds to a time.
        Timed runs go call by call; if the step becomes a graph, run 2 is not one of them."""

    def _sources(self) -> set[int]:
        calls = self.tape.calls
        again = {c.op for c in self.schedule.computes() if c.again and calls[c.op].random}
        restored = {n for n, call in enumerate(calls) if call.random and call.random.source != n}
        return {random.source for n in again | restored if (random := calls[n].random) is not None}

    def bind(self) -> None:
        """Makes all windows, unless they exist."""
        with allocator.turn:
            try:
                self._bind_all()
            finally:
                self._lend()

    def _lend(self) -> None:
        self._memory.lend(self.schedule.budget_bytes)

    def _bind_all(self) -> None:
        memory, schedule = self._memory, self.schedule
        if self._slots_of:
            memory.keep_gradients(self._in_their_slots())
        results = self._result_bytes + self._spare_bytes
        sizes = (schedule.pool_bytes, schedule.host_bytes, self._gradient_bytes, results)
        memory.reserve(self, *sizes)
        bound_to = (*memory.generation, *(p.grad.data_ptr() for p in self._added_to if p.grad is not None))
        if self._bound_to == bound_to:
            return
        self.unbind()
        before = memory.gradients.uses
        try:
            self._make_windows()
        except BaseException:
            self.unbind()  # some windows would pass for gradients that others hold
            raise
        self.uses = memory.gradients.uses - before
        self._bound_to = bound_to

    def _make_windows(self) -> None:
        memory, schedule = self._memory, self.schedule
        self._resident = self._place_residents()
        computes = schedule.computes()
        ordered = [self._bind(compute) for compute in computes]
        self._steps = self._without_needless_waits(ordered, computes)
        pool = memory.pool.address
        self._plan = allocator.Plan(self._device.allocator, [self._slots(compute) for compute in computes])
        self._inputs = self._bind_inputs()
        self._transfers = self._device.transfers(schedule, pool, memory.host)
        self._loss = self._windows.at(self._resident[self.tape.loss.storage], self.tape.loss)
        added_to = set(map(id, self._added_to))
        self._gradients = [
            (p, None if w is None else self._windows.at(self._resident[w.storage], w))
            for p, w in self.tape.gradients
            if id(p) not in added_to
        ]
        self._saved_gradients = [torch.empty_like(p) for p in self._added_to]
        self._calls = [(compute.op, compute.again) for compute in computes]
        self._complete = self._completed_after(self._calls)

    def _in_their_slots(self) -> int:
        """Number of gradients that lie where the step sets them: it adds to them, or replaces them."""
        slab = self._memory.gradients
        first, at, found = slab.address - slab.storage.data_ptr(), 0, 0
        for parameter, _ in self.tape.gradients:
            there = parameter.grad
            if there is not None and there.untyped_storage().data_ptr() == slab.storage.data_ptr():
                found += int(there.storage_offset()) * there.element_size() == first + at
            at += _slot_bytes(parameter)
        return found

    def _completed_after(self, calls: list[tuple[int, bool]]) -> dict[int, Gradients]:
        """By position: the gradients that are complete after it. A recomputed call writes the same again."""
        if self._added_to:
            return {}
        position = {op: number for number, (op, again) in enumerate(calls) if not again}
        complete: dict[int, Gradients] = {}
        at = 0
        for number, op in self.tape.completions():
            parameter, window = self.tape.gradients[number]
            assert window is not None
            at = max(at, position[op])
            gradient = self._windows.at(self._resident[window.storage], window)
            complete.setdefault(at, []).append((parameter, gradient))
        return complete

    def unbind(self) -> None:
        """Drops all windows, so that the memory under them can be freed."""
        self._bound_to = None
        self._graph = None
        self._transfers = None
        self._windows = Windows()
        self._resident, self._running = {}, {}
        self._steps, self._inputs, self._gradients, self._complete = [], [], [], {}
        self._saved_gradients = []
        self._loss = torch.empty(0)
        self.uses = 0

    def _place_residents(self) -> dict[int, Place]:
        """Places everything outside the pool. Tensors from before the step stay in place. Gradients have slots in a slab whose
        layout is the same for all programs of a step, so that one program adds to another's."""
        gradients, results = self._memory.gradients, self._memory.results
        added_to = set(map(id, self._added_to))
        places = {}
        at = gradients.address - gradients.storage.data_ptr()
        for parameter, window in self.tape.gradients:
            if window is not None and window.storage in self._slots_of:
                places[window.storage] = Place(gradients.storage, at)
            elif window is not None and id(parameter) in added_to and (there := parameter.grad) is not None:
                places[window.storage] = Place(
                    there.untyped_storage(), int(there.storage_offset()) * there.element_size()
                )
            at += _slot_bytes(parameter)
        # The loss comes first, where other programs also have theirs, and never a gradient.
        offset = results.address - results.storage.data_ptr()
        for number in sorted(self._results, key=lambda number: number != self.tape.loss.storage):
            places[number] = Place(results.storage, offset)
            offset += aligned(self.tape.storages[number].size)
        for number, storage in enumerate(self.tape.storages):
            if storage.role is Role.KEPT and storage.tensor is not None:
                places[number] = Place(storage.tensor.untyped_storage(), 0)
            elif storage.is_on_host and storage.size > 0:
                on_host = torch.zeros(storage.size, dtype=torch.uint8, device=self._host)
                places[number] = Place(on_host.untyped_storage(), 0)
        return places

    def _in_pool(self, offset: int) -> Place:
        pool = self._memory.pool
        return Place(pool.storage, pool.address - pool.storage.data_ptr() + offset)

    def _bind(self, compute: Compute) -> Step:
        call = self.tape.calls[compute.op]
        at = dict(compute.places)
        statistics = running_positions(call.func) if compute.again else set()

        def bound(position: int, argument: object) -> object:
            if not isinstance(argument, Window):
                return argument
            number = argument.storage
            if number in self._resident:
                place = self._resident[number]
                if position in statistics:  # they were updated when the call ran first
                    place = self._scratch(number, place)
            elif self.tape.storages[number].size == 0:
                where = self._host if self.tape.storages[number].is_on_host else self._device.where
                return torch.empty_strided(
                    argument.shape, argument.strides, dtype=argument.dtype, device=where
                )
            else:
                place = self._in_pool(at[self._tensors[number]])
            return self._windows.at(place, argument)

        leaves = [bound(position, argument) for position, argument in enumerate(call.arguments)]
        arguments, keywords = tree_unflatten(leaves, call.spec)
        func = self._keeping_host_results(call) if call.on_host else call.func
        special: Special | None = None
        if call.reads_on_host:
            special = self._host_read(call, arguments, keywords)
        elif call.random is not None:
            special = self._drawing(compute, call, func, arguments, keywords)
        return Step(func, arguments, keywords, (compute.offloads, compute.prefetches), special)

    def _keeping_host_results(self, call: Call) -> Callable[..., None]:
        """Returns a call on a GPU that makes tensors on the host, such as the seed of attention, and
        copies them to their windows."""
        kept = [(number, self._windows.at(self._resident[w.storage], w)) for number, w in call.on_host]

        def run(*arguments: Any, **keywords: Any) -> None:
            made = tensors_in(call.func(*arguments, **keywords))
            for number, window in kept:
                window.copy_(made[number])

        return run

    def _scratch(self, number: int, place: Place) -> Place:
        if number not in self._running:
            scratch = torch.zeros(place.storage.nbytes(), dtype=torch.uint8, device=place.storage.device)
            self._running[number] = Place(scratch.untyped_storage(), 0)
        return self._running[number]

    @staticmethod
    def _without_needless_waits(steps: list[Step], computes: list[Compute]) -> list[Step]:
        """Drops waits for copies that were waited for before."""
        offloads = prefetches = 0
        for step, compute in zip(steps, computes, strict=True):
            if compute.offloads <= offloads and compute.prefetches <= prefetches:
                step.wait = None
            offloads, prefetches = max(offloads, compute.offloads), max(prefetches, compute.prefetches)
        return steps

    def _slots(self, compute: Compute) -> list[tuple[int, int]]:
        """Address and bytes of each allocation of a call."""
        at = dict(compute.places)
        slots = []
        for allocation in self.tape.calls[compute.op].allocations:
            number = allocation.storage
            if number is None:
                place = self._in_pool((compute.workspace or 0) + allocation.offset)
            elif number in self._resident:
                place = self._resident[number]
            else:
                place = self._in_pool(at[self._tensors[number]])
            slots.append((place.address, allocation.bytes))
        return slots

    def _bind_inputs(self) -> list[torch.Tensor | None]:
        """Window for each tensor of the sample; `None` for one that the step does not use."""
        offsets = dict(self.schedule.inputs())
        found: list[torch.Tensor | None] = []
        for window in self.tape.inputs:
            tensor = self._tensors.get(window.storage)
            place = None if tensor is None else self._in_pool(offsets[tensor])
            found.append(None if place is None else self._windows.at(place, window))
        return found

    def _host_read(self, call: Call, arguments: Any, keywords: Any) -> Special:
        def run(number: int) -> None:
            self._plan.call(number)
            value = call.func(*arguments, **keywords)
            if not same_value(value, call.value):
                raise Diverged(call, value)

        return run

    def _drawing(self, compute: Compute, call: Call, func: Any, arguments: Any, keywords: Any) -> Special:
        """Returns a call that draws from the same generator state as its first run, and restores the generator afterwards."""
        assert call.random is not None
        generator, source = call.random.generator, call.random.source
        first = not compute.again and source == compute.op
        keep = first and compute.op in self._needed_states

        def run(number: int) -> None:
            if first:
                if keep:
                    self._plan.pause()
                    self._states[source] = generator.get_state()
                self._plan.call(number)
                func(*arguments, **keywords)
                return
            self._plan.pause()
            now = generator.get_state()
            generator.set_state(self._states[source])
            self._plan.call(number)
            func(*arguments, **keywords)
            self._plan.pause()
            generator.set_state(now)

        return run

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Context in which runs are not counted."""
        before = (self.runs, self.finished, self.counts, self.spans)
        self.spans = None
        try:
            yield
        finally:
            self.runs, self.finished, self.counts, self.spans = before

    def run(self, inputs: list[torch.Tensor], is_timed: bool = False, taker: Taker | None = None) -> Given:
        """Runs the step: sets gradients or adds to them, and returns the result of the step's function. If `is_timed`, each
        command is timed, as in the runs 1, 2, 4, 8, ...

        A `taker` is given each gradient at its place in the step, call by call; gradients that it took are not set, and it
        may have them from an earlier run. If the step ends early, everything else is restored.
        """
        with allocator.turn:
            try:
                self._bind_all()
                return self._in_turn(inputs, is_timed, taker)
            finally:
                self._lend()

    def _in_turn(self, inputs: list[torch.Tensor], is_timed: bool, taker: Taker | None) -> Given:
        self._memory.use_on(self._device.stream())
        random = {id(c.random.generator): c.random.generator for c in self.tape.calls if c.random is not None}
        states = [(generator, generator.get_state()) for generator in random.values()]
        with torch.no_grad(), self._device.running():
            saved = [*zip(self._saved, self.tape.updated, strict=True), *self._gradient_copies()]
            for copy, tensor in saved:
                copy.copy_(tensor)
            try:
                self._run(inputs, is_timed, taker)
            except BaseException:
                if self._transfers is not None:
                    self._transfers.abort()
                for copy, tensor in saved:
                    tensor.copy_(copy)
                for generator, state in states:
                    generator.set_state(state)
                raise
            for parameter, gradient in self._gradients:
                if taker is None or not taker.took(parameter):
                    # A tensor of its own, so that the storage's uses tell whether somebody holds it in a later step.
                    parameter.grad = None if gradient is None else gradient.detach()
            return self._given()

    def _given(self) -> Given:
        if self.tape.others is None:
            return self._loss.clone()
        leaves, spec = self.tape.others
        others = [
            self._windows.at(self._resident[leaf.storage], leaf).clone() if isinstance(leaf, Window) else leaf
            for leaf in leaves
        ]
        return Outputs(self._loss.clone(), tree_unflatten(others, spec))

    def _gradient_copies(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies of the gradients that the step adds to, paired with these gradients."""
        pairs = zip(self._saved_gradients, self._added_to, strict=True)
        return [(copy, p.grad) for copy, p in pairs if p.grad is not None]

    def _run(self, inputs: list[torch.Tensor], is_timed: bool, taker: Taker | None) -> None:
        for window, tensor in zip(self._inputs, inputs, strict=True):
            if window is not None:
                window.copy_(tensor)
        self.runs += 1
        is_timed = is_timed or self.runs & (self.runs - 1) == 0
        # Kernels are loaded at their first launch, which no capture allows: the first run goes call by call.
        if self.runs > 1 and (not is_timed or self.runs == 2) and (graph := self._captured()) is not None:
            graph.launch()
            self._launches += 1
            return
        self._call_by_call(is_timed, taker)

    def _captured(self) -> Graph | None:
        """Returns the step as a graph, captured if necessary; `None` if it cannot be one."""
        if self._graph is not None or self._graphs is None or self.no_graph:
            return self._graph
        if self._launches >= ENOUGH_LAUNCHES:
            self._captures = 0
        if self._captures == MOST_CAPTURES:
            self.no_graph = "the memory that it runs in moves too often"
            return None
        self._captures += 1
        self._launches = 0
        known = {id(c.random.generator): c.random.generator for c in self.tape.calls if c.random is not None}
        keeps = (self._memory.pool, self._memory.results.storage, self._transfers, self._windows)
        try:
            graph = self._graphs.capture(self._captured_calls, known.values(), keeps)
        except (DeviceError, Unplanned) as error:
            allocator.failures()  # resets the count: memory that ran out in a capture is no shortage of the step
            self.no_graph = f"it cannot be captured: {error}"
            logger.warning("the step runs call by call and is no CUDA graph: %s", self.no_graph)
            return None
        self._graph = graph
        return graph

    def _captured_calls(self, stream: int) -> None:
        """Enqueues all calls on a stream that captures. Nothing runs."""
        transfers, plan = self._transfers, self._plan
        assert isinstance(transfers, CudaTransfers)
        plan.begin()
        plan.spare(self._memory.results.address + self._result_bytes, self._spare_bytes)
        try:
            transfers.start_captured(stream)
            with below_autograd():
                for number, step in enumerate(self._steps):
                    if step.wait is not None:
                        transfers.wait(*step.wait)
                    plan.call(number)
                    # The host does nothing around a call here (`capturing`).
                    self.tape.calls[self._calls[number][0]].func(*step.arguments, **step.keywords)
                    transfers.computed()
            transfers.finish()
        finally:
            self.counts = plan.end()
            transfers.abort()
        self._check_counts()

    def _call_by_call(self, is_timed: bool, taker: Taker | None) -> None:
        transfers = self._transfers
        assert transfers is not None
        places = [] if taker is None else sorted(self._complete)
        self._plan.begin()
        try:
            transfers.start(is_timed, self._device.stream())
            begin = 0
            for place in places:
                self._calls_of(range(begin, place + 1), is_timed, transfers)
                self._hand_over(place, taker)
                begin = place + 1
            self._calls_of(range(begin, len(self._steps)), is_timed, transfers)
        finally:
            self.counts = self._plan.end()
        transfers.finish()
        if is_timed:
            spans = transfers.spans()
            if self.spans is None or seconds_of(spans) < seconds_of(self.spans):
                self.spans = spans
        self._check_counts()

    def _calls_of(self, numbers: range, is_timed: bool, transfers: Transfers) -> None:
        """Runs a range of calls one after the other."""
        call = self._plan.call
        is_told = is_timed or len(transfers) > 0
        with below_autograd():
            for number in numbers:
                step = self._steps[number]
                if step.wait is not None:
                    transfers.wait(*step.wait)
                if is_timed:
                    transfers.began()
                if step.special is not None:
                    step.special(number)
                else:
                    call(number)
                    step.func(*step.arguments, **step.keywords)
                if is_told:
                    transfers.computed()

    def _hand_over(self, place: int, taker: Taker | None) -> None:
        """Hands over the gradients that are complete here, unless an earlier call deviated from the plan."""
        assert taker is not None
        faulty = self._plan.settled()
        if faulty is not None:
            raise self._unplanned(faulty)
        for parameter, gradient in self._complete[place]:
            taker.take(parameter, gradient)

    def _check_counts(self) -> None:
        counts = self.counts
        assert counts is not None
        if counts.faulty_call is not None:
            raise self._unplanned(
                counts.faulty_call,
                f" ({counts.unplanned} allocations of {counts.unplanned_bytes} B that no plan foresaw)",
            )
        self.finished += 1

    def _unplanned(self, faulty_call: int, more: str = "") -> Unplanned:
        op, _ = self._calls[faulty_call]
        culprit = self.tape.calls[op]
        return Unplanned(
            f"`{culprit.func}` of module `{culprit.layer}` allocated otherwise than when it was recorded{more}"
        )

    @property
    def handed_over(self) -> list[torch.nn.Parameter]:
        """Parameters whose gradients a taker is given, in order: those that the step sets; empty if it adds to gradients."""
        return [parameter for gradients in self._complete.values() for parameter, _ in gradients]

    @property
    def memory(self) -> Memory:
        """Memory that it runs in."""
        return self._memory

    @property
    def runs_as(self) -> str:
        """Description of how the next runs go."""
        if self._graphs is None or self.no_graph:
            return "call by call" + (f": {self.no_graph}" if self.no_graph else "")
        return "one CUDA graph" + ("" if self._graph is not None else ", from the second run on")

    @property
    def hands_over(self) -> bool:
        """`True` if the next runs can hand over gradients before they end: they go call by call and set all gradients."""
        return not self.tape.adds_to_gradients() and (self._graphs is None or bool(self.no_graph))

    @property
    def device(self) -> Device:
        """Device that it runs on."""
        return self._device

    @property
    def pool_address(self) -> int:
        """Address of the pool's first used byte."""
        return self._memory.pool.address

    @property
    def tensors(self) -> dict[int, int]:
        """By storage: its tensor of the trace."""
        return self._tensors

    @property
    def residents(self) -> dict[int, Place]:
        """Place of each storage outside the pool."""
        return self._resident

    def allocated(self) -> list[list[allocator.Event]]:
        """Allocations of the last run, call by call."""
        return self._plan.allocated()

    @property
    def stalled_seconds(self) -> float:
        """Seconds that the last run waited for copies; on a GPU, the last timed run."""
        return 0.0 if self._transfers is None else self._transfers.stalled_seconds

    @property
    def copying_seconds(self) -> float:
        """Seconds of the last run's copies; on a GPU, of the last timed run."""
        return 0.0 if self._transfers is None else self._transfers.copying_seconds
