//! Allocations of the papers' frameworks, worked out from a network's layers alone: network-wide, before the first iteration.
//!
//! Caffe and Torch give each layer's output (a *blob*) a separate place, except for layers that work in place: ReLU and
//! dropout, and layers that only change a shape. vDNN's baseline counts no gradients but the largest two (§4.1); Layrub's Caffe
//! has a gradient for each blob (§5.1). Other tensors that layers keep are not counted.

use plimsoll::ir::Bytes;
use plimsoll::ir::network::{Layer, LayerKind, Network};
use plimsoll::ir::trace::Trace;

/// Blobs and weights of a network at a batch.
pub struct Blobs {
    /// All blobs, including the images.
    pub data: Bytes,
    pub images: Bytes,
    pub largest: Bytes,
    /// A byte for each element of a ReLU's output, which Layrub's ReLUs keep (§4.2).
    pub masks: Bytes,
    /// Weights of all layers, without gradients.
    pub weights: Bytes,
}

/// Returns the blobs of all layers but the loss.
pub fn of_all(network: &Network, batch: u64) -> Blobs {
    let before_the_loss = network.layers.len() - 1;
    of(&network.layers[..before_the_loss], batch)
}

/// Returns the blobs of the layers before the first fully connected one: vDNN's feature extraction layers.
pub fn of_features(network: &Network, batch: u64) -> Blobs {
    let classifier = |layer: &Layer| matches!(layer.kind, LayerKind::FullyConnected { .. });
    let end = network.layers.iter().position(classifier).unwrap_or(network.layers.len() - 1);
    of(&network.layers[..end], batch)
}

fn of(layers: &[Layer], batch: u64) -> Blobs {
    let bytes = |layer: &Layer| Bytes(4 * batch * layer.output.elements());
    let own = layers
        .iter()
        .filter(|layer| !matches!(layer.kind, LayerKind::Relu { .. } | LayerKind::Dropout { .. }));
    Blobs {
        data: own.clone().map(bytes).sum(),
        images: bytes(&layers[0]),
        masks: layers
            .iter()
            .filter(|layer| matches!(layer.kind, LayerKind::Relu { .. }))
            .map(|layer| Bytes(batch * layer.output.elements()))
            .sum(),
        largest: own.map(bytes).max().unwrap_or_default(),
        weights: Bytes(layers.iter().map(|layer| 4 * layer.parameters).sum()),
    }
}

/// Returns vDNN's baseline with the fastest algorithms: all blobs, the largest gradients of an input and an output, the largest
/// workspace; and weights with their gradients.
pub fn vdnn_baseline(blobs: &Blobs, trace: &Trace) -> Bytes {
    let workspace = |op: &plimsoll::ir::trace::Op| {
        let own = (op.seconds, op.workspace_bytes);
        let ways = op.alternatives.iter().map(|way| (way.seconds, way.workspace_bytes)).chain([own]);
        ways.min_by(|a, b| a.0.0.total_cmp(&b.0.0)).map_or(Bytes::ZERO, |(_, workspace)| workspace)
    };
    let workspace = trace.ops.iter().map(workspace).max().unwrap_or_default();
    blobs.data + blobs.largest * 2 + workspace + blobs.weights * 2
}

/// Returns Caffe's allocations in Layrub's count: each blob and its gradient; the images have none.
pub fn caffe(blobs: &Blobs) -> Bytes {
    blobs.data * 2 - blobs.images
}
