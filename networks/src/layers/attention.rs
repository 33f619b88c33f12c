//! Scaled dot-product attention over the positions of each sample, and rotary position embeddings of its heads.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{Contribution, IN_PLACE, SEPARATE, Walk};
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{AttentionShape, Call, RotaryShape};
use plimsoll_ir::{LayerId, TensorId};

/// Attention. For the backward pass it keeps two numbers of each row of scores, from which the probabilities are recomputed.
pub(super) struct Attention {
    pub heads: u32,
    pub kv_heads: u32,
    pub causal: bool,
}

impl Attention {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> AttentionShape {
        let output = walk.network.layer(id).output;
        let (length, width) = (output.pixels(), u64::from(output.channels));
        let [heads, kv_heads] = [self.heads, self.kv_heads].map(u64::from);
        AttentionShape { batch: walk.batch, length, heads, kv_heads, width, causal: self.causal }
    }
}

impl Rules for Attention {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, Attention { heads, kv_heads, .. }) = (inputs[0], self);
        if *heads == 0 || *kv_heads == 0 || !heads.is_multiple_of(*kv_heads) {
            let why = format!(
                "{heads} heads of queries cannot share {kv_heads} of keys and values evenly; both are at least 1"
            );
            return bad(name, why);
        }
        let all = u64::from(*heads) + 2 * u64::from(*kv_heads);
        if input.width != 1 || !u64::from(input.channels).is_multiple_of(all) {
            let why = format!(
                "it takes {heads} heads of queries, {kv_heads} of keys and {kv_heads} of values side by side, in one \
                 column, not {input}"
            );
            return bad(name, why);
        }
        let of_head = u64::from(input.channels) / all;
        let channels = u32::try_from(of_head * u64::from(*heads)).unwrap_or(u32::MAX);
        Ok(Shape { channels, ..input })
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        let of_pair = 4 * u64::from(output.channels) + 6 * u64::from(self.heads);
        product([output.pixels(), output.pixels(), of_pair])
    }

    /// Two numbers per row of scores.
    fn saved_bytes(&self, output: Shape) -> u128 {
        8 * u128::from(output.pixels()) * u128::from(self.heads)
    }

    fn backward_reads(&self, input: usize, trained: &dyn Fn(usize) -> bool) -> bool {
        trained(input)
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        walk.forward_op(id, Call::AttentionForward { shape: self.call_shape(walk, id) }, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let shape = self.call_shape(walk, id);
        let how = Contribution { names: ["dy", "dqkv"], ..SEPARATE };
        let call = |accumulate| Call::AttentionBackward { shape, accumulate };
        walk.contribute(id, walk.input(id), dy, &how, call);
    }
}

/// Rotary position embeddings of heads side by side. They run in place and keep nothing.
pub(super) struct Rotary {
    pub width: u32,
    pub base: f32,
}

impl Rotary {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> RotaryShape {
        let output = walk.network.layer(id).output;
        let (length, channels) = (output.pixels(), u64::from(output.channels));
        RotaryShape { batch: walk.batch, length, channels, width: u64::from(self.width) }
    }
}

impl Rules for Rotary {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, Rotary { width, base }) = (inputs[0], self);
        if !(*base > 0.0 && base.is_finite()) {
            return bad(name, format!("the base of rotary embeddings is above 0 and finite, not {base}"));
        }
        let halves = *width > 0 && width.is_multiple_of(2);
        if !halves || input.width != 1 || !input.channels.is_multiple_of(*width) {
            let why = format!(
                "it takes heads of {width} channels, which must be even, side by side in one column, not {input}"
            );
            return bad(name, why);
        }
        Ok(input)
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([3, output.elements()])
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (shape, base) = (self.call_shape(walk, id), self.base);
        walk.forward_in_place(id, inputs, Call::RotaryForward { shape, base })
    }

    /// Rotates the gradient back, which needs the position and nothing kept by the forward pass.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, base) = (self.call_shape(walk, id), self.base);
        let call = |accumulate| Call::RotaryBackward { shape, base, accumulate };
        walk.contribute(id, walk.input(id), dy, &IN_PLACE, call);
    }
}
