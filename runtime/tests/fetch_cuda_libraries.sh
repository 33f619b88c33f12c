#!/bin/sh
# Fetches cuBLAS, cuDNN and NVRTC from the Python package registry into the target folder, in the folders in which torch brings
# them into a virtual environment, for the tests that look for them there and that ask the real cuDNN. Needs python3 with pip;
# keeps 1.5 GB. Where an environment has torch with CUDA, VIRTUAL_ENV=FOLDER does instead.
#
#   sh runtime/tests/fetch_cuda_libraries.sh [target folder]
set -eu

packages="nvidia-cublas==13.0.2.14 nvidia-cudnn-cu13==9.28.1.4 nvidia-cuda-nvrtc==13.0.88"
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$here/../../target}}/cuda-libraries

if [ "$(cat "$folder/packages" 2>/dev/null)" = "$packages" ]; then
    echo "already there: $folder"
    exit 0
fi
rm -rf "$folder" "$folder.part"
# Word by word: each is one package.
# shellcheck disable=SC2086
python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --target "$folder.part/lib/python3/site-packages" $packages

# Whole or not at all: tests may look for it meanwhile, and what broke off is fetched again.
printf '%s\n' "$packages" >"$folder.part/packages"
mv "$folder.part" "$folder"
