"""A training step that runs by a plan: calling it trains one batch. `tuning.py` makes it.

A step is planned once for each kind of batch (its shapes, existing gradients, the model's mode, autocast) and compared with
eager, bit for bit, when it first runs. If a batch cannot keep to the plan, it runs in eager, `Step.fallback` gives the reason,
and a warning says what eager takes. If no plan fits a batch, `NoPlan` is raised before anything runs.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from . import (
    _core,
    allocator,
    batches,
    calibration,
    devices,
    distributed,
    exchange,
    explaining,
    outputs,
    planning,
    refusal,
    reporting,
    shortage,
    smaller,
    viz,
)
from ._core import show_bytes
from .buckets import Buckets
from .errors import BadInput, NoPlan, PoolInUse, Refused
from .in_eager import InEager
from .interconnect import Interconnect
from .kinds import Kind, addresses_of, kind_of
from .ops import tensors_in
from .options import Options
from .outputs import Given, Outputs
from .planned import Planned
from .planner import Planner
from .planning import Recorded
from .program import Diverged, Program, Unplanned
from .ranks import Ranks
from .recording import Loss
from .smaller import Smaller
from .surroundings import arrivals_noted, host_generators_kept, run_accumulate_hooks, without_accumulate_hooks
from .torch_private import has_hooks, modules_of, uncompiled
from .verification import Outcome, State, generators_of, is_same, outcome
from .watched import Watched

logger = logging.getLogger("plimsoll")

KINDS_KEPT = 16
"""Number of kinds of batches, in each bucket, whose plans are kept; the least recently used goes first."""

DECLINED_AFTER = 6
"""Number of comparisons before a plan may be declined."""

DECLINED_ABOVE = 0.02
"""Share of time by which a plan may be slower than eager where eager fits the budget; beyond it, the plan is declined."""


class Step:
    """Runs forward and backward of one batch within the budget: `loss = step(x, y)`.

    A call does the work of `loss.backward()`: it sets `p.grad` of every parameter, or adds to an existing gradient, and
    returns the loss. The optimizer and `zero_grad` stay yours.
    """

    fallback: str | None
    """Reason why the last batch ran in eager; `None` while the plan runs."""

    def __init__(
        self,
        fn: Loss,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        options: Options,
        ranks: Ranks | None,
    ) -> None:
        self.fallback = None
        self._replica = distributed.replica_of(model)
        self._ranks = ranks
        self._reducing = (
            None if self._replica is None or ranks is None else distributed.Reducing(self._replica, ranks)
        )
        self._fn = fn if self._replica is None else distributed.inside(self._replica, fn)
        self._model = model if self._replica is None else self._replica.module
        self._given = (fn, model, optimizer)
        self._optimizer = optimizer
        self.device = devices.of(self._model)
        self._verify = options.verify
        self._is_strict = options.strict
        self._interconnect = Interconnect.parse(options.interconnect)
        self._buckets = Buckets.parse(options.buckets)
        self._kinds: OrderedDict[Kind, Planned | InEager] = OrderedDict()
        self._watched = Watched(fn, self._replica)
        self._planner = Planner(self._model, optimizer, self._replica, ranks, self._watched, options)
        self._memory = self._planner.memory
        self._pointers: list[int] = []
        self._modules: list[torch.nn.Module] = []
        self._last: Planned | None = None
        self._choice: int | None = None
        self._arrived: list[torch.nn.Parameter] = []
        """Parameters that got a gradient in the last batch, in order of arrival."""

    def __call__(self, *batch: Any) -> Any:
        """Trains one batch: sets the gradients or adds to them, and returns the loss, or `Outputs` if the function does."""
        allocator.turn.check()
        self._arrived = []
        if self._reducing is not None:
            return self._reducing.run(lambda: self._train(batch), lambda: self._arrived)
        given = self._train(batch)
        run_accumulate_hooks(self._arrived)
        return given

    def _train(self, batch: tuple[Any, ...]) -> Given:
        if self._buckets is not None:
            batch = self._buckets.fitted(batch)
        return self._run(self._planned(batch), batch)

    def trial(self, parts: list[tuple[Any, ...]]) -> None:
        """Runs batches whose gradients add up, and restores everything that a plan changes."""
        before: State | None = None
        try:
            for part in parts:
                planned = self._planned(part)
                if before is None and isinstance(planned, Planned):
                    before = State(planned.tape)
                self._run(planned, part)
        finally:
            if before is not None:
                before.restore()

    def _run(self, planned: Planned | InEager, batch: tuple[Any, ...]) -> Given:
        if isinstance(planned, InEager):
            return self._in_eager(planned.why, planned, batch)
        if planned.broken:
            return self._in_eager(planned.broken, planned.in_eager, batch, planned)
        if why := planned.put_off():
            return self._in_eager(why, planned.in_eager, batch, planned)
        self._last = planned
        tensors = tensors_in(batch)
        devices.check_sample(self.device, tensors)
        try:
            given = shortage.retried(
                lambda: self._by_plan(planned, batch, tensors),
                lambda error: self._planner.with_less(planned, error),
            )
        except Diverged as diverged:
            if planned.recorded.measured is not None and not planned.program.finished:
                return self._run(self._with_value(planned, diverged, batch), batch)
            why = f"this batch takes another way: {diverged}"
            planned.tried(diverged.place)
            return self._in_eager(why, planned.in_eager, batch, planned, diverged.place)
        except Unplanned as unplanned:
            planned.broken = f"the plan cannot be kept to: {unplanned}"
            return self._in_eager(planned.broken, planned.in_eager, batch, planned)
        planned.tried()
        self.fallback = None
        self._arrived += [planned.tape.gradients[number][0] for number in planned.tape.arrivals]
        return given

    def _by_plan(self, planned: Planned, batch: tuple[Any, ...], tensors: list[torch.Tensor]) -> Given:
        """Runs a batch by its plan, and also in eager if a comparison is due; by a smaller plan if
        memory has become short since."""
        self._bind(planned)
        if self._verify > 0 and planned.verify == 0 and planned.is_due_again():
            planned.verify = 1
        if planned.verify > 0 and planned.fits_beside_eager:
            try:
                given = self._verified(planned, batch, tensors)
                planned.verify -= 1
                self._decline(planned)
                self.device.trim()  # memory that eager took
                return given
            except Exception as error:
                if not _is_short(error):
                    raise
                logger.info("memory is too short for this batch in eager beside its plan")
                planned.fits_beside_eager = False
        if planned.verify > 0:
            try:
                self._verify_smaller(planned, batch)
                planned.verify -= 1
            except Exception as error:
                if not _is_short(error):
                    raise
                logger.warning(
                    "this kind of batch is no longer compared with eager: memory is too short for both"
                )
                planned.verify, planned.smaller = 0, "memory is too short for both"
        program, taker = planned.program, None
        if self._reducing is not None:
            taker = self._reducing.taker(program.handed_over)
        return program.run(tensors, taker=taker)

    def _with_value(self, planned: Planned, diverged: Diverged, batch: tuple[Any, ...]) -> Planned:
        """Records the same kind of batch again, with the value that the host read in its first run:
        few samples had a different one."""
        logger.info("the host reads another value than of few samples: recording again (%s)", diverged)
        known = planned.recorded.told(diverged.call, diverged.value)
        recorded = self._planner.record(self._fn, batch, planned.tape.adds_to_gradients(), known)
        program = self._planner.program(recorded)
        again = Planned(recorded, program, planned.verify, planned.in_eager)
        for kind, found in self._kinds.items():
            if found is planned:
                self._kinds[kind] = again
        return again

    def _bind(self, planned: Planned) -> None:
        if planned.program.schedule.budget_bytes > self._planner.budget_bytes:
            self._planner.replan(planned)
        planned.program.bind()

    def _calibrate(self, planned: Planned, batch: tuple[Any, ...]) -> None:
        """Predicts the step anew from runs of its plan, if the times of single ops say little about
        their times within the step."""
        if planned.recorded.measured is not None or not self.device.calibrates:
            return

        def around() -> object:
            return (
                self._watched.number(),
                kind_of(modules_of(self._model), batch),
                addresses_of(self._modules),
                self.device.settings(),
            )

        found = calibration.timed(planned.recorded, planned.program, tensors_in(batch), around)
        if found is not None:
            planned.alone_seconds = planned.program.schedule.makespan_seconds
            planned.recorded, planned.program.schedule = found
            planned.trace = planned.recorded.trace

    def _decline(self, planned: Planned) -> None:
        """Leaves the next batches to eager if eager fits the budget and was faster."""
        budget = planned.program.schedule.budget_bytes
        slower = planned.plan_seconds / planned.eager_seconds - 1
        planned.compared += 1
        if planned.verify > 0 or planned.trace.peak_bytes > budget or slower <= DECLINED_ABOVE:
            return
        if planned.compared < DECLINED_AFTER:
            planned.verify = 1  # the first times are noisy
        else:
            planned.broken = (
                f"planning does not pay: eager takes {show_bytes(planned.trace.peak_bytes)} of the budget of "
                f"{show_bytes(budget)}, and the plan takes {slower:.1%} longer"
            )

    def verify(self, steps: int = 1) -> None:
        """Compares the next steps of every kind of batch that a plan runs with eager, bit for bit. A
        difference raises `VerificationError`."""
        if steps < 0:
            raise BadInput(f"{steps} steps cannot be verified; give 0 or more")
        self._verify = steps
        for planned in self._kinds.values():
            if isinstance(planned, Planned):
                planned.verify = steps
                planned.fits_beside_eager = planned.recorded.measured is None
                if isinstance(planned.smaller, str):
                    planned.smaller = None  # there may be more memory now

    @property
    def why(self) -> str:
        """Description of the choice for the last kind of batch, in one line."""
        return explaining.in_one_line(self._current(), self.device, self.exchange)

    def explain(self) -> str:
        """Describes the plan of the last kind of batch, line by line."""
        return explaining.line_by_line(
            self._current(),
            self.device,
            self._planner.link,
            self.exchange,
            self._interconnect,
        )

    def connect(self) -> None:
        """Has the ranks measure the network between them, unless one was given to all. All ranks call it."""
        if self._replica is not None and self._ranks is not None and self._ranks.size > 1:
            self._interconnect = distributed.interconnect(self._replica, self._ranks, self._interconnect)
            logger.info("%s", self.why)

    @property
    def exchange(self) -> _core.Exchange | None:
        """Gradient exchange of the ranks in a step of the last kind of batch, with the predicted seconds of the step with it.
        `None` in one process, and if the network is unknown."""
        return self.exchange_of(True)

    def exchange_of(self, is_whole: bool) -> _core.Exchange | None:
        """The same for an update of one batch, or of several, the last of which exchanges."""
        if self._replica is None or self._interconnect is None:
            return None
        program = self._current().program
        is_early = is_whole and program.hands_over
        return exchange.of(self._replica, program.tape, program.schedule, self._interconnect, is_early)

    @property
    def predicted_seconds(self) -> float | None:
        """Predicted seconds of a step of the last kind of batch, with exchanging gradients."""
        alone = self._current().program.schedule.makespan_seconds
        if alone is None:
            return None
        there = self.exchange
        return alone + (0.0 if there is None else there.exposed_seconds)

    def report(self, path: str | Path, seconds: float = reporting.COMPARING_SECONDS) -> None:
        """Writes Plimsoll's report of the kind of batch that ran most often: one HTML file for a browser, which needs no
        network.

        It shows memory over time, the swaps and recomputations layer by layer with reasons, the timeline as predicted and
        as measured in the fastest timed run, eager for comparison, and the plans of other policies for the same step: after
        `seconds`, no further policy is planned.
        """
        planned = self._usual()
        if not Path(path).parent.is_dir():
            raise BadInput(f"the report cannot be written to {path}: there is no folder {Path(path).parent}")
        page = reporting.page(
            planned.trace,
            planned.program,
            eager_seconds=planned.eager_seconds,
            fallback=planned.broken or self.fallback,
            seconds=seconds,
        )
        Path(path).write_text(page, encoding="utf-8")

    def memory_viz(self, path: str | Path) -> None:
        """Writes a memory snapshot with tensors by name: the last kind of batch's plan is device 0, its last run device 1.

        https://pytorch.org/memory_viz and `python -m torch.cuda._memory_viz trace_plot` show it.
        """
        planned = self._current()
        if planned.program.counts is None:
            raise BadInput("no batch has run by the plan yet: call the step first")
        names = {t.data_ptr(): name for name, t in self._model.named_buffers()}
        names |= {t.data_ptr(): name for name, t in self._model.named_parameters()}
        viz.write(planned.program, json.loads(planned.trace.to_json()), names, path)

    @property
    def batch(self) -> int:
        """The batch that trains the most samples per second within the budget, of those that were run. Nothing is changed.

        `plimsoll.suggest` gives details, and the best way to keep the batch of the sample. In a distributed training all
        ranks must read it, and get the same answer: the smallest that one of them finds.
        """
        if self._choice is None:
            from .suggestion import find  # it imports this module

            options = Options(
                self._planner.budget_bytes,
                self._planner.link,
                verify=0,
                seconds=batches.PLAN_SECONDS,
                host_budget=self._planner.host_budget,
                in_pieces=self._planner.in_pieces or self._is_in_pieces,
                interconnect=self._interconnect,
            )
            found = find(*self._given, self._sample, options, keep_batch=False, ranks=self._ranks)
            self._choice = found.batch
        return self._choice

    @property
    def _is_in_pieces(self) -> bool:
        """`True` if a kind of batch was recorded in pieces."""
        kinds = [kind for kind in self._kinds.values() if isinstance(kind, Planned)]
        return any(kind.recorded.measured is not None for kind in kinds)

    @property
    def learning_rate(self) -> float:
        """Learning rate for `step.batch`, derived from the optimizer's: linear for SGD, square root for Adam's like.

        It is that of the first group of parameters; the others scale by the same factor.
        """
        if self._optimizer is None:
            raise BadInput("without an optimizer no learning rate is known: give it to `plimsoll.tune`")
        return planning.rate_at(self._optimizer, batches.size_of(self._sample), self.batch)

    @property
    def trace(self) -> _core.Trace:
        """Trace of the last kind of batch."""
        return self._current().trace

    @property
    def program(self) -> Program:
        """Program of the last kind of batch."""
        return self._current().program

    def _current(self) -> Planned:
        if self._last is None:
            raise BadInput("no batch has been planned: call the step first")
        return self._last

    def _usual(self) -> Planned:
        """Returns the kind of batch that ran most often."""
        kinds = [kind for kind in self._kinds.values() if isinstance(kind, Planned)]
        return max(kinds, key=lambda kind: kind.program.runs, default=self._current())

    def __reduce__(self) -> str:
        """Refuses: a step is memory and threads of this process."""
        raise BadInput(
            "a step cannot be pickled; save the model and the optimizer, and call `plimsoll.tune` again"
        )

    def prepare(self, batch: tuple[Any, ...]) -> None:
        """Records and plans the sample's kind of batch; before it the largest bucket, whose plan takes most."""
        if self._buckets is not None:
            batch = self._buckets.fitted(batch)
        self.begin(batch)
        hooked = [name or "the model" for name, module in self._model.named_modules() if has_hooks(module)]
        if hooked:
            logger.warning(
                "hooks of modules (%s) run while the step is recorded and verified: tensors that they compute are part of the "
                "plan, anything else that they do is not repeated",
                ", ".join(hooked[:3]) + (", ..." if len(hooked) > 3 else ""),
            )
        if self._buckets is not None:
            self._planned(self._buckets.longest(batch), is_first=True)
        self._planned(batch, is_first=True)

    def begin(self, batch: tuple[Any, ...]) -> None:
        """Takes a batch as the sample."""
        self._sample = batch
        self._modules = modules_of(self._model)
        self._pointers = addresses_of(self._modules)
        self._watched.begin(self._modules)

    def _make(self, batch: tuple[Any, ...]) -> Planned:
        planner = self._planner
        recorded = planner.record(self._fn, batch)
        # A share is relative to eager's memory for the first kind of batch; the resulting bytes hold for all.
        planner.budget = planning.budget_bytes(planner.budget, recorded.trace.peak_bytes)
        try:
            program = planner.program(recorded)
        except NoPlan as no_plan:
            raise refusal.refused(planner, self._fn, batch, recorded, no_plan) from None
        planned = Planned(recorded, program, self._verify, self._new_in_eager())
        shortage.retried(lambda: self._bind(planned), lambda error: planner.with_less(planned, error))
        self._calibrate(planned, batch)
        self._last = planned
        logger.info("%s", self.why)
        return planned

    def _planned(self, batch: tuple[Any, ...], is_first: bool = False) -> Planned | InEager:
        modules = modules_of(self._model)
        addresses = addresses_of(modules)
        if addresses != self._pointers or modules != self._modules:
            logger.info("parameters or buffers have moved, or modules are others: planning anew")
            self._kinds.clear()
            self._modules, self._pointers = modules, addresses
            self._watched.begin(modules)
        rest = (*kind_of(modules, batch), *self.device.settings())
        kind: Kind = (self._watched.next_batch(), *rest)
        found = self._kinds.get(kind)
        if found is None and self._watched.is_hasty():
            kind = (None, *rest)
            found = self._kinds.setdefault(kind, self._new_in_eager())
            assert isinstance(found, InEager)
            found.why = (
                f"what the step reads from Python is another value in almost every step ({self._watched.changed}): pass it "
                "as a tensor of the batch"
            )
        elif found is None:
            if self._watched.is_changed() and not is_first:
                logger.info(
                    "what the step reads from Python has changed (%s): planning anew", self._watched.changed
                )
            try:
                found = self._make(batch)
            except Refused as refused:
                if is_first:
                    raise
                found = self._new_in_eager(f"it cannot be recorded: {refused}")
            kind = (
                self._watched.number(),
                *rest,
            )  # the first run of a step may have made more objects to watch
            self._watched.plan_made()
            self._kinds[kind] = found
            if len(self._kinds) > KINDS_KEPT * (len(self._buckets.lengths) if self._buckets else 1):
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        return found

    def _new_in_eager(self, why: str = "") -> InEager:
        return InEager(self.device, self._model, self._optimizer, why)

    def _in_eager(
        self,
        why: str,
        how: InEager,
        batch: tuple[Any, ...],
        planned: Planned | None = None,
        place: str = "",
    ) -> Given:
        """Runs a batch without a plan, and logs the reason once for each kind of batch and place. Raises `Refused` instead if
        the step is strict."""
        budget = self._planner.budget if isinstance(self._planner.budget, int) else None
        if self._is_strict:
            raise Refused(f"this batch would run in eager, which `strict` forbids: {why}")
        if planned is not None:
            how.peak_bytes = planned.trace.peak_bytes
            if planned.recorded.measured is not None and budget is not None and how.peak_bytes > budget:
                raise Refused(
                    f"this batch cannot run by its plan, and not in eager, which takes {show_bytes(how.peak_bytes)}, of "
                    f"{show_bytes(budget)}: {why}. Give smaller batches, which eager can take over"
                )
        self._watched.forget()
        arrived: list[torch.nn.Parameter] = []
        # The reducer has gradients of a step that a plan has begun: its memory stays.
        is_begun = self._reducing is not None and self._reducing.has_begun
        self.fallback = why
        try:
            keeps = planned is None or not planned.broken
            given = how.run(
                lambda: self._eager(batch, arrived), self._memory, None if is_begun else budget, keeps
            )
        finally:
            if how.is_news(place or why):
                logger.warning("this batch runs in eager: %s; %s", why, how.words(budget))
        self._arrived += arrived
        return given

    def _eager(self, batch: tuple[Any, ...], arrived: list[torch.nn.Parameter] | None = None) -> Given:
        """Runs a batch in eager; adds to `arrived` the parameters that got a gradient, in order."""
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        arrivals: list[int] = []
        with (
            torch.enable_grad(),
            without_accumulate_hooks(self._model.parameters()),
            arrivals_noted(trained, arrivals),
        ):
            given = self._fn(*batch)
            if self._reducing is not None and self._reducing.has_begun:
                given = self._gradients_beside(given, trained)
            else:
                given = outputs.backward(given)
        if arrived is not None:
            arrived += [trained[number] for number in arrivals]
        return given

    def _gradients_beside(self, given: Given, trained: list[torch.nn.Parameter]) -> Given:
        """Runs the backward pass of a step that a plan began, some of whose gradients the reducer
        has: it gets none of these."""
        assert self._reducing is not None
        made = outputs.of(given)
        gradients = torch.autograd.grad(made.loss, trained, allow_unused=True)
        for parameter, gradient in zip(trained, gradients, strict=True):
            if not self._reducing.took(parameter):
                parameter.grad = gradient
        made.loss = made.loss.detach()
        return made if isinstance(given, Outputs) else made.loss

    def _verified(self, planned: Planned, batch: tuple[Any, ...], tensors: list[torch.Tensor]) -> Given:
        """Runs the batch in eager and by the plan from the same state, and compares all results."""
        generators, before = generators_of(planned.tape), State(planned.tape)
        self._watched.forget()
        clock = self.device.clock
        start = clock()
        try:
            with uncompiled(), self.device.comparable():
                loss = self._eager(batch)
            planned.eager_seconds = min(planned.eager_seconds, clock() - start)
            eager = outcome(self._model, generators, loss)
            del loss  # eager's tensors must not lie in the pool's place
        finally:
            before.restore()
        start = clock()
        given = planned.program.run(tensors)
        planned.plan_seconds = min(planned.plan_seconds, clock() - start)
        planned_outcome = outcome(self._model, generators, given)

        @host_generators_kept()
        def again() -> Outcome:
            before.restore()
            with uncompiled(), self.device.comparable():
                left = outcome(self._model, generators, self._eager(batch))
            before.restore()
            return left

        return given if is_same(eager, planned_outcome, again) else planned.program.run(tensors)

    def _verify_smaller(self, planned: Planned, batch: tuple[Any, ...]) -> None:
        """Compares the largest batch that fits the budget in eager with a plan, since this one does not fit."""
        planner = self._planner
        if planned.smaller is None:
            adds = planned.tape.adds_to_gradients()
            is_measured = planned.recorded.measured is not None

            def record(size: int, known: Recorded | None) -> Recorded:
                like = planned.recorded.of_few() if known is None and is_measured else known
                return planner.record(self._fn, batches.taken(batch, 0, size), adds, like)

            beside = planner.resident_beside()
            planned.smaller = smaller.find(
                planned.recorded, record, planner.schedule, planner.memory, planner.budget_bytes, beside
            )
            if isinstance(planned.smaller, str):
                logger.warning("this kind of batch is not compared with eager: %s", planned.smaller)
            elif planned.smaller.batch < planned.trace.batch:
                logger.info(
                    "batch %d does not fit in eager: its first %d samples, which do, are compared with eager",
                    planned.trace.batch,
                    planned.smaller.batch,
                )
        if isinstance(planned.smaller, Smaller):
            try:
                planned.smaller.compare(self._model, batch, lambda *part: self._eager(part))
            except Diverged as diverged:
                logger.warning("this batch is not compared with eager: %s", diverged)


def _is_short(error: Exception) -> bool:
    """Returns `True` if memory ran out, or the pool's place is taken."""
    return shortage.is_one(error) or isinstance(error, PoolInUse)
