//! The program `plimsoll` as cargo builds it: [`plimsoll::program`] with its own heap.

use plimsoll::program;
use plimsoll::runtime::limits::{Heap, fail_where_files_are_too_large};
use std::process::ExitCode;

/// Heap that reports an error message when memory runs out.
#[global_allocator]
static HEAP: Heap = Heap;

fn main() -> ExitCode {
    fail_where_files_are_too_large();
    ExitCode::from(program::run(std::env::args_os().collect()))
}
