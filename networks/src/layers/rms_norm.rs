//! Each position divided by the root mean square of its channels, with a scale of each channel.

use super::{Resident, Rules, norm, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Init};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct RmsNorm {
    pub epsilon: f32,
}

impl Rules for RmsNorm {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        norm::check_epsilon(name, self.epsilon)?;
        Ok(inputs[0])
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        vec![Resident::parameter("weight", vec![u64::from(input.channels)], Init::Constant(1.0))]
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([4, output.elements()])
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::RmsNormForward { shape: walk.rows(id), epsilon: self.epsilon };
        norm::forward(walk, id, inputs, call)
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = walk.rows(id);
        norm::backward(walk, id, dy, None, None, |accumulate| Call::RmsNormBackward { shape, accumulate });
    }
}
