//! How a command fails: one message, what to do about it, and the exit code of the design's list.
//!
//! Errors of the crates below come here with their own words; this file only decides the exit code and the help.

use crate::output::visible;
use plimsoll_ir::Fault;
use plimsoll_runtime::{CudaError, Instead};
use std::fmt;
use std::path::Path;

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

    /// A file that cannot be read or written.
    pub fn file(path: &Path, doing: &str, error: &std::io::Error) -> Failure {
        let failure = Failure::usage(format_args!("cannot {doing} {}: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::NotADirectory | std::io::ErrorKind::AlreadyExists => {
                failure.help("a file stands where a folder should be; choose another path")
            }
            std::io::ErrorKind::IsADirectory => failure.help("it is a folder; name a file in it"),
            std::io::ErrorKind::NotFound => failure.help("check the path; the folder must exist"),
            std::io::ErrorKind::PermissionDenied if doing == "read" => failure
                .help("you may not read it: see to its permissions and those of the folders that it is in"),
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                failure.help("choose a folder that you may write to")
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                failure.help("free some space, or choose a folder on another disk")
            }
            std::io::ErrorKind::FileTooLarge => {
                failure.help("raise the size that files of this process may have (`ulimit -f`)")
            }
            _ => failure,
        }
    }

    /// A file whose text is not the document that it should be.
    pub fn document(path: &Path, fault: &Fault) -> Failure {
        Failure::usage(format_args!("{}: {fault}", path.display()))
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure::new(Exit::Device, cuda_error(&error))
    }
}

/// A device that is not there, with the options that do without what it lacks.
pub fn cuda_error(error: &CudaError) -> String {
    match error.instead() {
        Some(Instead::Cpu) => format!("{error}, or choose --device cpu"),
        Some(Instead::OwnKernels) => format!("{error}; or choose --kernels own, which needs no library"),
        None => error.to_string(),
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
