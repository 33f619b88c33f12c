//! Adds a bias to every sample: to each channel, or to each channel at each position.

use super::{Purpose, Resident, Rules, SharedWeight, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Extent, Shape};
use plimsoll_ir::program::{Call, Init, RowShape};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Bias {
    pub over: Extent,
    pub spare: u32,
}

impl Bias {
    /// Returns the rows that the bias is added to, each as long as the bias.
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> RowShape {
        match self.over {
            Extent::Channels => walk.rows(id),
            Extent::Positions => walk.samples(id),
        }
    }
}

impl Rules for Bias {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        match self.spare {
            0..1024 => Ok(inputs[0]),
            1024.. => bad(name, "a bias has fewer than 1024 spare rows"),
        }
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        let channels = u64::from(input.channels);
        let (shape, init) = match self.over {
            Extent::Channels => (vec![channels], Init::Constant(0.0)),
            Extent::Positions => (vec![input.pixels(), channels], Init::Normal(0.02)),
        };
        let rows = shape.iter().product::<u64>() * u64::from(self.spare);
        let spare = Resident { name: "spare", shape: vec![rows], purpose: Purpose::Spare };
        let spare = (self.spare > 0).then_some(spare);
        [Resident::parameter("bias", shape, init)].into_iter().chain(spare).collect()
    }

    fn shared(&self, input: Shape) -> Option<SharedWeight> {
        let whole = self.over == Extent::Channels && self.spare == 0;
        whole.then(|| SharedWeight { rows: 1, columns: u64::from(input.channels), bias: true })
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        walk.forward_in_place(id, inputs, Call::BiasForward { shape: self.call_shape(walk, id) })
    }

    /// Sums the samples' gradients to the bias's; the input has the gradient of the sum.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let call = Call::BiasBackward { shape: self.call_shape(walk, id), accumulate: walk.adds_up(id) };
        walk.push(id, "backward", Phase::Backward, call, &[("dy", dy)]);
        walk.pass_on(id, dy);
    }
}
