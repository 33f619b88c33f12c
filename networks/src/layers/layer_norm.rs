//! Layer normalisation over the channels of each position, with scale and shift of each channel.

use super::{Resident, Rules, bad, norm, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Init};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct LayerNorm {
    pub epsilon: f32,
}

impl Rules for LayerNorm {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        norm::check_epsilon(name, self.epsilon)?;
        if inputs[0].channels == 1 {
            return bad(name, "over one channel it leaves nothing but its shift; it needs at least 2");
        }
        Ok(inputs[0])
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let channels = vec![u64::from(input.channels)];
        let weight = Resident::parameter("weight", channels.clone(), Init::Constant(1.0));
        vec![weight, Resident::parameter("bias", channels, Init::Constant(0.0))]
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([8, output.elements()])
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::LayerNormForward { shape: walk.rows(id), epsilon: self.epsilon };
        norm::forward(walk, id, inputs, call)
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = walk.rows(id);
        norm::backward(walk, id, dy, None, None, |accumulate| Call::LayerNormBackward { shape, accumulate });
    }
}
