//! The host slab: place of each offloaded tensor in host memory.
//!
//! A pure function of the schedule, so that the slab's size is known, and can be refused, before anything is allocated.

use plimsoll_ir::schedule::{Schedule, place_on_host};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, TensorId};
use std::ops::Range;

/// For each offloaded tensor, the range of its bytes that is ever offloaded, and where that range starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSlab {
    /// Range of the tensor's bytes, and offset of its first byte in the slab.
    places: Vec<Option<(Range<u64>, u64)>>,
    bytes: Bytes,
}

/// Lays out the host slab in the order of the tensors; each place is a multiple of 256 bytes. A piece that leaves its tensor
/// (no valid schedule has one) takes no place.
pub fn host_slab(trace: &Trace, schedule: &Schedule) -> HostSlab {
    let mut end = 0;
    let places = schedule.host_spans(trace).into_iter().map(|span| {
        let span = span?;
        let start = end;
        end += place_on_host(span.end - span.start);
        Some((span, start))
    });
    let places = places.collect();
    assert_eq!(Bytes(end), schedule.host_bytes(trace), "planned as it is allocated");
    HostSlab { places, bytes: Bytes(end) }
}

impl HostSlab {
    /// Exact size of the slab.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Offset of a piece of a tensor; `None` if its bytes are never offloaded.
    pub fn place(&self, tensor: TensorId, piece: &Range<u64>) -> Option<Bytes> {
        let (span, start) = self.places[tensor.index()].as_ref()?;
        (span.start <= piece.start && piece.end <= span.end).then(|| Bytes(start + piece.start - span.start))
    }
}
