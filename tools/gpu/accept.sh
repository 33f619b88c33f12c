#!/usr/bin/env bash
# Tests and measurements on a GPU, in two halves.
#
#   tools/gpu/accept.sh build                 on a machine with Rust: builds tools/gpu/dist/, programs that need no Rust
#   tools/gpu/accept.sh run [--small] [SECTION[=SECONDS]...]
#                                       on the GPU's machine: runs sections, each for at most its seconds, and prints one line for
#                                       each. A section that fails or is cut stops nothing; the exit code is then 1.
#   tools/gpu/accept.sh libraries             prints the folders of CUDA's libraries in PyTorch's packages
#
# Sections, most important first: device schedules kernels link step pytorch batch. `run` needs this script, pytorch.py and
# dist/, in one folder. --small measures in tiny sizes, to check that everything runs.
#   PYTHON                     the Python with PyTorch (python3)
#   DIST                       the folder of the programs (tools/gpu/dist)
#   OUT                        the folder of the results (tools/gpu/results): rows in SECTION.jsonl, output of tests in SECTION.txt,
#                              and SECTION.log
#   PLIMSOLL_CUDA_LIBRARIES    folders with CUDA's libraries, before those of PyTorch's packages
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dist=${DIST:-$here/dist}
out=${OUT:-$here/results}
python=${PYTHON:-python3}

# Newest glibc symbols that the programs may need, and most bytes of the programs.
glibc=2.34
bytes=$((64 << 20))

build() {
    cd "$here/../.."
    mkdir -p "$dist"
    local program name newest size
    # All workspace targets are built with the features that tests use, so that nothing is compiled twice.
    for program in $(cargo build --release --locked --workspace --bin accept --test kernels --test device --test schedules \
        --message-format json-render-diagnostics | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'); do
        # The names of tests have a hash, which is dropped.
        name=${program##*/} && name=${name%-*}
        cp "$program" "$dist/$name" && strip "$dist/$name"
        newest=$(objdump -T "$dist/$name" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
        if [ "$(printf '%s\n%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" != "$glibc" ]; then
            echo "error: $name needs glibc $newest; build it where glibc is no newer than $glibc" >&2
            objdump -T "$dist/$name" | grep -F "GLIBC_$newest" >&2
            exit 1
        fi
        echo "$dist/$name: $(wc -c < "$dist/$name") bytes, glibc $newest or later"
    done
    size=$(cat "$dist"/* | wc -c)
    if [ "$size" -gt "$bytes" ]; then
        echo "error: the programs have $size bytes, more than $bytes" >&2
        exit 1
    fi
}

libraries() {
    "$python" -c 'import glob, sys
print(":".join(sorted({found for path in sys.path for found in glob.glob(path + "/nvidia/*/lib")})))' || true
}

# Runs a section's command for at most its seconds; `rows` is the file for its standard output.
section() {
    local name=$1 seconds=$2 rows=$3 began=$SECONDS rc=0
    shift 3
    timeout -k 5 "$seconds" "$@" > "$rows" 2> "$out/$name.log" || rc=$?
    # The error, or the last line.
    printf '%-10s rc %-3s %4s s  %s\n' "$name" "$rc" $((SECONDS - began)) "$(awk \
        'NF { last = $0 } /^error: / { error = $0 } END { print substr(error ? error : last, 1, 200) }' "$rows" "$out/$name.log")"
    return "$rc"
}

run() {
    local small="" failed=0 packages named name seconds rows
    if [ "${1:-}" = --small ]; then small=$1 && shift; fi
    [ $# -gt 0 ] || set -- device=40 schedules=60 kernels=100 link=20 step=200 pytorch=200 batch=100
    mkdir -p "$out"
    packages=$(libraries)
    export PLIMSOLL_CUDA_LIBRARIES=${PLIMSOLL_CUDA_LIBRARIES:+$PLIMSOLL_CUDA_LIBRARIES:}$packages PLIMSOLL_TEST_DEVICE=gpu
    # For libraries that load parts of themselves by name.
    [ -z "$packages" ] || export LD_LIBRARY_PATH=$packages${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    for named; do
        name=${named%%=*} seconds=${named#*=}
        [ "$seconds" != "$named" ] || seconds=120
        rows=jsonl
        case $name in
            device | schedules) rows=txt && set -- "$dist/$name" bodies:: ;;
            # The tests of the text and of the compiler need the source.
            kernels) rows=txt && set -- "$dist/kernels" --include-ignored --skip text:: --skip nvrtc:: ;;
            link | step | batch) set -- "$dist/accept" "$name" $small ;;
            pytorch) set -- bash -o pipefail -c '"$0" cases $3 | "$1" "$2" $3' "$dist/accept" "$python" "$here/pytorch.py" "$small" ;;
            *) echo "error: there is no section \`$name\`" >&2 && exit 2 ;;
        esac
        section "$name" "$seconds" "$out/$name.$rows" "$@" || failed=1
    done
    return $failed
}

case ${1:-} in
    build | libraries) "$1" ;;
    run) shift && run "$@" ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
esac
