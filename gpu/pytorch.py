"""PyTorch's side of the acceptance: answers questions on stdin, one JSON object a line each way, until stdin ends.

    {"do": "facts"}
    {"do": "step", "network": "resnet50", "image": 224, "batch": 64, "precision": "tf32", "format": "channels_last", "steps": 10}
    {"do": "step", ..., "way": "compile", "share": 0.5, "budget_bytes": 12884901888}

`step` takes training steps (forward, backward, SGD with momentum) and gives the seconds of each, by events on the device
without waiting in between. Each step gets its batch from pinned memory of the host, copied on a stream of its own while the
step before computes. With `budget_bytes` PyTorch's allocator may take no more; `seconds` is null where that is too little.

Precisions: `f32`; `tf32`, which convolutions and matrix products multiply in; `default`, PyTorch's own (convolutions in TF32,
matrix products in f32); `bf16`, autocast with f32 weights. Ways: `eager`; `checkpoint`, around every block; `save_on_cpu`,
saved tensors in pinned memory of the host; `compile`, torch.compile, which may keep a `share` of the bytes that it would
save (activation_memory_budget).

Networks are plain torch, as torchvision builds them; their numbers of parameters are asserted. With --cpu everything runs on the
CPU, to see that it runs. An answer with `error` says what could not be done; the next question is answered all the same.

What it deliberately does not do: choose a batch, a memory format or a share; whoever asks does.
"""

import contextlib
import gc
import json
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
    "googlenet": 6_624_904,
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

WAYS = ("eager", "checkpoint", "save_on_cpu", "compile")

FORMATS = {"contiguous": "contiguous_format", "channels_last": "channels_last"}

# GoogLeNet's modules: channels of 1x1, of 3x3 and of "5x5" after their reductions, and of 1x1 after the pooling; a number
# alone is the window of a pooling between two modules.
INCEPTION = (
    (64, (96, 128), (16, 32), 32),
    (128, (128, 192), (32, 96), 64),
    3,
    (192, (96, 208), (16, 48), 64),
    (160, (112, 224), (24, 64), 64),
    (128, (128, 256), (24, 64), 64),
    (112, (144, 288), (32, 64), 64),
    (256, (160, 320), (32, 128), 128),
    2,
    (256, (160, 320), (32, 128), 128),
    (384, (192, 384), (48, 128), 128),
)


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

    def conv(before, after, size, stride=1):
        layers = [nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after, eps=1e-3)]
        return nn.Sequential(*layers, nn.ReLU(inplace=True))

    class Inception(nn.Module):
        def __init__(self, before, ones, threes, fives, pooled):
            super().__init__()
            branches = [conv(before, ones, 1)]
            branches += [nn.Sequential(conv(before, a, 1), conv(a, b, 3)) for a, b in (threes, fives)]
            branches.append(nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv(before, pooled, 1)))
            self.branches = nn.ModuleList(branches)
            self.channels = ones + threes[1] + fives[1] + pooled

        def forward(self, x):
            return torch.cat([branch(x) for branch in self.branches], 1)

    def googlenet(_, classes, __):
        def pool(size):
            return nn.MaxPool2d(size, 2, ceil_mode=True)

        blocks = [nn.Sequential(conv(3, 64, 7, 2), pool(3)), nn.Sequential(conv(64, 64, 1), conv(64, 192, 3), pool(3))]
        before = 192
        for module in INCEPTION:
            if isinstance(module, int):
                blocks[-1] = nn.Sequential(blocks[-1], pool(module))
            else:
                blocks.append(Inception(before, *module))
                before = blocks[-1].channels
        blocks.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(before, classes)))
        return nn.ModuleList(blocks)

    return {"vgg16": vgg16, "alexnet": alexnet, "googlenet": googlenet, **{name: resnet for name in DEPTHS}}


