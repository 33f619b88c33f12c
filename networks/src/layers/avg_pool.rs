//! The mean of each window, padding counted; or of the whole image.

use super::window::{check_pooling, slide, taps};
use super::{Rules, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{Call, Operand, PoolShape};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct AvgPool {
    /// `None` for one window of the whole image.
    pub window: Option<Window>,
}

impl AvgPool {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> PoolShape {
        let input = walk.network.input_shape(walk.network.layer(id));
        let whole = Window { size: [input.height, input.width], ..Window::square(1, 1, 0) };
        walk.pool_shape(id, self.window.unwrap_or(whole))
    }
}

impl Rules for AvgPool {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let Some(window) = &self.window else { return Ok(Shape { height: 1, width: 1, ..inputs[0] }) };
        check_pooling(name, window)?;
        let [height, width] = slide(name, window, inputs[0])?;
        Ok(Shape { height, width, ..inputs[0] })
    }

    fn flops(&self, input: Shape, output: Shape) -> u64 {
        match &self.window {
            Some(window) => product([output.elements(), taps(window)]),
            None => input.elements(),
        }
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::AvgPoolForward { shape: self.call_shape(walk, id) };
        walk.forward_op(id, call, walk.value(inputs[0]), &[], None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, input) = (self.call_shape(walk, id), walk.network.layer(id).inputs[0]);
        walk.contribute(id, input, dy, false, |accumulate, dx| {
            (Call::AvgPoolBackward { shape, accumulate }, [dy, dx].map(Operand::Tensor).to_vec())
        });
    }
}
