//! Softmax and cross entropy against the labels, at every position. The backward pass begins here.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{LABELS, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct SoftmaxCrossEntropy;

impl Rules for SoftmaxCrossEntropy {
    fn shape(&self, name: &str, _inputs: &[Shape]) -> Result<Shape, NetworkError> {
        bad(name, "the input and the loss are added by the builder itself")
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([5, output.elements()])
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::SoftmaxCrossEntropyForward { shape: walk.rows(id) };
        let (labels, metrics) = (Operand::Tensor(LABELS), walk.metrics());
        let over = walk.overwritten(id, inputs);
        walk.forward_op(id, call, walk.value(inputs[0]), &[labels], over, &[metrics])
    }

    /// Writes the gradient of the logits over the differences of probabilities and labels, which nothing else reads.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, differences: TensorId) {
        let operands = [differences, LABELS, differences].map(Operand::Tensor).to_vec();
        let call = Call::SoftmaxCrossEntropyBackward { shape: walk.rows(id) };
        walk.push(id, "backward", Phase::Backward, call, operands);
        walk.gradients.hold(walk.network.layer(id).inputs[0], differences);
    }
}
