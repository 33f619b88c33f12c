"""Uses of PyTorch that PyTorch does not promise. Seen with torch 2.6, 2.11 and 2.15, captures with 2.11 and 2.15.

All of them are here and in the folder `native`, so that a new version of PyTorch is tried in two places.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_map_with_path, tree_unflatten
from torch.utils.flop_counter import flop_registry

__all__ = [
    "BATCH_NORMS",
    "DDP_FORWARD",
    "FAKE_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "OpOverload",
    "TorchDispatchMode",
    "TreeSpec",
    "abort",
    "accumulate_hooks",
    "below_autograd",
    "broadcast_buffers_next",
    "buckets_of",
    "children_of",
    "cuda_sleep",
    "end_failed_capture",
    "expect_gradients",
    "float32_precision",
    "flops_of",
    "global_hooks",
    "gradient_hooks",
    "has_communication_hook",
    "has_hooks",
    "held_by",
    "hooks_of",
    "hooks_on",
    "modules_of",
    "node_number",
    "parts_of",
    "sequence_number",
    "storage_key",
    "tensor_hooks",
    "tree_flatten",
    "tree_map_only",
    "tree_map_with_path",
    "tree_unflatten",
    "uncompiled",
    "uses_of",
    "version_of",
    "views_as_of_fakes",
    "without_function_modes",
]

BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm"}
"""Ops that update `running_mean` and `running_var`; the schema of some of them does not say so."""


FAKE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""Exceptions that ops raise on fake tensors if they can only run in memory."""

DDP_FORWARD = "_run_ddp_forward"
"""Method by which `DistributedDataParallel` calls the wrapped module, after buffers and before the reducer."""


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, for as long as the storage is held: PyTorch reuses the number."""
    return tensor.untyped_storage()._cdata


def uses_of(tensor: torch.Tensor) -> int:
    """Number of tensors on the same storage, and one for the storage itself."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def version_of(tensor: torch.Tensor) -> int:
    """Number of in-place updates of a tensor's memory."""
    return tensor._version


def held_by(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers that a module itself holds, by name: its own dictionaries."""
    return module._parameters, module._buffers


def children_of(module: torch.nn.Module) -> dict[str, torch.nn.Module | None]:
    """Modules that a module itself holds, by name: its own dictionary."""
    return module._modules


def flops_of(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int:
    """Floating-point operations of a call, as PyTorch's own counter has them; 0 if that does not know the op."""
    count = flop_registry.get(func.overloadpacket)
    return int(count(*args, **kwargs, out_val=out)) if count else 0


def broadcast_buffers_next(wrapper: torch.nn.Module, is_due: bool = True) -> None:
    """Sets whether `DistributedDataParallel` broadcasts buffers before its next forward pass, as it
    does after a step that reduced gradients."""
    vars(wrapper)["require_forward_param_sync"] = is_due


def abort(group: Any) -> None:
    """Aborts the running collectives of a process group, which is unusable afterwards. A torch that cannot do so
    (2.6) leaves it to the group's time limit."""
    if hasattr(group, "abort"):
        group.abort()


def buckets_of(wrapper: Any, parameters: list[torch.nn.Parameter]) -> list[list[int]]:
    """Buckets of a `DistributedDataParallel` whose gradients arrive in the order of these parameters, by number."""
    cap = wrapper.bucket_bytes_cap
    first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if wrapper.bucket_bytes_cap_default else cap
    count = len(parameters)
    assign = torch.distributed._compute_bucket_assignment_by_size
    buckets, _ = assign([*parameters], [first, cap], [False] * count, list(range(count)))
    return [list(bucket) for bucket in buckets]


def has_communication_hook(wrapper: Any) -> bool:
    """Returns `True` if gradients of a `DistributedDataParallel` are reduced by a hook that is written in Python."""
    return bool(wrapper._comm_hooks)


def expect_gradients(wrapper: Any, parameters: list[torch.nn.Parameter]) -> None:
    """Tells the reducer of a `DistributedDataParallel` that a backward pass begins, which gives these parameters gradients."""
    with torch.enable_grad():
        # If it looks for unused parameters, it does so in the graph of these tensors.
        outputs = [p.view_as(p) for p in parameters] if wrapper.find_unused_parameters else []
        wrapper.reducer.prepare_for_backward(outputs)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Context in which calls skip autograd, and its bookkeeping of versions and views."""
    return torch._C._AutoDispatchBelowAutograd()


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Context in which code compiled by `torch.compile` runs as written. A tape has no other ops:
    PyTorch does so wherever calls are recorded."""
    # Nothing is compiled before this module is imported, which takes seconds.
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def without_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Context in which no mode and no class sees PyTorch's functions before its dispatcher does."""
    return torch._C.DisableTorchFunction()


def views_as_of_fakes() -> contextlib.AbstractContextManager[Any]:
    """Context in which autograd differentiates an update of a view by the op that made the view, as it always does on fake
    tensors, and not by `as_strided`. Both move the same numbers."""
    return torch.autograd._force_original_view_tracking(True)


def sequence_number() -> int:
    """Number of the autograd node that was made last; the node of an op is made before the op is dispatched."""
    return torch.autograd._get_sequence_nr() - 1


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Tensors in memory that a tensor consists of: numbers and scales if it is quantised, else itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in parts_of(getattr(tensor, name))]


