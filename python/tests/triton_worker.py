"""Losses and layers of other packages with Triton kernels, which an interpreter runs on the CPU: planned and in eager. Run by
`test_bypassing.py`, with the name of the package."""

import sys

import test_beside
import torch
from test_beside import assert_trains_as_eager, language
from torch import nn

import plimsoll


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3)


def short(loss):
    """Like `language`, on so few words that an interpreter takes seconds."""
    task = language(loss)
    task.batches = [tuple(t[:2, :16].contiguous() for t in batch) for batch in task.batches]
    return task


def with_ignored(y):
    """About every seventh word is ignored: different ones, and a different number, in each batch."""
    return torch.where(y % 7 == 0, -100, y).flatten()


def planned(build, *names):
    """Trains by a plan with eager's bits; each of the names is an op of its tape, forward and backward."""
    step, _ = assert_trains_as_eager(build, adamw)
    calls = [call.name for call in step.program.tape.calls]
    for name in names:
        assert any(one.endswith(name) for one in calls), (name, calls)
        assert any(one.endswith(f"{name}_backward") for one in calls), (name, calls)
    assert step.program.counts.as_planned
    return step


def fits(task):
    """The batch never runs, and the answer comes from the same tape."""
    fit = plimsoll.fits(task.loss, task.model, *task.batches[0], budget="1GiB")
    trace = plimsoll.trace(task.loss, task.model, *task.batches[0])
    assert fit
    assert abs(fit.peak_bytes - trace.peak_bytes) < 0.02 * trace.peak_bytes, (
        fit.peak_bytes,
        trace.peak_bytes,
    )


def liger_kernel():
    """Liger's losses, and its layers for language models."""
    test_beside.WORDS = 512
    from liger_kernel.transformers import functional

    def fused(model, x, y):
        return functional.liger_fused_linear_cross_entropy(model(x), model.head.weight, with_ignored(y))

    def in_place(model, x, y):
        return functional.liger_cross_entropy(model.head(model(x)), with_ignored(y))

    def scaled(model, x, y):
        return 0.5 * fused(model, x, y)

    name = "LigerFusedLinearCrossEntropyFunction"
    lower = planned(lambda: short(fused), name)
    planned(lambda: short(scaled), name)
    planned(lambda: short(in_place), "LigerCrossEntropyFunction")
    plain = short(lambda model, x, y: nn.functional.cross_entropy(model.head(model(x)), with_ignored(y)))
    whole = plimsoll.trace(
        plain.loss, plain.model, *plain.batches[0], optimizer=adamw(plain.model.parameters())
    )
    assert lower.trace.peak_bytes < whole.peak_bytes
    fits(short(fused))
    planned(llama, name, "LigerRMSNormFunction", "LigerSiLUMulFunction", "LigerRopeFunction")


def numbers_are_tensors():
    """Passes numbers as tensors to a kernel, as a compiled one gets them; the interpreter does so only with whole numbers."""
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    own = interpreter._implicit_cvt

    def converted(argument):
        if type(argument) is not float:
            return own(argument)
        handle = interpreter.TensorHandle(numpy.array([argument], numpy.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = converted


def llama():
    """Llama of transformers with Liger's layers in place of its own, as by `apply_liger_kernel_to_llama`."""
    import triton.language as tl
    from liger_kernel.ops import rms_norm
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from networks import Task
    from transformers import LlamaConfig, LlamaForCausalLM

    numbers_are_tensors()
    rms_norm.rsqrt = lambda x: tl.rsqrt(x)  # CUDA's own does not exist in the interpreter
    apply_liger_kernel_to_llama()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 96, (2, 12), generator=g),) for _ in range(3)]
    return Task(model, lambda x: model(input_ids=x, labels=x).loss, batches)


def cut_cross_entropy():
    """Cut Cross-Entropy: compared with the package's own function, and by a plan."""
    test_beside.WORDS = 64  # a block of its kernels
    import triton.language as tl
    from triton.language.extra import libdevice

    libdevice.log1p = lambda a: tl.log(a + 1.0)  # the interpreter has none
    from cut_cross_entropy import linear_cross_entropy as own

    from plimsoll.adapters.cut_cross_entropy import linear_cross_entropy as ours

    def loss(model, x, y):
        return ours(model(x).half(), model.head.weight, with_ignored(y))

    planned(lambda: short(loss), "_Losses")

    def left(function, y, **how):
        g = torch.Generator().manual_seed(5)
        e, c = torch.randn(2, 24, 32, generator=g).half(), torch.randn(64, 32, generator=g).half()
        e.requires_grad_(), c.requires_grad_()
        made = function(e, c, y, **how)
        made.sum().backward()
        return made.detach(), e.grad, c.grad

    g = torch.Generator().manual_seed(6)
    whole = torch.randint(0, 64, (2, 24), generator=g)
    some = torch.where(whole % 3 == 0, -100, whole)
    for how in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"softcap": 30.0}, {"filter_eps": None}):
        if "softcap" in how:
            libdevice.tanh = lambda a: 2 * tl.sigmoid(2 * a) - 1
        assert all(map(torch.equal, left(own, whole, **how), left(ours, whole, **how))), how
        for shift in (False, True):
            pairs = zip(
                left(own, some, shift=shift, **how), left(ours, some, shift=shift, **how), strict=True
            )
            assert all(torch.allclose(one, other, atol=1e-3) for one, other in pairs), (how, shift)
    # Its own function is refused, with a replacement.
    task = short(lambda model, x, y: own(model(x).half(), model.head.weight, with_ignored(y)))
    try:
        plimsoll.tune(task.loss, task.model, None, task.batches[0], "90%", "20GB/s")
    except plimsoll.Refused as refused:
        assert "plimsoll.adapters.cut_cross_entropy" in str(refused), refused
    else:
        raise AssertionError("words were picked by their values")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"liger_kernel": liger_kernel, "cut_cross_entropy": cut_cross_entropy}[sys.argv[1]]()
