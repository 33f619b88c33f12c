//! A draw of stochastic depth (Huang et al. 2016): the branches that one iteration drops.

use plimsoll_ir::LayerId;
use plimsoll_ir::network::{DropUnit, LayerKind};
use plimsoll_ir::program::Branch;

/// The draw of an iteration, known beforehand: the same branches that a dropout of whole batches draws in its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// Seed of the training.
    pub seed: u64,
    /// Number of the iteration.
    pub step: u32,
}

impl Draw {
    /// Returns `true` if the layer is a branch that is dropped.
    pub fn drops(self, layer: LayerId, kind: &LayerKind) -> bool {
        branch_before(layer, kind).is_some_and(|branch| branch.is_dropped(self.seed, self.step))
    }
}

/// Returns the branch that a layer ends, if it is a dropout of whole batches.
pub(crate) fn branch_before(layer: LayerId, kind: &LayerKind) -> Option<Branch> {
    let LayerKind::Dropout { probability, unit: DropUnit::Batch } = *kind else { return None };
    Some(Branch { probability, stream: layer.0 })
}
