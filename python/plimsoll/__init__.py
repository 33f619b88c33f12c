"""Runs a PyTorch training step within a memory budget, by a plan that was proved safe.

step = plimsoll.tune(lambda x, y: F.cross_entropy(model(x), y), model, optimizer, sample, budget="60%")
for x, y in loader:
    optimizer.zero_grad()
    loss = step(x, y)  # forward and backward by the plan; gradients in p.grad
    optimizer.step()
"""

from ._core import Schedule, Trace
from .buckets import Buckets
from .errors import BadInput, Error, NoCompiler, NoPlan, Refused, VerificationError
from .fitting import Fit, fits
from .outputs import Outputs
from .planning import Link, plan, trace
from .step import Step, tune

__all__ = [
    "BadInput",
    "Buckets",
    "Error",
    "Fit",
    "Link",
    "NoCompiler",
    "NoPlan",
    "Outputs",
    "Refused",
    "Schedule",
    "Step",
    "Trace",
    "VerificationError",
    "fits",
    "plan",
    "trace",
    "tune",
]
