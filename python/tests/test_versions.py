"""A PyTorch that is missing, too old or too new is reported before anything of it is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plimsoll


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "raise ModuleNotFoundError(name='torch')",
            "PyTorch is not installed in this Python: install one of",
        ),
        (
            "__version__ = '2.5.1+cu124'",
            "torch 2.5.1+cu124 is too old for Plimsoll: install one of torch 2.6 to",
        ),
        ("__version__ = '99.0.0'", "torch 99.0.0 is newer than what this Plimsoll knows and lacks something"),
    ],
)
def test_another_torch_is_told_in_one_line(tmp_path, source, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(source)
    package = Path(plimsoll.__file__).parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", "import plimsoll; plimsoll.Error; plimsoll.tune"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{package}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("plimsoll.errors.NoTorch: ")
    assert words in last


def test_a_newer_torch_that_has_all_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(torch, "__version__", "98.7.0")
    for _ in range(2):
        plimsoll.versions.imported("plimsoll.errors")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["torch 98.7.0 is newer than 2.15, the newest that Plimsoll was tested with"]


def test_what_torch_lacks_is_no_matter_of_its_version_where_it_is_known():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        plimsoll.versions.imported("plimsoll.no_such_module")
