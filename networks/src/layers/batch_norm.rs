//! Batch normalisation over batch, rows and columns. Its running statistics are an op of their own, so that the normalisation
//! itself can be computed again.

use super::{Purpose, Resident, Rules, norm, product};
use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Init};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, LayerId, TensorId};

pub(super) struct BatchNorm {
    pub epsilon: f32,
    pub momentum: f32,
}

impl Rules for BatchNorm {
    fn shape(&self, _name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        Ok(inputs[0])
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let channels = vec![u64::from(input.channels)];
        let state = |name, start| Resident { name, shape: channels.clone(), purpose: Purpose::State(start) };
        vec![
            Resident::parameter("weight", channels.clone(), Init::Constant(1.0)),
            Resident::parameter("bias", channels.clone(), Init::Constant(0.0)),
            state("running_mean", 0.0),
            state("running_var", 1.0),
        ]
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([8, output.elements()])
    }

    fn needs_variance(&self) -> bool {
        true
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    /// With the batch's statistics, which then move the running ones, or with the running ones.
    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let BatchNorm { epsilon, momentum } = *self;
        let (shape, x) = (walk.rows(id), walk.value(inputs[0]));
        let (mut parameters, states) = (walk.parameters(id), walk.states(id));
        if walk.options.mode == Mode::Evaluate {
            parameters.extend(states);
            let over = walk.overwritten(id, inputs);
            return walk.forward_op(
                id,
                Call::BatchNormInference { shape, epsilon },
                x,
                &parameters,
                over,
                &[],
            );
        }
        let stats = walk.save(id, "stats", Bytes(8 * shape.channels));
        let call = Call::BatchNormForward { shape, epsilon };
        let y = walk.forward_op(id, call, x, &parameters, None, &[stats]);
        let operands = [stats].into_iter().chain(states).collect();
        let call = Call::BatchNormRunning { shape, epsilon, momentum };
        walk.push(id, "running", Phase::Forward, call, operands);
        y
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = walk.rows(id);
        norm::backward(walk, id, dy, |accumulate| Call::BatchNormBackward { shape, accumulate });
    }
}
