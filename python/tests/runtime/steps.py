"""Steps on a GPU that computes nothing (`runtime.c`): what is allocated, ordered, copied and given back is as on a real one.

python steps.py NAME runs one of the functions below, in a process of its own.
"""

import contextlib
import ctypes
import gc
import json
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
from plimsoll import devices, errors, recording

torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
LINK = "20GB/s"
SEGMENT = 20 << 20
"""PyTorch's allocator takes so much at once for what is smaller."""


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []
        logging.getLogger("plimsoll").addHandler(self)

    def emit(self, record):
        self.said.append(record.getMessage())


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
    """What PyTorch's allocator has given out, without workspaces that libraries keep."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def state():
    return torch.cuda.default_generators[0].get_state()


def tuned(network, share, **options):
    model, loss, batch = network
    trace = plimsoll.trace(loss, model, *batch)
    budget = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
    options = {"verify": 0, "seconds": 2.0, "host_budget": "1GiB", **options}
    return plimsoll.tune(loss, model, None, batch, budget, LINK, **options)


def planned(name):
    """Allocations, copies, spans, memory and random numbers are as planned, at three budgets."""
    model, loss, batch = NETWORKS[name]()
    before = state()
    loss(*batch).backward()
    drawn = state()
    trained = [p for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for share in (2.0, 0.4, 0.1):
        step = tuned((model, loss, batch), share)
        for number in range(3):
            model.zero_grad()
            torch.cuda.default_generators[0].set_state(before)
            torch.cuda.reset_peak_memory_stats()
            step(*batch)
            assert torch.equal(state(), drawn), "the generator is where eager leaves it"
            assert all(p.grad is not None and p.grad.is_cuda for p in trained), number
        program, schedule = step.program, step.program.schedule
        counts = program.counts
        assert step.fallback is None
        assert (counts.unplanned, counts.unused) == (0, 0) and counts.served > 100
        commands = json.loads(schedule.to_json())["commands"]
        streams = [[c for c in commands if c["do"] == do] for do in ("compute", "offload", "prefetch")]
        assert [len(spans) for spans in program.spans] == [len(of) for of in streams]
        assert all(start <= end for spans in program.spans for start, end in spans)
        assert (len(streams[1]) > 0) == (schedule.offloaded_bytes > 0)
        # What the allocator's rounding adds: at most 1 MiB for each of our three arenas.
        assert torch.cuda.max_memory_allocated() <= schedule.budget_bytes + (3 << 20)
        if share < 1:
            assert schedule.offloaded_bytes + schedule.recomputed_ops > 0
        if name == "attention_dropout":
            assert sum(len(call.on_host) for call in step.program.tape.calls) == 6
        del step, program
        model.zero_grad()


def in_pieces(name):
    """A recording in pieces is that of the whole step, takes no more than the budget, and the step runs as planned."""
    model, loss, batch = NETWORKS[name]()
    whole = recording.record(loss, model, batch)
    step = tuned((model, loss, batch), 0.1, in_pieces=False)
    budget = step.program.schedule.budget_bytes
    del step
    generator = state()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    options = {"verify": 0, "seconds": 2.0, "host_budget": "1GiB", "in_pieces": True}
    step = plimsoll.tune(loss, model, None, batch, budget, LINK, **options)
    tape = step.program.tape
    assert [c.signature() for c in tape.calls] == [c.signature() for c in whole.calls]
    assert [c.workspace_bytes for c in tape.calls] == [c.workspace_bytes for c in whole.calls]
    assert [(s.size, s.role, s.is_on_host) for s in tape.storages] == [
        (s.size, s.role, s.is_on_host) for s in whole.storages
    ]
    assert torch.equal(state(), generator)
    for _ in range(2):
        model.zero_grad()
        step(*batch)
        assert step.fallback is None
        assert (step.program.counts.unplanned, step.program.counts.unused) == (0, 0)
    assert torch.cuda.max_memory_allocated() <= budget + (3 << 20)


def life():
    """Accumulation, another stream, a report, and nothing that is left behind."""
    model, loss, batch = language()
    loss(*batch).backward()
    model.zero_grad()
    before = held()
    # A stream takes up to 32 MiB more, for a workspace of cuBLAS.
    trace = plimsoll.trace(loss, model, *batch)
    step = plimsoll.tune(loss, model, None, batch, trace.peak_bytes + (40 << 20), LINK, verify=0)
    step(*batch)
    step(*batch)
    assert step.fallback is None and step.program.tape.adds_to_gradients()
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    assert step.program.tape.undo_bytes >= gradients
    with torch.cuda.stream(torch.cuda.Stream()):
        step(*batch)
        assert step.fallback is None and len(step._kinds) == 3
    step(*batch)
    assert len(step._kinds) == 3
    step.report("report.html", seconds=0.1)
    assert "a stand-in, PyTorch" in Path("report.html").read_text()
    step.memory_viz("plan.pickle")
    assert "peak" in step.explain()
    model.zero_grad()
    del step
    assert held() - before <= 1 << 20


def ended_early():
    """A step that ends early leaves gradients, buffers and generators, and the next one runs."""
    model, loss, batch = images()
    step = tuned((model, loss, batch), 0.1)
    step(*batch)
    model.zero_grad()
    before = state(), {name: b.cpu() for name, b in model.named_buffers()}
    program = step.program
    calls = len(program._steps)
    for at in (0, calls // 2, calls - 1):
        kept = program._steps[at].func

        def fails(*_arguments, **_keywords):
            raise KeyboardInterrupt

        program._steps[at].func = fails
        try:
            step(*batch)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the step ran")
        program._steps[at].func = kept
        assert torch.equal(state(), before[0])
        for name, buffer in model.named_buffers():
            after = buffer.cpu()
            assert after.flatten().view(torch.uint8).equal(before[1][name].flatten().view(torch.uint8)), name
        assert all(p.grad is None for p in model.parameters())
        step(*batch)
        assert step.fallback is None and program.counts.unplanned == 0
        model.zero_grad()


def host_is_short():
    """The driver refuses to page-lock once: the plan is made again with less of the host."""
    warnings = Warnings()
    step = tuned(language(), 0.1)
    assert [said for said in warnings.said if "of the host's memory in place of" in said], warnings.said
    step(*words())
    assert step.fallback is None and step.program.counts.unplanned == 0


def refused():
    """Each with what to do."""
    model, loss, batch = language()

    def check(kind, text, work):
        try:
            work()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{text}: it ran")

    host = tuple(t.cpu() for t in batch)
    check(errors.BadInput, "move the batch there before the step", lambda: plimsoll.trace(loss, model, *host))
    step = tuned((model, loss, batch), 2.0)
    check(errors.BadInput, "move the batch there before the step", lambda: step(*host))
    model.norm.cpu()
    check(errors.BadInput, "is on two devices", lambda: plimsoll.trace(loss, model, *batch))
    model.norm.cuda()

    def swaps(x, y):
        return loss(x, y) + torch.zeros(1 << 20, device="cuda").cpu().sum().cuda()

    check(
        errors.Refused,
        "on the host; what is swapped is the plan's",
        lambda: plimsoll.trace(swaps, model, *batch),
    )

    runtime = ctypes.CDLL(os.environ["LD_PRELOAD"])
    runtime.plimsoll_runtime_capture(1)
    check(
        errors.Refused,
        "call the step outside of `torch.cuda.graph`",
        lambda: plimsoll.trace(loss, model, *batch),
    )
    captured = step.device.settings()
    runtime.plimsoll_runtime_capture(0)
    assert captured != step.device.settings(), (
        "a step that is captured is a kind of its own, and runs in eager"
    )
    model.zero_grad()
    step(*batch)
    assert step.fallback is None


def old_driver():
    """With a driver that lacks functions."""
    model, loss, batch = language()
    try:
        plimsoll.tune(loss, model, None, batch, "100%")
    except errors.DeviceError as error:
        assert "is too old: it has no `cuInit`" in str(error), error
    else:
        raise AssertionError("it ran")


def other_allocator():
    """With `PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync`."""
    device = devices.on(torch.device("cuda:0"))
    try:
        device.prepare()
    except errors.BadInput as error:
        assert "`cudaMallocAsync`" in str(error) and "PYTORCH_CUDA_ALLOC_CONF" in str(error)
    else:
        raise AssertionError("it was accepted")


def asked():
    """`fits`, `suggest` and the link, which is measured."""
    model, loss, batch = language()
    device = devices.on(torch.device("cuda:0"))
    link = device.measure_link()
    assert link.offload > 0 and link.prefetch > 0
    trace = plimsoll.trace(loss, model, *batch)
    fit = plimsoll.fits(loss, model, *batch, budget=trace.peak_bytes)
    assert fit and fit.is_measured and fit.largest_batch >= 8, fit
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    answer = plimsoll.suggest(loss, model, optimizer, batch, trace.peak_bytes, link=LINK)
    assert answer.batch * answer.accumulation == 8
    assert answer.peak_bytes <= trace.peak_bytes
    words = device.words()
    assert "a stand-in" in words and torch.version.cuda in words


def compared():
    """A comparison runs; bits mean nothing here, so that either outcome will do."""
    model, loss, batch = language()
    step = tuned((model, loss, batch), 0.4, verify=1)
    try:
        step(*batch)
    except errors.VerificationError as error:
        assert "differs from eager" in str(error)
        assert all(p.grad is None for p in model.parameters())


if __name__ == "__main__":
    function, *arguments = sys.argv[1:]
    globals()[function](*arguments)
    print("done")
