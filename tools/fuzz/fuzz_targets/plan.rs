//! Fuzzes the planner: any bytes stand for a trace, a link, a budget and limits, which every policy is asked to plan.
//!
//! For 20 seconds, as in each run of `.ci/run`: `sh tools/fuzz/run.sh plan 20`. With cargo-fuzz and a nightly compiler, which has
//! sanitizers: `cargo +nightly fuzz run plan -- -max_len=600`. The judge of each answer is shared with
//! `tuner/tests/hostile.rs`, which asks it of random bytes with every run of the tests.
#![no_main]

#[path = "../../../tuner/tests/common/judge.rs"]
mod judge;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| judge::judge_bytes(bytes));
