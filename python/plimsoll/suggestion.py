"""`suggest`: a batch to train with in a memory budget, the number of batches to accumulate, and a learning rate.

The planner predicts batches from two recordings of the step; the most promising are run as they would be trained, part by part,
and the fastest of those is the answer. The training loop stays the user's: the answer is a value, with lines to paste.

What it does not do: change the loader, the optimizer or the step; judge the effect of a different batch on the training.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import _core, batches, capturing, devices, distributed, exchange, explaining, planning
from ._core import show_bytes, show_seconds
from .batches import PLAN_SECONDS, PREDICTED_WITHIN, size_of, taken
from .devices import Device
from .errors import BadInput, NoPlan
from .interconnect import Interconnect
from .link import Link
from .options import Options
from .ranks import Ranks
from .recording import Loss
from .step import Step
from .tape import Tape

MOST_RUN = 3
"""Number of candidates that are run."""

RUNS = 5
"""Runs of each candidate, after one that warms up."""

LATER = f"{MOST_RUN} that promise more, or are nearer to your batch, were run"
"""Reason why most candidates are not run."""

FREE_SHARE = 0.8
"""Share of the machine's free memory that recording a candidate may take."""


@dataclass(frozen=True)
class Tried:
    """A way to train one batch of the optimizer, as a number of parts of a number of samples. Seconds
    are of forward and backward of all parts."""

    batch: int
    """Samples of one call of the step."""
    accumulation: int
    """Calls of the step for one of the optimizer."""
    predicted_seconds: float
    seconds: float | None
    """Shortest measured time, since other programs only add to it; `None` if it was not run."""
    scatter: float
    """Excess of the median of the runs over the shortest."""
    peak_bytes: int
    swapped_bytes: int
    """Bytes that leave the device in one call."""
    recomputed_ops: int
    """Number of ops that run again in one call."""
    recomputed_bytes: int
    """Bytes of the tensors that they write again."""
    why_not: str
    """Reason why it was not run; empty if it was."""
    exchange_seconds: float = 0.0
    """Predicted seconds that exchanging gradients between ranks adds, once for all parts. Candidates
    are judged with it; 0 in one process."""

    @property
    def samples(self) -> int:
        """Samples for one call of the optimizer."""
        return self.batch * self.accumulation

    @property
    def samples_per_second(self) -> float:
        """Measured rate, else the predicted one; includes exchanging gradients."""
        return self.samples / ((self.seconds or self.predicted_seconds) + self.exchange_seconds)

    def __str__(self) -> str:
        """The way in words, such as `8 x 64`, or `64`."""
        return str(self.batch) if self.accumulation == 1 else f"{self.accumulation} x {self.batch}"


