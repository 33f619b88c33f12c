//! The two ends of a network: the input, which the host writes before each iteration, and the loss.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{IMAGES, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::Call;
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

/// The fault of an end that is not the builder's own.
const BY_THE_BUILDER: &str = "the input and the loss are added by the builder itself";

/// Images or tokens. It has no ops.
pub(super) struct Input;

impl Rules for Input {
    fn arity(&self, _given: usize) -> usize {
        0
    }

    fn shape(&self, name: &str, _inputs: &[Shape]) -> Result<Shape, NetworkError> {
        bad(name, BY_THE_BUILDER)
    }

    fn flops(&self, _input: Shape, _output: Shape) -> u64 {
        0
    }

    fn forward(&self, _walk: &mut Walk<'_>, _id: LayerId, _inputs: &[LayerId]) -> TensorId {
        IMAGES
    }

    fn backward(&self, _walk: &mut Walk<'_>, _id: LayerId, _dy: TensorId) {
        unreachable!("nothing at or above the input is trained")
    }
}

/// Softmax and cross entropy against the labels, at every position. The backward pass begins here.
pub(super) struct SoftmaxCrossEntropy;

impl Rules for SoftmaxCrossEntropy {
    fn shape(&self, name: &str, _inputs: &[Shape]) -> Result<Shape, NetworkError> {
        bad(name, BY_THE_BUILDER)
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([5, output.elements()])
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        walk.forward_in_place(id, inputs, Call::SoftmaxCrossEntropyForward { shape: walk.rows(id) })
    }

    /// Writes the gradient of the logits over the differences of probabilities and labels, which nothing else reads.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, differences: TensorId) {
        let call = Call::SoftmaxCrossEntropyBackward { shape: walk.rows(id) };
        let given = [("differences", differences), ("dlogits", differences)];
        walk.push(id, "backward", Phase::Backward, call, &given);
        walk.gradients.hold(walk.input(id), differences);
    }
}
