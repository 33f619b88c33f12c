"""Runs a PyTorch training step within a memory budget, by a plan that was proved safe.

step = plimsoll.tune(lambda x, y: F.cross_entropy(model(x), y), model, optimizer, sample, budget="60%")
for x, y in loader:
    optimizer.zero_grad()
    loss = step(x, y)  # forward and backward by the plan; gradients in p.grad
    optimizer.step()
"""

import importlib
import itertools
from typing import TYPE_CHECKING

from .versions import imported

if TYPE_CHECKING:
    from ._core import Schedule, Trace
    from .buckets import Buckets
    from .bypassing import opaque
    from .errors import (
        BadInput,
        DeviceError,
        Error,
        NoCompiler,
        NoPlan,
        NoTorch,
        OtherRank,
        PoolInUse,
        Refused,
        VerificationError,
    )
    from .fitting import Fit, fits
    from .link import Link
    from .outputs import Outputs
    from .planning import plan, trace
    from .step import Step
    from .suggestion import Suggestion, suggest
    from .tuning import tune

__all__ = [
    "BadInput",
    "Buckets",
    "DeviceError",
    "Error",
    "Fit",
    "Link",
    "NoCompiler",
    "NoPlan",
    "NoTorch",
    "OtherRank",
    "Outputs",
    "PoolInUse",
    "Refused",
    "Schedule",
    "Step",
    "Suggestion",
    "Trace",
    "VerificationError",
    "fits",
    "opaque",
    "plan",
    "suggest",
    "trace",
    "tune",
]

# The command line starts without PyTorch, which takes seconds to import: names are looked up at first use.
_WITHOUT_TORCH = ("_core", "errors")
_WITH_TORCH = (
    "link",
    "planning",
    "buckets",
    "outputs",
    "bypassing",
    "fitting",
    "step",
    "tuning",
    "suggestion",
)


def __dir__() -> list[str]:
    """Public names, including those not looked up yet."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """Returns the attribute of the package with this public name."""
    if name in __all__:
        without = (importlib.import_module(f"{__name__}.{module}") for module in _WITHOUT_TORCH)
        with_torch = (imported(f"{__name__}.{module}") for module in _WITH_TORCH)
        for module in itertools.chain(without, with_torch):
            found = getattr(module, name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
