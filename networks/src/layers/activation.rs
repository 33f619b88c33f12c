//! A function of each element.

use super::{Rules, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Function, Shape};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Activation {
    pub function: Function,
}

impl Rules for Activation {
    fn shape(&self, _name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        Ok(inputs[0])
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([self.function.flops(), output.elements()])
    }

    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::ActivationForward { elements: walk.elements(id), function: self.function };
        let over = walk.overwritten(id, inputs);
        walk.forward_op(id, call, walk.value(inputs[0]), &[], over, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (elements, function) = (walk.elements(id), self.function);
        let input = walk.network.layer(id).inputs[0];
        let x = walk.value(input);
        walk.contribute(id, input, dy, true, |accumulate, dx| {
            let call = Call::ActivationBackward { elements, function, accumulate };
            (call, [x, dy, dx].map(Operand::Tensor).to_vec())
        });
    }
}
