//! The sum of two inputs of one shape. Both have the gradient of the sum.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Add;

impl Rules for Add {
    fn arity(&self, _given: usize) -> usize {
        2
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        match *inputs {
            [a, b] if a == b => Ok(a),
            _ => bad(name, format!("{} and {} cannot be added", inputs[0], inputs[1])),
        }
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    /// Returns `true` if a draw of stochastic depth leaves one term.
    fn hands_on(&self, inputs: usize, _mode: Mode) -> bool {
        inputs == 1
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let [a, b] = [0, 1].map(|i| walk.value(inputs[i]));
        let over = walk.overwritten(id, inputs);
        // The call may overwrite only its first operand; the order of a sum does not matter.
        let (a, b) = if over == Some(b) { (b, a) } else { (a, b) };
        let call = Call::Add { elements: walk.elements(id) };
        walk.forward_op(id, call, a, &[Operand::Tensor(b)], over, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        walk.pass_on(id, dy);
    }
}
