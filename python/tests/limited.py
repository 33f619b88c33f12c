"""Runs code in a separate process, whose memory the operating system limits."""

import os
import subprocess
import sys

HEAD = """
import logging, resource, sys
import torch
from torch import nn
import plimsoll
logging.basicConfig(level=logging.INFO, format="%(message)s")
torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)
MIB = 1 << 20

def limit(more):
    # So many bytes more than there are now; none lifts the limit.
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (-1 if more is None else now + more, -1))

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(8)))

def loss(x):
    return model(x).square().mean()

"""


def run(code):
    """Returns the stderr of the code, which has `model`, `loss` and `limit(more)`; the latter grants
    the process this many more bytes."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "1048576",
    }
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + code], env=environment, timeout=300, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr
