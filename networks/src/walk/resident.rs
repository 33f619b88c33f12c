//! The offsets of the resident regions, and those of each layer.

use plimsoll_ir::Bytes;
use plimsoll_ir::program::Region;

/// The resident part, and the regions of each layer's kernels.
pub(crate) struct Resident {
    pub regions: Vec<Region>,
    /// Bytes of all regions.
    pub bytes: Bytes,
    pub layers: Vec<LayerRegions>,
    /// Offset of [`Hyper`](plimsoll_ir::program::Hyper).
    pub hyper: Bytes,
    /// Offset of the metrics.
    pub metrics: Bytes,
}

/// A layer's regions, by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerRegions {
    /// Weight, then bias; scale, then shift; those of a different layer if it shares them.
    pub parameters: Vec<Trained>,
    /// Running mean, running variance.
    pub states: Vec<Bytes>,
}

/// A parameter and the regions trained with it.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    pub name: String,
    /// Number of elements.
    pub elements: u64,
    /// Offset of the parameter.
    pub parameter: Bytes,
    /// Offset of its gradient.
    pub gradient: Bytes,
    /// Offsets of its optimizer state, in the order in which its update takes them.
    pub states: Vec<Bytes>,
}
