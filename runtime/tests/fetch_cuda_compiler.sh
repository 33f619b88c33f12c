#!/bin/sh
# Fetches NVRTC and ptxas from the Python package registry into the target folder, for the tests that compile the CUDA
# kernels on a machine without CUDA. Needs python3 with pip; downloads 128 MB, keeps 152 MB.
#
# It takes three files out of two packages: the whole toolkit is four times as much. The tests are skipped where this was not
# run.
#
#   sh runtime/tests/fetch_cuda_compiler.sh [target folder]
set -eu

packages="nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88"
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$here/../../target}}/cuda-compiler

if [ "$(cat "$folder/packages" 2>/dev/null)" = "$packages" ]; then
    echo "already there: $folder"
    exit 0
fi
mkdir -p "$folder"
downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT

# Word by word: each is one package.
# shellcheck disable=SC2086
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$downloads" $packages

python3 - "$downloads" "$folder" <<'PYTHON'
import pathlib, re, sys, zipfile

downloads, folder = map(pathlib.Path, sys.argv[1:])
wanted = re.compile(r"nvidia/cu13/(?:lib/(?:libnvrtc\.so\.13|libnvrtc-builtins\.so\.13\.0)|bin/ptxas)")
for wheel in sorted(downloads.glob("*.whl")):
    with zipfile.ZipFile(wheel) as files:
        for name in filter(wanted.fullmatch, files.namelist()):
            to = folder / name.rsplit("/", 1)[1]
            to.write_bytes(files.read(name))
            to.chmod(0o755)
            print(f"{to.stat().st_size / 1e6:6.1f} MB  {to.name}")
PYTHON

# Last, so that what broke off is fetched again.
printf '%s\n' "$packages" >"$folder/packages"
