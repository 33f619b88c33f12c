//! The error of this crate.

use plimsoll_ir::Fault;
use std::fmt;

/// Caller's possible reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The input cannot be used.
    Usage,
    /// The earlier schedule is of a different trace: plan without it.
    Unrelated,
    /// A bug of this crate. Report it, with the trace.
    Internal,
}

/// Input that cannot be used, or a bug in this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Caller's possible reaction.
    pub kind: Kind,
    /// Fault, with its names and numbers.
    pub message: String,
}

impl Error {
    /// Returns an error about input that cannot be used.
    pub(crate) fn usage(message: impl fmt::Display) -> Error {
        Error { kind: Kind::Usage, message: message.to_string() }
    }

    /// Returns the error of a bug.
    pub(crate) fn internal(message: impl fmt::Display) -> Error {
        Error { kind: Kind::Internal, message: format!("internal error{message}") }
    }
}

/// The trace contradicts itself.
impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::usage(format_args!("the trace cannot be planned: {fault}"))
    }
}
