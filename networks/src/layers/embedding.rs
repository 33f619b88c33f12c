//! Looks up some positions of the input, whose elements are tokens, in a table.

use super::{Resident, Rules, SharedWeight, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Layer, Shape};
use plimsoll_ir::program::{Call, EmbeddingShape, Init};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Embedding {
    pub vocabulary: u32,
    pub width: u32,
    pub first: u32,
    pub length: u32,
}

impl Embedding {
    fn call_shape(&self, walk: &Walk<'_>, id: LayerId) -> EmbeddingShape {
        let [first, count, vocabulary, width] =
            [self.first, self.length, self.vocabulary, self.width].map(u64::from);
        let length = walk.network.input_shape(walk.network.layer(id)).elements();
        EmbeddingShape { batch: walk.batch, length, first, count, vocabulary, width }
    }
}

impl Rules for Embedding {
    fn check_inputs(&self, _layers: &[Layer], inputs: &[LayerId]) -> Result<(), &'static str> {
        if inputs == [LayerId(0)] { Ok(()) } else { Err("it looks up tokens, which only the input holds") }
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, Embedding { vocabulary, width, first, length }) = (inputs[0], self);
        if input.width != 1 || input.channels != 1 {
            return bad(name, format!("tokens are images of one column and one channel, not {input}"));
        }
        if *vocabulary == 0 || *width == 0 || *length == 0 || i32::try_from(*vocabulary).is_err() {
            return bad(name, "vocabulary, width and length are at least 1, the vocabulary below 2^31");
        }
        if first.checked_add(*length).is_none_or(|end| end > input.height) {
            let why = format!("{length} tokens from {first} on are not among the {} there are", input.height);
            return bad(name, why);
        }
        Ok(Shape { height: *length, width: 1, channels: *width })
    }

    /// The table is normal, with a deviation of 0.02 if the head also uses it (GPT-2, BERT), otherwise of 1 (PyTorch's
    /// default).
    fn resident(&self, _input: Shape, tied: bool) -> Vec<Resident> {
        let init = Init::Normal(if tied { 0.02 } else { 1.0 });
        let shape = [self.vocabulary, self.width].map(u64::from).to_vec();
        vec![Resident::parameter("weight", shape, init)]
    }

    fn shared(&self, _input: Shape) -> Option<SharedWeight> {
        let [rows, columns] = [self.vocabulary, self.width].map(u64::from);
        Some(SharedWeight { rows, columns, bias: false })
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        true
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, _inputs: &[LayerId]) -> TensorId {
        walk.forward_op(id, Call::EmbeddingForward { shape: self.call_shape(walk, id) }, None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, accumulate) = (self.call_shape(walk, id), walk.adds_up(id));
        let call = Call::EmbeddingBackward { shape, accumulate };
        walk.push(id, "backward", Phase::Backward, call, &[("dy", dy)]);
    }
}
