"""Kernels that PyTorch's dispatcher does not see, as ops of a tape: handwritten ones, Liger's, and Cut Cross-Entropy's."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from networks import Task
from test_beside import assert_trains_as_eager
from torch import nn

import plimsoll

os.environ.setdefault(
    "TRITON_INTERPRET", "1"
)  # Triton's kernels run on the CPU if this is set when their package is first imported


class Squared(torch.autograd.Function):
    """Computed by numpy, below everything that PyTorch sees, with scratch from PyTorch."""

    @staticmethod
    def forward(ctx, x, scale):
        out, scratch = torch.empty_like(x), torch.empty(64)
        scratch.numpy()[:] = scale
        out.numpy()[:] = x.detach().numpy() ** 2 * scratch.numpy()[0]
        ctx.save_for_backward(x)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        made = torch.empty_like(x)
        made.numpy()[:] = 2 * ctx.scale * x.detach().numpy() * gradient.numpy()
        return made, None


class InPlace(Squared):
    """The gradient overwrites the tensor that it belongs to, as in Liger's losses."""

    @staticmethod
    def forward(ctx, x, scale):
        return Squared.forward(ctx, x, scale)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x.detach().numpy()[:] = 2 * ctx.scale * x.detach().numpy() * gradient.numpy()
        return x.detach(), None


def fresh(base, **kwargs):
    """A new class, since recording it as an op is permanent."""
    return plimsoll.opaque(type("Own", (base,), {}), **kwargs)


def squares(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
            self.head = nn.Linear(64, 8)

        def forward(self, x):
            for layer in self.layers:
                x = F.dropout(function.apply(layer(x), 0.5), 0.1)
            return self.head(x)

    torch.manual_seed(0)
    model = Net()
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(32, 64, generator=g), torch.randint(0, 8, (32,), generator=g)) for _ in range(3)]
    return Task(model, lambda x, y: F.cross_entropy(model(x), y), batches)


@pytest.mark.parametrize(("base", "how"), [(Squared, {}), (InPlace, {"writes_saved": (0,)})])
@pytest.mark.parametrize("link", ["200KB/s", "20GB/s"])
def test_a_function_of_other_kernels_is_planned_with_the_bits_of_eager(base, how, link):
    function = fresh(base, **how)
    step, _ = assert_trains_as_eager(
        lambda: squares(function), lambda p: torch.optim.AdamW(p, 1e-3), link=link
    )
    names = [call.name for call in step.program.tape.calls]
    assert sum("Squared" in name or "InPlace" in name or "Own" in name for name in names) == 10
    schedule = step.program.schedule
    assert schedule.recomputed_ops > 0 if link == "200KB/s" else schedule.offloaded_bytes > 0
    assert step.program.counts.as_planned


def test_without_that_it_is_refused():
    task = squares(type("Unknown", (Squared,), {}))
    with pytest.raises(plimsoll.Refused, match="takes values out of PyTorch"):
        plimsoll.tune(task.loss, task.model, None, task.batches[0], "90%", "20GB/s")


def test_what_a_plan_must_know_is_looked_at():
    class Draws(Squared):
        @staticmethod
        def forward(ctx, x, scale):
            return Squared.forward(ctx, x, float(torch.rand(())))

    class Keeps(Squared):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.x = x
            return Squared.forward(ctx, x, scale)

    class Updates(Squared):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.mark_dirty(x)
            ctx.scale = scale
            ctx.save_for_backward(x.clone())
            x.detach().numpy()[:] **= 2
            return x

    for base, words in (
        (Updates, "`ctx.mark_dirty` .* give a new tensor"),
        (InPlace, r"writes into saved tensor 0; declare that"),
        (Draws, "draws random numbers"),
        (Keeps, "keeps a tensor in its context"),
    ):
        task = squares(fresh(base))
        with pytest.raises(plimsoll.Refused, match=words):
            plimsoll.tune(task.loss, task.model, None, task.batches[0], "90%", "20GB/s")
    with pytest.raises(plimsoll.BadInput, match="derives from"):
        plimsoll.opaque(nn.Linear)


def test_another_value_that_it_keeps_ends_the_plan():
    class Counts(Squared):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.positive = int((x > 1e9).sum())
            return Squared.forward(ctx, x, scale)

    task = squares(fresh(Counts))
    step = plimsoll.tune(task.loss, task.model, None, task.batches[0], "90%", "20GB/s", verify=0)
    step(*task.batches[0])
    assert step.fallback is None
    x, y = task.batches[1]
    step(x * 1e12, y)
    assert "gives or keeps something else than when it was recorded" in step.fallback


@pytest.mark.slow  # Triton's interpreter is slow to import
@pytest.mark.parametrize("package", ["liger_kernel", "cut_cross_entropy"])
def test_the_kernels_of_triton(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    worker = Path(__file__).with_name("triton_worker.py")
    path = os.pathsep.join([str(worker.parent), str(worker.parents[1] / "benches"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(worker), package]
    ended = subprocess.run(command, env=environment, timeout=1500, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]
