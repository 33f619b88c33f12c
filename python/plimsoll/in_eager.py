"""A kind of batch that no plan runs: in eager if it fits the budget, else with hooks that swap until it does.

With the hooks the step must leave eager's bits, which is checked while the tensors to swap are chosen; eager runs then anyway.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from . import devices
from ._core import show_bytes
from .hooked import Hooked, state_of
from .memory import Memory
from .outputs import Given
from .tape import Tape
from .verification import Outcome, State, generators_of, is_same, outcome

logger = logging.getLogger("plimsoll")


class InEager:
    """Runs one kind of batch without a plan."""

    def __init__(
        self,
        device: devices.Device,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        why: str = "",
    ) -> None:
        self.why = why
        """Reason why no plan runs; empty if it is known only when a batch comes."""
        self._device = device
        self._model = model
        self._optimizer = optimizer
        self._hooked: Hooked | None = None
        self.short = ""
        """Reason why it does not fit the budget even with hooks; empty if it does."""
        self._said: set[str] = set()

    def is_news(self, what: str) -> bool:
        """Returns `True` if this was not reported yet."""
        is_new = what not in self._said
        self._said.add(what)
        return is_new

    def fit(
        self,
        run: Callable[[], Given],
        memory: Memory,
        budget: int,
        host: int | None,
        peak: int | None,
        verify: bool,
        tape: Tape | None = None,
        keeps: bool = True,
    ) -> None:
        """Chooses the tensors of this batch that hooks swap, unless that was done. `peak` is eager's bytes, if known. With
        `keeps`, the step's memory keeps its place for the next plan, as far as it has room next to the batch.

        Gradients, buffers, generators and tensors that the tape of this kind updates are left as they were. Raises
        `VerificationError` if the step has different bits with the hooks.
        """
        gradients = (p.grad for p in self._model.parameters() if p.grad is not None)
        memory.stand_aside(gradients, max(0, budget - self._eager_bytes(budget, peak)) if keeps else 0)
        if peak is not None and peak <= budget:
            self._hooked, self.short = None, ""
            return
        if self._hooked is not None and self._hooked.budget_bytes <= budget:
            return
        self._hooked = None
        hooked = Hooked(self._device, self._model, self._optimizer)
        left: list[Outcome] = []

        def trial(how: Callable[[], AbstractContextManager[None]]) -> None:
            before, own = state_of(self._device, self._model), None
            generators = [generator for generator, _ in before.generators]
            try:
                for parameter, _ in before.gradients:
                    parameter.grad = None
                if tape is not None:
                    own = State(tape)
                    generators = list(dict.fromkeys(generators + generators_of(tape)))
                with how():
                    given = run()
                if verify:
                    left[1:] = [outcome(self._model, generators, given, is_on_host=True)]
            finally:
                if own is not None:
                    own.restore()
                before.restore()

        short = hooked.fit(trial, lambda _: budget, host)
        if verify and hooked.swaps.chosen and len(left) > 1 and hooked.eager_bytes is not None:

            def again() -> Outcome:
                trial(contextlib.nullcontext)
                return left[-1]

            is_same(left[0], left[-1], again)
        self._hooked, self.short = hooked, short

    def _eager_bytes(self, budget: int, peak: int | None) -> int:
        """Bytes of the batch without hooks; the whole budget unless less is known."""
        if peak is not None:
            return peak
        hooked = self._hooked
        return budget if hooked is None or hooked.swaps.chosen else hooked.peak_bytes

    def run(self, run: Callable[[], Given]) -> Given:
        """Runs a batch, with the hooks if they are needed."""
        if self._hooked is None or not self._hooked.swaps.chosen:
            return run()
        swaps = self._hooked.swaps
        with swaps.active():
            given = run()
        if swaps.missed:
            logger.warning(
                "this batch saves other tensors than the one that hooks were fitted to: %d of %d were not swapped, and the "
                "step may take more than the budget",
                swaps.missed,
                len(swaps.chosen),
            )
        return given

    @property
    def words(self) -> str:
        """Description of the hooks' swaps; empty if they do nothing."""
        if self._hooked is None or not self._hooked.swaps.chosen:
            return ""
        return f"hooks swap saved tensors: {self._hooked.words()}"

    def warn(self, budget: int) -> None:
        """Warns if the budget is exceeded."""
        if self._hooked is not None and self.short:
            logger.warning(
                "the step takes %s in eager, more than the budget of %s: %s",
                show_bytes(self._hooked.peak_bytes),
                show_bytes(budget),
                self.short,
            )
