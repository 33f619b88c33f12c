//! Layers that work element by element: ReLU, other functions, dropout, and the sum and the product of two inputs.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{Contribution, IN_PLACE, Mode, SEPARATE, Walk};
use plimsoll_ir::network::{Function, Shape};
use plimsoll_ir::program::Call;
use plimsoll_ir::{LayerId, TensorId};

/// min(max(x, 0), ceiling). Its backward pass reads its output, or a mask of one bit per element.
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
        let call = match walk.masked(id) {
            true => Call::ReluMaskForward { elements, ceiling },
            false => Call::ReluForward { elements, ceiling },
        };
        walk.forward_in_place(id, inputs, call)
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (elements, ceiling, masked) = (walk.elements(id), self.ceiling, walk.masked(id));
        walk.contribute(id, walk.input(id), dy, &IN_PLACE, |accumulate| match masked {
            true => Call::ReluMaskBackward { elements, accumulate },
            false => Call::ReluBackward { elements, ceiling, accumulate },
        });
    }
}

/// A function of each element.
pub(super) struct Activation {
    pub function: Function,
}

impl Rules for Activation {
    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([self.function.flops(), output.elements()])
    }

    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::ActivationForward { elements: walk.elements(id), function: self.function };
        walk.forward_in_place(id, inputs, call)
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (elements, function) = (walk.elements(id), self.function);
        let call = |accumulate| Call::ActivationBackward { elements, function, accumulate };
        walk.contribute(id, walk.input(id), dy, &IN_PLACE, call);
    }
}

/// Zeroes each element with a probability, in training only. The numbers are drawn from the iteration's seed and step, which
/// lie in resident memory, so the backward pass draws them again.
pub(super) struct Dropout {
    pub probability: f32,
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

    fn hands_on(&self, mode: Mode) -> bool {
        mode == Mode::Evaluate
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (elements, probability) = (walk.elements(id), self.probability);
        walk.forward_in_place(id, inputs, Call::DropoutForward { elements, probability, stream: id.0 })
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (elements, probability) = (walk.elements(id), self.probability);
        let call = |accumulate| Call::DropoutBackward { elements, probability, stream: id.0, accumulate };
        walk.contribute(id, walk.input(id), dy, &IN_PLACE, call);
    }
}

/// Returns the shape of two inputs of one shape.
fn shape_of_two(name: &str, inputs: &[Shape], done: &str) -> Result<Shape, NetworkError> {
    match *inputs {
        [a, b] if a == b => Ok(a),
        _ => bad(name, format!("{} and {} cannot be {done}", inputs[0], inputs[1])),
    }
}

/// The sum of two inputs of one shape. Both have the gradient of the sum.
pub(super) struct Add;

impl Rules for Add {
    fn arity(&self, _given: usize) -> usize {
        2
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        shape_of_two(name, inputs, "added")
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let [a, b] = [0, 1].map(|i| walk.value(inputs[i]));
        let over = walk.overwritten(id, inputs);
        // The call may overwrite only its first operand; the order of a sum does not matter.
        let (a, b) = if over == Some(b) { (b, a) } else { (a, b) };
        walk.forward_op(id, Call::Add { elements: walk.elements(id) }, over, &[("a", a), ("b", b)])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        walk.pass_on(id, dy);
    }
}

/// The product of two inputs of one shape.
pub(super) struct Multiply;

impl Rules for Multiply {
    fn arity(&self, _given: usize) -> usize {
        2
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        shape_of_two(name, inputs, "multiplied")
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    /// Returns `true` if the other factor is trained: each factor scales the other's gradient.
    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(1 - input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        // The call may overwrite only its first operand.
        let over = walk.overwritten(id, inputs).filter(|over| *over == walk.value(inputs[0]));
        walk.forward_op(id, Call::Multiply { elements: walk.elements(id), accumulate: false }, over, &[])
    }

    /// Computes the second factor's gradient first: the first factor's may overwrite the product's.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (inputs, elements) = (&walk.network.layer(id).inputs, walk.elements(id));
        let second = Contribution { suffix: "scale.backward", names: ["b", "y"], ..SEPARATE };
        let first = Contribution { names: ["a", "y"], ..IN_PLACE };
        for (input, how) in [(inputs[1], second), (inputs[0], first)] {
            walk.contribute(id, input, dy, &how, |accumulate| Call::Multiply { elements, accumulate });
        }
    }
}
