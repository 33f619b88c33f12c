//! Learned rows, the same for every sample, from no input.

use super::{Resident, Rules, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Init, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Learned {
    pub rows: u32,
    pub channels: u32,
}

impl Rules for Learned {
    fn arity(&self, _given: usize) -> usize {
        0
    }

    fn shape(&self, name: &str, _inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let output = Shape { height: self.rows, width: 1, channels: self.channels };
        if output.elements() > 0 { Ok(output) } else { bad(name, "it has no rows or no channels") }
    }

    fn resident(&self, _input: Shape, _tied: bool) -> Vec<Resident> {
        let shape = [self.rows, self.channels].map(u64::from).to_vec();
        vec![Resident::parameter("weight", shape, Init::Normal(0.02))]
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        let y = walk.output(id);
        let operands = [&walk.parameters(id)[..], &[Operand::Tensor(y)]].concat();
        walk.push(id, "forward", Phase::Forward, Call::Repeat { shape: walk.samples(id) }, operands);
        y
    }

    /// The gradient of learned rows is the sum of the samples'.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let operands = [&[Operand::Tensor(dy)][..], &walk.parameter_gradients(id)].concat();
        let call = Call::BiasBackward { shape: walk.samples(id), accumulate: false };
        walk.push(id, "backward", Phase::Backward, call, operands);
    }
}
