//! Multiplies each channel by a number of its own, which is trained.

use super::{Resident, Rules, multiply};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Init, Operand, ScaleShape};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Scale;

/// One scale for the whole batch.
fn call_shape(walk: &Walk<'_>, id: LayerId) -> ScaleShape {
    let rows = walk.rows(id);
    ScaleShape { groups: 1, rows: rows.rows, channels: rows.channels, learned: true }
}

impl Rules for Scale {
    fn shape(&self, _name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        Ok(inputs[0])
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        vec![Resident::parameter("weight", vec![u64::from(input.channels)], Init::Constant(1.0))]
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (scale, shape) = (walk.parameters(id)[0], call_shape(walk, id));
        multiply::forward(walk, id, inputs, scale, shape)
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, x) = (call_shape(walk, id), walk.value(walk.network.layer(id).inputs[0]));
        let operands = [&[x, dy].map(Operand::Tensor)[..], &walk.parameter_gradients(id)].concat();
        let call = Call::MultiplySums { shape, accumulate: false };
        walk.push(id, "scale.backward", Phase::Backward, call, operands);
        let scale = walk.parameters(id)[0];
        multiply::backward(walk, id, dy, scale, shape);
    }
}
