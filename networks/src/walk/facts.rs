//! What is known of each layer before the walk: who reads its output last, and whether the backward pass needs it.

use plimsoll_ir::LayerId;
use plimsoll_ir::program::Branch;

/// Facts of each layer, by its position.
pub(crate) struct Facts {
    /// The layer whose output it hands on unchanged: itself, but for dropout in evaluation, for sums of which a draw of
    /// stochastic depth leaves one term, and for what a batch normalisation has taken over.
    pub source: Vec<LayerId>,
    /// Whether a draw of stochastic depth leaves it out: a dropped branch, and what only leads to it.
    pub absent: Vec<bool>,
    /// The branch of stochastic depth that it lies on, and only on; the innermost of several.
    pub branch: Vec<Option<Branch>>,
    /// Whether a parameter is trained at or above it, so that the gradient of its output is needed.
    pub trained: Vec<bool>,
    /// The last layer that reads its output forward.
    pub last_reader: Vec<Option<LayerId>>,
    /// Whether an op of the backward pass reads its output.
    pub kept: Vec<bool>,
    /// Whether it is a ReLU that saves a mask, or a batch normalisation that has taken one over and does.
    pub masked: Vec<bool>,
    /// Of a batch normalisation: the layers after it that its op has taken over; none of most.
    pub fused: Vec<Fused>,
    /// Whether the gradients of its parameters are added to what a later layer, which shares them, has given.
    pub adds_up: Vec<bool>,
}

/// The layers that the op of a batch normalisation computes besides it, which hand on what it gives.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fused {
    /// The sum, and its other term.
    pub sum: Option<(LayerId, LayerId)>,
    /// The ReLU and its ceiling.
    pub relu: Option<(LayerId, f32)>,
}

impl Fused {
    /// Its layers, in order.
    pub(crate) fn layers(self) -> impl Iterator<Item = LayerId> {
        self.sum.map(|(sum, _)| sum).into_iter().chain(self.relu.map(|(relu, _)| relu))
    }
}

impl Facts {
    /// What the batch normalisation has taken over that a layer hands on the output of.
    pub(crate) fn fused(&self, layer: LayerId) -> Fused {
        self.fused[self.source(layer).index()]
    }

    /// The batch normalisation whose op gives a layer's gradients, if that is another layer's: it has taken over a chain that
    /// ends in a ReLU, and the layer is one of that.
    pub(crate) fn differentiated_by(&self, layer: LayerId) -> Option<LayerId> {
        let fused = self.fused(layer);
        (fused.relu.is_some() && fused.layers().any(|l| l == layer)).then(|| self.source(layer))
    }

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