@dataclass(frozen=True)
class Suggestion:
    """Settings to train with in a memory budget. Nothing was changed for it."""

    batch: int
    """Samples of one call of the step: the loader's batch."""
    accumulation: int
    """Calls of the step for one of the optimizer."""
    learning_rate: float | None
    """Learning rate of the first group; `None` without an optimizer, or if the rule by which its
    rate follows the batch is unknown."""
    budget_bytes: int
    losses: str
    """Rule by which its parts' losses make the loss of the sample: `mean` or `sum`; `neither`, so that it is
    not split; `one` if that was not tried."""
    tried: list[Tried]
    """The suggested way first, then the others that were run, the fastest first, then those that were not run."""
    reduces: bool = False
    """`True` if the model reduces its gradients between ranks (DDP), which accumulation does once for each update."""

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of the step, with parameters, gradients and the optimizer state."""
        return self.tried[0].peak_bytes

    @property
    def samples_per_second(self) -> float:
        """Measured rate of forward and backward."""
        return self.tried[0].samples_per_second

    @property
    def certainty(self) -> str:
        """Certainty of the answer, in words."""
        chosen, *others = self.tried
        runs = f"{RUNS} runs that scatter by {chosen.scatter:.1%}"
        if chosen.seconds is not None:
            took, predicted = show_seconds(chosen.seconds), show_seconds(chosen.predicted_seconds)
            runs += f", {took} where {predicted} was predicted"
        ran = [other for other in others if other.seconds is not None]
        if not ran:
            return f"{runs}; nothing else that fits was run"
        slower = 1 - ran[0].samples_per_second / chosen.samples_per_second
        if abs(slower) <= max(chosen.scatter, ran[0].scatter, 0.01):
            return f"{runs}; {ran[0]} is as fast, as far as these runs can tell"
        return f"{runs}; the next best, {ran[0]}, is {slower:.1%} slower"

    @property
    def code(self) -> str:
        """Lines of code that train this way."""
        is_mean = self.accumulation > 1 and self.losses == "mean"
        step = f"lambda *batch: loss(*batch) / {self.accumulation}" if is_mean else "loss"
        rate = "" if self.learning_rate is None else f"; the optimizer's lr is {self.learning_rate:.6g}"
        lines = ["import contextlib"] if self.reduces and self.accumulation > 1 else []
        lines += [
            f"# sample: a batch of {self.batch}, as the loader gives it{rate}",
            f"loader = DataLoader(dataset, batch_size={self.batch}, shuffle=True, drop_last=True)",
            f"step = plimsoll.tune({step}, model, optimizer, sample, {self.budget_bytes})",
        ]
        if self.accumulation == 1:
            lines += [
                "for batch in loader:",
                "    optimizer.zero_grad()",
                "    step(*batch)",
                "    optimizer.step()",
            ]
        else:
            lines += ["for number, batch in enumerate(loader, 1):"]
            lines += [f"    is_last = number % {self.accumulation} == 0"]
            if self.reduces:
                lines += [
                    "    with contextlib.nullcontext() if is_last else model.no_sync():",
                    "        step(*batch)",
                ]
            else:
                lines += ["    step(*batch)"]
            lines += ["    if is_last:", "        optimizer.step()", "        optimizer.zero_grad()"]
        return "\n".join(lines)

    def __str__(self) -> str:
        """The answer in a few lines."""
        chosen = self.tried[0]
        rate = "lr: yours" if self.learning_rate is None else f"lr {self.learning_rate:.6g}"
        moved = explaining.moved(chosen.recomputed_ops, chosen.recomputed_bytes, chosen.swapped_bytes)
        peak = f"peak {show_bytes(chosen.peak_bytes)} of {show_bytes(self.budget_bytes)}"
        batch = str(chosen) if chosen.accumulation == 1 else f"{chosen.samples} = {chosen}"
        lines = [
            f"batch {batch}, {rate}, {peak}, {moved}",
            f"  measured      {chosen.samples_per_second:.4g} samples/s: {self.certainty}",
        ]
        if chosen.exchange_seconds > 0:
            lines.append(
                f"  exchange      adds {show_seconds(chosen.exchange_seconds)} between ranks, predicted"
            )
        for other in self.tried[1:]:
            if other.seconds is not None:
                lines.append(f"  also run      {other}: {other.samples_per_second:.4g} samples/s")
        if self.losses == "neither":
            lines.append(
                "  not split     the loss of the batch is neither the mean nor the sum of its parts' losses"
            )
        for other in self.tried[1:]:
            if other.why_not not in ("", LATER):
                lines.append(f"  not run       {other}: {other.why_not}")
        return "\n".join(lines)


def suggest(
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    budget: int | str,
    link: Link | str | None = None,
    keep_batch: bool = True,
    host_budget: int | str | None = None,
    in_pieces: bool | None = None,
    interconnect: str | None = None,
) -> Suggestion:
    """Returns a batch to train with in a memory budget, the number of batches to accumulate, and a learning rate.

    The batch of the sample is kept: it is split into equal parts whose gradients add up to those of the whole, and the
    learning rate stays. With `keep_batch=False` any batch may be the answer; the learning rate follows it. Up to three
    candidates are run a few times, on the sample; model, optimizer, gradients and generators are left as they were.

    Arguments are those of `plimsoll.tune`. Raises `NoPlan` if nothing fits, `Refused` for a step that cannot be recorded,
    `BadInput` for meaningless arguments, and if a step's tensors do not grow with the batch.
    """
    planning.check(model, optimizer)
    ranks = distributed.ranks_of(model)

    def asked() -> tuple[tuple[Any, ...], Options]:
        batch = planning.as_sample(sample)
        is_share = str(budget).endswith("%")
        own, inner, device = distributed.inner_of(model, fn), distributed.module_of(model), devices.of(model)
        with _without_gradients(model):
            state = _beside(model, optimizer)
            peak = 0
            if is_share and in_pieces:
                peak = planning.record_in_pieces(own, inner, batch, state, budget).trace.peak_bytes
            elif is_share:
                peak = planning.record(own, inner, batch, state).trace.peak_bytes
        limit = planning.budget_bytes(budget, peak)
        rates = Link.parse(link, device.measure_link)
        host = planning.host_limit(device, host_budget)
        how = Options(
            limit,
            rates,
            verify=0,
            seconds=PLAN_SECONDS,
            host_budget=host,
            in_pieces=in_pieces,
            interconnect=Interconnect.parse(interconnect),
        )
        return batch, how

    batch, options = asked() if ranks is None else ranks.together(asked)
    replica = distributed.replica_of(model)
    if replica is not None and ranks is not None and ranks.size > 1:
        between = distributed.interconnect(replica, ranks, Interconnect.parse(options.interconnect))
        options = replace(options, interconnect=between)
    return find(fn, model, optimizer, batch, options, keep_batch, ranks)


def _beside(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> int:
    """Resident bytes besides the step's: the optimizer state, and the memory for reducing gradients."""
    own, held = distributed.reducing_bytes(model)
    return planning.resident_beside(devices.of(model), distributed.module_of(model), optimizer, held) + own


