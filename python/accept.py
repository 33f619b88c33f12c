"""What planned steps must reach on a GPU, asked there: bits, memory, time, and the best of what PyTorch's users do instead.

    python3 accept.py                       # the rows that matter most, in 12 minutes at most
    python3 accept.py facts bits            # some sections; all but `facts bits curve` run only when they are named
    python3 accept.py --small --device cpu  # tiny sizes on the CPU: does everything run?
    python3 accept.py --table rows.jsonl    # the table of `benches/README.md`

It needs the wheel of plimsoll, torch, torchvision, a C++ compiler and the folder `benches` beside it, and no network. Each row
is a JSON object on a line of its own, printed and appended to `$OUT/python-accept.jsonl` as soon as it is there. A network runs
in a process of its own for so many seconds at most: one that fails or is cut is a row that says so, and the run goes on. A
rival that fails or does not fit is such a row, too, but does not change the exit code. The driver's count of memory needs
nvidia-ml-py: without it, rows say why it was not measured.

Exit codes: 0 all was run and all bits were equal, 1 a row failed or was cut, 6 a bit differed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rivals import Rival

HERE = Path(__file__).resolve().parent
# The wheel's `plimsoll` is meant, not the folder of its sources beside this file.
sys.path[:] = [str(HERE / "benches"), *(path for path in sys.path if Path(path).resolve() != HERE)]

STEPS = 3
"""Steps whose bits are compared."""

RUNS = 7
"""Steps that are timed, after two that warm up."""

SLOWER = 4
"""Small networks have so many times the seconds, since they run where others do, too."""

BITS = ("ResNet-50", "DenseNet-121", "ViT-B/16", "GPT, dropout", "GPT, bf16", "own checkpoint")
CURVE = ("GPT, bf16", "ResNet-50")
CURVES = ("GPT, dropout", "ViT-B/16", "ViT-L/16", "U-Net")
TRUTH = ("dropout", "RReLU", "batch norm", "tied weights, views")
BATCH = ("GPT, bf16", "ResNet-50", "ViT-B/16")
OURS = (0.3, 0.5, 0.7)
"""Budgets of ours, as shares of eager's peak."""


@dataclass(frozen=True)
class Section:
    """What is asked of some networks."""

    asks: str
    networks: tuple[str, ...]
    seconds: int
    """For one network at most."""


COMPILE = "torch.compile with activation_memory_budget .7 .5 .3 .1"
LONG = "the same as `curve` of one long sequence; where eager does not fit, budgets are shares of the GPU's memory"
SECTIONS = {
    "facts": Section("which GPU, which versions, how fast the link is", ("link",), 60),
    "bits": Section(
        "bits, unplanned allocations, peak and pool, time of all kept over eager, predicted over measured, copies hidden; "
        "budgets .4 and .1 of the way from the floor to eager's peak",
        BITS,
        60,
    ),
    "curve": Section(
        "time at equal peak: ours at .3 .5 .7 of eager's; checkpoint every 1, 2, 3 blocks, selective checkpoints, offloaded "
        "checkpoints, OffloadActivations, save_on_cpu, and GPT's with a chunked loss, too; a verdict for each budget",
        CURVE,
        150,
    ),
    "batch": Section(
        "which batch fits in half of eager's peak, and how fast it trains: ours, and found by out of memory",
        BATCH,
        200,
    ),
    "truth": Section("who trains something else than eager, without a word; small networks", TRUTH, 60),
    "curves": Section("the same as `curve` of other networks", CURVES, 150),
    "long-8k": Section(LONG, ("Llama 1B, 8k",), 590),
    "long-32k": Section(LONG, ("Llama 1B, 32k",), 590),
    "long-64k": Section(LONG, ("Llama 1B, 64k",), 590),
    "compile-gpt": Section(f"{COMPILE}, with a chunked loss, too", ("GPT, bf16",), 590),
    "compile-resnet": Section(COMPILE, ("ResNet-50",), 590),
    "compile-vit": Section(COMPILE, ("ViT-B/16",), 590),
}
USUAL = ("facts", "bits", "curve")
SECONDS = sum(SECTIONS[name].seconds * len(SECTIONS[name].networks) for name in USUAL)
"""All sections together, where nobody says how long: 12 minutes."""


