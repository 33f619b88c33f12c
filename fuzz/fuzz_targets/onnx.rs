//! Fuzzes the import of ONNX files: any bytes give an error in words, or a network that can be lowered and read again.
//!
//! With cargo-fuzz and a nightly compiler, beginning with real files:
//! `cargo +nightly fuzz run onnx networks/tests/onnx/files -- -max_total_time=60`. What is held against each answer is the body
//! of `networks/tests/onnx/judge.rs`, which that test asks of changed files with every run, for at most four seconds.
#![no_main]

#[path = "../../networks/tests/onnx/judge.rs"]
mod judge;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    judge::judge_bytes(bytes);
});
