//! Where the numbers of a network's parameters and running statistics lie in its file, and those numbers in our order.
//!
//! Each tensor of a layer comes from one constant of the graph, which has its elements in another order: channels before
//! positions, inputs before outputs, or in the order in which an image was flattened. A tensor that the file does not have,
//! such as the shift of a normalisation without one, starts fresh. Layers that share one scale or shift of the file each
//! start from it. A tensor that the graph computes of others starts from what it computes, in 64 bits.
//!
//! What this file deliberately does not do: keep numbers, or say how a network is put together.

use super::constant::{Constant, Numbers};
use super::error::{OnnxError, broken};
use super::view::{Atom, Axis};
use crate::order::Order;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Network, Shape};
use std::collections::BTreeMap;

/// Where a tensor of a layer comes from.
pub struct Source {
    /// The layer.
    pub layer: LayerId,
    /// Which of its tensors, such as `weight`.
    pub part: &'static str,
    /// The constant that has its numbers.
    pub constant: Constant,
    /// The runs of the constant's elements, outermost first: steps, and elements of the layer's tensor between two of them.
    pub runs: Vec<(u64, u64)>,
}

impl Source {
    /// A tensor with the elements of a constant in their order.
    pub fn in_order(layer: LayerId, part: &'static str, constant: &Constant) -> Source {
        Source { layer, part, constant: constant.clone(), runs: vec![(constant.elements(), 1)] }
    }
}

/// The runs of a dimension of a value, over elements of a sample as they lie in the output of a layer.
pub fn runs(dim: &[Atom], shape: Shape) -> Vec<(u64, u64)> {
    let (channels, width) = (u64::from(shape.channels), u64::from(shape.width));
    let step = |axis: Axis| match axis {
        Axis::Row => width * channels,
        Axis::Column => channels,
        Axis::Channel => 1,
        Axis::Batch | Axis::Key | Axis::Repeat => 0,
    };
    dim.iter().map(|atom| (atom.size, atom.stride * step(atom.axis))).collect()
}

/// Where the elements of a constant lie in the tensor of a layer.
pub fn on_device(runs: &[(u64, u64)]) -> Order {
    let stride = |stride: u64| i64::try_from(stride).unwrap_or(i64::MAX);
    let (dims, strides) = runs.iter().map(|(steps, step)| (*steps, stride(*step))).unzip();
    Order::Strided { first: 0, dims, strides }
}

/// The numbers of all tensors that the file has, by layer and part, `conv1.weight`, as they lie on the device.
pub fn numbers(
    network: &Network,
    sources: &[Source],
    numbers: &Numbers<'_>,
) -> Result<BTreeMap<String, Vec<f32>>, OnnxError> {
    let elements: BTreeMap<String, u64> = crate::weights::file_tensors(network)
        .into_iter()
        .map(|tensor| (tensor.name.clone(), tensor.elements()))
        .collect();
    let mut all = BTreeMap::new();
    for Source { layer, part, constant, runs } in sources {
        let layer = network.layer(*layer);
        if layer.shares.is_some() {
            continue;
        }
        let name = format!("{}.{part}", layer.name);
        let place = format!("the weights of `{name}`");
        let count = runs.iter().map(|(steps, _)| steps).product::<u64>();
        if elements.get(&name) != Some(&count) || constant.elements() != count {
            return broken(place, format!("they are {:?} in the file; export it again", constant.dims));
        }
        let found = numbers.floats(&place, constant)?;
        if !found.iter().all(|number| number.is_finite()) {
            return broken(
                place,
                "a number is not finite in 32 bits, and a training cannot start from it; take other weights",
            );
        }
        let mut ours = vec![0.0; found.len()];
        let mut next = found.iter();
        on_device(runs).each(|at| {
            if let (Some(place), Some(number)) = (ours.get_mut(at), next.next()) {
                *place = *number;
            }
        });
        all.insert(name, ours);
    }
    Ok(all)
}
