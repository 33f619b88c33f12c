"""Builds PyTorch's allocators under Plimsoll (`cpu.cpp`, `cuda.cpp`) for the installed torch, at first use.

c10's allocator interface is private: only the files of this folder know it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import NoCompiler
from .forwards import member_functions

FOLDER = Path(__file__).parent
LOG = "log.h"
TOOLKIT = Path("/usr/local/cuda")


@dataclass(frozen=True)
class Torch:
    """A torch to build for: its location and version."""

    folder: Path
    version: str
    has_new_strings: bool
    """`True` if it is built with the C++11 ABI of strings."""

    @staticmethod
    def installed() -> Torch:
        """Returns the running torch."""
        return Torch(Path(torch.__file__).parent, torch.__version__, torch.compiled_with_cxx11_abi())

    @property
    def standard(self) -> str:
        """C++ standard of its headers."""
        return "c++17" if self.version < torch.torch_version.TorchVersion("2.7") else "c++20"


def build(kind: str, folder: Path | None = None, of: Torch | None = None) -> Path:
    """Builds an allocator, `cpu` or `cuda`, as a shared library, or takes it from the cache if it
    was built before for this torch."""
    folder, of = folder or _cache(), of or Torch.installed()
    texts = {name: (FOLDER / name).read_text() for name in (f"{kind}.cpp", LOG)}
    if kind == "cuda":
        texts["forwards.inc"] = member_functions(of.folder / "include")
    told = "\0".join([*texts.values(), of.version, str(of.has_new_strings)])
    library = folder / f"allocator-{kind}-{hashlib.sha256(told.encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name, text in texts.items():
                (Path(scratch) / name).write_text(text)
            made = Path(scratch) / "allocator.so"
            command = _command(kind, of, Path(scratch), made)
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            if built.returncode:
                raise NoCompiler(
                    f"the allocator cannot be built for torch {of.version}; `{' '.join(command)}` says:\n"
                    f"{built.stderr.strip()}"
                )
            # Another process may have been faster; both built the same.
            made.replace(library)
    except OSError as error:
        raise NoCompiler(
            f"the allocator cannot be built in {folder} ({error}); set XDG_CACHE_HOME to a folder that can be written to"
        ) from error
    return library


def _command(kind: str, of: Torch, folder: Path, made: Path) -> list[str]:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(of.has_new_strings)}"
    command = [
        _compiler(),
        "-O2",
        f"-std={of.standard}",
        "-shared",
        "-fPIC",
        abi,
        f"-I{of.folder / 'include'}",
    ]
    libraries = ["-lc10"]
    if kind == "cuda":
        command += [f"-I{cuda_headers(of.folder)}", f"-I{FOLDER}"]  # last, for `crt/`
        libraries += ["-lc10_cuda"]
    return [*command, str(folder / f"{kind}.cpp"), "-o", str(made), f"-L{of.folder / 'lib'}", *libraries]


def cuda_headers(torch_folder: Path) -> Path:
    """Folder of CUDA's headers: of the packages next to torch, or of a toolkit."""
    packages = torch_folder.parent / "nvidia"
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    found = [
        *sorted(packages.glob("cu[0-9]*/include"), reverse=True),
        packages / "cuda_runtime" / "include",
        *(toolkit / "include" for toolkit in [*toolkits, TOOLKIT]),
    ]
    for folder in found:
        if (folder / "cuda_runtime_api.h").exists():
            return folder
    raise NoCompiler(
        f"CUDA's headers are neither beside torch ({packages}) nor in a toolkit: install nvidia-cuda-runtime of torch's CUDA "
        "version, or name a toolkit in the environment variable CUDA_HOME"
    )


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "plimsoll"


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NoCompiler(
        "Plimsoll builds its allocator with a C++ compiler at first use, and there is none: install g++ or clang++, or "
        "name one in the environment variable CXX"
    )
