"""PyTorch's side of the acceptance: answers questions on stdin, one JSON object a line each way, until stdin ends.

    {"do": "facts"}
    {"do": "step", "network": "resnet50", "image": 224, "batch": 64, "precision": "f32", "format": "contiguous", "steps": 10}
    {"do": "largest", "network": "resnet50", "image": 224, "way": "checkpoint", "budget_bytes": 12884901888, "seconds": 20}

`step` takes training steps (forward, backward, SGD with momentum) on a fixed batch and gives the seconds of each, by events on
the device without waiting in between. `largest` looks for the largest batch that trains within a share of the device's
memory, and gives the median seconds of a step there: `eager`, with `torch.utils.checkpoint` around every block, or with
saved tensors in pinned memory of the host (`save_on_cpu`).

Networks are plain torch, as torchvision builds them; their numbers of parameters are asserted. With --cpu everything runs on the
CPU, to see that it runs. An answer with `error` says what could not be done; the next question is answered all the same.

What it deliberately does not do: torch.compile, mixed precision, or input: all sides train on a batch that is there.
"""

import contextlib
import gc
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError as missing:
    torch, why = None, str(missing)

# Numbers of parameters at 224x224 images and 1000 classes; of resnet20 at any image and 10 classes.
PARAMETERS = {
    "resnet20": 272_474,
    "alexnet": 60_965_224,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}

DEPTHS = {
    "resnet20": (False, (3, 3, 3)),
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}


