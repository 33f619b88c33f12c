//! Plimsoll's command line in the wheel: every verb runs as in the program that cargo builds.

use plimsoll::program;
use plimsoll_ir::units::Size;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs a command line, the program's name first, and returns the exit code. Call it once in a process that does nothing else:
/// it handles Ctrl-C, and configures logging.
#[pyfunction]
pub fn run_program(py: Python<'_>, line: Vec<OsString>) -> u8 {
    py.detach(|| program::run(line))
}

/// A Python script for `plimsoll auto` to run.
#[pyclass(frozen, get_all, module = "plimsoll")]
pub struct Script {
    /// Path of the script.
    path: PathBuf,
    /// Arguments of the script.
    arguments: Vec<OsString>,
    /// Budget that overrides those of its calls of `plimsoll.tune`: bytes, or a share such as `60%`.
    budget: Option<Budget>,
    /// Link rate each way that overrides theirs, in bytes per second.
    link: Option<f64>,
    /// Directory of the reports.
    folder: PathBuf,
    /// `true` to print only results and errors.
    quiet: bool,
}

/// A budget in Python's form.
#[derive(Clone, IntoPyObject)]
enum Budget {
    Bytes(u64),
    Share(String),
}

/// Script that a command line asks to run; `None` if the line asks for something else, or is invalid: then `run_program`
/// reports it.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn script(line: Vec<OsString>) -> Option<Script> {
    let program::Script { path, arguments, budget, link, folder, quiet } = program::script(&line)?;
    let budget = budget.map(|budget| match budget {
        Size::Exact(bytes) => Budget::Bytes(bytes.0),
        Size::Share(share) => Budget::Share(format!("{}%", share * 100.0)),
    });
    Some(Script { path, arguments, budget, link: link.map(|rate| rate.0), folder, quiet })
}