class Trainer:
    """A network with its optimizer and its input, in one precision and one way."""

    def __init__(self, device, question):
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
        layout = getattr(torch, FORMATS[question.get("format", "contiguous")])
        self.blocks = self.blocks.to(device, memory_format=layout).train()
        self.optimizer = torch.optim.SGD(self.blocks.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self.device, self.way = device, question.get("way", "eager")
        if self.way not in WAYS:
            raise ValueError(f"there is no way `{self.way}`; the ways are {', '.join(WAYS)}")
        self.autocast = question.get("precision") == "bf16"
        self.loss_of = nn.CrossEntropyLoss()
        batch = question["batch"]
        # A few images by turns: drawing thousands takes seconds.
        images = torch.randn(16, 3, image, image).repeat(-(-batch // 16), 1, 1, 1)[:batch]
        self.host = [images.contiguous(memory_format=layout), torch.arange(batch) % classes]
        self.copies = self.ahead = None
        if device.type == "cuda":
            self.host = [tensor.pin_memory() for tensor in self.host]
            self.copies = torch.cuda.Stream()
            self.bring()
        self.forward = self.plain
        if self.way == "compile":
            import torch._functorch.config as settings

            torch._dynamo.reset()
            # Read when the first step compiles, so it is left as it is set.
            settings.activation_memory_budget = question["share"]
            self.forward = torch.compile(self.plain, dynamic=False)

    def bring(self):
        """Begins to copy a batch to the device."""
        with torch.cuda.stream(self.copies):
            self.ahead = [tensor.to(self.device, non_blocking=True) for tensor in self.host]

    def input(self):
        """The batch that was brought during the step before; the next is on its way."""
        if self.copies is None:
            return self.host
        current = torch.cuda.current_stream()
        current.wait_stream(self.copies)
        batch = self.ahead
        for tensor in batch:
            tensor.record_stream(current)
        self.bring()
        return batch

    def plain(self, x, labels):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.way == "checkpoint" else block(x)
        return self.loss_of(x, labels)

    def saved(self):
        """Where tensors for the backward pass are kept."""
        if self.way != "save_on_cpu":
            return contextlib.nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=self.device.type == "cuda")

    def step(self):
        x, labels = self.input()
        self.optimizer.zero_grad(set_to_none=True)
        with self.saved(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.forward(x, labels)
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


def is_out_of_memory(error):
    """Whether an error, or what it came of, says that memory does not suffice; cuDNN says so in words of its own."""
    while error is not None:
        words = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "CUDNN" in words or "out of memory" in words:
            return True
        error = error.__cause__ or error.__context__
    return False


class Side:
    """What is asked, and answered."""

    def __init__(self, on_cpu):
        self.device = torch.device("cpu" if on_cpu else "cuda")
        self.kept = {}
        torch.backends.cudnn.benchmark = True
        self.usual = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def facts(self, _):
        answer = {"pytorch": torch.__version__, "pytorch_cuda": torch.version.cuda or "none"}
        answer["pytorch_cudnn"] = str(torch.backends.cudnn.version())
        if self.device.type == "cuda":
            answer["pytorch_device"] = torch.cuda.get_device_name(0)
        answer["pytorch_cublas"] = cublas_version()
        answer["python"] = sys.version.split()[0]
        return answer

    def precise(self, precision):
        """Sets what f32 numbers multiply in; what autocast rounds to bf16 they do not touch."""
        switches = {"f32": (False, False), "tf32": (True, True), "default": self.usual, "bf16": self.usual}
        if precision not in switches:
            raise ValueError(f"there is no precision `{precision}`; the precisions are {', '.join(switches)}")
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches[precision]

    def step(self, question):
        self.precise(question["precision"])
        if "budget_bytes" in question:
            return self.step_within(question)
        key = json.dumps({**question, "steps": 0}, sort_keys=True)
        if key not in self.kept:
            self.kept[key] = self.warm(question)
        return {"seconds": self.kept[key].times(question["steps"])}

    def warm(self, question):
        """A trainer after some steps, in which cuDNN measures its algorithms, momentum is allocated, and the way compiles."""
        trainer = Trainer(self.device, question)
        trainer.times(3 if self.device.type == "cuda" else 1)
        return trainer

    def step_within(self, question):
        """The same within a budget, with nothing else on the device."""
        self.free()
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, question["budget_bytes"] / total))
        try:
            return {"seconds": self.warm(question).times(question["steps"])}
        except Exception as error:  # Of what type it is depends on who compiles.
            if not is_out_of_memory(error):
                raise
        finally:
            self.free()
            if self.device.type == "cuda":
                torch.cuda.set_per_process_memory_fraction(1.0)
        return {"seconds": None}

    def free(self):
        self.kept.clear()
        # What was compiled holds what it was compiled for.
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            # Pinned memory is kept, too; what saved tensors took would be missing to the other side.
            torch._C._host_emptyCache()


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
                ask = {"facts": side.facts, "step": side.step}[question["do"]]
                answer = ask(question)
        except Exception as error:  # Whatever it is, the other side is told, and the next question answered.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