def define():
    """The networks, each a sequence of blocks; in a function, since there may be no torch."""

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

    def resnet(name, classes, _):
        bottleneck, depths = DEPTHS[name]
        # With three groups it is one for CIFAR's small images.
        before = 16 if len(depths) == 3 else 64
        first = nn.Conv2d(3, 16, 3, 1, 1, bias=False) if before == 16 else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        pool = [] if before == 16 else [nn.MaxPool2d(3, 2, 1)]
        blocks, narrow = [nn.Sequential(first, nn.BatchNorm2d(before), nn.ReLU(inplace=True), *pool)], before
        for group, depth in enumerate(depths):
            for i in range(depth):
                width = narrow << group
                blocks.append(Residual(before, width, 2 if group > 0 and i == 0 else 1, bottleneck))
                before = 4 * width if bottleneck else width
        blocks.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)))
        return nn.ModuleList(blocks)

    def head(features, classes):
        layers = [nn.Flatten(), nn.Linear(features, 4096), nn.ReLU(inplace=True), nn.Dropout()]
        layers += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, classes)]
        return nn.Sequential(*layers)

    def vgg16(_, classes, image):
        blocks, before = [], 3
        for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            layers = []
            for _ in range(convolutions):
                layers += [nn.Conv2d(before, width, 3, 1, 1), nn.ReLU(inplace=True)]
                before = width
            blocks.append(nn.Sequential(*layers, nn.MaxPool2d(2, 2)))
        return nn.ModuleList([*blocks, head(512 * (image // 32) ** 2, classes)])

    def alexnet(_, classes, image):
        blocks, side = [], image
        layers = ((3, 96, 11, 4, 2, 1, True, True), (96, 256, 5, 1, 2, 2, True, True), (256, 384, 3, 1, 1, 1, False, False),
                  (384, 384, 3, 1, 1, 2, False, False), (384, 256, 3, 1, 1, 2, False, True))
        for a, b, size, stride, padding, groups, normalised, pooled in layers:
            block = [nn.Conv2d(a, b, size, stride, padding, groups=groups), nn.ReLU(inplace=True)]
            block += [nn.LocalResponseNorm(5, 5e-4, 0.75, 2.0)] if normalised else []
            block += [nn.MaxPool2d(3, 2)] if pooled else []
            side = (side + 2 * padding - size) // stride + 1
            side = (side - 3) // 2 + 1 if pooled else side
            blocks.append(nn.Sequential(*block))
        return nn.ModuleList([*blocks, head(256 * side**2, classes)])

    return {"vgg16": vgg16, "alexnet": alexnet, **{name: resnet for name in DEPTHS}}


class Trainer:
    """A network with its optimizer and a batch."""

    def __init__(self, device, question, batch):
        name, image, classes = question["network"], question["image"], question.get("classes", 1000)
        networks = define()
        if name not in networks:
            raise ValueError(f"{name} is not defined here")
        torch.manual_seed(1)
        with device:
            self.blocks = networks[name](name, classes, image)
        count = sum(p.numel() for p in self.blocks.parameters())
        if (image, classes) in ((224, 1000), (8, 10)) and count != PARAMETERS[name]:
            raise AssertionError(f"{name} has {count} parameters, not {PARAMETERS[name]}")
        layout = torch.channels_last if question.get("format") == "channels_last" else torch.contiguous_format
        self.blocks = self.blocks.to(device, memory_format=layout).train()
        self.optimizer = torch.optim.SGD(self.blocks.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self.images = torch.randn(batch, 3, image, image, device=device).to(memory_format=layout)
        self.labels = torch.arange(batch, device=device) % classes
        self.loss_of = nn.CrossEntropyLoss()
        self.way = question.get("way", "eager")
        self.device = device

    def forward(self):
        x = self.images
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.way == "checkpoint" else block(x)
        return self.loss_of(x, self.labels)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        on_host = self.way == "save_on_cpu"
        pinned = self.device.type == "cuda"
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned) if on_host else contextlib.nullcontext():
            loss = self.forward()
        loss.backward()
        self.optimizer.step()
        return loss

    def times(self, count):
        """Seconds of each of so many steps, from the end of the one before it to its own."""
        if self.device.type != "cuda":
            seconds = []
            for _ in range(count):
                start = time.perf_counter()
                self.step()
                seconds.append(time.perf_counter() - start)
            return seconds
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            self.step()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(events, events[1:])]


class Side:
    """What is asked, and answered."""

    def __init__(self, on_cpu):
        self.device = torch.device("cpu" if on_cpu else "cuda")
        self.kept = {}
        torch.backends.cudnn.benchmark = True

    def facts(self, _):
        answer = {"pytorch": torch.__version__, "pytorch_cuda": torch.version.cuda or "none"}
        answer["pytorch_cudnn"] = str(torch.backends.cudnn.version())
        if self.device.type == "cuda":
            answer["pytorch_device"] = torch.cuda.get_device_name(0)
        answer["pytorch_cublas"] = cublas_version()
        answer["python"] = sys.version.split()[0]
        return answer

    def precise(self, question):
        tf32 = question.get("precision") == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32

    def step(self, question):
        self.precise(question)
        key = json.dumps({**question, "steps": 0}, sort_keys=True)
        if key not in self.kept:
            trainer = Trainer(self.device, question, question["batch"])
            # cuDNN's measurements are made in the first.
            trainer.times(3 if self.device.type == "cuda" else 1)
            self.kept[key] = trainer
        return {"seconds": self.kept[key].times(question["steps"])}

    def free(self):
        self.kept.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def try_batch(self, question, batch, steps):
        """Seconds of steps at a batch size; none where memory does not suffice."""
        trainer = None
        try:
            trainer = Trainer(self.device, question, batch)
            return trainer.times(steps)
        except RuntimeError as error:
            # cuDNN says so in words of its own.
            if isinstance(error, torch.OutOfMemoryError) or "CUDNN" in str(error) or "out of memory" in str(error):
                return None
            raise
        finally:
            del trainer
            self.free()

    def largest(self, question):
        self.free()
        self.precise(question)
        # Each batch size would be measured anew.
        torch.backends.cudnn.benchmark = False
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, question["budget_bytes"] / total))
        until = time.perf_counter() + 0.7 * question["seconds"]
        try:
            return self.search(question, until)
        finally:
            torch.backends.cudnn.benchmark = True
            if self.device.type == "cuda":
                torch.cuda.set_per_process_memory_fraction(1.0)

    def search(self, question, until):
        limit, good, bad, note = question.get("limit", 4096), 0, None, ""
        while bad is None and good < limit:
            batch = min(limit, max(16, 2 * good))
            if self.try_batch(question, batch, 1) is None:
                bad = batch
            else:
                good = batch
            if time.perf_counter() > until:
                break
        # To a sixteenth of what is known to train.
        while bad is not None and bad - good > max(1, good // 16):
            if time.perf_counter() > until:
                note = f"{bad} is known not to train; cut for time"
                break
            middle = (good + bad) // 2
            if self.try_batch(question, middle, 1) is None:
                bad = middle
            else:
                good = middle
        if bad is None and not note:
            note = "no larger batch was tried"
        while good > 0:
            # What trains once may be short of memory in its second step, which holds momentum.
            seconds = self.try_batch(question, good, 6 if self.device.type == "cuda" else 2)
            if seconds is not None:
                return {"batch": good, "seconds": statistics.median(seconds[1:]), "note": note}
            good = good * 15 // 16 if good > 15 else good - 1
        return {"batch": None, "seconds": None, "note": "no batch trains"}


def cublas_version():
    """As the library that PyTorch has loaded says it."""
    import ctypes

    for name in ("libcublas.so.13", "libcublas.so.12"):
        try:
            library = ctypes.CDLL(name)
            parts = []
            for which in range(3):
                value = ctypes.c_int()
                library.cublasGetProperty(which, ctypes.byref(value))
                parts.append(str(value.value))
            return ".".join(parts)
        except (OSError, AttributeError):
            continue
    return "unknown"


def main():
    on_cpu = "--cpu" in sys.argv
    side, trouble = None, None
    if torch is None:
        trouble = f"no PyTorch: {why}"
    elif not on_cpu and not torch.cuda.is_available():
        trouble = f"PyTorch {torch.__version__} sees no GPU"
    else:
        side = Side(on_cpu)
    for line in sys.stdin:
        try:
            question = json.loads(line)
            if trouble:
                answer = {"error": trouble}
            else:
                ask = {"facts": side.facts, "step": side.step, "largest": side.largest}[question["do"]]
                answer = ask(question)
        except Exception as error:  # Whatever it is, the other side is told, and the next question answered.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
