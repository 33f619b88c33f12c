//! A draw of stochastic depth (Huang et al. 2016): which branches one iteration drops.

use plimsoll_ir::LayerId;
use plimsoll_ir::network::{DropUnit, LayerKind};
use plimsoll_ir::program::Branch;

/// Which branches an iteration drops: what a dropout of whole batches draws in its kernel, known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// The seed of the training.
    pub seed: u64,
    /// The number of the iteration.
    pub step: u32,
}

impl Draw {
    /// Whether the layer is a branch that is dropped.
    pub fn drops(self, layer: LayerId, kind: &LayerKind) -> bool {
        branch_before(layer, kind).is_some_and(|branch| branch.is_dropped(self.seed, self.step))
    }
}

/// The branch that a layer ends, where it is a dropout of whole batches.
pub(crate) fn branch_before(layer: LayerId, kind: &LayerKind) -> Option<Branch> {
    let LayerKind::Dropout { probability, unit: DropUnit::Batch } = *kind else { return None };
    Some(Branch { probability, stream: layer.0 })
}