@dataclass
class Task:
    """A network, its loss, one batch, and the containers of its blocks."""

    model: Any
    loss: Callable[..., Any]
    batch: tuple[Any, ...]
    blocks: list[Any]
    autocast: Callable[[], Any] = contextlib.nullcontext


def has_logits(name: str) -> bool:
    """Whether a network is a language model, whose loss can be computed by slices of rows."""
    return name.startswith(("GPT", "Llama"))


def build(name: str, device: str, small: bool) -> Task:
    """The same network every time."""
    import torch
    import torch.nn.functional as F
    from models import GPT, Checkpointed, Llama, UNet
    from torch import nn

    torch.manual_seed(0)
    if has_logits(name):
        words, width, length, depth = (96, 32, 24, 3) if small else (50257, 768, 1024, 12)
        model: Any
        if name.startswith("Llama"):
            words = 96 if small else 128256
            length = 256 if small else 1024 * int(name.rsplit(" ", 1)[1].rstrip("k"))
            model = Llama(words, *((32, 3, 4, 48) if small else (2048, 16, 32, 8192))).to(device)
        else:
            model = GPT(words, width, length, depth).to(device)
        size = 1 if name.startswith("Llama") else 4 if small else 8
        data = tuple(torch.randint(0, words, (size, length), device=device) for _ in range(2))
        is_half = name.endswith("bf16") or name.startswith("Llama")

        def autocast() -> Any:
            kind = torch.device(device).type
            return torch.autocast(kind, torch.bfloat16) if is_half else contextlib.nullcontext()

        def language(x: Any, y: Any) -> Any:
            with autocast():
                return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

        return Task(model, language, data, [model.blocks], autocast)
    from torchvision import models

    image, size = (32, 4) if small else (224, 32 if name == "ViT-L/16" else 64)
    classes = 10 if small else 1000
    if name == "U-Net":
        model = UNet(8 if small else 64, 3 if small else 5, 2).to(device)
        pixels = torch.randn(size, 3, image, image, device=device)
        targets = torch.randint(0, 2, (size, image, image), device=device)
        return Task(model, lambda x, y: F.cross_entropy(model(x), y), (pixels, targets), model.levels())
    if name.startswith("ViT"):
        large = (16, 24, 16, 1024, 4096) if name == "ViT-L/16" else (16, 12, 12, 768, 3072)
        shape = (image, 16, 3, 4, 32, 64) if small else (image, *large)
        model = models.VisionTransformer(*shape, dropout=0.1, num_classes=classes)
        blocks = [model.encoder.layers]
    elif name == "own checkpoint":
        width = 3 * image * image
        body = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, width))
        model = nn.Sequential(nn.Flatten(), Checkpointed(body, nn.Linear(width, classes)))
        blocks = []
    elif name == "DenseNet-121":
        model = models.densenet121(num_classes=classes)
        blocks = []
    else:
        model = models.resnet18(num_classes=classes) if small else models.resnet50(num_classes=classes)
        blocks = [model.layer1, model.layer2, model.layer3, model.layer4]
    model = model.to(device)
    data = (
        torch.randn(size, 3, image, image, device=device),
        torch.randint(0, classes, (size,), device=device),
    )
    return Task(model, lambda x, y: F.cross_entropy(model(x), y), data, blocks)


class Gauge:
    """The clock and the memory of a device."""

    def __init__(self, device: str) -> None:
        import torch

        self.is_cuda = torch.device(device).type == "cuda"
        self._cuda = torch.cuda

    def clock(self) -> float:
        """Seconds, when all that was enqueued has ended."""
        if self.is_cuda:
            self._cuda.synchronize()
        return time.perf_counter()

    def reset(self) -> None:
        """Peaks are counted from here."""
        if self.is_cuda:
            self._cuda.empty_cache()
            self._cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int]:
        """What PyTorch's allocator gave out at most, and held at most; nothing on the CPU, where it does not count."""
        if not self.is_cuda:
            return {}
        return {
            "peak_bytes": self._cuda.max_memory_allocated(),
            "reserved_bytes": self._cuda.max_memory_reserved(),
        }

    def driver(self) -> dict[str, Any]:
        """What the driver counts for this process now; for the whole device, where it does not tell processes apart."""
        if not self.is_cuda:
            return {"driver": "not measured: no GPU"}
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = self._cuda.get_device_properties(self._cuda.current_device()).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return {"driver_bytes": process.usedGpuMemory, "driver": "this process"}
            return {"driver_bytes": self._cuda.device_memory_used(), "driver": "whole device"}
        except Exception as error:  # NVML is missing, or denied, in many ways
            return {"driver": f"not measured: {type(error).__name__}: {error}"}


