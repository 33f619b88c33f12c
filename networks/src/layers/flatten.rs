//! The positions of a map as those of a sequence. Nothing moves: it has no ops.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Flatten;

impl Rules for Flatten {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let input = inputs[0];
        match u32::try_from(input.pixels()) {
            Ok(height) => Ok(Shape { height, width: 1, ..input }),
            Err(_) => bad(name, format!("{} rows are too many", input.pixels())),
        }
    }

    fn flops(&self, _input: Shape, _output: Shape) -> u64 {
        0
    }

    fn hands_on(&self, _inputs: usize, _mode: Mode) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, _id: LayerId, inputs: &[LayerId]) -> TensorId {
        walk.value(inputs[0])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        walk.pass_on(id, dy);
    }
}
