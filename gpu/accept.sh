#!/usr/bin/env bash
# What Plimsoll must reach on a GPU: tests and measurements, in two halves.
#
#   gpu/accept.sh build                 where Rust is: makes gpu/dist/accept, one program that needs no Rust
#   gpu/accept.sh run [SECTION...]      where the GPU is: runs the usual sections, or those named, and writes gpu/results/
#   gpu/accept.sh plan [--minutes N] [--from DIR]   says what to run in so much time, PyTorch's sections included (25);
#                                       by what sections took in a folder of results, where there is one
#
# `run` needs this script, pytorch.py and dist/accept, in one folder. Options of `accept run` can be given, too (`--small`).
#   PYTHON                     the Python that has PyTorch (python3)
#   OUT                        where results are written (gpu/results), as for python/accept.py
#   PLIMSOLL_CUDA_LIBRARIES    folders with CUDA's libraries, before those of PyTorch's packages
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$here/dist/accept
python=${PYTHON:-python3}

# The newest symbols of glibc that the GPU's machine may lack, and what travels at most.
glibc=2.34
bytes=$((64 << 20))

build() {
    cd "$here/.."
    local target=${CARGO_TARGET_DIR:-$PWD/target}
    # The workspace and a test give dependencies the features that tests use, so that nothing is compiled twice.
    cargo build --release --locked --workspace --bin accept --test acceptance
    mkdir -p "$here/dist"
    cp "$target/release/accept" "$binary"
    strip "$binary"
    local newest
    newest=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
    if [ "$(printf '%s\n%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" != "$glibc" ]; then
        echo "error: $binary needs glibc $newest; build it where glibc is no newer than $glibc" >&2
        objdump -T "$binary" | grep -F "GLIBC_$newest" >&2
        exit 1
    fi
    local size
    size=$(wc -c < "$binary")
    if [ "$size" -gt "$bytes" ]; then
        echo "error: $binary has $size bytes, more than $bytes" >&2
        exit 1
    fi
    echo "$binary: $size bytes, glibc $newest or later, libraries: $(objdump -p "$binary" | awk '/NEEDED/ { printf "%s ", $2 }')"
}

built() {
    if [ ! -x "$binary" ]; then
        echo "error: $binary is not there; make it with \`gpu/accept.sh build\` on a machine with Rust" >&2
        exit 2
    fi
}

run() {
    built
    # The libraries of PyTorch's packages, wherever this Python has them.
    local packages
    packages=$("$python" -c '
import glob, sys
print(":".join(sorted({found for path in sys.path for found in glob.glob(path + "/nvidia/*/lib")})))' || true)
    export PLIMSOLL_CUDA_LIBRARIES=${PLIMSOLL_CUDA_LIBRARIES:+$PLIMSOLL_CUDA_LIBRARIES:}$packages
    # Libraries that load parts of themselves by name find them, too.
    local search=$packages${packages:+${LD_LIBRARY_PATH:+:}}${LD_LIBRARY_PATH:-}
    if [ -n "$search" ]; then export LD_LIBRARY_PATH=$search; fi
    exec "$binary" run --python "$python" --pytorch "$here/pytorch.py" \
        --results "${OUT:-$here/results}" "$@"
}

case ${1:-} in
    build) build ;;
    run) shift && run "$@" ;;
    plan) built && exec "$binary" "$@" ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
esac
