#!/usr/bin/env bash
# All checks of the PyTorch front, in one command: formats, lints and types of the Python, a wheel in a virtual environment
# (python/.venv, or VENV), the tests with one thread and with two, the short list with an older torch, and the first example.
#
#   bash python/test.sh [ARGUMENT...]   arguments go to pytest
#   bash python/test.sh --tools         only installs the dependencies: some minutes of downloads, 6 GB
#   bash python/test.sh --wheel         only builds and installs the wheel
#
# Needs python3 (3.10 or newer) with venv, cargo and a C++ compiler. TORCH replaces the newest version of torch
# (`TORCH='torch==2.11.* torchvision==0.26.*'`), PYTHON replaces python3 (`PYTHON=python3.14t`); each combination needs a separate
# virtual environment (VENV). OLDER names the versions of the short list (2.11; 2.6 is known).
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE  # importing torch takes seconds, and twice as many without its compiled files
cd "$(dirname "$0")"
missing() {
  echo "python: $1" >&2
  exit 1
}
interpreter="${PYTHON:-python3}"
"$interpreter" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null \
  || missing "there is no $interpreter of version 3.10 or newer"
command -v "${CXX:-c++}" > /dev/null || missing "there is no C++ compiler"
venv="${VENV:-.venv}"
if ! [ -x "$venv/bin/uv" ]; then
  "$interpreter" -m venv "$venv" || missing "$interpreter makes no virtual environment; install its venv module"
  "$venv/bin/python" -m pip install --quiet uv==0.9.30 || missing "uv is not to be had from PyPI"
fi
bin="$(cd "$venv/bin" && pwd)"
# uv takes a third of pip's time to install the gigabytes of torch, and keeps one copy for all environments.
export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-https://pypi.org/simple}}"
# Installs into a virtual environment: its folder, then arguments of uv.
install() {
  timeout 900 "$bin/uv" pip install --quiet --python "$1/bin/python" "${@:2}" || missing "not to be had from PyPI: ${*:2}"
}
read -r -a torch <<< "${TORCH:-torch torchvision}"
install "$venv" "${torch[@]}" numpy maturin==1.16.0 mypy==2.4.1 pytest==9.2.0 pytest-xdist==3.8.0 ruff==0.17.6 \
  accelerate lightning peft torchao transformers setuptools wheel
install "$venv" --no-deps cut-cross-entropy==25.1.1 liger-kernel==0.8.5
# Its build needs torch.
install "$venv" --no-build-isolation deepspeed
# Older versions of torch, with the torchvision of each.
declare -A vision=([2.6]=0.21 [2.11]=0.26)
read -r -a older <<< "${OLDER-2.11}"
for version in ${older[@]+"${older[@]}"}; do
  [ -x "$venv-$version/bin/python" ] || "$bin/uv" venv --quiet --python "$bin/python" "$venv-$version"
  install "$venv-$version" "torch==$version.*" "torchvision==${vision[$version]}.*" numpy pytest==9.2.0 pytest-xdist==3.8.0
done
if [ "${1:-}" = --tools ]; then exit 0; fi
step() { echo "python: $1 (after $SECONDS s)"; }

step "wheel"
# The workspace's target folder: results of `cargo run` are not built again.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../target}"
# A free-threaded interpreter has no stable ABI.
features=()
if "$bin/python" -c 'import sys; sys.exit("t" not in sys.abiflags)'; then features=(--no-default-features); fi
rm -f dist/plimsoll-*.whl
PATH="$bin:$PATH" "$bin/maturin" build --release --locked --quiet --out dist --interpreter "$bin/python" \
  ${features[@]+"${features[@]}"}
for folder in "$venv" ${older[@]+"${older[@]/#/$venv-}"}; do
  install "$folder" --reinstall --no-deps dist/plimsoll-*.whl
done
if [ "${1:-}" = --wheel ]; then exit 0; fi

# After a failure, the rest still runs.
failed=0
step "formats, lints and types"
"$bin/ruff" format --check . || failed=1
"$bin/ruff" check . || failed=1
"$bin/mypy" || failed=1
# The stand-in for CUDA's driver, for the tests of swapping and of whole steps on CUDA.
cargo build --release --locked --quiet --workspace --lib --bins
export PLIMSOLL_STANDIN="${PLIMSOLL_STANDIN:-$CARGO_TARGET_DIR/release/libplimsoll_standin.so}"
# Waiting threads of a kernel yield the core to other work.
export OMP_WAIT_POLICY=passive
# From the folder of the tests, so that the installed wheel is tested. Two files at a time (pytest-xdist) take half as long; in the
# order of their names, which puts the longest files first. Every skipped test is named.
cd tests
pytest=(-m pytest -q -rfEs --no-fold-skipped)
step "tests with one thread"
PLIMSOLL_TEST_THREADS=1 "$bin/python" "${pytest[@]}" -n 2 --dist loadfile --no-loadscope-reorder --durations 5 "$@" || failed=1
step "tests with two threads"
PLIMSOLL_TEST_THREADS=2 "$bin/python" "${pytest[@]}" test_bits.py -k "sgd and 0.1 and 20GB or everything" || failed=1
# The short list: bits at one budget, the life of a step, planted faults, recording in pieces.
for version in ${older[@]+"${older[@]}"}; do
  step "torch $version, the short list"
  PLIMSOLL_TEST_THREADS=1 "../$venv-$version/bin/python" "${pytest[@]}" -n 2 --dist loadfile --no-loadscope-reorder test_bits.py test_step.py test_faults.py \
    test_pieces.py -k "test_step or test_faults or (test_bits and sgd and 20GB) or is_the_recording" || failed=1
done
step "example"
# The program reads variables that begin with its name as options, and refuses unknown ones.
env -u PLIMSOLL_STANDIN "$bin/plimsoll" auto ../examples/digits.py --study ../dist/digits -- --epochs 1 || failed=1
step "done"
exit "$failed"
