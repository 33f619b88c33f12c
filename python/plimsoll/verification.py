"""Compares the results of a planned step with eager's, and restores state that either changed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from .errors import VerificationError
from .ops import tensors_in
from .outputs import Given, Outputs
from .tape import Tape

logger = logging.getLogger("plimsoll")

Outcome = dict[str, torch.Tensor]

WHAT_TO_DO = (
    "If the step reads Python values or objects that changed since `tune`, pass them as tensors or call `tune` again; else "
    "train without Plimsoll, and report this with the model"
)
"""End of a message about a step that differs from eager."""


def generators_of(tape: Tape) -> list[torch.Generator]:
    """Generators that a step may draw from."""
    drawn = [call.random.generator for call in tape.calls if call.random is not None]
    return list({id(g): g for g in [torch.default_generator, *drawn]}.values())


class State:
    """State that a step changes, kept to run the same step again."""

    def __init__(self, tape: Tape) -> None:
        self._tensors = [(tensor, tensor.clone()) for tensor in tape.updated]
        self._generators = [(generator, generator.get_state()) for generator in generators_of(tape)]
        self._gradients = [(parameter, parameter.grad) for parameter, _ in tape.gradients]
        self._tensors += [(there, there.clone()) for _, there in self._gradients if there is not None]

    def restore(self) -> None:
        """Restores everything."""
        for parameter, there in self._gradients:
            parameter.grad = there
        with torch.no_grad():
            for tensor, copy in self._tensors:
                tensor.copy_(copy)
        for generator, state in self._generators:
            generator.set_state(state)


def outcome(model: torch.nn.Module, generators: list[torch.Generator], given: Given) -> Outcome:
    """All results of a step, by name: copies on the host."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", copy=True)

    loss, others = (given.loss, given.others) if isinstance(given, Outputs) else (given, None)
    left = {"the loss": copied(loss)}
    left |= {f"output {number}": copied(other) for number, other in enumerate(tensors_in(others))}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            left[f"the gradient of {name}"] = copied(parameter.grad)
    for name, buffer in model.named_buffers():
        left[f"the buffer {name}"] = copied(buffer)
    for number, generator in enumerate(generators):
        left[f"the state of generator {number}"] = generator.get_state()
    return left


def differences(one: Outcome, other: Outcome) -> dict[str, float]:
    """By name: largest difference of tensors whose bits differ."""
    found = {name: float("inf") for name in one.keys() ^ other.keys()}
    for name in one.keys() & other.keys():
        a, b = one[name].contiguous(), other[name].contiguous()
        if a.shape != b.shape or a.dtype != b.dtype:
            found[name] = float("inf")
        elif not torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)):
            apart = (a.double() - b.double()).abs().max().item()
            found[name] = apart if apart == apart else float("inf")
    return found


def is_same(eager: Outcome, planned: Outcome, again: Callable[[], Outcome]) -> bool:
    """Returns `True` if a planned step left eager's bits; `False` if eager, run `again`, differs from itself by as much.

    Raises `VerificationError` if the planned step differs by more.
    """
    different = differences(eager, planned)
    if not different:
        return True
    spread = differences(eager, again())
    if all(name in spread and by <= spread[name] for name, by in different.items()):
        logger.warning(
            "eager is not deterministic here: two runs differ by up to %g. The plan differs from eager by no more",
            max(spread.values()),
        )
        return False
    worst = sorted(different, key=lambda name: -different[name])
    names = ", ".join(f"{name} (by up to {different[name]:g})" for name in worst[:3])
    raise VerificationError(
        f"the planned step differs from eager in {len(different)} of {len(eager)} tensors: {names}. Nothing of this step "
        f"was kept. {WHAT_TO_DO}"
    )
