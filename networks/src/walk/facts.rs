//! Facts of each layer that the walk needs: the last reader of its output, and its use in the backward pass.

use plimsoll_ir::LayerId;

/// Facts of each layer, by its position.
pub(crate) struct Facts {
    /// Layer whose output it forwards unchanged. It is the layer itself, except for dropout in evaluation, and for layers that
    /// a batch normalisation has fused.
    pub source: Vec<LayerId>,
    /// `true` if a parameter is trained at or above it, so that the gradient of its output is needed.
    pub trained: Vec<bool>,
    /// Last layer that reads its output forward.
    pub last_reader: Vec<Option<LayerId>>,
    /// `true` if an op of the backward pass reads its output.
    pub kept: Vec<bool>,
    /// `true` for a ReLU that saves a mask, or a batch normalisation that has fused one.
    pub masked: Vec<bool>,
    /// Layers that a batch normalisation's op has fused; empty for most layers.
    pub fused: Vec<Fused>,
    /// `true` if the gradients of its parameters are added to those of a later layer that shares them.
    pub adds_up: Vec<bool>,
}

/// The layers that a batch normalisation's op also computes, which forward its output.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fused {
    /// Sum, and its other term.
    pub sum: Option<(LayerId, LayerId)>,
    /// ReLU and its ceiling.
    pub relu: Option<(LayerId, f32)>,
}

impl Fused {
    /// Returns the layers, in order.
    pub(crate) fn layers(self) -> impl Iterator<Item = LayerId> {
        self.sum.map(|(sum, _)| sum).into_iter().chain(self.relu.map(|(relu, _)| relu))
    }
}

impl Facts {
    /// Returns the layers fused by the batch normalisation whose output a layer forwards.
    pub(crate) fn fused(&self, layer: LayerId) -> Fused {
        self.fused[self.source(layer).index()]
    }

    /// Returns the batch normalisation whose op computes a layer's gradients, if it is a different layer: it has fused a
    /// chain that ends in a ReLU, and the layer is part of that chain.
    pub(crate) fn differentiated_by(&self, layer: LayerId) -> Option<LayerId> {
        let fused = self.fused(layer);
        (fused.relu.is_some() && fused.layers().any(|l| l == layer)).then(|| self.source(layer))
    }

    /// Returns `true` for a layer without an op, which forwards the output of `source`.
    pub(crate) fn hands_on(&self, layer: LayerId) -> bool {
        self.source(layer) != layer
    }

    /// Returns the layer that computes the output that `layer` forwards.
    pub(crate) fn source(&self, layer: LayerId) -> LayerId {
        self.source[layer.index()]
    }

    /// Returns `true` if `reader` may overwrite the output of `value`: no layer reads it later, forward or backward, and it
    /// is not the images, which belong to the host.
    pub(crate) fn may_overwrite(&self, value: LayerId, reader: LayerId) -> bool {
        value.index() > 0 && !self.kept[value.index()] && self.last_reader[value.index()] == Some(reader)
    }
}
