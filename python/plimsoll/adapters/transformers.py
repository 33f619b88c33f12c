"""Hugging Face's `Trainer` with a budget.

from plimsoll.adapters.transformers import Trainer
Trainer(model=model, args=arguments, train_dataset=data, budget="22GiB").train()
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers
from accelerate.utils import DistributedType

from ..errors import Refused
from ..step import Step
from ..surroundings import replaced
from ..tuning import tune
from .backward import must_step_first, what_backward_gets

logger = logging.getLogger("plimsoll")

HONOURED = {DistributedType.NO, DistributedType.MULTI_CPU}


class PlannedSteps:
    """A budget for trainers that derive from `transformers.Trainer`: `class Mine(PlannedSteps, Other): ...`.

    Side effects of `compute_loss` happen only while a step is recorded and verified.
    """

    step: Step | None = None
    """The training step; `None` before the first batch."""

    def __init__(
        self, *arguments: Any, budget: int | str, tune_kwargs: dict[str, Any] | None = None, **keywords: Any
    ) -> None:
        """Takes the trainer's arguments, the budget, and in `tune_kwargs` the other arguments of `plimsoll.tune`."""
        self._budget = budget
        self._tune_kwargs = dict(tune_kwargs or {})
        self._tuned_for: tuple[object, ...] = ()
        super().__init__(*arguments, **keywords)

    def training_step(
        self: Any,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Runs forward and backward of one batch by the plan, in place of the trainer's own."""
        model.train()
        # A plan depends on the divisor of the loss.
        batch = (dict(inputs), num_items_in_batch, getattr(self, "current_gradient_accumulation_steps", 1))
        if self._tuned_for != (model, self.optimizer):
            self._refuse_what_no_plan_has()
            if must_step_first(_plain(self.optimizer)):
                return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
            self._say_what_is_not_repeated()
            self.step = tune(
                self._loss_of(model), model, _plain(self.optimizer), batch, self._budget, **self._tune_kwargs
            )
            self._tuned_for = (model, self.optimizer)
        loss: torch.Tensor = self.step(*batch)
        return loss

    def _loss_of(self: Any, model: torch.nn.Module) -> Any:
        training_step = super().training_step  # type: ignore[misc]

        def loss(inputs: dict[str, Any], num_items_in_batch: Any, _steps: int) -> torch.Tensor:
            # The caller set the mode of the model before.
            with replaced(model, "train", lambda mode=True: model):
                return what_backward_gets(lambda: training_step(model, dict(inputs), num_items_in_batch))

        return loss

    def _refuse_what_no_plan_has(self: Any) -> None:
        kind = self.accelerator.distributed_type
        if kind not in HONOURED:
            raise Refused(
                f"steps under {kind.value} cannot be planned; train on one device, or with DDP, or without a budget"
            )
        if self.accelerator.scaler is not None:
            raise Refused(
                "steps with fp16's scaled gradients cannot be planned; train with `bf16=True`, or in f32"
            )

    def _say_what_is_not_repeated(self: Any) -> None:
        if type(self).compute_loss is not transformers.Trainer.compute_loss:
            logger.warning(
                "`%s.compute_loss` runs while the step is recorded and verified: what it does beside computing the loss, such "
                "as keeping metrics, is not repeated",
                type(self).__name__,
            )


class Trainer(PlannedSteps, transformers.Trainer):
    """`transformers.Trainer` whose steps run by a plan within `budget`: `"22GiB"`, bytes, or `"60%"` of eager's memory."""


def _plain(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Returns the optimizer that Accelerate wrapped."""
    return getattr(optimizer, "optimizer", optimizer)
