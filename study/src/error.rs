//! Failures of jobs: the caller's possible reaction, the fault, and advice in terms of the command line.
//!
//! The code that detects a fault makes the error. Errors of lower crates are converted here. Most callers only show
//! an error; a few match its cause.

use crate::network_workload::unbudgeted;
use crate::words::lines;
use plimsoll_ir::Bytes;
use plimsoll_networks::NetworkError;
use plimsoll_profiler::ProfileError;
use plimsoll_runtime::{self as runtime, GroupError, Instead, MemoryKind};
use std::fmt;
use std::io;
use std::path::Path;

/// The caller's possible reaction to an error. The numbers are the exit codes of the program, on which scripts rely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bug of ours.
    Internal = 1,
    /// Wrong usage, or input that cannot be read.
    Usage = 2,
    /// No plan fits the budget.
    NoPlan = 3,
    /// Failure of the device or its driver, or too little host memory.
    Device = 4,
    /// The measurement was too noisy to decide.
    Noisy = 5,
    /// A schedule is invalid, or results differ.
    Verification = 6,
    /// Stopped by the caller's watch, or by Ctrl-C; finished work is saved.
    Interrupted = 130,
}

/// Causes that code matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Workers cannot go on together.
    Group(GroupError),
    /// A training diverged.
    Diverged {
        /// Option for a lower learning rate, and the place where the earlier state is kept until then.
        lower: String,
    },
    /// A file is damaged, or is no document of the expected kind.
    Document {
        /// `true` if a different version of Plimsoll can read it.
        of_other_version: bool,
    },
}

/// Failure of a job. `{}` shows the message, and `{:#}` adds the help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The caller's possible reaction.
    pub kind: Kind,
    /// The fault, with its names and numbers.
    pub message: String,
    /// Advice.
    pub help: Option<String>,
    /// Facts that code matches.
    pub cause: Option<Box<Cause>>,
}

impl Error {
    /// Returns an error of this kind, with this message.
    pub fn new(kind: Kind, message: impl fmt::Display) -> Error {
        Error { kind, message: lines(message), help: None, cause: None }
    }

    /// Returns an error of wrong usage, or of input that cannot be read.
    pub fn usage(message: impl fmt::Display) -> Error {
        Error::new(Kind::Usage, message)
    }

