"""Steps of a model whose parameters are sharded by `fully_shard` (FSDP2): in eager, with hooks that swap saved tensors.

No plan places such a step: its parameters are whole only for a while, controlled by FSDP. So a step runs as written. `tune`
runs it a few times: it notes the tensors saved for the backward pass and the step's memory, and swaps the tensors saved first,
which are needed last, until the step fits the budget. All ranks swap alike, by the needs of the rank that takes most.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import devices, outputs, planning
from ._core import show_bytes
from .errors import BadInput, NoPlan, VerificationError
from .hooked import Hooked, state_of
from .link import Link
from .options import Options
from .outputs import Given
from .ranks import Ranks
from .recording import Loss
from .step import Step
from .torch_private import tree_flatten
from .verification import WHAT_TO_DO, differences, outcome

logger = logging.getLogger("plimsoll")

WHY = "FSDP: no plan runs; hooks swap saved tensors"


class ShardedStep(Step):
    """The step that `tune` returns for a sharded model. `fallback` always says that no plan runs."""

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
        self._hooked = Hooked(self.device, model, optimizer, _most)
        self._link = Link.parse(options.link if options.link is not None else "12GB/s")
        self._last = None

    def __call__(self, *batch: Any) -> Any:
        """Trains one batch in eager, with the hooks: sets the gradients or adds to them, returns the function's result."""
        assert self._ranks is not None
        return self._ranks.together(lambda: self._compared(batch) if self._left > 0 else self._swapped(batch))

    def connect(self) -> None:
        """Does nothing: no prediction depends on the network."""

    def verify(self, steps: int = 1) -> None:
        """Compares the next steps with eager without hooks, bit for bit. A difference raises `VerificationError`."""
        if steps < 0:
            raise BadInput(f"{steps} steps cannot be verified; give 0 or more")
        self._left = steps

    @property
    def why(self) -> str:
        """Description of the choice, in one line."""
        return f"{WHY}: {self._hooked.words()}"

    def explain(self) -> str:
        """Description of the choice, line by line."""
        return "\n".join(
            [
                self.why,
                f"  eager's peak  {show_bytes(self._hooked.eager_bytes or 0)}, measured, of the rank that takes most",
                f"  peak          {show_bytes(self._hooked.peak_bytes)}",
                f"  swapped       {show_bytes(self._hooked.swaps.swapped_bytes)} out and in",
            ]
        )

    @property
    def batch(self) -> int:
        """Unknown for a sharded model."""
        raise BadInput("no batch is recommended for a sharded model: try batches by hand")

    def _current(self) -> Any:
        raise BadInput(
            f"there is no plan to show ({WHY}): `step.why` and `step.explain()` say what is swapped"
        )

    def _usual(self) -> Any:
        self._current()

    def prepare(self, batch: tuple[Any, ...]) -> None:
        """Chooses the tensors to swap. Model, gradients, optimizer and generators stay as they are."""
        self.device.prepare()
        tensors = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, torch.Tensor)]
        devices.check_sample(self.device, tensors)
        self._trial(batch, contextlib.nullcontext)  # warms up
        why = self._hooked.fit(
            lambda how: self._trial(batch, how),
            lambda peak: planning.budget_bytes(self._budget, peak),
            self._host_budget,
        )
        if why:
            raise self._no_plan(why)
        logger.warning("%s", self.why)

    def _no_plan(self, why: str) -> NoPlan:
        peak, budget = self._hooked.peak_bytes, self._hooked.budget_bytes
        error = NoPlan(
            f"the sharded step takes {show_bytes(peak)} of a budget of {show_bytes(budget)}: {why}; raise the budget, lower "
            "the batch, or shard over more ranks"
        )
        error.op = error.layer = ""
        error.needs_bytes, error.budget_bytes, error.floor_bytes = peak, budget, peak
        error.short_by_bytes, error.is_proved = max(0, peak - budget), False
        return error

    def _swapped(self, batch: tuple[Any, ...]) -> Given:
        with torch.enable_grad(), self._hooked.swaps.active():
            return outputs.backward(self._fn(*batch))

    def _trial(
        self, batch: tuple[Any, ...], how: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        before = state_of(self.device, self._model)
        try:
            for parameter, _ in before.gradients:
                parameter.grad = None
            with torch.enable_grad(), how():
                outputs.backward(self._fn(*batch))
        finally:
            before.restore()

    def _compared(self, batch: tuple[Any, ...]) -> Given:
        """Runs the batch in eager, then with the hooks from the same state, and compares all results."""
        before = state_of(self.device, self._model)
        generators = [generator for generator, _ in before.generators]
        added = [(g, g.clone()) for _, g in before.gradients if g is not None]

        def put_back() -> None:
            before.restore()
            for gradient, copy in added:
                gradient.copy_(copy)

        with torch.enable_grad():
            eager = outcome(self._model, generators, outputs.backward(self._fn(*batch)))
        put_back()
        given = self._swapped(batch)
        different = differences(eager, outcome(self._model, generators, given))
        self._left -= 1
        if not different:
            return given
        put_back()
        names = ", ".join(sorted(different, key=lambda name: -different[name])[:3])
        raise VerificationError(
            f"the step with hooks differs from eager in {len(different)} of {len(eager)} tensors: {names}. Nothing of this "
            f"step was kept. {WHAT_TO_DO}"
        )


def _most(number: int) -> int:
    """Largest value over all ranks."""
    found: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(found, number)
    return max(found)
