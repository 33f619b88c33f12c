//! Every output depends on every input element: a 1x1 convolution on a 1x1 image.

use super::{Resident, Rules, SharedWeight, bad, conv, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Shape, Window};
use plimsoll_ir::program::{ConvShape, Init};
use plimsoll_ir::{LayerId, TensorId};

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

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        conv::forward(walk, id, inputs, self.call_shape(walk, id))
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        conv::backward(walk, id, dy, self.call_shape(walk, id));
    }
}
