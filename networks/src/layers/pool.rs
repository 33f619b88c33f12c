//! Pooling: the largest of each window, and the mean of each window or of the whole image.

use super::window::{slide, taps};
use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{SEPARATE, Walk};
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{Call, PoolShape};
use plimsoll_ir::{LayerId, TensorId};

/// The largest of each window. Its position is kept for the backward pass, a byte per output.
pub(super) struct MaxPool {
    pub window: Window,
    pub ceil: bool,
}

impl Rules for MaxPool {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, window) = (inputs[0], &self.window);
        check(name, window)?;
        let mut output = slide(name, window, input)?;
        if self.ceil {
            output = window.output_ceil(input.height, input.width).unwrap_or(output);
        }
        if sees_only_padding(window, input, output) {
            return bad(name, "some of its windows lie wholly in the padding; make the padding smaller");
        }
        let [height, width] = output;
        Ok(Shape { height, width, ..input })
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([output.elements(), taps(&self.window)])
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        let call = Call::MaxPoolForward { shape: walk.pool_shape(id, self.window) };
        walk.forward_op(id, call, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = walk.pool_shape(id, self.window);
        let call = |accumulate| Call::MaxPoolBackward { shape, accumulate };
        walk.contribute(id, walk.input(id), dy, &SEPARATE, call);
    }
}

/// The mean of each window, padding counted; or of the whole image.
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
        check(name, window)?;
        let [height, width] = slide(name, window, inputs[0])?;
        Ok(Shape { height, width, ..inputs[0] })
    }

    fn flops(&self, input: Shape, output: Shape) -> u64 {
        let of_windows = |window| product([output.elements(), taps(window)]);
        self.window.as_ref().map_or(input.elements(), of_windows)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        walk.forward_op(id, Call::AvgPoolForward { shape: self.call_shape(walk, id) }, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = self.call_shape(walk, id);
        let call = |accumulate| Call::AvgPoolBackward { shape, accumulate };
        walk.contribute(id, walk.input(id), dy, &SEPARATE, call);
    }
}

/// Refuses a window of more positions than a byte can number.
fn check(name: &str, window: &Window) -> Result<(), NetworkError> {
    if taps(window) > 256 {
        return bad(name, "a pooling window has at most 256 positions; use a global pooling");
    }
    Ok(())
}

/// Returns `true` if some window covers no element of the input, so that it has no largest.
fn sees_only_padding(window: &Window, input: Shape, output: [u32; 2]) -> bool {
    [input.height, input.width].into_iter().enumerate().any(|(d, length)| {
        let [size, stride, padding, dilation] =
            [window.size[d], window.stride[d], window.padding[d], window.dilation[d]].map(i64::from);
        let starts_at = |i: i64| i * stride - padding;
        let misses =
            |i: i64| !(0..size).any(|k| (0..i64::from(length)).contains(&(starts_at(i) + k * dilation)));
        // A window that starts on the input covers it; so only those that start before or after it can miss it.
        let before = i64::from(output[d]).min(padding.div_euclid(stride) + 1);
        starts_at(i64::from(output[d]) - 1) >= i64::from(length) || (0..before).any(misses)
    })
}
