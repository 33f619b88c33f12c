//! min(max(x, 0), ceiling). Its backward pass reads its output, or a mask of one bit per element.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{Bytes, LayerId, TensorId};

pub(super) struct Relu {
    pub ceiling: f32,
}

impl Rules for Relu {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        if self.ceiling.is_nan() || self.ceiling <= 0.0 {
            return bad(name, format!("a ReLU's ceiling is above 0, not {}", self.ceiling));
        }
        Ok(inputs[0])
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn may_mask(&self) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (elements, ceiling) = (walk.elements(id), self.ceiling);
        let x = walk.value(inputs[0]);
        if walk.masked(id) {
            let mask = walk.save(id, "mask", Bytes(elements.div_ceil(8)));
            let over = walk.overwritten(id, inputs);
            walk.forward_op(id, Call::ReluMaskForward { elements, ceiling }, x, &[], over, &[mask])
        } else {
            let over = walk.overwritten(id, inputs);
            walk.forward_op(id, Call::ReluForward { elements, ceiling }, x, &[], over, &[])
        }
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (elements, ceiling) = (walk.elements(id), self.ceiling);
        let (y, mask) = (walk.value(id), walk.saved(id).first().copied());
        let input = walk.network.layer(id).inputs[0];
        walk.contribute(id, input, dy, true, |accumulate, dx| {
            let (call, kept) = match mask {
                Some(mask) => (Call::ReluMaskBackward { elements, accumulate }, mask),
                None => (Call::ReluBackward { elements, ceiling, accumulate }, y),
            };
            (call, [kept, dy, dx].map(Operand::Tensor).to_vec())
        });
    }
}
