"""One training step in PyTorch, timed: forward, backward, SGD with momentum; beside a command that does the same.

    pip install torch torchvision
    python benches/pytorch_step.py --network resnet18 --image 64 --batch 16 --threads 1 --core 1 \
        --beside "cargo bench -q --bench step -- resnet18 64 16 1 5"

The command prints {"seconds": [...], "processor_seconds": [...]}, one number for each step it took. The two take turns,
on the same core where --core names one, so that a busy machine is busy for both; the seconds of the processor are those
that each really had. PyTorch runs in both of its memory formats, and the faster counts. Prints JSON: medians, least,
and the ratio of each (command / PyTorch; below 1 the command is faster).

What it deliberately does not do: check that both compute the same; tests do that.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet18", help="a name that torchvision.models knows")
    parser.add_argument("--image", type=int, default=64, help="pixels along each side")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5, help="steps in a row, in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--core", type=int, help="run everything on this core")
    parser.add_argument("--beside", help="a command that prints the seconds of its steps")
    return parser.parse_args()


def make_step(torch, torchvision, options, memory_format):
    """A function that takes one step on a fixed batch."""
    torch.manual_seed(1)
    model = getattr(torchvision.models, options.network)(num_classes=options.classes)
    model = model.train().to(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(options.batch, 3, options.image, options.image).to(memory_format=memory_format)
    labels = torch.arange(options.batch) % options.classes
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()

    return step


def times_of(step, count):
    times = {"seconds": [], "processor_seconds": []}
    for _ in range(count):
        start, busy = time.perf_counter(), time.process_time()
        step()
        times["seconds"].append(time.perf_counter() - start)
        times["processor_seconds"].append(time.process_time() - busy)
    return times


def times_of_command(command):
    done = subprocess.run(shlex.split(command), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def add(taken, times):
    for clock, seconds in times.items():
        taken.setdefault(clock, []).extend(seconds)


def summary(taken):
    return {
        "median_seconds": statistics.median(taken["seconds"]),
        "least_seconds": min(taken["seconds"]),
        "median_processor_seconds": statistics.median(taken["processor_seconds"]),
        "steps": len(taken["seconds"]),
    }


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main():
    options = arguments()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    import torch
    import torchvision

    torch.set_num_threads(options.threads)
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    steps = {name: make_step(torch, torchvision, options, format) for name, format in formats.items()}
    for step in steps.values():
        times_of(step, 2)
    taken = {name: {} for name in steps}
    beside = {}
    for _ in range(options.turns):
        for name, step in steps.items():
            add(taken[name], times_of(step, options.steps))
        if options.beside:
            add(beside, times_of_command(options.beside))

    best = min(taken, key=lambda name: statistics.median(taken[name]["processor_seconds"]))
    report = {
        "network": options.network,
        "image": options.image,
        "batch": options.batch,
        "threads": options.threads,
        "processor": processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pytorch": {name: summary(times) for name, times in taken.items()},
        "pytorch_best": best,
    }
    if beside:
        ours, theirs = summary(beside), report["pytorch"][best]
        report["beside"] = {"command": options.beside, **ours}
        report["ratio"] = {key: ours[key] / theirs[key] for key in ours if key != "steps"}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
