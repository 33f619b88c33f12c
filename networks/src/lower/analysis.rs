//! What is known of each layer before the walk: who reads its output last, and whether the backward pass needs it.

use super::{LowerOptions, Mode, ReluStorage};
use crate::error::NetworkError;
use crate::layers::rules;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network};

/// Facts of each layer, by its position.
pub(super) struct Analysis {
    /// The layer whose output it hands on unchanged: itself, but for maps that become sequences, for dropout in evaluation, and
    /// for sums of which a draw of stochastic depth leaves one term.
    source: Vec<LayerId>,
    /// Whether a draw of stochastic depth leaves it out: a dropped branch, and what only leads to it.
    pub absent: Vec<bool>,
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
    pub(super) fn new(network: &Network, options: &LowerOptions) -> Result<Analysis, NetworkError> {
        let count = network.layers.len();
        let evaluate = options.mode == Mode::Evaluate;
        let mut facts = Analysis {
            source: (0..count).map(LayerId::new).collect(),
            absent: absent(network, options)?,
            trained: vec![false; count],
            last_reader: vec![None; count],
            kept: vec![false; count],
            masked: vec![false; count],
            adds_up: vec![false; count],
        };
        for (i, layer) in network.layers.iter().enumerate() {
            if facts.absent[i] {
                continue;
            }
            let present = layer.inputs.iter().filter(|input| !facts.absent[input.index()]);
            let inputs: Vec<LayerId> = present.map(|input| facts.source(*input)).collect();
            facts.trained[i] = !evaluate
                && (layer.parameters > 0
                    || layer.shares.is_some()
                    || inputs.iter().any(|v| facts.trained[v.index()]));
            let rules = rules(&layer.kind);
            if rules.hands_on(inputs.len(), options.mode) {
                facts.source[i] = inputs[0];
                continue;
            }
            for (at, input) in inputs.iter().take(rules.reads(inputs.len())).enumerate() {
                facts.last_reader[input.index()] = Some(LayerId::new(i));
                let reads_input = rules.backward_reads(at, &|input| facts.trained[inputs[input].index()]);
                facts.kept[input.index()] |= reads_input && !evaluate;
            }
        }
        for (i, layer) in network.layers.iter().enumerate() {
            if facts.trained[i] && rules(&layer.kind).may_mask() {
                facts.masked[i] = match options.relu {
                    ReluStorage::Mask => true,
                    ReluStorage::Output => false,
                    ReluStorage::Auto => !facts.kept[i],
                };
                facts.kept[i] |= !facts.masked[i];
            }
        }
        let mut given = vec![false; count];
        for (i, layer) in network.layers.iter().enumerate().rev().filter(|(i, _)| !facts.absent[*i]) {
            let owner = layer.shares.map_or(i, LayerId::index);
            facts.adds_up[i] = std::mem::replace(&mut given[owner], true);
        }
        Ok(facts)
    }

    /// Whether a layer has no op of its own, and hands on what `source` gives.
    pub(super) fn hands_on(&self, layer: LayerId) -> bool {
        self.source(layer) != layer
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

/// The layers that a draw leaves out. What is dropped is 0, which only a sum with one other term left can do without.
fn absent(network: &Network, options: &LowerOptions) -> Result<Vec<bool>, NetworkError> {
    let mut absent = vec![false; network.layers.len()];
    let Some(draw) = options.draw.filter(|_| options.mode == Mode::Train) else {
        return Ok(absent);
    };
    let mut needed = vec![false; network.layers.len()];
    *needed.last_mut().expect("a network ends in its loss") = true;
    for (i, layer) in network.layers.iter().enumerate().rev() {
        absent[i] = !needed[i] || draw.drops(LayerId::new(i), &layer.kind);
        if !absent[i] {
            layer.inputs.iter().for_each(|input| needed[input.index()] = true);
        }
    }
    for (i, layer) in network.layers.iter().enumerate().filter(|(i, _)| !absent[*i]) {
        let left = layer.inputs.iter().filter(|input| !absent[input.index()]).count();
        if left < layer.inputs.len() && !(layer.kind == LayerKind::Add && left == 1) {
            let why = format!(
                "the draw of iteration {} drops what it takes; only a sum of which one term is left can be lowered for a \
                 draw, so lower for all draws",
                draw.step
            );
            return Err(NetworkError::BadLayer { layer: network.layers[i].name.clone(), why });
        }
    }
    Ok(absent)
}