@functools.cache
def context(device: str) -> dict[str, Any]:
    """What the driver counts before PyTorch has allocated anything, when it is first called: CUDA's context."""
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return Gauge(device).driver()


def plan_seconds(small: bool) -> float:
    """How long each plan is looked for."""
    return 1.0 if small else 5.0


def eager_of(task: Task) -> Callable[..., Any]:
    """Forward and backward, as a user writes them."""

    def step(*batch: Any) -> Any:
        loss = task.loss(*batch)
        loss.backward()
        return loss

    return step


def optimizer_of(task: Task) -> Any:
    """AdamW as its users run it."""
    import torch

    return torch.optim.AdamW(task.model.parameters(), 1e-4, fused=True)


def measured(gauge: Gauge, task: Task, step: Callable[..., Any], optimizer: Any = None) -> dict[str, Any]:
    """The median of some steps, the optimizer's update included where there is one, and their peak.

    The driver is asked after each step: what the allocator has taken from it, it keeps until the next reset.
    """
    samples, counts = [], []
    for number in range(2 + RUNS):
        task.model.zero_grad()
        if number == 2:
            gauge.reset()
        start = gauge.clock()
        step(*task.batch)
        if optimizer is not None:
            optimizer.step()
        samples.append(gauge.clock() - start)
        if number >= 2:
            counts.append(gauge.driver())
    driver = max(counts, key=lambda count: count.get("driver_bytes", 0))
    return {"seconds": statistics.median(samples[2:]), "samples": samples[2:], **gauge.peaks(), **driver}


def train(task: Task, step: Callable[..., Any]) -> list[Any]:
    """All that a few steps leave: losses, parameters, buffers, states of generators."""
    import torch

    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-3)
    torch.manual_seed(1)
    left = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        left.append(step(*task.batch).detach().cpu())
        optimizer.step()
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]
    return [*left, *(value.cpu().clone() for value in task.model.state_dict().values()), *states]


def are_equal(one: list[Any], other: list[Any]) -> bool:
    """Bit for bit."""
    import torch

    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)) for a, b in pairs)


def facts(_name: str, device: str, _small: bool) -> Iterator[dict[str, Any]]:
    """One row."""
    import torch

    import plimsoll
    from plimsoll import devices

    where = devices.on(torch.device(device))
    where.prepare()
    link = where.measure_link()
    yield {
        "words": where.words(),
        "python": platform.python_version(),
        "plimsoll": plimsoll.__file__,
        "offload_bytes_per_second": link.offload,
        "prefetch_bytes_per_second": link.prefetch,
        "half_duplex": link.half_duplex,
        "host_limit_bytes": where.host_limit(),
        "free_bytes": where.free_bytes(),
    }


