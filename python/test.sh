#!/usr/bin/env bash
# All that must hold of the PyTorch front, in one command: builds the wheel, installs it with the tools into a virtual
# environment (python/.venv, or the one that VENV names), formats and lints both languages, checks types, runs the tests with
# one thread and with two. Arguments go to pytest. Needs python3, cargo and a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")"
venv="${VENV:-.venv}"
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  # The build for the CPU is a tenth of the usual one; where that index is out of reach, the usual one does.
  "$venv/bin/python" -m pip install --quiet torch torchvision --index-url https://download.pytorch.org/whl/cpu \
    || "$venv/bin/python" -m pip install --quiet torch torchvision
fi
bin="$(cd "$venv/bin" && pwd)"
"$bin/python" -m pip install --quiet numpy maturin==1.16.0 mypy==2.4.1 pytest==9.2.0 ruff==0.17.6
"$bin/ruff" format --check .
"$bin/ruff" check .
cargo fmt --check
cargo clippy --release --locked -- -D warnings
PATH="$bin:$PATH" "$bin/maturin" build --release --locked --quiet --out dist --interpreter "$bin/python"
"$bin/python" -m pip install --quiet --force-reinstall --no-deps dist/plimsoll-*.whl
"$bin/mypy"
# From the folder of the tests, so that what is tested is what was installed.
cd tests
PLIMSOLL_TEST_THREADS=1 "$bin/python" -m pytest -q "$@"
PLIMSOLL_TEST_THREADS=2 "$bin/python" -m pytest -q test_bits.py -k "sgd-0.1 or everything"
"$bin/python" ../examples/digits.py --epochs 1
