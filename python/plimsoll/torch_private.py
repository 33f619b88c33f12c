"""What Plimsoll uses of PyTorch that PyTorch does not promise. Seen with torch 2.6, 2.11 and 2.15, captures with 2.11 and 2.15.

All of it stands here and in the folder `native`, so that a new version of PyTorch is tried in two places.
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
from torch.multiprocessing.reductions import StorageWeakRef
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
    "StorageWeakRef",
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
    "is_sharded",
    "local_part",
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
    "version_of",
    "views_as_of_fakes",
    "without_function_modes",
]

BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm"}
"""They update `running_mean` and `running_var`, and the schema of some of them does not say so."""


FAKE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What ops raise on fake tensors that can only run in memory."""

DDP_FORWARD = "_run_ddp_forward"
"""The method by which `DistributedDataParallel` calls the module inside, after buffers and before the reducer."""


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, for as long as somebody holds the storage: PyTorch uses the number again."""
    return tensor.untyped_storage()._cdata


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor's memory was updated in place."""
    return tensor._version


def held_by(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the buffers that a module itself holds, by name: its own dictionaries."""
    return module._parameters, module._buffers


def children_of(module: torch.nn.Module) -> dict[str, torch.nn.Module | None]:
    """The modules that a module itself holds, by name: its own dictionary."""
    return module._modules


def flops_of(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int:
    """Floating-point operations of a call, as PyTorch's own counter has them; 0 where that does not know the op."""
    count = flop_registry.get(func.overloadpacket)
    return int(count(*args, **kwargs, out_val=out)) if count else 0


def broadcast_buffers_next(wrapper: torch.nn.Module, is_due: bool = True) -> None:
    """Has `DistributedDataParallel` broadcast buffers before its next forward pass, as after a step that reduced gradients, or
    not, as after another."""
    vars(wrapper)["require_forward_param_sync"] = is_due


def abort(group: Any) -> None:
    """Gives up what a process group has under way: it is of no use afterwards. A torch that cannot do so (2.6) leaves it to the
    group's time limit."""
    if hasattr(group, "abort"):
        group.abort()


def buckets_of(wrapper: Any, parameters: list[torch.nn.Parameter]) -> list[list[int]]:
    """The buckets of a `DistributedDataParallel` whose gradients arrive in the order of these parameters, by number."""
    cap = wrapper.bucket_bytes_cap
    first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if wrapper.bucket_bytes_cap_default else cap
    count = len(parameters)
    assign = torch.distributed._compute_bucket_assignment_by_size
    buckets, _ = assign([*parameters], [first, cap], [False] * count, list(range(count)))
    return [list(bucket) for bucket in buckets]


def has_communication_hook(wrapper: Any) -> bool:
    """Whether gradients of a `DistributedDataParallel` are reduced by a hook that is written in Python."""
    return bool(wrapper._comm_hooks)


def expect_gradients(wrapper: Any, parameters: list[torch.nn.Parameter]) -> None:
    """Tells the reducer of a `DistributedDataParallel` that a backward pass begins, which gives these parameters gradients."""
    with torch.enable_grad():
        # It looks for unused parameters in the graph of what it is given, if it is to look for any.
        outputs = [p.view_as(p) for p in parameters] if wrapper.find_unused_parameters else []
        wrapper.reducer.prepare_for_backward(outputs)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Calls within it skip autograd, and the bookkeeping of versions and views with it."""
    return torch._C._AutoDispatchBelowAutograd()


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """What `torch.compile` compiled runs as it was written within it. A tape has no other ops: PyTorch does so wherever calls
    are recorded."""
    # Nothing is compiled before this module is there, and importing it takes seconds.
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def without_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Within it no mode and no class sees PyTorch's functions before its dispatcher does."""
    return torch._C.DisableTorchFunction()


def views_as_of_fakes() -> contextlib.AbstractContextManager[Any]:
    """Within it autograd differentiates an update of a view by the op that made the view, as it always does on fake tensors,
    and not by `as_strided`. Both move the same numbers."""
    return torch.autograd._force_original_view_tracking(True)


def sequence_number() -> int:
    """The number of the autograd node that was made last; the node of an op is made before the op is dispatched."""
    return torch.autograd._get_sequence_nr() - 1


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What of a distributed tensor lies on this rank; another tensor itself."""
    local = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in memory that a tensor is made of: numbers and scales where it is quantised, else itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in parts_of(getattr(tensor, name))]


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` (FSDP2) shards a part of the model. The public name of its class came with torch 2.6."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def node_number() -> int | None:
    """The number of the autograd node that runs, in the backward pass."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def cuda_sleep(cycles: int) -> None:
    """Has the current CUDA stream do nothing for so many cycles."""
    torch.cuda._sleep(cycles)


def timing_events() -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
    """Two events that a graph records whenever it runs; none of a torch that has no such events."""
    try:
        begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    except TypeError:
        return None
    return begin, end


def end_failed_capture(graph: torch.cuda.CUDAGraph, where: torch.device, pool: tuple[int, int]) -> None:
    """Tells PyTorch's CUDA allocator that a capture into this pool is over; until then it would give no cached memory back.

    In torch 2.15 `CUDAGraph.reset` does so. In 2.11 only `capture_end` does, and only where the driver ends the capture well.
    """
    graph.reset()
    index = torch.cuda.current_device() if where.index is None else where.index
    # Its name since torch 2.8, and the one before.
    names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
    end = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
    try:
        end(index, pool)
    except RuntimeError:
        return  # it knows
    torch._C._cuda_releasePool(index, pool)


def float32_precision() -> tuple[object, ...]:
    """How exact products of 32-bit numbers are on a GPU: by names since torch 2.9, by two switches before."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        conv = getattr(torch.backends.cudnn, "conv", torch.backends.cudnn)
        return (torch.backends.cuda.matmul.fp32_precision, conv.fp32_precision)
    return (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


def accumulate_hooks(parameter: torch.Tensor) -> dict[int, Any]:
    """What runs as soon as the parameter's gradient is there. Autograd looks into this dictionary each time."""
    return getattr(parameter, "_post_accumulate_grad_hooks", None) or {}


def gradient_hooks(parameter: torch.Tensor) -> dict[int, Any]:
    """What changes the parameter's gradient before it is there. Autograd looks into this dictionary each time."""
    return parameter._backward_hooks or {}


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Hook = tuple[int, str, object]
"""Which module, which kind of hook or which parameter, and the hook."""


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether somebody registered a hook on the module's forward or backward pass."""
    return any(getattr(module, name, None) for name in HOOKS)


def hooks_of(modules: list[torch.nn.Module]) -> list[Hook]:
    """The hooks of the modules' forward and backward passes."""
    found: list[Hook] = []
    for place, own in enumerate(map(vars, modules)):
        for name in HOOKS:
            if hooks := own.get(name):
                found += [(place, name, hook) for hook in hooks.values()]
    return found


def global_hooks() -> list[Hook]:
    """The hooks of all modules' forward and backward passes."""
    own = vars(torch.nn.modules.module)
    return [(-1, name, hook) for name in HOOKS for hook in own.get(f"_global{name}", {}).values()]


def tensor_hooks(modules: list[torch.nn.Module]) -> list[Hook]:
    """The hooks of the modules' parameters that see a gradient before it is there."""
    return [
        (place, name, hook)
        for place, module in enumerate(modules)
        for name, parameter in module._parameters.items()
        if parameter is not None
        for hook in hooks_on(parameter)
    ]


def hooks_on(tensor: torch.Tensor) -> list[Any]:
    """The hooks of a tensor that see its gradient before it is there."""
    return list(hooks.values()) if (hooks := tensor._backward_hooks) else []


def modules_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """What `model.modules()` gives, in another order, in a twentieth of its time."""
    modules, seen = [model], {id(model)}
    for module in modules:
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return modules
