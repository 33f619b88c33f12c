#!/usr/bin/env bash
# All that must hold of the PyTorch front, in one command: formats and lints both languages, builds the wheel, installs it with
# the tools into a virtual environment (python/.venv, or the one that VENV names), checks types, runs tests and example.
#
#   bash python/test.sh            everything, with one thread and with two; then the short list with torch 2.11 and 2.6
#   bash python/test.sh --ci       without the tests marked `slow`, the short list with torch 2.11 alone; skips, and says so,
#                                  where Python, a compiler or torch is missing, and the second torch where time is short
#   bash python/test.sh --ci --tools   only installs what that needs, which takes a minute or two of downloads
#   bash python/test.sh --ci --short   only the wheel and the short list, with the newest torch
#
# Further arguments go to pytest. Needs python3 (3.10 or newer), cargo and a C++ compiler. TORCH names another version of torch
# than the newest for all of it (`TORCH='torch==2.11.* torchvision==0.26.*'`), and PYTHON another interpreter than python3
# (`PYTHON=python3.14t`), each in a virtual environment of its own (VENV).
# OLDER names the versions of the short list. LEFT is how many seconds `--ci` may take.
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE  # importing torch takes seconds, and twice as many without its compiled files
cd "$(dirname "$0")"
ci=""
case "${1:-}" in
  --ci) ci=1 && shift ;;
esac
tools="" short_list=""
case "${1:-}" in
  --tools) tools=1 && shift ;;
  --short) short_list=1 && shift ;;
