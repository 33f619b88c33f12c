//! A placement: what is decided about an iteration, as plain data, before addresses and waits are worked out.
//!
//! # The data
//!
//! Time is counted in *slots*: slot 0 is the instant before the first step, slot `i + 1` is step `i` of the compute
//! stream. A [`Placement`] is
//!
//! - the [`Step`]s of the compute stream: which op, whether it is recomputed, in which of its alternatives;
//! - the [`Residency`]s: which bytes of which tensor are on the device during which slots, and how they come there;
//! - the [`Transfer`]s in the order of the command list: which residency is copied to the host or fetched from it, and
//!   the slot before which the command is listed. A prefetch is listed before the first slot of its residency or later,
//!   an offload before the slot that follows the last one of its residency or earlier; of two in front of the same slot
//!   the list order counts. So whatever a residency's bytes must wait for is always listed earlier.
//!
//! Residencies that have the same *home* lie as they would in the whole tensor. Where one piece of a tensor leaves and
//! the rest stays, the piece returns to its own place; where all of it leaves, it may return elsewhere.
//!
//! Why slots and not seconds: two residencies that share a slot never share a byte of the pool, and a later one waits
//! for an earlier one in whose bytes it lies. Memory is then safe whatever the real times are.
//!
//! What this file does not do: choose. [`Gaps::placement`](crate::decide::gaps::Gaps::placement) and the walk join decisions
//! into residencies.

use plimsoll_ir::trace::Trace;
use plimsoll_ir::{OpId, TensorId, define_id};
use std::ops::Range;
use typed_index_collections::TiVec;

define_id!(
    /// A slot of the iteration; see the head of this file.
    Slot, "slot");
define_id!(
    /// A residency of a placement.
    ResidencyId, "residency");
define_id!(
    /// A transfer of a placement.
    TransferId, "transfer");
define_id!(
    /// A home of residencies; see the head of this file.
    HomeId, "home");

/// What is decided about an iteration; see the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The compute stream, in order.
    pub steps: Vec<Step>,
    /// What is on the device when.
    pub residencies: TiVec<ResidencyId, Residency>,
    /// All transfers in list order: `before` never decreases.
    pub transfers: TiVec<TransferId, Transfer>,
    /// How a policy synchronises its streams, beyond what validity needs; at most one for each transfer.
    pub barriers: Vec<Barrier>,
}

/// A transfer that is bound to steps by a policy's own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Which transfer.
    pub transfer: TransferId,
    /// It starts no earlier than the step of this slot could: when the step before it has ended. At most the slot before
    /// which the transfer is listed.
    pub from: Slot,
    /// The step of this slot waits until it has ended. At least the slot before which the transfer is listed.
    pub until: Option<Slot>,
}

/// One command of the compute stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which op.
    pub op: OpId,
    /// It is a recomputation.
    pub again: bool,
    /// Which of the op's alternatives; none for the op as it stands.
    pub alternative: Option<u32>,
}

/// Bytes of a tensor that stay on the device without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Which tensor.
    pub tensor: TensorId,
    /// Which of its bytes; not empty.
    pub bytes: Range<u64>,
    /// Those of one home lie as they would in the whole tensor.
    pub home: HomeId,
    /// The slots during which the bytes are taken; not empty, and from 0 exactly where it opens at the start.
    pub slots: Range<Slot>,
    /// How the bytes come there.
    pub opens: Opens,
}

/// How a residency comes to hold its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// They are on the device when the iteration starts.
    Start,
    /// The step of its first slot writes them.
    Written,
    /// A prefetch brings them, no earlier than its first slot.
    Prefetched,
}

/// A copy between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The residency whose bytes leave or come.
    pub residency: ResidencyId,
    /// Which way.
    pub direction: Direction,
    /// It is listed just before this slot's step.
    pub before: Slot,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the host.
    Offload,
    /// From the host.
    Prefetch,
}

/// What happens to a swapped gap: when its bytes leave the device and when they return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first slot during which the bytes are free for others.
    pub leaves: Slot,
    /// The first slot during which they are taken again; at least `leaves`.
    pub returns: Slot,
    /// The slot before which the offload is listed; none where the host holds these very bytes already.
    pub offload: Option<Slot>,
}

impl Slot {
    /// The start of the iteration.
    pub const START: Slot = Slot(0);

    /// The slot of the step that runs an op, where every op runs once and in the order of the trace.
    #[inline]
    pub fn of(op: OpId) -> Slot {
        Slot(op.0 + 1)
    }

    /// The op whose step has the slot, where every op runs once and in the order of the trace; none for the start.
    #[inline]
    pub fn op(self) -> Option<OpId> {
        self.0.checked_sub(1).map(OpId)
    }
}

impl Placement {
    /// The tensors of which some bytes are there without the rest, in the order of their transfers.
    pub fn tensors_in_pieces(&self, trace: &Trace) -> Vec<TensorId> {
        let mut tensors: Vec<TensorId> = Vec::new();
        let mut seen = vec![false; trace.tensors.len()];
        for transfer in &self.transfers {
            let Residency { tensor, bytes, .. } = &self.residencies[transfer.residency];
            let part = bytes.end - bytes.start < trace.tensors[tensor.index()].bytes.0;
            if part && !std::mem::replace(&mut seen[tensor.index()], true) {
                tensors.push(*tensor);
            }
        }
        tensors
    }

    /// The same with some tensors the other way round: what was decided about their first bytes holds for their last.
    pub fn turned(mut self, trace: &Trace, tensors: &[TensorId]) -> Placement {
        let mut turned = vec![false; trace.tensors.len()];
        tensors.iter().for_each(|tensor| turned[tensor.index()] = true);
        for Residency { tensor, bytes, .. } in &mut self.residencies {
            if turned[tensor.index()] {
                let whole = trace.tensors[tensor.index()].bytes.0;
                *bytes = whole - bytes.end..whole - bytes.start;
            }
        }
        self
    }
}
