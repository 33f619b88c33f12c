//! What is known of each layer before the walk: who reads its output last, and whether the backward pass needs it.

use plimsoll_ir::LayerId;

/// Facts of each layer, by its position.
pub(crate) struct Facts {
    /// The layer whose output it hands on unchanged: itself, but for maps that become sequences, for dropout in evaluation, and
    /// for sums of which a draw of stochastic depth leaves one term.
    pub source: Vec<LayerId>,
    /// Whether a draw of stochastic depth leaves it out: a dropped branch, and what only leads to it.
    pub absent: Vec<bool>,
    /// Whether a parameter is trained at or above it, so that the gradient of its output is needed.
    pub trained: Vec<bool>,
    /// The last layer that reads its output forward.
    pub last_reader: Vec<Option<LayerId>>,
    /// Whether an op of the backward pass reads its output.
    pub kept: Vec<bool>,
    /// Whether it is a ReLU that saves a mask.
    pub masked: Vec<bool>,
    /// Whether the gradients of its parameters are added to what a later layer, which shares them, has given.
    pub adds_up: Vec<bool>,
}

impl Facts {
    /// Whether a layer has no op of its own, and hands on what `source` gives.
    pub(crate) fn hands_on(&self, layer: LayerId) -> bool {
        self.source(layer) != layer
    }

    /// The layer that computes what `layer` hands on.
    pub(crate) fn source(&self, layer: LayerId) -> LayerId {
        self.source[layer.index()]
    }

    /// Whether `reader` may write over the output of `value`: nobody reads it later, forward or backward, and it is
    /// not the images, which belong to the host.
    pub(crate) fn may_overwrite(&self, value: LayerId, reader: LayerId) -> bool {
        value.index() > 0 && !self.kept[value.index()] && self.last_reader[value.index()] == Some(reader)
    }
}
