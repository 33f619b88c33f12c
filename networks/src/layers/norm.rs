//! Shared rules of normalisations: the backward pass, and the forward pass of those that keep only statistics.

use super::bad;
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

/// Refuses an epsilon with which a row cannot be normalised.
pub(super) fn check_epsilon(name: &str, epsilon: f32) -> Result<(), NetworkError> {
    if epsilon > 0.0 && epsilon.is_finite() {
        return Ok(());
    }
    let why = format!(
        "epsilon is above 0 and finite, not {epsilon}: rows of one value have no variance, and of zeros no length"
    );
    bad(name, why)
}

/// Appends a normalisation that keeps only its statistics.
pub(super) fn forward(walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId], call: Call) -> TensorId {
    let operands = call.operands();
    let stats = walk.save(id, "stats", operands[operands.index("stats")].bytes);
    let (parameters, over) = (walk.parameters(id), walk.overwritten(id, inputs));
    walk.forward_op(id, call, walk.value(inputs[0]), &parameters, over, &[stats])
}

/// Appends x, dy, gamma, stats, `kept` -> dx, dgamma, dbeta if it has a shift, `dr`. All gradients come from one op, so it
/// runs even if no layer needs the neuron gradient. `call` takes `true` if dx is added to.
pub(super) fn backward(
    walk: &mut Walk<'_>,
    id: LayerId,
    dy: TensorId,
    kept: Option<TensorId>,
    dr: Option<TensorId>,
    call: impl Fn(bool) -> Call,
) {
    let input = walk.network.layer(id).inputs[0];
    let [x, dy_in, stats] = [walk.value(input), dy, walk.saved(id)[0]].map(Operand::Tensor);
    let gamma = walk.parameters(id)[0];
    let own = walk.parameter_gradients(id);
    let op = |accumulate, dx| {
        let mut operands = vec![x, dy_in, gamma, stats];
        operands.extend(kept.map(Operand::Tensor));
        operands.push(Operand::Tensor(dx));
        operands.extend(&own);
        operands.extend(dr.map(Operand::Tensor));
        (call(accumulate), operands)
    };
    // Only one of them may overwrite dy.
    let over_dy = dr.is_none();
    if walk.trained(input) {
        walk.contribute(id, input, dy, over_dy && walk.options.intra_layer_reuse, op);
    } else {
        let dx = walk.gradient_tensor(input, dy, over_dy);
        let (call, operands) = op(false, dx);
        walk.push(id, "backward", Phase::Backward, call, operands);
    }
}
