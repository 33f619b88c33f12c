//! The input: images or tokens, which the host writes before each iteration. It has no ops.

use super::Rules;
use crate::error::NetworkError;
use crate::walk::{IMAGES, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Input;

impl Rules for Input {
    fn arity(&self, _given: usize) -> usize {
        0
    }

    fn shape(&self, name: &str, _inputs: &[Shape]) -> Result<Shape, NetworkError> {
        super::bad(name, "the input and the loss are added by the builder itself")
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
