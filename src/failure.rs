//! How a command fails: one message, what to do about it, and the exit code of the design's list.
//!
//! Errors of the crates below come here with their own words; what a job's mean for the user stands in `of_job.rs`.

mod of_job;

pub use of_job::{cuda_error, of_trained, raise_host_memory};

use plimsoll_study::words::visible;
use std::fmt;

/// The exit codes that scripts can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A bug of ours.
    Internal = 1,
    /// Wrong usage, or input that cannot be read.
    Usage = 2,
    /// No plan fits the budget.
    NoPlan = 3,
    /// The device, its driver, or the memory of the host.
    Device = 4,
    /// The measurement was too noisy to decide.
    Noisy = 5,
    /// A schedule is invalid, or results differ.
    Verification = 6,
    /// Ctrl-C; what was done is saved.
    Interrupted = 130,
}

/// A failure, as the user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What went wrong, with the names and numbers of it.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Failure {
    /// A failure with this exit code and message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure { exit, message: lines(message), help: None }
    }

    /// Wrong usage, or input that cannot be read.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// The same, with what to do about it.
    pub fn help(mut self, help: impl fmt::Display) -> Failure {
        self.help = Some(lines(help));
        self
    }
}

/// Words of one or more lines without other control characters, which names may hold.
pub(crate) fn lines(words: impl fmt::Display) -> String {
    words.to_string().split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        match &self.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
