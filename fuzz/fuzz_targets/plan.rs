//! Fuzzes the planner: any bytes stand for a trace, a link, a budget and limits, which every policy is asked to plan.
//!
//! With cargo-fuzz and a nightly compiler: `cargo +nightly fuzz run plan -- -max_len=600`. On a stable one it is checked
//! that this compiles: `cargo check --manifest-path fuzz/Cargo.toml`. What is held against each answer is the body of
//! `tuner/tests/hostile.rs`, which asks it of random bytes with every run of the tests.
#![no_main]

#[path = "../../tuner/tests/common/judge.rs"]
mod judge;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| judge::judge_bytes(bytes));
