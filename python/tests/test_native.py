"""The allocators are built for the installed torch; CUDA's forwards every function of PyTorch's."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plimsoll import errors, native
from plimsoll.native.forwards import BY_HAND, member_functions

INCLUDE = Path(torch.__file__).parent / "include"
CUDA_HEADER = INCLUDE / "c10/cuda/CUDACachingAllocator.h"

needs_cuda_headers = pytest.mark.skipif(
    torch.version.cuda is None,
    reason="this torch is built without CUDA: it has no headers of the CUDA allocator",
)

HEADER = """
class CUDAAllocator : public Allocator {
 public:
  virtual void* raw_alloc(size_t nbytes) = 0; // virtual nothing
  virtual std::pair<int, int> two(std::map<int, int> a = {{1, 2}}, bool b = f(1, 2)) const = 0;
  virtual void none() { g({1, 2}); }
  ELSE
};
"""


def header(tmp_path, more=""):
    (tmp_path / "c10/cuda").mkdir(parents=True)
    (tmp_path / "c10/core").mkdir()
    (tmp_path / "c10/cuda/CUDACachingAllocator.h").write_text(HEADER.replace("ELSE", more))
    (tmp_path / "c10/core/CachingDeviceAllocator.h").write_text("")
    return tmp_path


def test_a_function_is_forwarded_with_the_types_of_the_header(tmp_path):
    lines = member_functions(header(tmp_path)).splitlines()
    assert [re.search(r"> (\w+)\(", line)[1] for line in lines] == ["two", "none"]
    assert "Argument<&Base::two, 1> a1) const override" in lines[0]
    assert "none() override" in lines[1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("virtual int field;", "of 4 virtual functions in .* 3 can be read"),
        ("virtual int none(int) = 0;", "two functions `none`"),
    ],
)
def test_a_header_that_cannot_be_read_to_its_end_is_an_error(tmp_path, more, says):
    with pytest.raises(errors.NoCompiler, match=says):
        member_functions(header(tmp_path, more))


def test_a_torch_without_cuda_is_told_so(tmp_path):
    with pytest.raises(errors.NoCompiler, match="is this torch built with CUDA"):
        member_functions(tmp_path)


def test_without_headers_of_cuda_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(native, "TOOLKIT", tmp_path)
    with pytest.raises(errors.NoCompiler, match="install nvidia-cuda-runtime"):
        native.cuda_headers(tmp_path / "torch")


@needs_cuda_headers
def test_every_virtual_function_of_the_installed_torch_is_overridden():
    text = CUDA_HEADER.read_text()
    body = text[
        text.index("class CUDAAllocator") : text.index("C10_CUDA_API extern std::atomic<CUDAAllocator*>")
    ]
    names = set(re.findall(r"^  virtual [^(]*?(\w+)\(", body, re.MULTILINE))
    done = member_functions(INCLUDE)
    missing = [name for name in names - BY_HAND if f" {name}(" not in done]
    assert len(names) > 25
    assert not missing


@needs_cuda_headers
def test_the_allocator_of_cuda_stands_in_front_of_pytorchs(tmp_path):
    """In a separate process, since it cannot be removed again. Without a GPU, so that nothing is allocated."""
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    script = """
import ctypes, sys, torch
loaded = ctypes.PyDLL(sys.argv[1])
assert not loaded.plimsoll_is_installed()
loaded.plimsoll_install()
assert loaded.plimsoll_is_installed()
assert torch.cuda.get_allocator_backend() == "native"  # asked of ours, which forwards
assert torch.empty(4).sum() is not None
"""
    library = native.build("cuda", tmp_path)
    assert ctypes.PyDLL(str(library)).plimsoll_failures() == 0
    subprocess.run([sys.executable, "-c", script, library], check=True, timeout=120)