def bits(name: str, device: str, small: bool) -> Iterator[dict[str, Any]]:
    """One row for eager, one for all kept, one for each budget."""
    import torch

    import plimsoll

    torch.use_deterministic_algorithms(True, warn_only=True)
    gauge = Gauge(device)
    reference, again = (
        train(t, eager_of(t)) for t in (build(name, device, small), build(name, device, small))
    )
    same = are_equal(reference, again)
    task = build(name, device, small)
    eager = measured(gauge, task, eager_of(task))
    yield {"arm": "eager", "bits_equal": same, **eager}
    task = build(name, device, small)
    trace = plimsoll.trace(task.loss, task.model, *task.batch)
    floor, peak = trace.floor_bytes, trace.peak_bytes
    for arm, budget in (
        ("all kept", 2 * peak),
        *((f"f {f}", int(floor + f * (peak - floor))) for f in (0.4, 0.1)),
    ):
        task = build(name, device, small)
        start = gauge.clock()
        step = plimsoll.tune(
            task.loss, task.model, None, task.batch, budget, verify=0, seconds=plan_seconds(small)
        )
        tuning = gauge.clock() - start
        bits_equal = are_equal(reference, train(task, step))
        row = {"arm": arm, "bits_equal": bits_equal, "eager_repeats": same, "fallback": step.fallback}
        row["runs"] = step.program.runs_as
        timed = measured(gauge, task, step)
        program, schedule = step.program, step.program.schedule
        counts = program.counts
        row |= {
            "unplanned": None if counts is None else counts.unplanned + counts.unused,
            "tune_seconds": tuning,
        }
        row |= {
            "predicted_seconds": schedule.makespan_seconds,
            "over_eager": timed["seconds"] / eager["seconds"],
        }
        row |= {"budget_bytes": schedule.budget_bytes, "pool_bytes": schedule.pool_bytes}
        row |= {"resident_bytes": step.trace.resident_bytes, "host_bytes": schedule.host_bytes}
        row |= {"recomputed_ops": schedule.recomputed_ops, "offloaded_bytes": schedule.offloaded_bytes}
        row |= {"copying_seconds": program.copying_seconds, "stalled_seconds": program.stalled_seconds}
        if "peak_bytes" in timed:
            row["peak_over_budget"] = timed["peak_bytes"] / schedule.budget_bytes - 1
        yield {**row, **timed}
        del step, program


def tried(rival: Rival, name: str, device: str, small: bool) -> dict[str, Any]:
    """Time and memory of a rival, or how it failed."""
    try:
        task = build(name, device, small)
        rival.change(task)
        return measured(Gauge(device), task, eager_of(task), optimizer_of(task))
    except Exception as error:  # a rival may fail in its own way; the others are still asked
        return {"failed": how(error)}


def how(error: Exception) -> str:
    """How a rival failed, in words."""
    kind = "does not fit" if "OutOfMemory" in type(error).__name__ else "fails"
    return f"{kind}: {type(error).__name__}: {str(error)[:300]}"


def raced(
    rivals: list[Rival], name: str, device: str, small: bool, seconds: float
) -> Iterator[dict[str, Any]]:
    """One row for each rival, with the seconds of its family's sweep so far; after so many seconds none is begun."""
    begun = time.monotonic()
    sweeps: dict[str, float] = {}
    for rival in rivals:
        row: dict[str, Any] = {"arm": rival.arm, "rival": rival.family}
        start = time.monotonic()
        if start - begun > seconds:
            yield {**row, "not_measured": "not measured: the time for rivals is over"}
            continue
        row |= tried(rival, name, device, small)
        gc.collect()
        sweeps[rival.family] = sweeps.get(rival.family, 0) + time.monotonic() - start
        yield {**row, "sweep_seconds": sweeps[rival.family]}


def best(rows: list[dict[str, Any]], budget: int) -> dict[str, Any] | None:
    """The fastest rival whose peak is within a budget, if any was."""
    fit = [row for row in rows if "rival" in row and row.get("peak_bytes", budget + 1) <= budget]
    return min(fit, key=lambda row: row["seconds"], default=None)


def sweep_of(rows: list[dict[str, Any]], family: str) -> float:
    """How long all settings of a family took."""
    return max(row.get("sweep_seconds", 0) for row in rows if row.get("rival") == family)


