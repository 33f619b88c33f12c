//! One iteration of a network: forward, backward, update; the kernels and the trace from one walk.
//!
//! A tensor exists only if some op needs it, and lives only as long:
//!
//! - The backward pass reads the input of convolutions, of batch and response normalisation, and the output or the mask of
//!   ReLUs; nothing else of the forward pass outlives its last forward reader.
//! - Backward is Layrub's coordinated order (§3.1): the parameter gradient of a layer before its neuron gradient, so that
//!   the layer's input is dead when the gradient of the same size is born. To measure the saving,
//!   [`LowerOptions::intra_layer_reuse`] turns it off.
//! - With [`LowerOptions::fuse`], the op of a batch normalisation also computes the sum and the ReLU that follow it, at its
//!   place, and its backward op gives the gradient of the sum's other term; those layers have no ops.
//! - ReLU, dropout, addition and softmax overwrite their input if no later op needs it.
//! - The gradient of a sum is one tensor, shared by all terms. An op that would overwrite a shared gradient writes to a
//!   different tensor; further gradients of the same activation are added to the first in place.
//!
//! Weight decay applies to every parameter, PyTorch's default. The module deliberately does not choose addresses, reorder
//! ops, or predict durations (seconds are 0 until a model fills them in).

mod analysis;
mod resident;

use crate::builder::BYTES_LIMIT;
use crate::error::NetworkError;
use crate::layers::rules;
use crate::walk::{LowerOptions, Mode, Walk};
use plimsoll_ir::network::Network;
use plimsoll_ir::program::{Call, Kernel, Operand, Program};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, Optimizer};
use resident::resident;

/// Lowers a network to one iteration at a batch size, at least 1.
///
/// The trace is named after the network's spec, such as `resnet18-64x64x3-10`, with `-evaluate` in evaluation.
pub fn lower(network: &Network, batch: u64, options: &LowerOptions) -> Result<Program, NetworkError> {
    check_sizes(network, batch, options.mode)?;
    let facts = analysis::facts(network, options);
    let mut walk = Walk::new(network, batch, options, facts, resident(network, options.optimizer)?);
    forward(&mut walk);
    if options.mode == Mode::Train {
        backward(&mut walk);
        update(&mut walk);
    }
    Ok(walk.finish())
}

/// Refuses a batch that is 0, too large for any machine, or too small for a variance.
fn check_sizes(network: &Network, batch: u64, mode: Mode) -> Result<(), NetworkError> {
    if batch == 0 {
        return Err(NetworkError::zero("the batch size"));
    }
    let mut total = 0;
    for layer in &network.layers {
        // A value and a gradient, 4 bytes per element each.
        total += 8 * u128::from(layer.output.elements()) * u128::from(batch);
        let rules = rules(&layer.kind);
        total += rules.saved_bytes(layer.output) * u128::from(batch);
        let positions = u128::from(batch) * u128::from(layer.output.pixels());
        if mode == Mode::Train && rules.needs_variance() && positions == 1 {
            return Err(NetworkError::new(format_args!(
                "batch normalisation `{}` sees one position of one sample, which has no variance: train with a batch of at \
                 least 2, or on larger images",
                layer.name
            )));
        }
    }
    if total > u128::from(BYTES_LIMIT.0) {
        let what = format!("`{}` at a batch of {batch}", network.spec.name);
        return Err(NetworkError::too_large(&what, total, BYTES_LIMIT));
    }
    Ok(())
}

/// Walks the layers in their order.
fn forward(walk: &mut Walk<'_>) {
    for (index, layer) in walk.network.layers.iter().enumerate() {
        let id = LayerId::new(index);
        let value = if walk.facts.hands_on(id) {
            walk.value(walk.facts.source(id))
        } else {
            let inputs: Vec<LayerId> = layer.inputs.iter().map(|i| walk.facts.source(*i)).collect();
            rules(&layer.kind).forward(walk, id, &inputs)
        };
        walk.values.push(value);
    }
}

/// Walks the layers backwards from the loss, whose own gradient is 1.
fn backward(walk: &mut Walk<'_>) {
    let loss = walk.network.layers.len() - 1;
    for (index, layer) in walk.network.layers.iter().enumerate().rev() {
        let id = LayerId::new(index);
        if !walk.trained(id) {
            continue;
        }
        if index == loss {
            rules(&layer.kind).backward(walk, id, walk.value(id));
        } else if let Some(norm) = walk.facts.differentiated_by(id) {
            // A fused ReLU's gradient is the normalisation's; a sum before it has none.
            if let Some(dy) = walk.gradients.of[index] {
                walk.gradients.hold(norm, dy);
                walk.gradients.release(dy);
            }
        } else {
            let dy = walk.gradients.of[index].expect("every layer leads to the loss");
            rules(&layer.kind).backward(walk, id, dy);
            walk.gradients.release(dy);
        }
    }
}

/// Appends one step of the optimizer for every parameter, in layer order.
fn update(walk: &mut Walk<'_>) {
    let hyper = walk.resident.hyper;
    for (index, _) in walk.network.layers.iter().enumerate().filter(|(_, layer)| layer.shares.is_none()) {
        for trained in walk.resident.layers[index].parameters.clone() {
            let own = [hyper, trained.parameter, trained.gradient].into_iter().chain(trained.states);
            let operands = own.map(Operand::Resident).collect();
            let elements = trained.elements;
            let call = match walk.options.optimizer {
                Optimizer::Sgd => Call::Sgd { elements, decay: true },
                Optimizer::Adamw => Call::Adamw { elements },
            };
            let suffix = format!("{}.update", trained.name.rsplit('.').next().unwrap_or_default());
            walk.push_kernel(LayerId::new(index), &suffix, Phase::Update, Kernel { call, operands });
        }
    }
}
