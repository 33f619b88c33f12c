#!/usr/bin/env bash
# All that must hold of the PyTorch front, in one command: formats and lints both languages, builds the wheel, installs it with
# the tools into a virtual environment (python/.venv, or the one that VENV names), checks types, runs tests and example.
#
#   bash python/test.sh            everything, with one thread and with two
#   bash python/test.sh --ci       without the tests marked `slow`; skips, and says so, where Python, a compiler or torch is missing
#
# Further arguments go to pytest. Needs python3 (3.10 or newer), cargo and a C++ compiler. TORCH names another version of torch
# than the newest (`TORCH='torch==2.11.* torchvision==0.26.*'`), in a virtual environment of its own.
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE  # importing torch takes seconds, and twice as many without its compiled files
cd "$(dirname "$0")"
ci=""
case "${1:-}" in
  --ci) ci=1 && shift ;;
esac
# Without the tools nothing can be tested: in CI that is said and skipped, elsewhere it is an error.
missing() {
  echo "python: ${ci:+skipped, }$1" >&2
  if [ -n "$ci" ]; then exit 0; fi
  exit 1
}
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null || missing "there is no python3 of version 3.10 or newer"
command -v "${CXX:-c++}" > /dev/null || missing "there is no C++ compiler"
venv="${VENV:-.venv}"
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import torch, torchvision' 2> /dev/null; then
  python3 -m venv "$venv" || missing "python3 has no module venv"
  pip=("$venv/bin/python" -m pip install --quiet)
  read -r -a torch <<< "${TORCH:-torch torchvision}"
  # The build for the CPU is a tenth of PyPI's (200 MB for 2.5 GB); where that index is out of reach, PyPI's does.
  timeout 300 "${pip[@]}" --retries 1 --timeout 15 "${torch[@]}" --index-url https://download.pytorch.org/whl/cpu 2> /dev/null \
    || timeout 480 "${pip[@]}" "${torch[@]}" \
    || missing "torch is not to be had from PyPI within 8 minutes"
fi
bin="$(cd "$venv/bin" && pwd)"
"$bin/python" -m pip install --quiet numpy maturin==1.16.0 mypy==2.4.1 pytest==9.2.0 ruff==0.17.6 \
  || missing "the tools are not to be had from PyPI"
if [ -z "$ci" ]; then # 300 MB, which CI does without: their tests are skipped there
  "$bin/python" -m pip install --quiet accelerate lightning peft transformers \
    || missing "accelerate, lightning, peft and transformers are not to be had from PyPI"
fi
step() { echo "python: $1 (after $SECONDS s)"; }

step "formats and lints"
"$bin/ruff" format --check .
"$bin/ruff" check .
cargo fmt --check
cargo clippy --release --locked --quiet -- -D warnings
step "wheel"
PATH="$bin:$PATH" "$bin/maturin" build --release --locked --quiet --out dist --interpreter "$bin/python"
"$bin/python" -m pip install --quiet --force-reinstall --no-deps dist/plimsoll-*.whl
step "types"
"$bin/mypy"
# For the tests of swapping on CUDA, and of whole steps there, which also need a torch that is built with CUDA.
if [ -z "${PLIMSOLL_STANDIN:-}" ]; then
  step "the stand-in of CUDA's driver"
  cargo build --release --locked --quiet --manifest-path ../standin/Cargo.toml --lib --target-dir target/standin
  export PLIMSOLL_STANDIN="$PWD/target/standin/release/libplimsoll_standin.so"
fi
# Threads of a kernel that wait for each other give the core away, to whatever else runs.
export OMP_WAIT_POLICY=passive
# From the folder of the tests, so that what is tested is what was installed.
cd tests
some=()
if [ -n "$ci" ]; then some=(-m "not slow"); fi
step "tests with one thread"
PLIMSOLL_TEST_THREADS=1 "$bin/python" -m pytest -q --durations 5 ${some[@]+"${some[@]}"} "$@"
step "tests with two threads"
PLIMSOLL_TEST_THREADS=2 "$bin/python" -m pytest -q test_bits.py -k "sgd and 0.1 and 20GB or everything" ${some[@]+"${some[@]}"}
step "example"
"$bin/plimsoll" auto ../examples/digits.py --study ../dist/digits -- --epochs 1
step "done"
