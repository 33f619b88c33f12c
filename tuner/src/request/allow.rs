//! What a plan may do.
//!
//! What it deliberately does not do: know policies, of which each does some of it.

use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::place_on_host;

/// What a plan may do besides keeping everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    /// Run ops again. Only `Plimsoll`, `Optimal`, `Dqn`, `SuperNeurons` and `Memonger` do. Without it, `Memonger` keeps
    /// everything.
    pub recompute: bool,
    /// Move tensors to the host and back. Without it, `Dqn` and all policies that never recompute keep everything.
    pub swap: bool,
    /// Move pieces of tensors. Only `Plimsoll` does.
    pub pieces: bool,
    /// What is swapped may take so much of the host's memory
    /// ([`Schedule::host_bytes`](plimsoll_ir::schedule::Schedule::host_bytes)); none for any number of bytes. A policy that
    /// decides without looking at this has no plan where what it decides takes more.
    pub host: Option<Bytes>,
}

impl Allow {
    /// Whatever there is, within any number of bytes of the host.
    pub const ALL: Allow = Allow { recompute: true, swap: true, pieces: true, host: None };

    /// Whether the host has room for this much of one tensor.
    pub(crate) fn hosts(self, bytes: u64) -> bool {
        self.host.is_none_or(|host| place_on_host(bytes) <= host.0)
    }
}

impl Default for Allow {
    fn default() -> Allow {
        Allow::ALL
    }
}