@dataclass(frozen=True)
class _Candidate:
    """A candidate with its predictions."""

    plan: _core.Candidate
    accumulation: int
    eager_bytes: int
    """Bytes that recording takes."""


def find(
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: tuple[Any, ...],
    options: Options,
    keep_batch: bool,
    ranks: Ranks | None = None,
) -> Suggestion:
    """`suggest` with checked arguments: a budget in bytes and a known link.

    Each rank of a distributed training searches on its own. The smallest batch that one finds is then run by all the others.
    """

    def found(only: int | None = None) -> Suggestion:
        return _found(fn, model, optimizer, sample, options, keep_batch, only)

    if ranks is None:
        return found()
    own = ranks.together(found)
    batch = ranks.least(own.batch)
    return ranks.together(lambda: own if own.batch == batch else found(batch))


def _found(
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: tuple[Any, ...],
    options: Options,
    keep_batch: bool,
    only: int | None,
) -> Suggestion:
    """Result of one process; with `only`, for this batch."""
    inner = (distributed.inner_of(model, fn), distributed.module_of(model))
    budget = options.budget
    assert isinstance(budget, int)
    with _without_gradients(model):
        size = size_of(sample)
        losses = "one"
        if keep_batch and size > 1:
            try:
                losses = batches.losses_make(*inner, sample)
            except BadInput:
                losses = "neither"
        tried: list[tuple[_core.Candidate, Tried]] = []
        beside = _beside(model, optimizer)
        for candidate in _candidates(fn, model, beside, sample, options, keep_batch, losses, only):
            ran = sum(one.seconds is not None for _, one in tried)
            why_not = LATER
            if ran < MOST_RUN:
                why_not = "" if options.in_pieces else _too_large(candidate, devices.of(model))
            one = _predicted(candidate, why_not)
            if not why_not:
                step = Step(fn, model, optimizer, options, None)
                one = _run(step, sample, one)
            tried.append((candidate.plan, one))
        measured = [(plan, one) for plan, one in tried if one.seconds is not None]
        if not measured:
            reasons = "; ".join(f"{one}: {one.why_not}" for _, one in tried)
            raise BadInput(f"no candidate could be run ({reasons}). Give a smaller batch")
        per_sample = [1 / one.samples_per_second for _, one in measured]
        scatter = max(one.scatter for _, one in measured)
        batch = _core.choose([plan for plan, _ in measured], per_sample, scatter)
        ranked = sorted(
            (one for _, one in tried),
            key=lambda one: (one.batch != batch, one.seconds is None, -one.samples_per_second),
        )
        rate = _rate(optimizer, size, size if keep_batch else batch)
        reduces = distributed.replica_of(model) is not None
        return Suggestion(batch, ranked[0].accumulation, rate, budget, losses, ranked, reduces)


