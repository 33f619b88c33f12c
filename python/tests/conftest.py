"""Settings that all tests share."""

import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benches")]


@pytest.fixture(autouse=True)
def threads():
    """Sets the number of threads from the environment, so that the tests run with one and with two."""
    torch.set_num_threads(int(os.environ.get("PLIMSOLL_TEST_THREADS", "1")))
