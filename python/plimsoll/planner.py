"""Records and plans batches of one step within its current budgets, which it lowers when memory runs out."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _core, devices, distributed, planning, shortage
from ._core import show_bytes
from .errors import HostMemoryError, NoPlan
from .link import Link
from .memory import Memory
from .options import Options
from .planned import Planned
from .planning import Recorded
from .program import Program
from .ranks import Ranks
from .recording import Loss
from .watched import Watched

logger = logging.getLogger("plimsoll")


class Planner:
    """Makes the plans of one step, which share its memory. Recordings are watched."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        replica: DistributedDataParallel | None,
        ranks: Ranks | None,
        watched: Watched,
        options: Options,
    ) -> None:
        self.device = devices.of(model)
        self.memory = Memory(self.device, lambda: planning.is_state_there(optimizer))
        self.link = Link.parse(options.link, self.device.measure_link)
        self.budget: int | str | None = options.budget
        """The given budget, later its bytes, later the bytes that memory has room for."""
        self.host_budget = planning.host_limit(self.device, options.host_budget)
        """Host memory limit for swapped tensors; `None` means unlimited."""
        self.in_pieces = options.in_pieces
        """`True` to record batches in pieces, `False` to never do so; `None` to do so when memory runs out."""
        self._graphs = options.graphs
        self._seconds = options.seconds
        self.model = model
        self.optimizer = optimizer
        self._replica = replica
        self._ranks = ranks
        self._watched = watched

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes, once a batch was planned."""
        assert isinstance(self.budget, int)
        return self.budget

    def record(
        self, fn: Loss, batch: tuple[Any, ...], adds: bool = False, known: Recorded | None = None
    ) -> Recorded:
        """Records a batch: as a whole, or in pieces if that finds no memory. `known` is a recording of a different batch."""
        with self._watched.recording(fn) as watched:
            return self._record(watched, batch, adds, known)

    def _record(self, fn: Loss, batch: tuple[Any, ...], adds: bool, known: Recorded | None) -> Recorded:
        def in_pieces() -> Recorded:
            assert self.budget is not None
            self.memory.give_back()
            beside, measured = self.resident_beside(), None if known is None else known.measured
            recorded = planning.record_in_pieces(fn, self.model, batch, beside, self.budget, adds, measured)
            assert recorded.measured is not None
            logger.info(
                "batch %d was recorded in pieces: %d of %d calls were tried one by one, with at most %s at once",
                recorded.trace.batch,
                recorded.measured.tried,
                len(recorded.trace),
                show_bytes(recorded.measured.peak_bytes),
            )
            return recorded

        def whole() -> Recorded:
            return planning.record(
                fn, self.model, batch, self.resident_beside(), adds=adds, graphs=self._graphs
            )

        if self.in_pieces:
            return in_pieces()
        return shortage.retried(whole, self._without_pool, None if self.in_pieces is False else in_pieces)

    def schedule(self, recorded: Recorded, budget: int | None = None) -> _core.Schedule:
        """Returns the best schedule within the budget, or within a lower one. Raises `NoPlan`."""
        within = self.budget if budget is None else budget
        assert within is not None
        return planning.plan(recorded.trace, within, self.link, self._seconds, self.host_budget)

    def program(self, recorded: Recorded) -> Program:
        """Returns the program of that schedule in the memory of the step."""
        schedule = self.schedule(recorded)
        return Program(recorded.tape, recorded.document, schedule, self.memory, self._graphs)

    def replan(self, planned: Planned) -> None:
        """Plans again within the current budget; the new plan has not run yet. Raises `NoPlan`."""
        planned.program = self.program(planned.recorded)
        planned.alone_seconds = None

    def resident_beside(self) -> int:
        """Resident bytes besides the step's own: the optimizer state, and the memory for reducing gradients."""
        replica, ours = self._replica, self.memory.arena_bytes
        reducing = 0 if replica is None else distributed.own_bytes(replica)
        ours += 0 if replica is None else distributed.bucket_bytes(replica)
        return planning.resident_beside(self.device, self.model, self.optimizer, ours) + reducing

    def _without_pool(self, _error: Exception) -> str | None:
        """Frees the pool for eager code that needs memory, and returns a message; `None` if there is no pool."""
        if self.memory.pool.size == 0:
            return None
        said = f"giving the pool of {show_bytes(self.memory.pool.size)} back meanwhile"
        self.memory.give_back()
        return said

    def with_less(self, planned: Planned, error: Exception) -> str | None:
        """Frees the pool and lowers the budget that is short. Returns a message with the new budget;
        `None` if no plan takes less."""
        self.memory.give_back()
        done = (
            self._with_less_of_the_host(planned)
            if isinstance(error, HostMemoryError)
            else self._with_less_of_the_device(planned)
        )
        if done is not None and self._ranks is not None:
            self._ranks.tell(f"out of memory in a step: {done}")
        return done

    def _with_less_of_the_device(self, planned: Planned) -> str | None:
        resident, pool = planned.trace.resident_bytes, planned.program.schedule.pool_bytes
        less = max(planned.trace.floor_bytes, resident + int(shortage.SHARE * pool))
        if less >= resident + pool:
            return None
        before, self.budget = self.budget, less
        try:
            self.replan(planned)
        except NoPlan:
            self.budget = before
            return None
        return f"planning with {show_bytes(less)} in place of {show_bytes(resident + pool)}"

    def _with_less_of_the_host(self, planned: Planned) -> str | None:
        before, host = self.host_budget, planned.program.schedule.host_bytes
        if host == 0:
            return None
        can = self.device.pinnable(host)
        if can >= host:
            return f"{show_bytes(host)} of the host's memory can be page-locked now"
        self.host_budget = can
        try:
            self.replan(planned)
        except NoPlan:
            self.host_budget = before
            return None
        less = show_bytes(self.host_budget)
        return f"planning with {less} of the host's memory, as measured, in place of {show_bytes(host)}"
