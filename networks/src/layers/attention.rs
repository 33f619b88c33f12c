//! Scaled dot-product attention over the positions of each sample. For the backward pass it keeps two numbers of each row of
//! scores, from which the probabilities are recomputed.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::Shape;
use plimsoll_ir::program::{AttentionShape, Call, Operand};
use plimsoll_ir::{Bytes, LayerId, TensorId};

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

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let shape = self.call_shape(walk, id);
        let stats = walk.save(id, "stats", Bytes(8 * shape.batch * shape.heads * shape.length));
        walk.forward_op(id, Call::AttentionForward { shape }, walk.value(inputs[0]), &[], None, &[stats])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, input) = (self.call_shape(walk, id), walk.network.layer(id).inputs[0]);
        let (qkv, stats) = (walk.value(input), walk.saved(id)[0]);
        walk.contribute(id, input, dy, false, |accumulate, dx| {
            let operands = [qkv, stats, dy, dx].map(Operand::Tensor).to_vec();
            (Call::AttentionBackward { shape, accumulate }, operands)
        });
    }
}
