"""Steps of a model whose parameters are sharded by `fully_shard` (FSDP2): in eager, with hooks that swap saved tensors.

No plan places such a step: its parameters are whole only for a while, when FSDP says so. So a step runs as it is written.
`tune` runs it a few times: it sees what is saved for the backward pass and how much memory a step takes, and swaps what is
saved first, which is needed last, until the step fits the budget. All ranks swap alike, by what the rank that takes most needs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from . import devices, outputs, planning
from ._core import show_bytes
from .allocator import ALLOCATED
from .errors import BadInput, NoPlan, VerificationError
from .link import Link
from .options import Options
from .outputs import Given
from .ranks import Ranks
from .recording import Loss
from .saved import SavedSwaps
from .step import Step
from .tape import aligned
from .torch_private import local_part, tree_flatten
from .verification import differences, outcome

logger = logging.getLogger("plimsoll")

MOST_TRIALS = 6
"""So often a step is run with more swapped than before."""

WHY = "FSDP: no plan runs; hooks swap saved tensors"


@dataclass
class Before:
    """What a step changes, kept to put it back."""

    gradients: list[tuple[torch.nn.Parameter, torch.Tensor | None]]
    buffers: list[tuple[torch.Tensor, torch.Tensor]]
    generators: list[tuple[torch.Generator, torch.Tensor]]

    def restore(self) -> None:
        """Puts it back."""
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, copy in self.buffers:
                buffer.copy_(copy)
        for generator, state in self.generators:
            generator.set_state(state)


class ShardedStep(Step):
    """What `tune` gives for a sharded model. `fallback` always says that no plan runs."""

    def __init__(
        self,
        fn: Loss,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        options: Options,
        ranks: Ranks | None,
    ) -> None:
        if options.buckets is not None:
            raise BadInput("`buckets` are for plans, and FSDP has none: leave them out")
        self.fallback = WHY
        self.device = devices.of(model)
        self._fn, self._model, self._optimizer = fn, model, optimizer
        self._ranks = ranks
        self._budget: int | str | None = options.budget
        self._host_budget = planning.host_limit(self.device, options.host_budget)
        self._left = options.verify
        self._swaps = SavedSwaps(self.device)
        self._link = Link.parse(options.link if options.link is not None else "12GB/s")
        self._peaks: dict[str, int] = {}
        self._last = None

    def __call__(self, *batch: Any) -> Any:
        """Trains one batch in eager, with the hooks: sets the gradients or adds to them, gives what the function gives."""
        assert self._ranks is not None
        return self._ranks.together(lambda: self._compared(batch) if self._left > 0 else self._hooked(batch))

    def verify(self, steps: int = 1) -> None:
        """Compares the next steps with eager without hooks, bit for bit. A difference raises `VerificationError`."""
        if steps < 0:
            raise BadInput(f"{steps} steps cannot be verified; give 0 or more")
        self._left = steps

    @property
    def why(self) -> str:
        """What was chosen, in one line."""
        peak, budget = show_bytes(self._peaks["with"]), show_bytes(self._peaks["budget"])
        number, of = len(self._swaps.chosen), sum(size > 0 for size in self._swaps.sizes)
        swapped = show_bytes(self._swaps.swapped_bytes)
        return f"{WHY}: {number} of {of} storages, {swapped}; peak {peak} of {budget}, measured"

    def explain(self) -> str:
        """The same, line by line."""
        return "\n".join(
            [
                self.why,
                f"  eager's peak  {show_bytes(self._peaks['eager'])}, measured, of the rank that takes most",
                f"  peak          {show_bytes(self._peaks['with'])}",
                f"  swapped       {show_bytes(self._swaps.swapped_bytes)} out and in",
            ]
        )

    @property
    def batch(self) -> int:
        """Not known of a sharded model."""
        raise BadInput("no batch is recommended for a sharded model: try batches by hand")

    def _current(self) -> Any:
        raise BadInput(
            f"there is no plan to show ({WHY}): `step.why` and `step.explain()` say what is swapped"
        )

    def _usual(self) -> Any:
        self._current()

    def prepare(self, batch: tuple[Any, ...]) -> None:
        """Finds out what is swapped. Model, gradients, optimizer and generators stay as they are."""
        self.device.prepare()
        tensors = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, torch.Tensor)]
        devices.check_sample(self.device, tensors)
        self._trial(batch, contextlib.nullcontext)  # warms up
        eager = self._peak(batch, lambda: self._swaps.learning(self._model))
        budget = planning.budget_bytes(self._budget, eager)
        self._peaks = {"eager": eager, "with": eager, "budget": budget}
        sizes = self._swaps.sizes
        wanted = max(0, eager - budget)
        for trial in range(1, MOST_TRIALS + 1):
            if self._peaks["with"] <= budget:
                break
            self._swaps.choose(_first(sizes, wanted if trial < MOST_TRIALS else sum(sizes)))
            host = self._host_budget
            if _most(int(host is not None and self._swaps.swapped_bytes > host)):
                raise self._no_plan(
                    f"{show_bytes(self._swaps.swapped_bytes)} would be swapped, more than the host budget"
                )
            self._peaks["with"] = self._peak(batch, self._swaps.active)
            if not _most(int(wanted < sum(sizes))):
                break
            wanted = self._swaps.swapped_bytes + max(0, self._peaks["with"] - budget)
        if self._peaks["with"] > budget:
            raise self._no_plan("what autograd saves is swapped, and more than the budget is taken still")
        logger.warning("%s", self.why)

    def _no_plan(self, why: str) -> NoPlan:
        peak, budget = self._peaks["with"], self._peaks["budget"]
        error = NoPlan(
            f"the sharded step takes {show_bytes(peak)} of a budget of {show_bytes(budget)}: {why}; raise the budget, lower "
            "the batch, or shard over more ranks"
        )
        error.op = error.layer = ""
        error.needs_bytes, error.budget_bytes, error.floor_bytes = peak, budget, peak
        error.short_by_bytes, error.is_proved = max(0, peak - budget), False
        return error

    def _hooked(self, batch: tuple[Any, ...]) -> Given:
        with torch.enable_grad(), self._swaps.active():
            return outputs.backward(self._fn(*batch))

    def _trial(
        self, batch: tuple[Any, ...], how: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        before = self._before()
        try:
            for parameter, _ in before.gradients:
                parameter.grad = None
            with torch.enable_grad(), how():
                outputs.backward(self._fn(*batch))
        finally:
            before.restore()

    def _before(self) -> Before:
        generators = {id(g): g for g in (torch.default_generator, self.device.default_generator())}
        return Before(
            [(p, p.grad) for p in self._model.parameters()],
            [(b, b.clone()) for b in self._model.buffers()],
            [(g, g.get_state()) for g in generators.values()],
        )

    def _peak(
        self, batch: tuple[Any, ...], how: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> int:
        """The most that a trial takes, on the rank where that is most."""
        with _peak_of(self.device, self._resident()) as peak:
            self._trial(batch, how)
        return _most(peak[0])

    def _resident(self) -> int:
        """Shards, gradients, buffers and the optimizer's state."""
        parts = [local_part(t) for t in itertools.chain(self._model.parameters(), self._model.buffers())]
        trained = [local_part(p) for p in self._model.parameters() if p.requires_grad and p.grad is not None]
        held = sum(aligned(part.untyped_storage().nbytes()) for part in (*parts, *trained))
        return held + planning.optimizer_bytes(self._optimizer)

    def _compared(self, batch: tuple[Any, ...]) -> Given:
        """Runs the batch in eager, then with the hooks from the same state, and compares all that they leave."""
        before = self._before()
        generators = [generator for generator, _ in before.generators]
        added = [(g, g.clone()) for _, g in before.gradients if g is not None]

        def put_back() -> None:
            before.restore()
            for gradient, copy in added:
                gradient.copy_(copy)

        with torch.enable_grad():
            eager = outcome(self._model, generators, outputs.backward(self._fn(*batch)))
        put_back()
        given = self._hooked(batch)
        different = differences(eager, outcome(self._model, generators, given))
        self._left -= 1
        if not different:
            return given
        put_back()
        names = ", ".join(sorted(different, key=lambda name: -different[name])[:3])
        raise VerificationError(
            f"the step with hooks differs from eager in {len(different)} of {len(eager)} tensors: {names}. Nothing of this "
            "step was kept. Train without Plimsoll, and report this with the model"
        )


def _first(sizes: list[int], wanted: int) -> set[int]:
    """What is saved first, up to so many bytes."""
    chosen: set[int] = set()
    total = 0
    for number, size in enumerate(sizes):
        if total >= wanted:
            break
        if size > 0:
            chosen.add(number)
            total += size
    return chosen


def _most(number: int) -> int:
    """The largest of all ranks."""
    found: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(found, number)
    return max(found)


@contextlib.contextmanager
def _peak_of(device: devices.Device, resident: int) -> Iterator[list[int]]:
    """The most bytes that are there meanwhile: of the GPU's allocator; on the CPU, what is resident and what this thread
    takes."""
    peak = [0]
    if device.where.type == "cuda":
        device.synchronise()
        torch.cuda.reset_peak_memory_stats(device.where)
        yield peak
        peak[0] = torch.cuda.max_memory_allocated(device.where)
        return
    with torch.autograd.set_multithreading_enabled(False), device.allocator.recording() as log:
        yield peak
        held: dict[int, int] = {}
        now = most = 0
        for kind, address, size in log.take():
            if kind == ALLOCATED:
                held[address] = size
                now += size
                most = max(most, now)
            else:
                now -= held.pop(address, 0)
    peak[0] = resident + most
