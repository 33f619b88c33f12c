//! The resident regions: parameters, gradients, optimizer state, running statistics, hyper-parameters, metrics.
//!
//! The layout follows from the network and its optimizer alone, so it is the same for every batch size and for evaluation.
//! Regions of one role are adjacent, in layer order: all gradients are one range, which workers can sum at once.
//!
//! The file of a layer's kind (`../layers`) defines its regions and the initialisation of its parameters: one rule for every
//! network, PyTorch's own if it has one. Layers that share parameters have one region for them.

use crate::builder::BYTES_LIMIT;
use crate::error::NetworkError;
use crate::layers::{Purpose, rules};
use crate::walk::{LayerRegions, Resident, Trained};
use plimsoll_ir::network::Network;
use plimsoll_ir::program::{Hyper, Init, Region, Role, STORAGE_ALIGNMENT};
use plimsoll_ir::{Bytes, Optimizer};

/// A region before it has an offset: layer, name, shape.
type Wanted = (usize, String, Vec<u64>);

/// Lays out the resident regions of a network that is trained by this optimizer.
pub(super) fn resident(network: &Network, optimizer: Optimizer) -> Result<Resident, NetworkError> {
    let momenta = Role::kept_by(optimizer);
    let mut parameters: Vec<(Wanted, Init)> = Vec::new();
    let mut states: Vec<(Wanted, f32)> = Vec::new();
    let tied = shared_by_another_kind(network);
    for (i, layer) in network.layers.iter().enumerate().filter(|(_, layer)| layer.shares.is_none()) {
        for region in rules(&layer.kind).resident(network.input_shape(layer), tied[i]) {
            let wanted = (i, format!("{}.{}", layer.name, region.name), region.shape);
            match region.purpose {
                Purpose::Parameter(init) => parameters.push((wanted, init)),
                Purpose::Spare => states.push((wanted, 0.0)),
                Purpose::State(start) => states.push((wanted, start)),
            }
        }
    }
    let all = parameters.iter().map(|(wanted, _)| wanted).chain(states.iter().map(|(wanted, _)| wanted));
    // Parameter, gradient and optimizer state; the count is an upper bound for the running statistics.
    let regions = 2 + momenta.len() as u128;
    let bytes = |shape: &[u64]| 4 * shape.iter().map(|n| u128::from(*n)).product::<u128>() + 256;
    let total: u128 = all.map(|(_, _, shape)| regions * bytes(shape)).sum();
    if total > u128::from(BYTES_LIMIT.0) {
        let what = format!("training `{}`, without its feature maps,", network.spec.name);
        return Err(NetworkError::too_large(&what, total, BYTES_LIMIT));
    }
    let mut resident = Resident {
        regions: Vec::new(),
        bytes: Bytes::ZERO,
        layers: vec![LayerRegions::default(); network.layers.len()],
        hyper: Bytes::ZERO,
        metrics: Bytes::ZERO,
    };
    for ((layer, name, shape), init) in &parameters {
        let parameter = resident.place(name, Role::Parameter(*init), shape);
        let (name, elements) = (name.clone(), shape.iter().product());
        let trained = Trained { name, elements, parameter, gradient: Bytes::ZERO, states: Vec::new() };
        resident.layers[*layer].parameters.push(trained);
    }
    resident.place_beside(&parameters, Role::Gradient, |trained, offset| trained.gradient = offset);
    for role in momenta {
        resident.place_beside(&parameters, *role, |trained, offset| trained.states.push(offset));
    }
    for ((layer, name, shape), start) in &states {
        let offset = resident.place(name, Role::State(*start), shape);
        resident.layers[*layer].states.push(offset);
    }
    for (i, layer) in network.layers.iter().enumerate() {
        if let Some(owner) = layer.shares {
            resident.layers[i] = resident.layers[owner.index()].clone();
        }
    }
    resident.hyper = resident.place("hyper", Role::Hyper, &[Hyper::WORDS]);
    resident.metrics = resident.place("metrics", Role::Metrics, &[3]);
    Ok(resident)
}

impl Resident {
    /// Appends a region; returns its offset.
    fn place(&mut self, name: &str, role: Role, shape: &[u64]) -> Bytes {
        let region = Region { name: name.to_owned(), role, offset: self.bytes, shape: shape.to_vec() };
        self.bytes += region.bytes().round_up(STORAGE_ALIGNMENT);
        let offset = region.offset;
        self.regions.push(region);
        offset
    }

    /// Appends a region of this role for every parameter, in the parameters' order.
    fn place_beside(
        &mut self,
        parameters: &[(Wanted, Init)],
        role: Role,
        keep: impl Fn(&mut Trained, Bytes),
    ) {
        for ((layer, name, shape), _) in parameters {
            let offset = self.place(name, role, shape);
            let trained = self.layers[*layer].parameters.iter_mut().find(|t| t.name == *name);
            keep(trained.expect("every parameter was placed before"), offset);
        }
    }
}

/// Returns, by layer, `true` if a layer of a different kind uses its parameters.
fn shared_by_another_kind(network: &Network) -> Vec<bool> {
    let mut shared = vec![false; network.layers.len()];
    for layer in &network.layers {
        let Some(owner) = layer.shares else { continue };
        let kinds = [&layer.kind, &network.layer(owner).kind].map(std::mem::discriminant);
        shared[owner.index()] |= kinds[0] != kinds[1];
    }
    shared
}
