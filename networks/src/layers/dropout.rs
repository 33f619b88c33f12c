//! Dropout: zeroes each unit with a probability, in training only. The numbers are drawn from the iteration's seed and step,
//! which lie in resident memory, so the backward pass draws them again. Stochastic depth is the dropout of whole batches.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::{DropUnit, Shape};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Dropout {
    pub probability: f32,
    pub unit: DropUnit,
}

impl Dropout {
    /// Returns the number of consecutive elements that are dropped at once.
    fn run(&self, walk: &Walk<'_>, id: LayerId) -> u64 {
        match self.unit {
            DropUnit::Element => 1,
            DropUnit::Batch => walk.elements(id),
        }
    }
}

impl Rules for Dropout {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let probability = self.probability;
        if !(0.0..1.0).contains(&probability) {
            return bad(name, format!("a dropout probability is from 0 to below 1, not {probability}"));
        }
        Ok(inputs[0])
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([2, output.elements()])
    }

    fn hands_on(&self, _inputs: usize, mode: Mode) -> bool {
        mode == Mode::Evaluate
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (elements, run) = (walk.elements(id), self.run(walk, id));
        let call = Call::DropoutForward { elements, probability: self.probability, stream: id.0, run };
        let (x, over) = (walk.value(inputs[0]), walk.overwritten(id, inputs));
        let y = over.unwrap_or_else(|| walk.output(id));
        let operands = vec![walk.hyper(), Operand::Tensor(x), Operand::Tensor(y)];
        walk.push(id, "forward", Phase::Forward, call, operands);
        y
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (elements, run, probability) = (walk.elements(id), self.run(walk, id), self.probability);
        let (input, hyper) = (walk.network.layer(id).inputs[0], walk.hyper());
        walk.contribute(id, input, dy, true, |accumulate, dx| {
            let call = Call::DropoutBackward { elements, probability, stream: id.0, run, accumulate };
            (call, vec![hyper, Operand::Tensor(dy), Operand::Tensor(dx)])
        });
    }
}
