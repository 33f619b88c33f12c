//! Faults of networks that cannot be built or lowered.

use plimsoll_ir::Bytes;
use std::fmt;

/// Fault of a network that cannot be built or lowered, and its correction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NetworkError {
    /// The fault.
    pub message: String,
    /// Further advice.
    pub help: Option<&'static str>,
    /// The layer with a window that reaches beyond its padded input, if that is wrong.
    pub(crate) too_small_for: Option<String>,
}

impl NetworkError {
    pub(crate) fn new(message: impl fmt::Display) -> NetworkError {
        NetworkError { message: message.to_string(), help: None, too_small_for: None }
    }

    /// Returns the error of an invalid layer.
    pub(crate) fn of_layer(layer: &str, why: impl fmt::Display) -> NetworkError {
        NetworkError::new(format_args!("layer `{layer}`: {why}"))
    }

    /// Returns the error of a size of 0.
    pub(crate) fn zero(what: &str) -> NetworkError {
        NetworkError::new(format_args!("{what} is 0; give at least 1"))
    }

    /// Returns the error of more bytes than any machine addresses.
    pub(crate) fn too_large(what: &str, bytes: u128, limit: Bytes) -> NetworkError {
        NetworkError::new(format_args!(
            "{what} would take {bytes} bytes; sizes above {limit} fit no machine: make the batch, the image or the network smaller"
        ))
    }
}

/// Formats names as `a`, `a or b`, `a, b or c`.
pub(crate) fn either(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
