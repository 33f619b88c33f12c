//! A placement: the decisions about an iteration, as plain data, before addresses and waits are computed.
//!
//! # The data
//!
//! Time is counted in *slots*: slot 0 is the instant before the first step, slot `i + 1` is step `i` of the compute
//! stream. A [`Placement`] is
//!
//! - the [`Step`]s of the compute stream: the op, its alternative, and a mark if it is recomputed;
//! - the [`Residency`]s: bytes of a tensor that are on the device during some slots, and the way they come there;
//! - the [`Transfer`]s in the order of the command list: the residency that is copied to the host or fetched from it, and the
//!   slot before which the command is listed. A prefetch is listed before the first slot of its residency or later, an offload
//!   before the slot that follows the last one of its residency or earlier; of two in front of the same slot the list order
//!   counts. So every command that a residency's bytes must wait for is listed earlier.
//!
//! Residencies that have the same *home* lie as they would in the whole tensor. If one piece of a tensor leaves and the rest
//! stays, the piece returns to its previous place; if all of it leaves, it may return elsewhere.
//!
//! The unit of time is the slot, not the second: two residencies that share a slot never share a byte of the pool, and a later
//! one waits for an earlier one in whose bytes it lies. Memory is then safe whatever the real times are.
//!
//! This file deliberately does not choose. [`Gaps::placement`](crate::decide::gaps::Gaps::placement) and the walk join decisions
//! into residencies.

use plimsoll_ir::trace::Trace;
use plimsoll_ir::{OpId, TensorId, define_id};
use std::ops::Range;
use typed_index_collections::TiVec;

define_id!(
    /// Slot of the iteration; see the head of this file.
    Slot, "slot");
define_id!(
    /// Residency of a placement.
    ResidencyId, "residency");
define_id!(
    /// Transfer of a placement.
    TransferId, "transfer");
define_id!(
    /// Home of residencies; see the head of this file.
    HomeId, "home");

/// Decisions about an iteration; see the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Compute stream, in order.
    pub steps: Vec<Step>,
    /// Bytes on the device, with their slots.
    pub residencies: TiVec<ResidencyId, Residency>,
    /// All transfers in list order: `before` never decreases.
    pub transfers: TiVec<TransferId, Transfer>,
    /// Synchronisation that a policy adds beyond the needs of validity; at most one barrier per transfer.
    pub barriers: Vec<Barrier>,
}

/// Policy's own rule that binds a transfer to steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    pub transfer: TransferId,
    /// The transfer starts no earlier than the step of this slot could: when the step before it has ended. At most the slot
    /// before which the transfer is listed.
    pub from: Slot,
    /// The step of this slot waits until the transfer has ended. At least the slot before which the transfer is listed.
    pub until: Option<Slot>,
}

/// Command of the compute stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub op: OpId,
    /// `true` for a recomputation.
    pub again: bool,
    /// Alternative of the op; `None` for the op itself.
    pub alternative: Option<u32>,
}

/// Bytes of a tensor that stay on the device without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    pub tensor: TensorId,
    /// Bytes of the tensor; not empty.
    pub bytes: Range<u64>,
    /// Residencies of one home lie as they would in the whole tensor.
    pub home: HomeId,
    /// Slots during which the bytes are taken; not empty, and from 0 exactly if it opens at the start.
    pub slots: Range<Slot>,
    pub opens: Opens,
}

/// Way in which a residency gets its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// The bytes are on the device when the iteration starts.
    Start,
    /// The step of its first slot writes them.
    Written,
    /// A prefetch brings them, no earlier than its first slot.
    Prefetched,
}

/// Copy between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Residency whose bytes leave or come.
    pub residency: ResidencyId,
    pub direction: Direction,
    /// Slot of the step just before which it is listed.
    pub before: Slot,
}

/// Slot, offloads first and those by last use and writer, then by `Order`.
type Key<Order> = (Slot, Direction, [Slot; 2], Order);

/// Transfers of a placement, collected in any order, each with the key by which they are sorted.
pub struct Transfers<Order>(Vec<(Key<Order>, Transfer)>);

impl<Order: Copy + Ord> Transfers<Order> {
    /// Returns no transfers.
    pub fn new() -> Transfers<Order> {
        Transfers(Vec::new())
    }

    /// Adds those of a gap that follows a residency, after this last use and this writer; the next residency ends the gap.
    pub fn add(&mut self, residency: ResidencyId, window: Window, used: [Slot; 2], order: Order) {
        if let Some(before) = window.offload {
            let transfer = Transfer { residency, direction: Direction::Offload, before };
            self.0.push(((before, Direction::Offload, used, order), transfer));
        }
        let (residency, direction, before) = (residency.next(), Direction::Prefetch, window.returns);
        let transfer = Transfer { residency, direction, before };
        self.0.push(((before, direction, [Slot::START; 2], order), transfer));
    }

    /// Returns the transfers in their order.
    pub fn sorted(mut self) -> TiVec<TransferId, Transfer> {
        self.0.sort_by_key(|(key, transfer)| (*key, transfer.residency));
        self.0.into_iter().map(|(_, transfer)| transfer).collect()
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the host.
    Offload,
    /// From the host.
    Prefetch,
}

/// Slots at which the bytes of a swapped gap leave the device and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First slot during which the bytes are free for others.
    pub leaves: Slot,
    /// First slot during which they are taken again; at least `leaves`.
    pub returns: Slot,
    /// Slot before which the offload is listed; `None` if the host already holds these bytes.
    pub offload: Option<Slot>,
}

impl Slot {
    /// Start of the iteration.
    pub const START: Slot = Slot(0);

    /// Returns the slot of the step that runs an op, if every op runs once and in the order of the trace.
    #[inline]
    pub fn of(op: OpId) -> Slot {
        Slot(op.0 + 1)
    }

    /// Returns the op whose step has the slot, if every op runs once and in the order of the trace; `None` for the start.
    #[inline]
    pub fn op(self) -> Option<OpId> {
        self.0.checked_sub(1).map(OpId)
    }
}

impl Placement {
    /// Returns the tensors of which some bytes are present without the rest, in the order of their transfers.
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

    /// Returns the placement with some tensors the other way round: decisions about their first bytes hold for their last.
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
