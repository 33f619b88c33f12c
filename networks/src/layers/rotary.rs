//! Rotary position embeddings of heads side by side. They run in place and keep nothing.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand, RotaryShape};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Rotary {
    pub width: u32,
    pub base: f32,
}

impl Rotary {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> RotaryShape {
        let output = walk.network.layer(id).output;
        let (length, channels) = (output.pixels(), u64::from(output.channels));
        RotaryShape { batch: walk.batch, length, channels, width: u64::from(self.width) }
    }
}

impl Rules for Rotary {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, Rotary { width, base }) = (inputs[0], self);
        if !(*base > 0.0 && base.is_finite()) {
            return bad(name, format!("the base of rotary embeddings is above 0 and finite, not {base}"));
        }
        let halves = *width > 0 && width.is_multiple_of(2);
        if !halves || input.width != 1 || !input.channels.is_multiple_of(*width) {
            let why = format!(
                "it takes heads of {width} channels, which must be even, side by side in one column, not {input}"
            );
            return bad(name, why);
        }
        Ok(input)
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([3, output.elements()])
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::RotaryForward { shape: self.call_shape(walk, id), base: self.base };
        let over = walk.overwritten(id, inputs);
        walk.forward_op(id, call, walk.value(inputs[0]), &[], over, &[])
    }

    /// Rotates the gradient back, which needs the position and nothing kept by the forward pass.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, input) = (self.call_shape(walk, id), walk.network.layer(id).inputs[0]);
        walk.contribute(id, input, dy, true, |accumulate, dx| {
            let operands = [dy, dx].map(Operand::Tensor).to_vec();
            (Call::RotaryBackward { shape, base: self.base, accumulate }, operands)
        });
    }
}
