//! 2-D convolution, its transpose, and the fully connected layer, which is a 1x1 convolution on a 1x1 image.

use super::window::{check, slide, taps};
use super::{Resident, Rules, SharedWeight, bad, product};
use crate::error::NetworkError;
use crate::walk::{Contribution, SEPARATE, Walk};
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{Call, ConvShape, Init};
use plimsoll_ir::trace::{Phase, TensorKind};
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

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        walk.forward_op(id, Call::ConvForward { shape: self.call_shape(walk, id) }, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        backward(walk, id, dy, self.call_shape(walk, id));
    }
}

/// Appends the parameter gradient of a convolution, and the neuron gradient, only if a layer above is trained.
fn backward(walk: &mut Walk<'_>, id: LayerId, dy: TensorId, shape: ConvShape) {
    let filter = |walk: &mut Walk<'_>| {
        let call = Call::ConvBackwardFilter { shape, accumulate: walk.adds_up(id) };
        walk.push(id, "backward_filter", Phase::Backward, call, &[("dy", dy)]);
    };
    in_order(walk, filter, |walk| {
        let how = Contribution { suffix: "backward_data", ..SEPARATE };
        let call = |accumulate| Call::ConvBackwardData { shape, accumulate };
        walk.contribute(id, walk.input(id), dy, &how, call);
    });
}

/// Appends the parameter gradient first; without intra-layer reuse, the neuron gradient first.
fn in_order(walk: &mut Walk<'_>, filter: impl FnOnce(&mut Walk<'_>), data: impl FnOnce(&mut Walk<'_>)) {
    if walk.options.intra_layer_reuse {
        filter(walk);
        data(walk);
    } else {
        data(walk);
        filter(walk);
    }
}

/// Transposed 2-D convolution: the gradient of a convolution's input, so the roles of a convolution's passes are exchanged.
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
        let (shape, y) = (self.call_shape(walk, id), walk.output(id));
        let call = Call::ConvBackwardData { shape, accumulate: false };
        walk.push(id, "forward", Phase::Forward, call, &[("dy", walk.value(inputs[0])), ("dx", y)]);
        y
    }

    /// The input's gradient is the forward pass of the transposed convolution. That cannot accumulate, so a separate op adds
    /// an earlier gradient of the input.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, layer, input) = (self.call_shape(walk, id), walk.network.layer(id), walk.input(id));
        let filter = |walk: &mut Walk<'_>| {
            let call = Call::ConvBackwardFilter { shape, accumulate: false };
            let given = [("x", dy), ("dy", walk.value(input))];
            walk.push(id, "backward_filter", Phase::Backward, call, &given);
        };
        in_order(walk, filter, |walk| {
            if !walk.trained(input) {
                return;
            }
            // Named after the layer that gives it: the input's own gradient may exist next to it.
            let bytes = walk.maps(walk.network.layer(input).output);
            let dx = walk.tensor(&format!("{}.dx", layer.name), bytes, TensorKind::Gradient);
            let call = Call::ConvForward { shape };
            walk.push(id, "backward_data", Phase::Backward, call, &[("x", dy), ("y", dx)]);
            walk.give(id, input, dx);
        });
    }
}

/// Every output depends on every input element.
pub(super) struct FullyConnected {
    pub outputs: u32,
    pub bias: bool,
}

impl FullyConnected {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> ConvShape {
        let layer = walk.network.layer(id);
        let elements = walk.network.input_shape(layer).elements();
        ConvShape {
            batch: walk.batch,
            input: [1, 1],
            in_channels: u32::try_from(elements).expect("the builder has checked it"),
            output: [1, 1],
            out_channels: self.outputs,
            window: Window::square(1, 1, 0),
            groups: 1,
            bias: self.bias,
        }
    }
}

impl Rules for FullyConnected {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (elements, outputs) = (inputs[0].elements(), self.outputs);
        if outputs == 0 || u32::try_from(elements).is_err() {
            let why = format!("it has {elements} inputs and {outputs} outputs; both are from 1 to 2^32 - 1");
            return bad(name, why);
        }
        Ok(Shape { height: 1, width: 1, channels: outputs })
    }

    /// Weight and bias are uniform within 1 / sqrt(inputs), PyTorch's default.
    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let (inputs, outputs) = (input.elements(), u64::from(self.outputs));
        let init = Init::Uniform((1.0 / (inputs as f64).sqrt()) as f32);
        let bias = self.bias.then(|| Resident::parameter("bias", vec![outputs], init));
        [Resident::parameter("weight", vec![outputs, inputs], init)].into_iter().chain(bias).collect()
    }

    fn shared(&self, input: Shape) -> Option<SharedWeight> {
        Some(SharedWeight { rows: u64::from(self.outputs), columns: input.elements(), bias: self.bias })
    }

    fn flops(&self, input: Shape, output: Shape) -> u64 {
        let of_output = product([2, input.elements()]).saturating_add(u64::from(self.bias));
        product([output.elements(), of_output])
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        walk.forward_op(id, Call::ConvForward { shape: self.call_shape(walk, id) }, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        backward(walk, id, dy, self.call_shape(walk, id));
    }
}
