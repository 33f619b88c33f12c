//! Some rows or channels of what it takes.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Axis, Shape};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Slice {
    pub along: Axis,
    pub first: u32,
    pub length: u32,
}

impl Slice {
    /// The rows of the slice and of its input, the elements of a row of each, and where the slice begins in a row.
    fn part(&self, walk: &Walk<'_>, id: LayerId) -> [u64; 4] {
        let layer = walk.network.layer(id);
        let [part, whole] = [id, layer.inputs[0]].map(|id| walk.parts(id, self.along));
        let first = match self.along {
            Axis::Channels => u64::from(self.first),
            Axis::Rows => {
                u64::from(self.first) * u64::from(layer.output.width) * u64::from(layer.output.channels)
            }
        };
        [part.rows, part.channels, first, whole.channels]
    }
}

impl Rules for Slice {
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let (input, Slice { along, first, length }) = (inputs[0], self);
        let all = if *along == Axis::Rows { input.height } else { input.channels };
        if *length == 0 || first.checked_add(*length).is_none_or(|end| end > all) {
            return bad(name, format!("{length} from {first} on are not among the {all} there are"));
        }
        Ok(match along {
            Axis::Rows => Shape { height: *length, ..input },
            Axis::Channels => Shape { channels: *length, ..input },
        })
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let [rows, channels, first, total] = self.part(walk, id);
        let call = Call::SplitPart { rows, channels, first, total, accumulate: false };
        walk.forward_op(id, call, walk.value(inputs[0]), &[], None, &[])
    }

    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let [rows, channels, first, total] = self.part(walk, id);
        let input = walk.network.layer(id).inputs[0];
        walk.contribute(id, input, dy, false, |accumulate, dx| {
            let call = Call::PadPart { rows, channels, first, total, accumulate };
            (call, [dy, dx].map(Operand::Tensor).to_vec())
        });
    }
}
