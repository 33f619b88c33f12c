//! 2-D convolution, and the two passes of every layer that is one, including fully connected layers.

use super::window::{slide, taps};
use super::{Resident, Rules, SharedWeight, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{Call, ConvShape, Init, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Conv {
    pub out_channels: u32,
    pub window: Window,
    pub groups: u32,
    pub bias: bool,
}

impl Conv {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> ConvShape {
        let layer = walk.network.layer(id);
        let (input, output) = (walk.network.input_shape(layer), layer.output);
        ConvShape {
            batch: walk.batch,
            input: [input.height, input.width],
            in_channels: input.channels,
            output: [output.height, output.width],
            out_channels: output.channels,
            window: self.window,
            groups: self.groups,
            bias: self.bias,
        }
    }
}

impl Rules for Conv {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, Conv { out_channels, groups, .. }) = (inputs[0], self);
        if *out_channels == 0 || *groups == 0 {
            return bad(name, "it has no output channels or no groups; both are at least 1");
        }
        if input.channels % groups != 0 || out_channels % groups != 0 {
            let why =
                format!("{} and {out_channels} channels do not fall into {groups} groups", input.channels);
            return bad(name, why);
        }
        let [height, width] = slide(name, &self.window, input)?;
        Ok(Shape { height, width, channels: *out_channels })
    }

    /// The weight is He-normal with fan-out, and the bias 0, as in torchvision.
    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let [rows, columns] = self.window.size.map(u64::from);
        let out = u64::from(self.out_channels);
        let fan_out = (out * rows * columns) as f64;
        let init = Init::Normal((2.0 / fan_out).sqrt() as f32);
        let shape = vec![out, rows, columns, u64::from(input.channels / self.groups)];
        let bias = self.bias.then(|| Resident::parameter("bias", vec![out], Init::Constant(0.0)));
        [Resident::parameter("weight", shape, init)].into_iter().chain(bias).collect()
    }

    fn shared(&self, input: Shape) -> Option<SharedWeight> {
        let columns = taps(&self.window) * u64::from(input.channels / self.groups.max(1));
        Some(SharedWeight { rows: u64::from(self.out_channels), columns, bias: self.bias })
    }

    fn flops(&self, input: Shape, output: Shape) -> u64 {
        let of_output = product([2, taps(&self.window), u64::from(input.channels / self.groups)]);
        product([output.elements(), of_output.saturating_add(u64::from(self.bias))])
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        forward(walk, id, inputs, self.call_shape(walk, id))
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        backward(walk, id, dy, self.call_shape(walk, id));
    }
}

/// Appends the forward pass of a layer that is a convolution.
pub(super) fn forward(walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId], shape: ConvShape) -> TensorId {
    let parameters = walk.parameters(id);
    walk.forward_op(id, Call::ConvForward { shape }, walk.value(inputs[0]), &parameters, None, &[])
}

/// Appends the parameter gradient first, and then the neuron gradient, only if a layer above is trained; without intra-layer
/// reuse, in the other order.
pub(super) fn backward(walk: &mut Walk<'_>, id: LayerId, dy: TensorId, shape: ConvShape) {
    if walk.options.intra_layer_reuse {
        backward_filter(walk, id, dy, shape);
        backward_data(walk, id, dy, shape);
    } else {
        backward_data(walk, id, dy, shape);
        backward_filter(walk, id, dy, shape);
    }
}

fn backward_filter(walk: &mut Walk<'_>, id: LayerId, dy: TensorId, shape: ConvShape) {
    let input = walk.network.layer(id).inputs[0];
    let mut operands = vec![Operand::Tensor(walk.value(input)), Operand::Tensor(dy)];
    operands.extend(walk.parameter_gradients(id));
    let call = Call::ConvBackwardFilter { shape, accumulate: walk.adds_up(id) };
    walk.push(id, "backward_filter", Phase::Backward, call, operands);
}

fn backward_data(walk: &mut Walk<'_>, id: LayerId, dy: TensorId, shape: ConvShape) {
    let input = walk.network.layer(id).inputs[0];
    let weight = walk.parameters(id)[0];
    walk.contribute_as("backward_data", id, input, dy, false, |accumulate, dx| {
        let operands = vec![Operand::Tensor(dy), weight, Operand::Tensor(dx)];
        (Call::ConvBackwardData { shape, accumulate }, operands)
    });
}