    /// Returns the error of a file operation (such as `read`) that the system refuses.
    pub fn io(path: &Path, verb: &str, source: &io::Error) -> Error {
        let help = match source.kind() {
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                Some("a file stands where a folder should be; choose another path")
            }
            io::ErrorKind::IsADirectory => Some("it is a folder; name a file in it"),
            io::ErrorKind::NotFound => Some("check the path; the folder must exist"),
            io::ErrorKind::PermissionDenied if verb == "read" => {
                Some("you may not read it: see to its permissions and those of the folders that it is in")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Some("choose a folder that you may write to")
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some("free some space, or choose a folder on another disk")
            }
            io::ErrorKind::FileTooLarge => {
                Some("raise the size that files of this process may have (`ulimit -f`)")
            }
            _ => None,
        };
        let error = Error::usage(format_args!("cannot {verb} {}: {source}", path.display()));
        Error { help: help.map(str::to_owned), ..error }
    }

    /// Returns the error of a network that reads texts, given images.
    pub(crate) fn images(network: &str, data: impl fmt::Display) -> Error {
        Error::usage(format_args!("`{network}` is for texts, and {data} has images"))
            .help("choose --data text, text:FILE, tokens:FILE or synthetic")
    }

    /// Returns the error of a network that reads images, given texts.
    pub(crate) fn texts(network: &str, data: impl fmt::Display) -> Error {
        Error::usage(format_args!("`{network}` is for images, and {data} has texts"))
            .help("choose other --data; texts are for networks such as lstm or gpt-tiny")
    }

    /// Returns the error of an attempt to run on a modelled device.
    pub fn nothing_runs(device: impl fmt::Display) -> Error {
        Error::new(Kind::Device, format_args!("nothing can run on a device that is not here ({device})")).help(
            "`profile`, `tune`, `auto` and `trace` say what it would take; to train, tune with --device cpu or cuda",
        )
    }

    /// Adds advice.
    pub fn help(self, help: impl fmt::Display) -> Error {
        Error { help: Some(lines(help)), ..self }
    }

    /// Adds the cause.
    pub(crate) fn because(self, cause: Cause) -> Error {
        Error { cause: Some(Box::new(cause)), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) if f.alternate() => write!(f, "\n  help: {help}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Describes why a device is missing, with the options that avoid the need for it.
pub fn cuda_in_words(error: &runtime::Error) -> String {
    match error.kind {
        runtime::Kind::Missing(Instead::Cpu) => format!("{error}, or choose --device cpu"),
        runtime::Kind::Missing(Instead::Hosts) => {
            format!("{error}; or tune without --nccl, so that the workers' hosts sum")
        }
        _ => error.to_string(),
    }
}

impl From<NetworkError> for Error {
    fn from(error: NetworkError) -> Error {
        let ours = Error::usage(&error);
        Error { help: error.help.map(str::to_owned), ..ours }
    }
}

impl From<plimsoll_tuner::Error> for Error {
    fn from(error: plimsoll_tuner::Error) -> Error {
        let kind = match error.kind {
            plimsoll_tuner::Kind::Usage | plimsoll_tuner::Kind::Unrelated => Kind::Usage,
            plimsoll_tuner::Kind::Internal => Kind::Internal,
        };
        let ours = Error::new(kind, &error);
        match error.kind {
            plimsoll_tuner::Kind::Unrelated => ours.help("leave --from out, so that the plan is made anew"),
            _ => ours,
        }
    }
}

impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Error {
        let kind = match error {
            ProfileError::Runtime(inner) => return inner.into(),
            // The job itself failed when the profiler asked for a program.
            ProfileError::Subject { source, batch } => {
                return match source.downcast::<Error>() {
                    Ok(error) => *error,
                    Err(other) => Error::new(Kind::Internal, format_args!("at batch {batch}: {other}")),
                };
            }
            ProfileError::OtherJournal(_) => return Error::usage(format_args!("{error} with --fresh")),
            ProfileError::Interrupted => Kind::Interrupted,
            ProfileError::Noisy { .. } => Kind::Noisy,
            ProfileError::NoRoom { .. } => Kind::NoPlan,
            ProfileError::Unusable(_) => Kind::Usage,
        };
        Error::new(kind, error)
    }
}

impl From<runtime::Error> for Error {
    fn from(error: runtime::Error) -> Error {
        use runtime::Kind as Theirs;
        let kind = match error.kind {
            Theirs::Internal => Kind::Internal,
            Theirs::Verification => Kind::Verification,
            Theirs::Usage | Theirs::Data | Theirs::Diverged => Kind::Usage,
            Theirs::Group(GroupError::Different { .. }) => Kind::Usage,
            _ => Kind::Device,
        };
        let ours = Error::new(kind, cuda_in_words(&error));
        match error.kind {
            Theirs::Group(error) => ours.because(Cause::Group(error)),
            Theirs::OutOfMemory { what: MemoryKind::Device, available, .. } => {
                ours.help(match unbudgeted(available) {
                    Bytes::ZERO => "end what else is on the GPU; `plimsoll doctor` shows it".to_owned(),
                    fits => format!(
                        "--budget {}MiB fits now; or end what else is on the GPU, which `plimsoll doctor` shows",
                        fits.0 >> 20
                    ),
                })
            }
            Theirs::Full | Theirs::NotPinned => ours.help("--budget sets the budget"),
            Theirs::NotTogether => ours.help(
                "where it stays so, tune without --nccl into another folder, so that the workers' hosts sum",
            ),
            _ => ours,
        }
    }
}
