"""PyTorch's side of the measurements: trains the cases on stdin, one JSON object per line, and prints a row for each way.

    accept cases | python3 pytorch.py

A row is its case, with the seconds of a step (median and median absolute deviation), from events on the device without
waiting in between, and the peak of PyTorch's allocator. A step is forward, backward and SGD with momentum; its batch is
copied from a pinned host buffer on a second stream during the previous step.

Ways: `eager`; `checkpoint`, around every block; `save_on_cpu`, saved tensors in pinned host buffers. Each runs in both
memory formats. Precisions: `f32`; `tf32` for convolutions and matrix products; `bf16`, autocast with f32 weights.

Networks are plain torch, as torchvision builds them, and must have the case's number of parameters; the device must be the
case's. With --small everything runs on the CPU if there is no GPU.
"""

import contextlib
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WAYS = ("eager", "checkpoint", "save_on_cpu")
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
SMALL = "--small" in sys.argv
DEVICE = torch.device("cpu" if SMALL and not torch.cuda.is_available() else "cuda")
WARM_UP, STEPS = (1, 1) if SMALL else (10, 20)

# Bottleneck flag and the number of blocks in each group; three groups are for CIFAR's small images.
DEPTHS = {"resnet20": (False, (3, 3, 3)), "resnet50": (True, (3, 4, 6, 3)), "resnet152": (True, (3, 8, 36, 3))}


class Residual(nn.Module):
    def __init__(self, before, width, stride, bottleneck):
        super().__init__()
        after = 4 * width if bottleneck else width
        if bottleneck:
            steps = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
        else:
            steps = [(before, width, 3, stride), (width, after, 3, 1)]
        layers = []
        for i, (a, b, size, by) in enumerate(steps):
            layers += [nn.ReLU(inplace=True)] if i > 0 else []
            layers += [nn.Conv2d(a, b, size, by, size // 2, bias=False), nn.BatchNorm2d(b)]
        self.branch = nn.Sequential(*layers)
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.branch(x) + self.shortcut(x))


def resnet(name, classes):
    bottleneck, depths = DEPTHS[name]
    before = narrow = 16 if len(depths) == 3 else 64
    first = nn.Conv2d(3, 16, 3, 1, 1, bias=False) if narrow == 16 else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    pool = [] if narrow == 16 else [nn.MaxPool2d(3, 2, 1)]
    blocks = [nn.Sequential(first, nn.BatchNorm2d(before), nn.ReLU(inplace=True), *pool)]
    for group, depth in enumerate(depths):
        for i in range(depth):
            width = narrow << group
            blocks.append(Residual(before, width, 2 if group > 0 and i == 0 else 1, bottleneck))
            before = 4 * width if bottleneck else width
    blocks.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)))
    return nn.ModuleList(blocks)


def vgg16(image, classes):
    blocks, before = [], 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        layers = []
        for _ in range(convolutions):
            layers += [nn.Conv2d(before, width, 3, 1, 1), nn.ReLU(inplace=True)]
            before = width
        blocks.append(nn.Sequential(*layers, nn.MaxPool2d(2, 2)))
    head = [nn.Flatten(), nn.Linear(512 * (image // 32) ** 2, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    head += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, classes)]
    return nn.ModuleList([*blocks, nn.Sequential(*head)])


class Trainer:
    """A network with its optimizer and its input, in one precision, way and memory format."""

    def __init__(self, case, way, layout):
        name, image, classes, batch = (case[key] for key in ("network", "image", "classes", "batch"))
        torch.manual_seed(1)
        with DEVICE:
            self.blocks = vgg16(image, classes) if name == "vgg16" else resnet(name, classes)
        count = sum(p.numel() for p in self.blocks.parameters())
        if count != case["parameters"]:
            raise ValueError(f"{name} has {count} parameters here, and {case['parameters']} in Plimsoll")
        self.blocks = self.blocks.to(DEVICE, memory_format=layout).train()
        self.optimizer = torch.optim.SGD(self.blocks.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self.way, self.autocast = way, case["precision"] == "bf16"
        # Autocast rounds to bf16 for any value of these.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case["precision"] != "f32"
        self.loss_of = nn.CrossEntropyLoss()
        # Alternates a few images: drawing many takes seconds.
        images = torch.randn(16, 3, image, image).repeat(-(-batch // 16), 1, 1, 1)[:batch]
        self.host = [images.contiguous(memory_format=layout), torch.arange(batch) % classes]
        if DEVICE.type == "cuda":
            self.host = [tensor.pin_memory() for tensor in self.host]
            self.copies = torch.cuda.Stream()
            self.bring()

    def bring(self):
        """Begins to copy a batch to the device."""
        with torch.cuda.stream(self.copies):
            self.ahead = [tensor.to(DEVICE, non_blocking=True) for tensor in self.host]

    def input(self):
        """The batch copied during the previous step; starts the copy of the next."""
        if DEVICE.type != "cuda":
            return self.host
        current = torch.cuda.current_stream()
        current.wait_stream(self.copies)
        batch = self.ahead
        for tensor in batch:
            tensor.record_stream(current)
        self.bring()
        return batch

    def step(self):
        x, labels = self.input()
        self.optimizer.zero_grad(set_to_none=True)
        saved = contextlib.nullcontext()
        if self.way == "save_on_cpu":
            saved = torch.autograd.graph.save_on_cpu(pin_memory=DEVICE.type == "cuda")
        with saved, torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.autocast):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.way == "checkpoint" else block(x)
            loss = self.loss_of(x, labels)
        loss.backward()
        self.optimizer.step()

    def times(self, count):
        """Seconds of each of `count` steps, from the end of the previous step to its own."""
        if DEVICE.type != "cuda":
            ends = [time.perf_counter()]
            for _ in range(count):
                self.step()
                ends.append(time.perf_counter())
            return [end - start for start, end in zip(ends, ends[1:])]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            self.step()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(events, events[1:])]


def measure(case, way, layout):
    """Seconds and peak of one way after a warm-up, in which cuDNN measures its algorithms and momentum is allocated."""
    on_gpu = DEVICE.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(case, way, layout)
    trainer.times(WARM_UP)
    seconds = trainer.times(STEPS)
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "spread_seconds": statistics.median(abs(s - median) for s in seconds),
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }


def main():
    device = torch.cuda.get_device_name(0) if DEVICE.type == "cuda" else "cpu"
    torch.backends.cudnn.benchmark = True
    if SMALL:
        torch.set_num_threads(1)  # Tiny layers are slower on several.
    failed = False
    for line in sys.stdin:
        case = json.loads(line)
        if not SMALL and device != case["device"]:
            sys.exit(f"error: PyTorch's device is {device}, and Plimsoll's is {case['device']}")
        for way in WAYS:
            for name, layout in FORMATS.items():
                row = {**case, "device": device, "pytorch": torch.__version__, "way": way, "format": name}
                row["cudnn"] = str(torch.backends.cudnn.version())
                try:
                    row |= measure(case, way, layout)
                except Exception as error:  # Out of memory, or a fault of one way: the others are measured all the same.
                    row["error"] = f"{type(error).__name__}: {error}"
                    print(f"error: {row['error']}", file=sys.stderr)
                    failed = True
                print(json.dumps(row), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
