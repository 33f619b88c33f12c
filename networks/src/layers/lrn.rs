//! Local response normalisation across channels (AlexNet §3.3).

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Lrn {
    pub size: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: f32,
}

impl Rules for Lrn {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        if self.size.is_multiple_of(2) {
            return bad(name, format!("the neighbourhood is odd, not {}", self.size));
        }
        Ok(inputs[0])
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([output.elements(), 2 * u64::from(self.size) + 20])
    }

    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let Lrn { size, alpha, beta, bias } = *self;
        let call = Call::LrnForward { shape: walk.rows(id), size, alpha, beta, bias };
        walk.forward_op(id, call, walk.value(inputs[0]), &[], None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let Lrn { size, alpha, beta, bias } = *self;
        let (shape, input) = (walk.rows(id), walk.network.layer(id).inputs[0]);
        let x = walk.value(input);
        walk.contribute(id, input, dy, false, |accumulate, dx| {
            let call = Call::LrnBackward { shape, size, alpha, beta, bias, accumulate };
            (call, [x, dy, dx].map(Operand::Tensor).to_vec())
        });
    }
}
