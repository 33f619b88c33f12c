"""Shared by tests of steps on a GPU that computes nothing (`runtime.c`): the driver's stand-in, and networks to plan."""

import contextlib
import ctypes
import gc
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))

import models
import torch
import torch.nn.functional as F
from models import GPT
from torch import nn

import plimsoll

torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
LINK = "20GB/s"


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []
        logging.getLogger("plimsoll").addHandler(self)

    def emit(self, record):
        self.said.append(record.getMessage())


class Shift(torch.autograd.Function):
    """Moves rows by one, puts a row of the weight first, and returns its result as the weight's gradient: these bytes are
    copied, and so are right on a GPU that computes nothing."""

    @staticmethod
    def forward(ctx, x, weight):
        made = torch.empty_like(x)
        made[1:].copy_(x[:-1])
        made[:1].copy_(weight[:1])
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx, passed_on):
        (made,) = ctx.saved_tensors
        return passed_on.clone(), made.clone()


class Register(nn.Module):
    """Shifts, one after the other."""

    def __init__(self, depth=8, rows=16, width=4096):
        super().__init__()
        rows = torch.arange(depth * rows * width, dtype=torch.float32).view(depth, rows, width)
        self.weights = nn.ParameterList(nn.Parameter(row.cuda()) for row in rows)

    def forward(self, x):
        for weight in self.weights:
            x = Shift.apply(x, weight)
        return x.flatten()[0].clone()

    def wrong(self, x):
        """Numbers of the weights whose gradient is wrong."""
        x, found = x.cpu(), []
        for number, weight in enumerate(self.weights):
            x = torch.cat([weight.detach().cpu()[:1], x[:-1]])
            if not torch.equal(weight.grad.cpu(), x):
                found.append(number)
        return found


def rows(seed, count=16):
    """A batch of a shift register."""
    return torch.randn(count, 4096, generator=torch.Generator().manual_seed(seed)).cuda()


class StandIn:
    """The driver's stand-in, as used by a test."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ["PLIMSOLL_STANDIN"])

    def order(self, order):
        self._library.plimsoll_standin_order(ctypes.c_uint64(order))

    def delays(self, seed):
        self._library.plimsoll_standin_delays(ctypes.c_uint64(seed))

    def answer(self, name, after, code):
        self._library.plimsoll_standin_answer(name.encode(), ctypes.c_uint64(after), ctypes.c_uint32(code))

    def counts(self):
        text = ctypes.create_string_buffer(1 << 16)
        self._library.plimsoll_standin_counts(text, ctypes.c_size_t(len(text)))
        lines = (line.rsplit(" ", 1) for line in text.value.decode().splitlines())
        return {name: int(count) for name, count in lines}


def words(batch=8):
    return tuple(torch.randint(0, 96, (batch, 64)).cuda() for _ in range(2))


def language(half=False, attention=None):
    torch.manual_seed(0)
    model = GPT(96, 64, 64, 3).cuda()
    if attention is not None:
        model.blocks = nn.ModuleList(attention(64, 4) for _ in range(3)).cuda()

    def loss(x, y):
        with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return model, loss, words()


class DroppingAttention(models.Block):
    """Memory-efficient attention with dropout, whose seed is a tensor on the host."""

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True, dropout_p=0.1)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


def images():
    from torchvision.models import resnet18

    torch.manual_seed(0)
    model = resnet18(num_classes=8).cuda()
    batch = (torch.randn(8, 3, 64, 64).cuda(), torch.zeros(8, dtype=torch.long).cuda())
    return model, lambda x, y: F.cross_entropy(model(x), y), batch


NETWORKS = {
    "gpt": language,
    "gpt_bf16": lambda: language(half=True),
    "attention_dropout": lambda: language(attention=DroppingAttention),
    "resnet18": images,
}


def held():
    """Bytes that PyTorch's allocator has allocated, without workspaces that libraries keep."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def state():
    return torch.cuda.default_generators[0].get_state()


def tuned(network, share, link=LINK, **options):
    model, loss, batch = network
    trace = plimsoll.trace(loss, model, *batch)
    budget = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
    options = {"verify": 0, "seconds": 0.5, "host_budget": "1GiB", **options}
    return plimsoll.tune(loss, model, None, batch, budget, link, **options)


def register(share, **options):
    model = Register()
    return model, tuned((model, model, (rows(0),)), share, **options)


def run_register(model, step, seed, count=16):
    model.zero_grad()
    step(rows(seed, count))
    return model.wrong(rows(seed, count))


def main(functions):
    """Runs one of these functions, by name, with the remaining arguments; or several (`one+other`), one after the other,
    since a process takes seconds to start."""
    names, *arguments = sys.argv[1:]
    for name in names.split("+"):
        functions[name](*arguments)
        gc.collect()
        torch.cuda.empty_cache()
    print("done")