def beside(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each of our budgets: the best rival within it, and its sweep beside our tuning; none without peaks."""
    for own in [row for row in rows if "budget_bytes" in row and "peak_bytes" in row]:
        rival = best(rows, own["budget_bytes"])
        if rival is None:
            yield {"arm": f"best rival beside {own['arm']}", "none": "none is within the budget"}
            continue
        yield {
            "arm": f"best rival beside {own['arm']}: {rival['arm']}",
            "budget_bytes": own["budget_bytes"],
            "seconds": rival["seconds"],
            "peak_bytes": rival["peak_bytes"],
            "sweep_seconds": sweep_of(rows, rival["rival"]),
            "our_tune_seconds": own["tune_seconds"],
            "ours_over_rival": own["seconds"] / rival["seconds"],
        }


def ours(name: str, device: str, small: bool, others: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows for each of our budgets: ours, with a chunked loss, too, where there are logits; each beside its best rival; the
    verdict."""
    import verdict
    from rivals import SLICES, chunk_loss

    chunks = (0, SLICES[-1]) if has_logits(name) else (0,)
    peak = whole_bytes(build(name, device, small), device)
    for share in OURS:
        rows = []
        for slices in chunks:
            task = build(name, device, small)
            if slices:
                chunk_loss(task, slices)
            arm = f"plimsoll {share}" + (f", chunked loss, slices {slices}" if slices else "")
            rows.append({"arm": arm, **planned(task, device, small, int(share * peak))})
            yield rows[-1]
            yield from beside([*others, rows[-1]])
        yield verdict.verdict(share, rows, others)


def whole_bytes(task: Task, device: str) -> int:
    """What our budgets are shares of: eager's peak, or the GPU's memory where recording a step finds too little of it."""
    import torch

    import plimsoll

    try:
        return plimsoll.trace(task.loss, task.model, *task.batch, optimizer=optimizer_of(task)).peak_bytes
    except torch.OutOfMemoryError:
        return torch.cuda.get_device_properties(device).total_memory


def planned(task: Task, device: str, small: bool, budget: int) -> dict[str, Any]:
    """Time and memory of a planned step within a budget, or why there is none."""
    import verdict

    import plimsoll

    gauge, optimizer = Gauge(device), optimizer_of(task)
    row: dict[str, Any] = {"budget_bytes": budget}
    start = gauge.clock()
    try:
        step = plimsoll.tune(
            task.loss, task.model, optimizer, task.batch, budget, verify=0, seconds=plan_seconds(small)
        )
    except plimsoll.NoPlan as none:
        return {**row, "no_plan": str(none)}
    row["tune_seconds"] = gauge.clock() - start
    timed = measured(gauge, task, step, optimizer)
    row |= verdict.over_budget(timed, context(device), budget)
    return {**row, "fallback": step.fallback, "why": step.why, **timed}


def compared(
    rivals: list[Rival], name: str, device: str, small: bool, seconds: float
) -> Iterator[dict[str, Any]]:
    """Eager, the rivals that so many seconds are enough for, and ours beside them at each of our budgets."""
    from rivals import Rival

    rows = []
    for row in raced(
        [Rival("eager", "", lambda task: None), *rivals],
        name,
        device,
        small,
        seconds * (SLOWER if small else 1),
    ):
        rows.append(row)
        yield row
    yield from ours(name, device, small, rows)


def curve(name: str, device: str, small: bool, seconds: float = 80) -> Iterator[dict[str, Any]]:
    """Beside all rivals but `torch.compile`."""
    from rivals import rivals

    yield from compared(rivals(has_logits(name)), name, device, small, seconds)


def compile_(name: str, device: str, small: bool) -> Iterator[dict[str, Any]]:
    """Beside `torch.compile` at its budgets."""
    from rivals import compilers

    yield from compared(compilers(has_logits(name)), name, device, small, 420)


def batch(name: str, device: str, small: bool) -> Iterator[dict[str, Any]]:
    """The batches that loops find by running out of half of eager's memory, and what `suggest` recommends for it.

    The loops are first: ours stands in front of PyTorch's allocator from its first use on.
    """
    import torch

    import plimsoll

    task, gauge = build(name, device, small), Gauge(device)
    peak = measured(gauge, task, eager_of(task)).get("peak_bytes")
    if peak is None:  # the CPU counts none
        peak = plimsoll.trace(task.loss, task.model, *task.batch).peak_bytes
    del task
    yield from finding(name, device, small, peak // 2)
    task = build(name, device, small)
    optimizer = torch.optim.SGD(task.model.parameters(), 0.01)
    start = gauge.clock()
    row: dict[str, Any] = {"arm": "suggest", "budget_bytes": peak // 2}
    try:
        answer = plimsoll.suggest(task.loss, task.model, optimizer, task.batch, peak // 2, keep_batch=False)
    except plimsoll.NoPlan as none:
        yield {**row, "no_plan": str(none)}
        return
    yield {
        **row,
        "batch": answer.batch,
        "samples_per_second": answer.samples_per_second,
        "peak_bytes": answer.peak_bytes,
        "find_seconds": gauge.clock() - start,
        "words": str(answer),
    }


def finding(name: str, device: str, small: bool, budget: int) -> Iterator[dict[str, Any]]:
    """One row for each loop that finds a batch within so many bytes of the GPU."""
    import torch
    from finders import LOOPS

    where = torch.device(device)
    for arm, loop in LOOPS.items():
        row: dict[str, Any] = {"arm": arm, "budget_bytes": budget}
        if where.type != "cuda":
            yield {**row, "not_measured": "not measured: the CPU's memory is not limited"}
            continue
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(where).total_memory
        torch.cuda.set_per_process_memory_fraction(budget / whole, where)
        try:
            row |= found(loop, name, device, small, 40)
        except Exception as error:  # such as a batch that was found, and runs out of memory later
            row["failed"] = how(error)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, where)
        gc.collect()
        yield row


def found(
    loop: Callable[[Callable[[int], bool]], int], name: str, device: str, small: bool, seconds: float
) -> dict[str, Any]:
    """The batch that a loop finds within so many seconds, how often memory ran out, and how fast the batch trains in eager."""
    from finders import Tries

    gauge, task = Gauge(device), build(name, device, small)
    step, sample = eager_of(task), task.batch

    def run(count: int) -> None:
        task.model.zero_grad()
        step(*of_size(sample, count))

    tries, start = Tries(run, seconds), gauge.clock()
    try:
        size = loop(tries)
    except TimeoutError as late:
        return {"not_measured": f"not measured: {late}"}
    row = {"find_seconds": gauge.clock() - start, "tries": tries.count, "ooms": tries.ooms}
    if not size:
        return {**row, "failed": "does not fit: not one sample runs"}
    task.batch = of_size(sample, size)
    timed = measured(gauge, task, step)
    return {**row, "batch": size, "samples_per_second": size / timed["seconds"], **timed}


def of_size(batch: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """So many samples, those of a batch over and over."""
    import torch

    return tuple(part[torch.arange(count, device=part.device) % len(part)] for part in batch)


def truths(name: str, device: str, _small: bool) -> Iterator[dict[str, Any]]:
    """One row for each way to save memory, on a network that it may be wrong on."""
    import torch
    import truth

    torch.use_deterministic_algorithms(True, warn_only=True)
    yield from truth.rows(lambda: Task(*truth.network(name, device)), name == "dropout")


MEASURES: dict[str, Callable[[str, str, bool], Iterator[dict[str, Any]]]] = {
    "facts": facts,
    "bits": bits,
    "curve": curve,
    "batch": batch,
    "curves": curve,
    "truth": truths,
    **{name: functools.partial(curve, seconds=300) for name in SECTIONS if name.startswith("long")},
    **{name: compile_ for name in SECTIONS if name.startswith("compile")},
}


def child(section: str, network: str, device: str, small: bool) -> None:
    """Prints the rows of one network, in a process of its own."""
    import torch

    logging.getLogger("plimsoll").setLevel(logging.ERROR)
    context(device)  # before anything is allocated
    where = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "cpu"
    base = {
        "section": section,
        "network": network,
        "device": where,
        "torch": torch.__version__,
        "small": small,
    }
    for row in MEASURES[section](network, device, small):
        print("ROW " + json.dumps({**base, **row}), flush=True)


def rows_of(command: list[str], seconds: float, keep: Callable[[dict[str, Any]], None]) -> str:
    """Runs a child; hands over its rows as they come. Says what went wrong, if anything did."""
    last: list[str] = []
    # What cuBLAS needs to give the same bits each time.
    settings = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=settings)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    end, unread = time.monotonic() + seconds, b""
    while True:
        is_over = process.poll() is not None
        unread += process.stdout.read() or b""
        *lines, unread = unread.split(b"\n")
        for line in (one.decode(errors="replace") for one in lines):
            if line.startswith("ROW "):
                keep(json.loads(line[4:]))
            else:
                last = [*last[-4:], line]
        if is_over:
            return "" if process.returncode == 0 else f"exit code {process.returncode}: {' | '.join(last)}"
        if time.monotonic() > end:
            process.kill()
            process.wait()
            return f"cut after {seconds:.0f} s: {' | '.join(last)}"
        time.sleep(0.05)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as they stand in `benches/README.md`; sections without any read `not measured`."""
    lines = ["| section | network | measured |", "| --- | --- | --- |"]
    for name, section in SECTIONS.items():
        for network in section.networks:
            own = [row for row in rows if (row["section"], row["network"]) == (name, network)]
            said = "; ".join(map(_said, own)) or "not measured"
            lines.append(f"| {name} | {network} | {said} |")
    return "\n".join(lines)


def _said(row: dict[str, Any]) -> str:
    import truth
    import verdict

    words = [str(row.get("arm", row.get("words", "")))]
    for key in ("error", "no_plan", "failed", "not_measured", "none"):
        if key in row:
            return f"{words[0]}: {row[key]}".replace("|", "\\|").replace("\n", " ")
    if "differ" in row:
        return truth.said(row)
    if "hull_seconds" in row:
        return verdict.said(row).replace("|", "\\|")
    if "bits_equal" in row:
        words.append(f"bits {'equal' if row['bits_equal'] else '**differ**'}")
    if row.get("unplanned") is not None:
        words.append(f"{row['unplanned']} unplanned")
    if "batch" in row:
        words.append(f"batch {row['batch']}, {row['samples_per_second']:.1f} samples/s")
        words.append(f"found in {row['find_seconds']:.0f} s")
    if "ooms" in row:
        words.append(f"{row['ooms']} times out of memory")
    if "seconds" in row:
        words.append(f"{1e3 * row['seconds']:.1f} ms")
    if row.get("predicted_seconds"):
        words.append(f"measured/predicted {row['seconds'] / row['predicted_seconds']:.2f}")
    if "peak_bytes" in row:
        words.append(f"{row['peak_bytes'] / 2**30:.2f} GiB")
    if "peak_over_budget" in row:
        words.append(f"|peak - budget| {abs(row['peak_over_budget']):.1%} by the allocator")
    if "driver_over_budget" in row:
        words.append(f"{abs(row['driver_over_budget']):.1%} by the driver without CUDA's context")
    if "driver" in row:
        count = f"{row['driver_bytes'] / 2**30:.2f} GiB of the " if "driver_bytes" in row else ""
        words.append(f"driver: {count}{row['driver']}")
    if "sweep_seconds" in row:
        words.append(f"sweep {row['sweep_seconds']:.0f} s")
    if "ours_over_rival" in row:
        words.append(
            f"ours takes {row['ours_over_rival']:.2f} of its time, and {row['our_tune_seconds']:.0f} s to tune"
        )
    if row.get("fallback"):
        words.append(f"in eager: {row['fallback']}")
    return ", ".join(words).replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Runs sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sections", nargs="*", help=f"of {', '.join(SECTIONS)}; without any: {', '.join(USUAL)}"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--only", help="networks whose name contains this")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all sections together")
    parser.add_argument(
        "--table", type=Path, metavar="ROWS", help="print the table of these rows, and run nothing"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return 0
    if arguments.child:
        child(*arguments.child, arguments.device, arguments.small)
        return 0
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section is called {', '.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    networks = {network for name in arguments.sections or USUAL for network in SECTIONS[name].networks}
    if arguments.only and not any(arguments.only in network for network in networks):
        parser.error(
            f"no network's name contains `{arguments.only}`: there are {', '.join(sorted(networks))}"
        )
    out = Path(os.environ.get("OUT", ".")) / "python-accept.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    end, code = time.monotonic() + arguments.seconds, 0

    def keep(row: dict[str, Any]) -> None:
        nonlocal code
        if row.get("bits_equal") is False and row.get("eager_repeats", True) and row.get("arm") != "eager":
            code = 6
        line = json.dumps(row)
        print(line, flush=True)
        with out.open("a") as file:
            file.write(line + "\n")

    for name in arguments.sections or USUAL:
        for network in SECTIONS[name].networks:
            if arguments.only and arguments.only not in network:
                continue
            left = end - time.monotonic()
            command = [sys.executable, __file__, "--device", arguments.device, "--child", name, network]
            command += ["--small"] if arguments.small else []
            limit = min(SECTIONS[name].seconds * (SLOWER if arguments.small else 1), left)
            wrong = "cut: the time for all sections is over" if left <= 0 else rows_of(command, limit, keep)
            if wrong:
                keep({"section": name, "network": network, "error": wrong})
                code = code or 1
    return code


if __name__ == "__main__":
    sys.exit(main())