def node_number() -> int | None:
    """Number of the running autograd node, in the backward pass."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def cuda_sleep(cycles: int) -> None:
    """Makes the current CUDA stream sleep for this many cycles."""
    torch.cuda._sleep(cycles)


def timing_events() -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
    """Returns two events that a graph records whenever it runs; `None` if this torch has no such events."""
    try:
        begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    except TypeError:
        return None
    return begin, end


def end_failed_capture(graph: torch.cuda.CUDAGraph, where: torch.device, pool: tuple[int, int]) -> None:
    """Tells PyTorch's CUDA allocator that a capture into this pool is over; until then it would release no cached memory.

    In torch 2.15 `CUDAGraph.reset` does so. In 2.11 only `capture_end` does, and only if the driver ends the capture well.
    """
    graph.reset()
    index = torch.cuda.current_device() if where.index is None else where.index
    # Its name since torch 2.8, and the one before.
    names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
    end = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
    try:
        end(index, pool)
    except RuntimeError:
        return  # already ended
    torch._C._cuda_releasePool(index, pool)


def float32_precision() -> tuple[object, ...]:
    """Precision of 32-bit products on a GPU: by names since torch 2.9, by two switches before."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        conv = getattr(torch.backends.cudnn, "conv", torch.backends.cudnn)
        return (torch.backends.cuda.matmul.fp32_precision, conv.fp32_precision)
    return (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


def accumulate_hooks(parameter: torch.Tensor) -> dict[int, Any]:
    """Hooks that run as soon as the parameter's gradient exists. Autograd reads this dictionary each time."""
    return getattr(parameter, "_post_accumulate_grad_hooks", None) or {}


def gradient_hooks(parameter: torch.Tensor) -> dict[int, Any]:
    """Hooks that change the parameter's gradient before it is set. Autograd reads this dictionary each time."""
    return parameter._backward_hooks or {}


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Hook = tuple[int, str, object]
"""Number of the module, kind of hook or name of the parameter, and the hook."""


def has_hooks(module: torch.nn.Module) -> bool:
    """Returns `True` if a hook is registered on the module's forward or backward pass."""
    return any(getattr(module, name, None) for name in HOOKS)


def hooks_of(modules: list[torch.nn.Module]) -> list[Hook]:
    """Hooks of the modules' forward and backward passes."""
    found: list[Hook] = []
    for place, own in enumerate(map(vars, modules)):
        for name in HOOKS:
            if hooks := own.get(name):
                found += [(place, name, hook) for hook in hooks.values()]
    return found


def global_hooks() -> list[Hook]:
    """Hooks of all modules' forward and backward passes."""
    own = vars(torch.nn.modules.module)
    return [(-1, name, hook) for name in HOOKS for hook in own.get(f"_global{name}", {}).values()]


def tensor_hooks(modules: list[torch.nn.Module]) -> list[Hook]:
    """Hooks of the modules' parameters that see a gradient before it is set."""
    return [
        (place, name, hook)
        for place, module in enumerate(modules)
        for name, parameter in module._parameters.items()
        if parameter is not None
        for hook in hooks_on(parameter)
    ]


def hooks_on(tensor: torch.Tensor) -> list[Any]:
    """Hooks of a tensor that see its gradient before it is set."""
    return list(hooks.values()) if (hooks := tensor._backward_hooks) else []


def modules_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of `model.modules()`, in a different order, in a twentieth of its time."""
    modules, seen = [model], {id(model)}
    for module in modules:
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return modules
