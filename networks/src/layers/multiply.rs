//! The product of two inputs of one shape, element by element.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Multiply;

impl Rules for Multiply {
    fn arity(&self, _given: usize) -> usize {
        2
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        match *inputs {
            [a, b] if a == b => Ok(a),
            _ => bad(name, format!("{} and {} cannot be multiplied", inputs[0], inputs[1])),
        }
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    /// Returns `true` if the other factor is trained: each factor scales the other's gradient.
    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(1 - input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let [a, b] = [0, 1].map(|i| walk.value(inputs[i]));
        // The call may overwrite only its first operand.
        let over = walk.overwritten(id, inputs).filter(|over| *over == a);
        let call = Call::Multiply { elements: walk.elements(id), accumulate: false };
        walk.forward_op(id, call, a, &[Operand::Tensor(b)], over, &[])
    }

    /// Computes the second factor's gradient first: the first factor's may overwrite the product's.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let inputs = &walk.network.layer(id).inputs;
        let [a, b] = [0, 1].map(|i| walk.value(inputs[i]));
        let elements = walk.elements(id);
        walk.contribute_as("scale.backward", id, inputs[1], dy, false, |accumulate, db| {
            (Call::Multiply { elements, accumulate }, [a, dy, db].map(Operand::Tensor).to_vec())
        });
        walk.contribute(id, inputs[0], dy, true, |accumulate, da| {
            (Call::Multiply { elements, accumulate }, [dy, b, da].map(Operand::Tensor).to_vec())
        });
    }
}
