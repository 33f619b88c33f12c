"""A step for loops with Accelerate.

step = plimsoll.adapters.accelerate.tune(accelerator, loss, model, optimizer, sample, budget="22GiB")
for x, y in loader:
    with accelerator.accumulate(model):
        loss = step(x, y)  # in place of the forward pass and `accelerator.backward(loss)`
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from .. import tuning
from ..errors import Refused
from ..options import Options
from ..outputs import Given, Outputs, of
from ..recording import Loss
from ..step import Step
from .backward import what_backward_gets

HONOURED = {DistributedType.NO, DistributedType.MULTI_CPU}


class _UndividedStep(Step):
    """A step that returns the loss as it was before Accelerate divided it by the number of accumulated batches."""

    def __call__(self, *batch: Any) -> Any:
        (loss,), others = super().__call__(*batch).others
        return loss if others is None else Outputs(loss, *others)


def tune(
    accelerator: Accelerator,
    fn: Loss,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    budget: int | str,
    **tune_kwargs: Any,
) -> Step:
    """Returns a step that does the work of `accelerator.backward(fn(*batch))` by a plan, and returns the result of `fn`.

    Takes model and optimizer as `accelerator.prepare` returned them, and the other arguments of `plimsoll.tune`. The number
    of accumulated batches must not change later.
    """
    kind = accelerator.distributed_type
    if kind not in HONOURED:
        raise Refused(
            f"steps under {kind.value} cannot be planned; train on one device, or with DDP, or without a plan"
        )
    if accelerator.scaler is not None:
        raise Refused(
            "steps with fp16's scaled gradients cannot be planned; use `mixed_precision='bf16'`, or none"
        )
    is_divided = accelerator.gradient_accumulation_steps != 1

    def loss(*batch: Any) -> Given:
        given = fn(*batch)
        made = of(given)
        divided = what_backward_gets(lambda: accelerator.backward(made.loss))
        if not isinstance(given, Outputs):
            return Outputs(divided, ((made.loss,), None)) if is_divided else divided
        return Outputs(divided, ((made.loss,), (made.others,)) if is_divided else made.others)

    its = getattr(optimizer, "optimizer", optimizer)
    return tuning.make(
        _UndividedStep if is_divided else Step, loss, model, its, sample, Options(budget, **tune_kwargs)
    )
