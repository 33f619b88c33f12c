//! Transposed 2-D convolution: the gradient of a convolution's input, so the roles of a convolution's passes are exchanged.

use super::window::{check, taps};
use super::{Resident, Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{Call, ConvShape, Init, Operand};
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct ConvTranspose {
    pub out_channels: u32,
    pub window: Window,
}

impl ConvTranspose {
    /// Returns the shape of the convolution that this layer transposes.
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> ConvShape {
        let layer = walk.network.layer(id);
        let (input, output) = (walk.network.input_shape(layer), layer.output);
        ConvShape {
            batch: walk.batch,
            input: [output.height, output.width],
            in_channels: output.channels,
            output: [input.height, input.width],
            out_channels: input.channels,
            window: self.window,
            groups: 1,
            bias: false,
        }
    }
}

impl Rules for ConvTranspose {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, channels, window) = (inputs[0], self.out_channels, &self.window);
        if channels == 0 {
            return bad(name, "it has no output channels; give at least 1");
        }
        check(name, window)?;
        match window.transposed_output(input.height, input.width) {
            Some([height, width]) if window.output(height, width) == Some([input.height, input.width]) => {
                Ok(Shape { height, width, channels })
            }
            _ => bad(name, format!("its padding leaves nothing of {input}, or more than fits 32 bits")),
        }
    }

    /// The weight is He-normal: the fan-in is the number of input elements that meet in one output element.
    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let [rows, columns] = self.window.size.map(u64::from);
        let shape = vec![u64::from(input.channels), rows, columns, u64::from(self.out_channels)];
        let [down, across] = self.window.stride.map(u64::from);
        let fan_in = (u64::from(input.channels) * rows * columns) as f64 / (down * across) as f64;
        vec![Resident::parameter("weight", shape, Init::Normal((2.0 / fan_in.max(1.0)).sqrt() as f32))]
    }

    fn flops(&self, input: Shape, _output: Shape) -> u64 {
        product([input.elements(), 2, taps(&self.window), u64::from(self.out_channels)])
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let call = Call::ConvBackwardData { shape: self.call_shape(walk, id), accumulate: false };
        let parameters = walk.parameters(id);
        walk.forward_op(id, call, walk.value(inputs[0]), &parameters, None, &[])
    }

    /// The input's gradient is the forward pass of the transposed convolution. That cannot accumulate, so a separate op adds
    /// an earlier gradient of the input.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        if walk.options.intra_layer_reuse {
            self.backward_filter(walk, id, dy);
            self.backward_data(walk, id, dy);
        } else {
            self.backward_data(walk, id, dy);
            self.backward_filter(walk, id, dy);
        }
    }
}

impl ConvTranspose {
    fn backward_filter(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, input) = (self.call_shape(walk, id), walk.network.layer(id).inputs[0]);
        let mut operands = vec![Operand::Tensor(dy), Operand::Tensor(walk.value(input))];
        operands.extend(walk.parameter_gradients(id));
        let call = Call::ConvBackwardFilter { shape, accumulate: false };
        walk.push(id, "backward_filter", Phase::Backward, call, operands);
    }

    fn backward_data(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let layer = walk.network.layer(id);
        let (shape, input) = (self.call_shape(walk, id), layer.inputs[0]);
        if !walk.trained(input) {
            return;
        }
        // Named after the layer that gives it: the input's own gradient may exist next to it.
        let bytes = walk.maps(walk.network.layer(input).output);
        let dx = walk.tensor(&format!("{}.dx", layer.name), bytes, TensorKind::Gradient);
        let operands = vec![Operand::Tensor(dy), walk.parameters(id)[0], Operand::Tensor(dx)];
        walk.push(id, "backward_data", Phase::Backward, Call::ConvForward { shape }, operands);
        walk.give(id, input, dx);
    }
}
