#!/bin/sh
# Fetches NVRTC and ptxas from the Python package registry into the target folder, for the tests that compile the CUDA
# kernels on a machine without CUDA: those of CUDA 13.0, and in folders beside them the oldest NVRTC that is used and the
# newest that there is. Needs python3 with pip; downloads 250 MB, keeps 330 MB.
#
# It takes few files out of each package: the whole toolkit is four times as much. The tests are skipped where this was not
# run.
#
#   sh runtime/tests/fetch_cuda_compiler.sh [target folder]
set -eu

packages="nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88"
oldest="nvidia-cuda-nvrtc-cu12==12.0.140"
newest="nvidia-cuda-nvrtc==13.5.37"
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$here/../../target}}/cuda-compiler

if [ "$(cat "$folder/packages" 2>/dev/null)" = "$packages $oldest $newest" ]; then
    echo "already there: $folder"
    exit 0
fi
downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT

# Of so many packages, into a folder.
fetch() {
    into=$1
    shift
    rm -f "$downloads"/*.whl
    mkdir -p "$into"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$downloads" "$@"
    python3 - "$downloads" "$into" <<'PYTHON'
import pathlib, re, sys, zipfile

downloads, folder = map(pathlib.Path, sys.argv[1:])
wanted = re.compile(r"nvidia/[^/]+/(?:lib/(?:libnvrtc\.so\.[0-9]+|libnvrtc-builtins\.so\.[0-9.]+)|bin/ptxas)")
for wheel in sorted(downloads.glob("*.whl")):
    with zipfile.ZipFile(wheel) as files:
        for name in filter(wanted.fullmatch, files.namelist()):
            to = folder / name.rsplit("/", 1)[1]
            to.write_bytes(files.read(name))
            to.chmod(0o755)
            print(f"{to.stat().st_size / 1e6:6.1f} MB  {to.relative_to(folder.parent)}")
PYTHON
}

# Word by word: each is one package.
# shellcheck disable=SC2086
fetch "$folder" $packages
fetch "$folder/oldest" "$oldest"
fetch "$folder/newest" "$newest"

# Last, so that what broke off is fetched again.
printf '%s\n' "$packages $oldest $newest" >"$folder/packages"
