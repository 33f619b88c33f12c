"""A step at batch sizes other than the sample's, and whether the losses of a batch's parts combine to the loss of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from . import _core, devices, outputs, recording
from .errors import BadInput
from .ops import tensors_in
from .recorder import Known
from .recording import Loss
from .surroundings import host_generators_kept
from .tape import Tape, to_document
from .torch_private import tree_flatten, tree_unflatten

Arguments = tuple[Any, ...]

SMALL = (2, 4)
"""Batch sizes that are recorded to predict others. Batch norm needs more than one sample."""

LARGEST = 1 << 20
"""Upper limit of the search for a batch."""

PLAN_SECONDS = 2.0
"""Seconds of the search for a plan for each batch."""

PREDICTED_WITHIN = 0.05
"""Assumed error of a prediction: a batch that swaps counts as faster than one that keeps everything only by more than this."""

TOLERANCE = 1e-3
"""Largest difference, relative to both, at which a loss counts as the mean or the sum of its parts' losses."""


def size_of(sample: Arguments) -> int:
    """Samples in the batch: the first size of the first tensor that has one."""
    return next((t.shape[0] for t in tensors_in(sample) if t.dim() > 0 and t.shape[0] > 0), 1)


def taken(batch: Arguments, first: int, end: int) -> Arguments:
    """Returns the samples in `first..end`; past the last sample it continues with the first."""
    size = size_of(batch)
    leaves, spec = tree_flatten(batch)

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.shape[0] != size:
            return leaf
        if end <= size:
            return leaf[first:end]
        return torch.cat([leaf] * math.ceil(end / size))[first:end]

    return tree_unflatten([part(leaf) for leaf in leaves], spec)


def family(
    fn: Loss,
    model: torch.nn.Module,
    sample: Arguments,
    state_bytes: int,
    name: str,
    adds: bool = False,
    is_real: bool = True,
    sizes: tuple[int, int] = SMALL,
    tape_of: Callable[[Arguments], Tape] | None = None,
) -> tuple[_core.Batches, Tape]:
    """Returns the step at any batch, from recordings of two small ones or of `sizes`, and the recording of the larger one.

    With `adds` the step adds to gradients. Without `is_real` nothing is computed, and seconds and scratch are unknown.
    `tape_of` records a batch otherwise than as a whole.
    """
    texts = []
    for size in sizes:
        part = taken(sample, 0, size)
        if is_real:
            tape = recording.record(fn, model, part, adds) if tape_of is None else tape_of(part)
        else:
            tape = recording.record_shapes(fn, model, part)
        texts.append(to_document(tape, name, size, state_bytes, is_rounded=False).text)
    return _core.Batches(*texts), tape


def steps(
    fn: Loss,
    model: torch.nn.Module,
    sample: Arguments,
    state_bytes: int,
    adds: bool = False,
    tape_of: Callable[[Arguments], Tape] | None = None,
) -> tuple[_core.Batches, Tape]:
    """Returns the step at any batch, from recordings of the sample's batch and of half of it (if large enough), and the
    recording of the larger one. `adds` and `tape_of` are those of `family`; with `tape_of` the small batches of `family`
    are recorded, since the sample's may not fit memory.

    Raises `BadInput` if tensors do not grow linearly with the batch.
    """
    size, name = size_of(sample), type(model).__name__
    sizes = (size // 2, size) if size >= SMALL[1] and tape_of is None else SMALL
    found, recorded = family(fn, model, sample, state_bytes, name, adds=adds, sizes=sizes, tape_of=tape_of)
    if adds:
        # This step has the tensors of the step that sets gradients, and existing gradients, which do not grow with the
        # batch.
        return found, recorded
    double = 2 * sizes[1]
    tape = recording.record_shapes(fn, model, taken(sample, 0, double), Known.of(recorded))
    shapes = _core.Trace(to_document(tape, name, double, state_bytes).text)
    if found.bytes_at(double) != shapes.tensor_bytes():
        raise BadInput(
            "no batch is recommended: the step's tensors do not grow linearly with the batch. Try batches by hand"
        )
    return found, recorded


@host_generators_kept()
def losses_make(fn: Loss, model: torch.nn.Module, batch: Arguments) -> str:
    """Returns `mean` or `sum`, by which the losses of parts make the loss of a batch: tried on four samples in `eval` mode.

    Nothing is changed. Raises `BadInput` if it is neither.
    """
    half = min(2, max(1, size_of(batch) // 2))
    modes = [(module, module.training) for module in model.modules()]
    generators = [torch.default_generator, devices.of(model).default_generator()]
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            one, other, both = (
                float(outputs.of(fn(*taken(batch, first, end))).loss)
                for first, end in ((0, half), (half, 2 * half), (0, 2 * half))
            )
    finally:
        for module, mode in modes:
            module.training = mode
        for generator, state in states:
            generator.set_state(state)
    margin = TOLERANCE * max(abs(one), abs(other), abs(both))
    if abs(both - (one + other) / 2) <= margin:
        return "mean"
    if abs(both - (one + other)) <= margin:
        return "sum"
    raise BadInput(
        f"The batch cannot be split: its loss is neither the mean nor the sum of the losses of its parts ({one:g} and "
        f"{other:g} of {half} samples each, {both:g} together, in `eval` mode)"
    )
