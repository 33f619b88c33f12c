//! The largest of each window. Its position is kept for the backward pass, a byte per output.

use super::window::{check_pooling, slide, taps};
use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{Bytes, LayerId, TensorId};

pub(super) struct MaxPool {
    pub window: Window,
    pub ceil: bool,
}

impl Rules for MaxPool {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, window) = (inputs[0], &self.window);
        check_pooling(name, window)?;
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

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let places = walk.save(id, "places", Bytes(walk.elements(id)));
        let call = Call::MaxPoolForward { shape: walk.pool_shape(id, self.window) };
        walk.forward_op(id, call, walk.value(inputs[0]), &[], None, &[places])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, input) = (walk.pool_shape(id, self.window), walk.network.layer(id).inputs[0]);
        let places = walk.saved(id)[0];
        walk.contribute(id, input, dy, false, |accumulate, dx| {
            (Call::MaxPoolBackward { shape, accumulate }, [places, dy, dx].map(Operand::Tensor).to_vec())
        });
    }
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
