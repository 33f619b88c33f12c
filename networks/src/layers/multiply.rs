//! The product of two inputs, of which the second has the shape of the first or one position; and the passes of every layer
//! that is a product.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand, ScaleShape};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Multiply;

/// The shape of a product of two inputs.
fn call_shape(walk: &Walk<'_>, id: LayerId) -> ScaleShape {
    let layer = walk.network.layer(id);
    let (pixels, channels) = (layer.output.pixels(), u64::from(layer.output.channels));
    if walk.network.layer(layer.inputs[1]).output == layer.output {
        ScaleShape { groups: walk.batch * pixels, rows: 1, channels, learned: false }
    } else {
        ScaleShape { groups: walk.batch, rows: pixels, channels, learned: false }
    }
}

/// x * scale.
pub(super) fn forward(
    walk: &mut Walk<'_>,
    id: LayerId,
    inputs: &[LayerId],
    scale: Operand,
    shape: ScaleShape,
) -> TensorId {
    let x = walk.value(inputs[0]);
    // Only the first factor has the shape of the product for sure.
    let over = walk.overwritten(id, inputs).filter(|over| *over == x);
    walk.forward_op(id, Call::Multiply { shape, accumulate: false }, x, &[scale], over, &[])
}

/// The gradient of what is scaled, which may lie over the product's.
pub(super) fn backward(walk: &mut Walk<'_>, id: LayerId, dy: TensorId, scale: Operand, shape: ScaleShape) {
    let input = walk.network.layer(id).inputs[0];
    walk.contribute(id, input, dy, true, |accumulate, dx| {
        (Call::Multiply { shape, accumulate }, vec![Operand::Tensor(dy), scale, Operand::Tensor(dx)])
    });
}

impl Rules for Multiply {
    fn arity(&self, _given: usize) -> usize {
        2
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, scale) = (inputs[0], inputs[1]);
        if ![input, Shape { height: 1, width: 1, ..input }].contains(&scale) {
            let why = format!("{input} cannot be multiplied by {scale}, only by as much or by one position");
            return bad(name, why);
        }
        Ok(input)
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    /// Each factor is the other's gradient.
    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(1 - input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (scale, shape) = (walk.value(inputs[1]), call_shape(walk, id));
        forward(walk, id, inputs, Operand::Tensor(scale), shape)
    }

    /// The gradient of the scale comes first, which is the smaller.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let inputs = &walk.network.layer(id).inputs;
        let [x, scale] = [0, 1].map(|i| walk.value(inputs[i]));
        let shape = call_shape(walk, id);
        walk.contribute_as("scale.backward", id, inputs[1], dy, false, |accumulate, dscale| {
            let call = match shape.rows {
                1 => Call::Multiply { shape, accumulate },
                _ => Call::MultiplySums { shape, accumulate },
            };
            (call, [x, dy, dscale].map(Operand::Tensor).to_vec())
        });
        backward(walk, id, dy, Operand::Tensor(scale), shape);
    }
}
