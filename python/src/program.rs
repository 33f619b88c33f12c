//! The command line of the house in the wheel: every verb runs as it does in the program that cargo builds.

use plimsoll::program;
use plimsoll_ir::units::Size;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs a command line, the program's name first, and gives the exit code. Once in a process, which has nothing else to do: it
/// takes Ctrl-C, and says where logs go.
#[pyfunction]
pub fn run_program(py: Python<'_>, line: Vec<OsString>) -> u8 {
    py.detach(|| program::run(line))
}

/// A Python script that `plimsoll auto` is to run.
#[pyclass(frozen, get_all, module = "plimsoll")]
pub struct Script {
    /// The script.
    path: PathBuf,
    /// What it is given.
    arguments: Vec<OsString>,
    /// The budget, in place of those of its calls of `plimsoll.tune`: bytes, or a share such as `60%`.
    budget: Option<Budget>,
    /// The rate of the link each way, in place of theirs, in bytes per second.
    link: Option<f64>,
    /// Where the reports go.
    folder: PathBuf,
    /// Whether only results and errors are told.
    quiet: bool,
}

/// A budget as Python takes it.
#[derive(Clone, IntoPyObject)]
enum Budget {
    Bytes(u64),
    Share(String),
}

/// The script that a command line asks for; none where it asks for something else, or wrongly: then `run_program` says so.
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
