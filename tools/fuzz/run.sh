#!/bin/sh
# Fuzzes a target for some seconds: sh tools/fuzz/run.sh plan 20
#
# `sh tools/fuzz/run.sh build` only builds.
#
# The stable compiler suffices: these are the counters that cargo-fuzz uses, without sanitizers, which need a nightly one.
# Failing inputs are left in the current folder, as crash-... or timeout-...
set -eu
target=$1
host=$(rustc -vV | sed -n 's/^host: //p')
found=$(mktemp -d)
trap 'rm -r "$found"' EXIT
# An explicit target keeps the flags from build scripts, which have no fuzzer to call.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing"
build="--release --locked --manifest-path $(dirname "$0")/Cargo.toml --target $host"
cargo build $build
if [ "$target" = build ]; then exit 0; fi
seconds=$2
cargo run --quiet $build --bin "$target" -- "$found" \
  -max_total_time="$seconds" -max_len=600 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1
