"""The devices that steps run on: the CPU, and GPUs by CUDA."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import torch

from ..errors import BadInput
from .cpu import Cpu
from .cuda import Cuda
from .device import Device

__all__ = ["Device", "check_sample", "of", "on"]

CPU = Cpu()


@functools.cache
def on(where: torch.device) -> Device:
    """Returns the device for tensors on `where`."""
    if where.type == "cpu":
        return CPU
    if where.type == "cuda" and where.index is None:
        return on(torch.device("cuda", torch.cuda.current_device()))
    if where.type == "cuda":
        return Cuda(where)
    raise BadInput(f"Plimsoll runs steps on the CPU and on GPUs by CUDA, not on `{where.type}`")


def of(model: torch.nn.Module) -> Device:
    """Returns the device of a model. Raises `BadInput` if the model lies on two, or on an unsupported one."""
    first: tuple[str, torch.device] | None = None
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise BadInput(
                f"`{name}` is on meta; steps need memory, and `plimsoll.fits` can be asked about such a model"
            )
        if first is None:
            first = (name, tensor.device)
        elif tensor.device != first[1]:
            raise BadInput(
                f"the model is on two devices: `{first[0]}` is on {first[1]} and `{name}` on {tensor.device}. Move it to one "
                f"(`model.to({str(first[1])!r})`); a model that is spread over several is not planned"
            )
    return on(first[1] if first else torch.device("cpu"))


def check_sample(device: Device, tensors: Iterable[torch.Tensor]) -> None:
    """Raises `BadInput` if a tensor of the sample is not on the model's device."""
    for tensor in tensors:
        if tensor.device != device.where:
            raise BadInput(
                f"a tensor of the sample is on {tensor.device} and the model on {device.where}: move the batch there before "
                f"the step (`x.to({str(device.where)!r}, non_blocking=True)`)"
            )
