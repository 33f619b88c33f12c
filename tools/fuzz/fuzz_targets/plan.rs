//! Fuzzes the planner: any bytes encode a trace, a link, a budget and limits, for which every policy makes a plan.
//!
//! Each run of `.ci/run` fuzzes for 20 seconds: `sh tools/fuzz/run.sh plan 20`. With cargo-fuzz and a nightly compiler,
//! which has sanitizers: `cargo +nightly fuzz run plan -- -max_len=600`. The judge of each answer is shared with
//! `tuner/tests/hostile.rs`, which applies it to random bytes in every test run.
#![no_main]

#[path = "../../../tuner/tests/common/judge.rs"]
mod judge;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| judge::judge_bytes(bytes));
