"""A Lightning strategy whose training steps run by a plan, on one device.

from plimsoll.adapters.lightning import PlannedStrategy
Trainer(strategy=PlannedStrategy(budget="22GiB")).fit(module, loader)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..errors import Refused
from ..outputs import Outputs
from ..step import Step
from ..surroundings import replaced
from ..tuning import tune
from .backward import after_backward, must_step_first


class _BatchNumber:
    """A stand-in for `batch_idx`, which differs in every batch: code that reads it cannot be planned."""

    def _refuse(self, *_: object) -> Any:
        raise Refused(
            "`training_step` looks at `batch_idx`, which is another in every batch; do what depends on it in "
            "`on_train_batch_start` or `on_train_batch_end`"
        )


_LOOKS = "add sub mul truediv floordiv mod radd rmul rsub rmod eq ne lt le gt ge bool int float index str repr format hash"
for _name in _LOOKS.split():
    setattr(_BatchNumber, f"__{_name}__", _BatchNumber._refuse)


class PlannedStrategy(SingleDeviceStrategy):
    """Trains on one device within `budget`: `"22GiB"`, bytes, or `"60%"` of eager's memory.

    `training_step` runs while a step is recorded and verified. Its result and the tensors that it logs come from every
    batch; its other side effects are not repeated.
    """

    step: Step | None = None
    """The training step; `None` before the first batch."""

    def __init__(
        self, budget: int | str, device: torch.device | str | int = "cpu", **tune_kwargs: Any
    ) -> None:
        """Takes the budget, and the other arguments of `plimsoll.tune`."""
        super().__init__(device)
        self._budget = budget
        self._tune_kwargs = tune_kwargs

    def setup(self, trainer: Any) -> None:
        """Refuses unsupported settings before anything runs."""
        super().setup(trainer)
        self.step = None
        if not trainer.training:
            return
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        if processes > 1:
            raise Refused(
                f"this process is one of {processes}, which would each train a model of their own: `PlannedStrategy` is for "
                "one device. Train with one process, or with Hugging Face's trainer or Accelerate"
            )
        module = self._module
        if not module.automatic_optimization:
            raise Refused(
                "a module that optimizes by hand cannot be planned by a strategy; call `plimsoll.tune` in it"
            )
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise Refused(
                "steps with fp16's scaled gradients cannot be planned; train with `precision='bf16-mixed'`"
            )
        for hook in ("backward", "optimizer_zero_grad"):
            if is_overridden(hook, module):
                raise Refused(
                    f"the module has a `{hook}` of its own, which a plan would leave out; remove it, or train without"
                )

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs forward and backward of one batch by the plan. The gradients appear when Lightning calls `backward`."""
        module = self._module
        trainer = module.trainer
        # A plan depends on the divisor of the loss, but not on the number of the batch.
        batch = (trainer.accumulate_grad_batches, arguments[0])
        if self.step is None and must_step_first(self.optimizers[0]):
            return super().training_step(*arguments, **keywords)
        if trainer.fit_loop.batch_idx % trainer.accumulate_grad_batches == 0:
            self.optimizers[0].zero_grad()  # Lightning does this between forward and backward
        if self.step is None:
            numbers = [_BatchNumber() for _ in arguments[1:]]
            self.step = tune(
                lambda divisor, data: self._outputs(divisor, data, *numbers),
                module,
                self.optimizers[0],
                batch,
                self._budget,
                **self._tune_kwargs,
            )
        others = self.step(*batch).others
        for name, value, positional, how in others["logged"]:
            module.log(name, value, *positional, **how)
        output = others["output"]
        if isinstance(output, Mapping):
            return {**output, "loss": after_backward(output["loss"], module.parameters())}
        return after_backward(output, module.parameters())

    def _outputs(self, divisor: int, *arguments: Any) -> Outputs:
        module = self._module
        logged: list[tuple[str, torch.Tensor, tuple[Any, ...], dict[str, Any]]] = []

        def log(name: str, value: Any, *positional: Any, **how: Any) -> None:
            if not isinstance(value, torch.Tensor):
                raise Refused(
                    f"`training_step` logs `{name}`, a {type(value).__name__}: only the tensors that it computes are those of "
                    "each batch; log it in `on_train_batch_end`"
                )
            logged.append((name, value, positional, how))

        with replaced(module, "log", log), self.precision_plugin.train_step_context():
            output = module.training_step(*arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, torch.Tensor):
            raise Refused("`training_step` gave no loss; a step that is left out cannot be planned")
        return Outputs(loss / divisor, {"output": output, "logged": logged})
