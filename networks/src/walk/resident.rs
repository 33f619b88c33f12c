//! Where the walk finds what stays on the device: the regions, and those of each layer.

use plimsoll_ir::Bytes;
use plimsoll_ir::program::Region;

/// The resident part, and where the kernels of each layer find theirs.
pub(crate) struct Resident {
    /// All regions.
    pub regions: Vec<Region>,
    /// What they take together.
    pub bytes: Bytes,
    /// For each layer.
    pub layers: Vec<LayerRegions>,
    /// Where [`Hyper`](plimsoll_ir::program::Hyper) lies.
    pub hyper: Bytes,
    /// Where the metrics lie.
    pub metrics: Bytes,
}

/// A layer's own regions, by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerRegions {
    /// Weight, then bias; scale, then shift; those of another layer where it shares them.
    pub parameters: Vec<Trained>,
    /// Running mean, running variance.
    pub states: Vec<Bytes>,
}

/// A parameter and what is trained with it.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// The parameter's name.
    pub name: String,
    /// How many numbers it has.
    pub elements: u64,
    /// Where it lies.
    pub parameter: Bytes,
    /// Where its gradient lies.
    pub gradient: Bytes,
    /// Where the optimizer's states of it lie, in the order in which its update takes them.
    pub states: Vec<Bytes>,
}
