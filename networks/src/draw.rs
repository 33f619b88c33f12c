//! A draw of stochastic depth (Huang et al. 2016): which branches one iteration drops.

use plimsoll_ir::LayerId;
use plimsoll_ir::network::{DropUnit, LayerKind};
use plimsoll_ir::philox::{philox4x32, unit_f32};

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
        let LayerKind::Dropout { probability, unit: DropUnit::Batch } = *kind else { return false };
        unit_f32(philox4x32(self.seed, [0, 0, self.step, layer.0])[0]) < probability
    }
}
