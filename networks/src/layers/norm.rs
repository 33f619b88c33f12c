//! Normalisations within a position: layer normalisation, root mean square normalisation, and response normalisation. Batch
//! normalisation, next door, shares their backward pass.

use super::{Resident, Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{Contribution, Named, SEPARATE, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{Call, Init};
use plimsoll_ir::{LayerId, TensorId};

/// Each position normalised over its channels, with a scale of each channel.
pub(super) struct RowNorm {
    pub epsilon: f32,
    /// `true` for layer normalisation, which subtracts the mean and adds a shift of each channel; `false` for division by the
    /// root mean square.
    pub centred: bool,
}

impl Rules for RowNorm {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let epsilon = self.epsilon;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            let why = format!(
                "epsilon is above 0 and finite, not {epsilon}: rows of one value have no variance, and of zeros no length"
            );
            return bad(name, why);
        }
        if self.centred && inputs[0].channels == 1 {
            return bad(name, "over one channel it leaves nothing but its shift; it needs at least 2");
        }
        Ok(inputs[0])
    }

    fn resident(&self, input: Shape, _tied: bool) -> Vec<Resident> {
        scale_and_shift(input)[..1 + usize::from(self.centred)].to_vec()
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([if self.centred { 8 } else { 4 }, output.elements()])
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (shape, epsilon) = (walk.rows(id), self.epsilon);
        let call = match self.centred {
            true => Call::LayerNormForward { shape, epsilon },
            false => Call::RmsNormForward { shape, epsilon },
        };
        walk.forward_in_place(id, inputs, call)
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = walk.rows(id);
        backward(walk, id, dy, &[], true, |accumulate| match self.centred {
            true => Call::LayerNormBackward { shape, accumulate },
            false => Call::RmsNormBackward { shape, accumulate },
        });
    }
}

/// Returns the scale and the shift of each channel.
pub(super) fn scale_and_shift(input: Shape) -> [Resident; 2] {
    let channels = vec![u64::from(input.channels)];
    [("weight", 1.0), ("bias", 0.0)]
        .map(|(name, start)| Resident::parameter(name, channels.clone(), Init::Constant(start)))
}

/// Appends x, dy, gamma, stats, \[kept\] -> dx, dgamma, dbeta if it has a shift, \[dr\]; `given` are kept and dr. All gradients
/// come from one op, so it runs even if no layer needs the neuron gradient. `call` takes `true` if dx is added to.
pub(super) fn backward(
    walk: &mut Walk<'_>,
    id: LayerId,
    dy: TensorId,
    given: &[Named],
    over_dy: bool,
    call: impl Fn(bool) -> Call,
) {
    let input = walk.input(id);
    if walk.trained(input) {
        let over_dy = over_dy && walk.options.intra_layer_reuse;
        walk.contribute(id, input, dy, &Contribution { over_dy, given, ..SEPARATE }, call);
    } else {
        let dx = walk.gradient_tensor(input, dy, over_dy);
        walk.gradient_op(id, [dy, dx], &Contribution { given, ..SEPARATE }, call(false));
    }
}

/// Local response normalisation across channels (AlexNet §3.3).
#[derive(Clone, Copy)]
pub(super) struct Lrn {
    pub size: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: f32,
}

impl Rules for Lrn {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        if self.size.is_multiple_of(2) {
            return bad(name, format!("the neighbourhood is odd, not {}", self.size));
        }
        Ok(inputs[0])
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([output.elements(), 2 * u64::from(self.size) + 20])
    }

    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        let Lrn { size, alpha, beta, bias } = *self;
        let call = Call::LrnForward { shape: walk.rows(id), size, alpha, beta, bias };
        walk.forward_op(id, call, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (Lrn { size, alpha, beta, bias }, shape) = (*self, walk.rows(id));
        let call = |accumulate| Call::LrnBackward { shape, size, alpha, beta, bias, accumulate };
        walk.contribute(id, walk.input(id), dy, &SEPARATE, call);
    }
}
