//! What can go wrong above the device, split by what the caller can do about it.

use crate::device::DeviceError;
use crate::group::GroupError;
use plimsoll_ir::check::Violation;
use std::path::PathBuf;

/// Why something could not be loaded, run, saved or resumed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Plan again: this schedule would compute something else than its trace.
    #[error("the schedule is not valid for this program: {0}")]
    Schedule(Violation),
    /// Bring together what belongs together.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What does not fit.
        what: String,
        /// What would fit.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Give it less to hold, or see to the machine.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// See to the worker that is named.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Bring a whole file of the right kind.
    #[error("`{}`: {why}", path.display())]
    Data {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// Resume from another checkpoint, or with the settings that it was made with.
    #[error("the checkpoint `{}` {why}", path.display())]
    Checkpoint {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// Lower the learning rate: the state is none that training can go on from.
    #[error(
        "after {step} iterations `{region}` holds a number that is not finite; lower the learning rate or lengthen the warm-up"
    )]
    Overflowed {
        /// Iterations done.
        step: u64,
        /// The first region with such a number.
        region: String,
    },
    /// Lower the learning rate: the loss is no number any more.
    #[error("the loss is {loss} at step {step}; lower the learning rate or lengthen the warm-up")]
    Diverged {
        /// The iteration, from 0.
        step: u64,
        /// What was read.
        loss: f32,
    },
    /// The iteration of a draw of stochastic depth could not be made.
    #[error("the draw of iteration {step} has no iteration of its own: {why}")]
    Draw {
        /// The iteration, from 0.
        step: u64,
        /// What went wrong.
        why: String,
    },
}

impl RuntimeError {
    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts alike are shown and done with")]
    pub(crate) fn mismatch(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Self::Mismatch { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }
}
