//! Errors above the device, split by what the caller can do about them.

use crate::device::DeviceError;
use crate::group::GroupError;
use plimsoll_ir::check::Violation;
use std::path::PathBuf;

/// Failure to load, run, save or resume.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Plan again: this schedule would compute something different from its trace.
    #[error("the schedule is not valid for this program: {0}")]
    Schedule(Violation),
    /// Pass values that belong together.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// Property that does not match.
        what: String,
        /// Value required.
        expected: String,
        /// Value given.
        found: String,
    },
    /// Reduce the memory needed, or check the machine.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Check the worker named.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Provide a complete file of the right kind.
    #[error("`{}`: {why}", path.display())]
    Data {
        /// Path of the file.
        path: PathBuf,
        /// The fault, and what a correct file has.
        why: String,
    },
    /// Resume from a different checkpoint, or with the settings that it was made with.
    #[error("the checkpoint `{}` {why}", path.display())]
    Checkpoint {
        /// Path of the file.
        path: PathBuf,
        /// The fault, and what a correct file has.
        why: String,
    },
    /// Lower the learning rate: training cannot continue from this state.
    #[error(
        "after {step} iterations `{region}` holds a number that is not finite; lower the learning rate or lengthen the warm-up"
    )]
    Overflowed {
        /// Iterations done.
        step: u64,
        /// The first region with such a number.
        region: String,
    },
    /// Lower the learning rate: the loss is not finite.
    #[error("the loss is {loss} at step {step}; lower the learning rate or lengthen the warm-up")]
    Diverged {
        /// The iteration, from 0.
        step: u64,
        /// Loss read.
        loss: f32,
    },
}

impl RuntimeError {
    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts alike are shown and done with")]
    pub(crate) fn mismatch(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Self::Mismatch { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// An error of values that do not belong together, unless they do.
    pub(crate) fn unless(
        holds: bool,
        what: impl std::fmt::Display,
        expected: impl ToString,
        found: impl ToString,
    ) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::mismatch(what.to_string(), expected, found)) }
    }
}
