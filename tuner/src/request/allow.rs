//! Means that a plan may use.
//!
//! This module deliberately knows no policies; each uses some of these means.

use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::place_on_host;

/// Means that a plan may use, besides keeping everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    /// Recompute ops. Only `Plimsoll`, `Optimal`, `Dqn`, `SuperNeurons` and `Memonger` do. Without it, `Memonger` keeps
    /// everything.
    pub recompute: bool,
    /// Swap tensors. Without it, `Dqn` and all policies that never recompute keep everything.
    pub swap: bool,
    /// Swap pieces of tensors. Only `Plimsoll` does.
    pub pieces: bool,
    /// Host memory limit for swapped tensors ([`Schedule::host_bytes`](plimsoll_ir::schedule::Schedule::host_bytes)); `None`
    /// means unlimited. A policy that ignores this limit has no plan if its decisions exceed it.
    pub host: Option<Bytes>,
}

impl Allow {
    /// All means, with unlimited host memory.
    pub const ALL: Allow = Allow { recompute: true, swap: true, pieces: true, host: None };

    /// Returns `true` if the host has room for this many bytes of one tensor.
    pub(crate) fn hosts(self, bytes: u64) -> bool {
        self.host.is_none_or(|host| place_on_host(bytes) <= host.0)
    }
}

impl Default for Allow {
    fn default() -> Allow {
        Allow::ALL
    }
}
