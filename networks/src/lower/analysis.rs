//! What is known of each layer before the walk: who reads its output last, and whether the backward pass needs it.

use super::{LowerOptions, Mode, ReluStorage};
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network};

/// Facts of each layer, by its position.
pub(super) struct Analysis {
    /// The layer whose output it hands on unchanged: itself, but for dropout in evaluation.
    source: Vec<LayerId>,
    /// Whether a parameter is trained at or above it, so that the gradient of its output is needed.
    pub trained: Vec<bool>,
    /// The last layer that reads its output forward.
    last_reader: Vec<Option<LayerId>>,
    /// Whether an op of the backward pass reads its output.
    pub kept: Vec<bool>,
    /// Whether it is a ReLU that saves a mask.
    pub masked: Vec<bool>,
    /// Whether the gradients of its parameters are added to what a later layer, which shares them, has given.
    pub adds_up: Vec<bool>,
}

impl Analysis {
    pub(super) fn new(network: &Network, options: &LowerOptions) -> Analysis {
        let count = network.layers.len();
        let evaluate = options.mode == Mode::Evaluate;
        let mut facts = Analysis {
            source: (0..count).map(LayerId::new).collect(),
            trained: vec![false; count],
            last_reader: vec![None; count],
            kept: vec![false; count],
            masked: vec![false; count],
            adds_up: vec![false; count],
        };
        for (i, layer) in network.layers.iter().enumerate() {
            let inputs: Vec<LayerId> = layer.inputs.iter().map(|input| facts.source(*input)).collect();
            facts.trained[i] = !evaluate
                && (network.parameters(layer) > 0
                    || layer.shares.is_some()
                    || inputs.iter().any(|v| facts.trained[v.index()]));
            if evaluate && matches!(layer.kind, LayerKind::Dropout { .. }) {
                facts.source[i] = inputs[0];
                continue;
            }
            // Of the step before, a cell reads the cell state and not the output.
            let reads = if layer.kind == LayerKind::LstmCell { 1 } else { inputs.len() };
            for input in inputs.into_iter().take(reads) {
                facts.last_reader[input.index()] = Some(LayerId::new(i));
                let reads_input = match layer.kind {
                    LayerKind::Conv { .. }
                    | LayerKind::ConvTranspose { .. }
                    | LayerKind::FullyConnected { .. }
                    | LayerKind::Embedding { .. }
                    | LayerKind::BatchNorm { .. }
                    | LayerKind::LayerNorm { .. } => true,
                    LayerKind::Lrn { .. } | LayerKind::Gelu | LayerKind::Attention { .. } => {
                        facts.trained[input.index()]
                    }
                    _ => false,
                };
                facts.kept[input.index()] |= reads_input && !evaluate;
            }
        }
        for (i, layer) in network.layers.iter().enumerate() {
            if matches!(layer.kind, LayerKind::Relu { .. }) && facts.trained[i] {
                facts.masked[i] = match options.relu {
                    ReluStorage::Mask => true,
                    ReluStorage::Output => false,
                    ReluStorage::Auto => !facts.kept[i],
                };
                facts.kept[i] |= !facts.masked[i];
            }
        }
        let mut given = vec![false; count];
        for (i, layer) in network.layers.iter().enumerate().rev() {
            let owner = layer.shares.map_or(i, LayerId::index);
            facts.adds_up[i] = std::mem::replace(&mut given[owner], true);
        }
        facts
    }

    /// The layer that computes what `layer` hands on.
    pub(super) fn source(&self, layer: LayerId) -> LayerId {
        self.source[layer.index()]
    }

    /// Whether `reader` may write over the output of `value`: nobody reads it later, forward or backward, and it is
    /// not the images, which belong to the host.
    pub(super) fn may_overwrite(&self, value: LayerId, reader: LayerId) -> bool {
        value.index() > 0 && !self.kept[value.index()] && self.last_reader[value.index()] == Some(reader)
    }
}
