//! The error of this crate: one message with the fault and its remedy, and the caller's possible reaction.

use crate::group::GroupError;
use plimsoll_ir::Bytes;
use plimsoll_ir::health::OtherProcess;
use plimsoll_ir::schedule::Stream;
use std::path::Path;

/// Failure of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The caller's possible reaction.
    pub kind: Kind,
    /// The fault, with its names and numbers, and its remedy.
    pub message: String,
}

/// The caller's possible reaction to an error, with the facts that code matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Report a bug of ours.
    Internal,
    /// Pass values that belong together, and files that can be read.
    Usage,
    /// Provide a complete data file of the right kind.
    Data,
    /// Lower the learning rate: training cannot continue from this state.
    Diverged,
    /// Plan again: the schedule would compute something different from its trace.
    Verification,
    /// Check the worker named.
    Group(GroupError),
    /// Check the device and its driver.
    Device,
    /// Install a library that is missing or too old, or use its substitute.
    Missing(Instead),
    /// Reduce the memory needed.
    OutOfMemory {
        what: MemoryKind,
        /// Bytes requested.
        needed: Bytes,
        available: Bytes,
    },
    /// Lower the budget: the driver has no memory for what a call needs in addition to the allocation.
    Full,
    /// Swap less: the driver does not page-lock the host memory.
    NotPinned,
    /// Let the workers' hosts sum: their devices cannot.
    NotTogether,
}

/// Substitute for a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The device `cpu`.
    Cpu,
    /// Sums by the hosts of the workers.
    Hosts,
}

/// Memory that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    Device,
    Host,
    /// Memory of a machine whose device and host share it.
    DeviceAndHost,
    PinnedHost,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryKind::Device => "device",
            MemoryKind::Host => "host",
            MemoryKind::DeviceAndHost => "device and host",
            MemoryKind::PinnedHost => "pinned host",
        })
    }
}

impl Error {
    /// Returns an error of this kind, with this message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// Returns the failure of a device or its driver.
    pub fn device(message: impl Into<String>) -> Error {
        Error::new(Kind::Device, message)
    }

    /// Returns the failure of a stream's command. The device can run a new iteration, but its contents are undefined.
    pub fn failed(stream: Stream, what: &str, why: impl std::fmt::Display) -> Error {
        Error::device(format!("`{what}` failed on the {stream:?} stream: {why}"))
    }

    /// Returns the error that less memory is available than was requested, with the other processes known to hold some.
    pub fn out_of_memory(
        what: MemoryKind,
        needed: Bytes,
        available: Bytes,
        held_by: &[OtherProcess],
    ) -> Error {
        let message = format!(
            "{needed} of {what} memory are needed and {available} are there{}; lower the budget or the batch",
            holders(held_by)
        );
        Error::new(Kind::OutOfMemory { what, needed, available }, message)
    }

    /// Returns `true` if a device failed or is missing, or its memory is too small.
    pub fn is_of_device(&self) -> bool {
        use Kind::{Device, Full, Missing, NotPinned, NotTogether, OutOfMemory};
        matches!(self.kind, Device | Missing(_) | OutOfMemory { .. } | Full | NotPinned | NotTogether)
    }

    /// Returns the error of a data file that is incomplete or of another kind.
    pub(crate) fn data(path: &Path, why: impl std::fmt::Display) -> Error {
        Error::new(Kind::Data, format!("`{}`: {why}", path.display()))
    }

    /// Returns the error of a checkpoint that cannot be used or written.
    pub(crate) fn checkpoint(path: &Path, why: impl std::fmt::Display) -> Error {
        Error::new(Kind::Usage, format!("the checkpoint `{}` {why}", path.display()))
    }

    /// Returns the error of a loss that is not finite; `step` counts iterations from 0.
    pub(crate) fn diverged(step: u64, loss: f32) -> Error {
        let remedy = "lower the learning rate or lengthen the warm-up";
        Error::new(Kind::Diverged, format!("the loss is {loss} at step {step}; {remedy}"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts alike are shown and done with")]
    pub(crate) fn mismatch(
        what: impl std::fmt::Display,
        expected: impl ToString,
        found: impl ToString,
    ) -> Error {
        let (expected, found) = (expected.to_string(), found.to_string());
        Error::new(Kind::Usage, format!("{what}: expected {expected}, found {found}"))
    }

    /// An error of values that do not belong together, unless they do.
    pub(crate) fn unless(
        holds: bool,
        what: impl std::fmt::Display,
        expected: impl ToString,
        found: impl ToString,
    ) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(Error::mismatch(what, expected, found)) }
    }
}

impl From<GroupError> for Error {
    fn from(error: GroupError) -> Error {
        let message = error.to_string();
        Error::new(Kind::Group(error), message)
    }
}

/// Returns `, while process 7 (python, 9.00 GiB) is on the device, too`, or nothing if no process is known.
fn holders(held_by: &[OtherProcess]) -> String {
    match held_by {
        [] => String::new(),
        [one] => format!(", while {one} is on the device, too"),
        all => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!(", while others are on the device, too: {}", all.join(", "))
        }
    }
}