esac
# Without the tools nothing can be tested: in CI that is said and skipped, elsewhere it is an error.
missing() {
  echo "python: ${ci:+skipped, }$1" >&2
  if [ -n "$ci" ]; then exit 0; fi
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
# uv takes a third of pip's time to install torch, which is gigabytes, and keeps one copy for all environments.
export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-https://pypi.org/simple}}"
# Installs into a virtual environment: its folder, then what uv takes.
install() { "$bin/uv" pip install --quiet --python "$1/bin/python" "${@:2}"; }
# Installs torch into one, unless it is there: folder, seconds for each of two tries, requirements.
have_torch() {
  local folder="$1" limit="$2"
  shift 2
  if "$folder/bin/python" -c 'import torch, torchvision' 2> /dev/null; then return 0; fi
  # The build for the CPU is a tenth of PyPI's (200 MB for 2.5 GB); where that index is out of reach, PyPI's does.
  UV_HTTP_TIMEOUT=15 timeout "$limit" "$bin/uv" pip install --quiet --python "$folder/bin/python" "$@" \
    --default-index https://download.pytorch.org/whl/cpu 2> /dev/null \
    || timeout "$limit" "$bin/uv" pip install --quiet --python "$folder/bin/python" "$@"
}
read -r -a torch <<< "${TORCH:-torch torchvision}"
have_torch "$venv" 480 "${torch[@]}" || missing "torch is not to be had from PyPI within 8 minutes"
install "$venv" numpy maturin==1.16.0 mypy==2.4.1 pytest==9.2.0 pytest-xdist==3.8.0 ruff==0.17.6 \
  || missing "the tools are not to be had from PyPI"
if [ -z "$ci" ]; then # 300 MB, which CI does without: their tests are skipped there
  install "$venv" accelerate lightning peft torchao transformers \
    || missing "accelerate, lightning, peft, torchao and transformers are not to be had from PyPI"
  install "$venv" --no-deps cut-cross-entropy==25.1.1 liger-kernel==0.8.5 \
    || missing "cut-cross-entropy and liger-kernel are not to be had from PyPI"
  # It asks for torch while it is built. Without it the test of its export is skipped.
  install "$venv" setuptools wheel
  install "$venv" --no-build-isolation deepspeed || echo "python: deepspeed is not to be had from PyPI, and its export is not run"
fi
# Older versions of torch, with the torchvision of each.
declare -A vision=([2.6]=0.21 [2.11]=0.26)
read -r -a older <<< "${OLDER-$([ -n "$ci" ] && echo 2.11 || echo 2.11 2.6)}"
have_older() {
  [ -x "$venv-$1/bin/python" ] || "$bin/uv" venv --quiet --python "$bin/python" "$venv-$1" || return 1
  have_torch "$venv-$1" "$2" "torch==$1.*" "torchvision==${vision[$1]}.*"
}
if [ -n "$tools" ]; then exit 0; fi
step() { echo "python: $1 (after $SECONDS s)"; }
# What the house has built is not built again: its target folder, in the profile of `.ci/run`.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../target}" CARGO_PROFILE_RELEASE_DEBUG=false

if [ -z "$short_list" ]; then
  step "formats and lints"
  "$bin/ruff" format --check .
  "$bin/ruff" check .
  cargo fmt --check
  cargo clippy --release --locked --quiet -- -D warnings
fi
step "wheel"
# A free-threaded interpreter has no stable interface.
features=()
if "$bin/python" -c 'import sys; sys.exit("t" not in sys.abiflags)'; then features=(--no-default-features); fi
rm -f dist/plimsoll-*.whl
PATH="$bin:$PATH" "$bin/maturin" build --release --locked --quiet --out dist --interpreter "$bin/python" \
  ${features[@]+"${features[@]}"}
install "$venv" --reinstall --no-deps dist/plimsoll-*.whl
if [ -z "$short_list" ]; then
  step "types"
  "$bin/mypy"
fi
# For the tests of swapping on CUDA, and of whole steps there, which also need a torch that is built with CUDA.
if [ -z "${PLIMSOLL_STANDIN:-}" ]; then
  # What `cargo test` has built is taken as it is, unless it is older than its source.
  export PLIMSOLL_STANDIN="$CARGO_TARGET_DIR/release/deps/libplimsoll_standin.so"
  if [ ! -f "$PLIMSOLL_STANDIN" ] || [ -n "$(find ../standin/src ../standin/Cargo.toml -newer "$PLIMSOLL_STANDIN")" ]; then
    step "the stand-in of CUDA's driver"
    cargo build --release --locked --quiet --manifest-path ../standin/Cargo.toml --lib --target-dir target/standin
    export PLIMSOLL_STANDIN="$PWD/target/standin/release/libplimsoll_standin.so"
  fi
fi
# Threads of a kernel that wait for each other give the core away, to whatever else runs.
export OMP_WAIT_POLICY=passive
# The short list: bits at one budget, the life of a step, planted faults, recording in pieces.
short=(test_bits.py test_step.py test_faults.py test_pieces.py)
short_names="test_step or test_faults or (test_bits and sgd and 20GB) or is_the_recording"
# Two files at a time (pytest-xdist), which takes half as long.
beside=(-n 2 --dist loadfile)
if [ -n "$short_list" ]; then
  step "the short list"
  cd tests
  PLIMSOLL_TEST_THREADS=1 "$bin/python" -m pytest -q "${beside[@]}" "${short[@]}" -m "not slow" -k "$short_names" "$@"
  step "done"
  exit 0
fi
# The older versions of torch are fetched meanwhile.
declare -A fetching
for version in ${older[@]+"${older[@]}"}; do
  have_older "$version" 480 > /dev/null 2>&1 &
  fetching[$version]=$!
done
# From the folder of the tests, so that what is tested is what was installed.
cd tests
some=()
if [ -n "$ci" ]; then some=(-m "not slow"); fi
step "tests with one thread"
PLIMSOLL_TEST_THREADS=1 "$bin/python" -m pytest -q "${beside[@]}" --durations 5 ${some[@]+"${some[@]}"} "$@"
step "tests with two threads"
PLIMSOLL_TEST_THREADS=2 "$bin/python" -m pytest -q test_bits.py -k "sgd and 0.1 and 20GB or everything" ${some[@]+"${some[@]}"}

for version in ${older[@]+"${older[@]}"}; do
  left=$((${LEFT:-900} - SECONDS))
  if [ -n "$ci" ] && [ "$left" -lt 100 ]; then
    step "torch $version: skipped, $left s are left; \`OLDER=$version bash python/test.sh\` runs it"
    continue
  fi
  folder="$venv-$version"
  if ! wait "${fetching[$version]}"; then
    if [ -z "$ci" ]; then missing "torch $version is not to be had from PyPI within 8 minutes"; fi
    step "torch $version: skipped, it is not to be had from PyPI within 8 minutes"
    continue
  fi
  python="$(cd .. && cd "$folder/bin" && pwd)/python"
  (cd .. && install "$folder" numpy pytest==9.2.0 pytest-xdist==3.8.0)
  (cd .. && install "$folder" --reinstall --no-deps dist/plimsoll-*.whl)
  step "torch $version, the short list"
  limit="$([ -n "$ci" ] && echo $((${LEFT:-900} - SECONDS)) || echo 3600)"
  ended=0
  PLIMSOLL_TEST_THREADS=1 timeout -s INT "$limit" "$python" -m pytest -q "${beside[@]}" "${short[@]}" -m "not slow" -k "$short_names" \
    || ended=$?
  if [ -n "$ci" ] && [ "$SECONDS" -ge "${LEFT:-900}" ]; then
    step "torch $version: stopped, its time was over"
  elif [ "$ended" != 0 ]; then
    exit "$ended"
  fi
done
step "example"
# The program takes variables that begin with its name for options, and refuses those that are none.
env -u PLIMSOLL_STANDIN "$bin/plimsoll" auto ../examples/digits.py --study ../dist/digits -- --epochs 1
step "done"