@contextlib.contextmanager
def _without_gradients(model: torch.nn.Module) -> Iterator[None]:
    """Context without gradients, as after `zero_grad`: a step that found gradients would add to them, which takes more."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _rate(optimizer: torch.optim.Optimizer | None, size: int, batch: int) -> float | None:
    if optimizer is None:
        return None
    if size == batch:
        return planning.rate_of(optimizer)
    try:
        return planning.rate_at(optimizer, size, batch)
    except BadInput:  # an optimizer whose rule is unknown
        return None


def _candidates(
    fn: Loss,
    model: torch.nn.Module,
    state: int,
    sample: tuple[Any, ...],
    options: Options,
    keep_batch: bool,
    losses: str,
    only: int | None,
) -> list[_Candidate]:
    """Batches with a plan, in the order in which they are worth a run; with `only`, just this one.
    Raises `NoPlan` if there is none."""
    size = size_of(sample)
    is_split = losses in ("mean", "sum")
    budget, link, host = options.budget, options.link, options.host_budget
    assert isinstance(budget, int)
    assert isinstance(link, Link)
    assert not isinstance(host, str)
    inner = (distributed.inner_of(model, fn), distributed.module_of(model))

    def parts_of(batch: int) -> int:
        return size // batch if keep_batch else 1

    def in_pieces(adds: bool) -> Callable[[tuple[Any, ...]], Tape] | None:
        if not options.in_pieces:
            return None
        return lambda part: planning.record_in_pieces(*inner, part, state, budget, adds).tape

    def fastest(steps: _core.Batches, tape: Tape, among: list[int]) -> list[_Candidate]:
        limits = (batches.LARGEST, among, *link.rates, PLAN_SECONDS, PREDICTED_WITHIN, host)
        return [
            _Candidate(plan, parts_of(plan.batch), steps.at(plan.batch).peak_bytes)
            for plan in steps.fastest(budget, *limits, _exchanging(model, tape, options, parts_of))
        ]

    steps, tape = batches.steps(*inner, sample, state, tape_of=in_pieces(False))
    own = fastest(steps, tape, [size]) if only in (None, size) else []
    if not keep_batch:
        others = fastest(steps, tape, [] if only is None else [only])
    elif is_split:
        # All parts of a batch but the first add to the gradients of those before, which takes more.
        steps, tape = batches.steps(*inner, sample, state, adds=True, tape_of=in_pieces(True))
        parts = [size // n for n in range(2, size + 1) if size % n == 0]
        others = fastest(steps, tape, [part for part in parts if only in (None, part)])
    else:
        others = []
    # First the best prediction, then the user's batch, or the nearest to it; then the others.
    found = [*others[:1], *own, *(others[1:] if own else sorted(others[1:], key=lambda one: -one.plan.batch))]
    distinct = {one.plan.batch: one for one in reversed(found)}
    if not distinct:
        least = only or (1 if is_split or not keep_batch else size)
        try:
            planning.plan(steps.at(least), budget, link, PLAN_SECONDS, host)
        except NoPlan as no_plan:
            if is_split:
                no_plan.args = (
                    f"{no_plan}. The whole batch does not fit, and one sample at a time, whose gradients add up, neither",
                )
            raise
        raise BadInput(
            f"no plan was found in time for a batch that {size} can be split into: raise the budget"
        )
    return sorted(distinct.values(), key=found.index)


def _exchanging(
    model: torch.nn.Module, tape: Tape, options: Options, parts_of: Callable[[int], int]
) -> Callable[[int, _core.Schedule], float] | None:
    """Returns a function for the seconds that exchanging gradients adds to one call of the step, by its batch and its
    schedule: an update exchanges them once, in the last of its parts, and each part has its share. `None` if nothing
    is exchanged, or the network is unknown."""
    replica, network = distributed.replica_of(model), Interconnect.parse(options.interconnect)
    if replica is None or network is None:
        return None
    graphs = devices.of(replica.module).graphs

    def added_seconds(batch: int, schedule: _core.Schedule) -> float:
        parts = parts_of(batch)
        is_call_by_call = graphs is None or capturing.obstacle(tape, schedule) is not None
        there = exchange.of(replica, tape, schedule, network, is_early=parts == 1 and is_call_by_call)
        return 0.0 if there is None else there.exposed_seconds / parts

    return added_seconds


def _too_large(candidate: _Candidate, device: Device) -> str:
    """Reason why a candidate is not run on this machine; empty if it can be."""
    free = device.free_bytes()
    if free is None or candidate.eager_bytes <= FREE_SHARE * free:
        return ""
    return f"recording it takes {show_bytes(candidate.eager_bytes)}, and {show_bytes(free)} of this machine are free"


def _predicted(candidate: _Candidate, why_not: str) -> Tried:
    plan, parts = candidate.plan, candidate.accumulation
    return Tried(
        batch=plan.batch,
        accumulation=parts,
        predicted_seconds=plan.seconds * parts,
        exchange_seconds=plan.exchange_seconds * parts,
        seconds=None,
        scatter=math.nan,
        peak_bytes=plan.peak_bytes,
        swapped_bytes=plan.offloaded_bytes,
        recomputed_ops=plan.recomputed_ops,
        recomputed_bytes=plan.recomputed_bytes,
        why_not=why_not,
    )


def _run(step: Step, sample: tuple[Any, ...], predicted: Tried) -> Tried:
    """Runs the sample a few times, part by part as it would be trained, and restores everything."""
    size, parts = predicted.batch, predicted.accumulation
    ways = [taken(sample, first, first + size) for first in range(0, size * parts, size)]
    seconds, clock = [], step.device.clock
    try:
        step.begin(taken(sample, 0, size * parts))
        for _ in range(1 + RUNS):
            start = clock()
            step.trial(ways)
            seconds.append(clock() - start)
            if step.fallback is not None:
                return replace(predicted, why_not=step.fallback)
    except NoPlan as no_plan:
        return replace(predicted, why_not=str(no_plan))
    except Exception as error:  # the user's code, which may not support every batch
        return replace(
            predicted, why_not=f"the step fails at a batch of {size} ({type(error).__name__}: {error})"
        )
    warm = seconds[1:]
    least = min(warm)
    trace, schedule = step.trace, step.program.schedule
    there = step.exchange_of(parts == 1)
    return replace(
        predicted,
        exchange_seconds=0.0 if there is None else there.exposed_seconds,
        seconds=least,
        scatter=statistics.median(warm) / least - 1,
        peak_bytes=trace.resident_bytes + schedule.pool_bytes,
        swapped_bytes=schedule.offloaded_bytes,
        recomputed_ops=schedule.recomputed_ops,
        recomputed_bytes=schedule.recomputed_bytes,
    )
