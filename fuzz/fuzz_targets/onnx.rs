//! Fuzzes the import of ONNX files: any bytes give an error in words, or a network that can be lowered and read again.
//!
//! For 20 seconds, beginning with real files, as each run of `.ci/run` does: `sh fuzz/run.sh onnx 20
//! networks/tests/onnx/files`. With cargo-fuzz, a nightly compiler and its sanitizers: `cargo +nightly fuzz run onnx`. What
//! is held against each answer is the body of `networks/tests/onnx/judge.rs`, which that test asks of changed files and of
//! graphs without sense.
#![no_main]

#[path = "../../networks/tests/onnx/judge.rs"]
mod judge;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    judge::judge_bytes(bytes);
});
