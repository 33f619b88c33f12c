//! Concatenation of the inputs: each is copied to its channels, or to its rows, which are adjacent in each sample.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Axis, Shape};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct Concat {
    pub along: Axis,
}

impl Rules for Concat {
    fn arity(&self, given: usize) -> usize {
        given.max(1)
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let input = inputs[0];
        let sum = |side: fn(&Shape) -> u32| inputs.iter().map(|s| u64::from(side(s))).sum::<u64>();
        match self.along {
            Axis::Rows => {
                let differs = |s: &&Shape| (s.width, s.channels) != (input.width, input.channels);
                if let Some(other) = inputs.iter().find(differs) {
                    return bad(name, format!("{input} and {other} cannot lie below one another"));
                }
                let height = sum(|s| s.height);
                match u32::try_from(height) {
                    Ok(height) => Ok(Shape { height, ..input }),
                    Err(_) => bad(name, format!("{height} rows are too many")),
                }
            }
            Axis::Channels => {
                let differs = |s: &&Shape| (s.height, s.width) != (input.height, input.width);
                if let Some(other) = inputs.iter().find(differs) {
                    return bad(name, format!("{input} and {other} cannot lie side by side"));
                }
                let channels = sum(|s| s.channels);
                match u32::try_from(channels) {
                    Ok(channels) => Ok(Shape { channels, ..input }),
                    Err(_) => bad(name, format!("{channels} channels are too many")),
                }
            }
        }
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        output.elements()
    }

    /// Appends one op per part.
    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let y = walk.output(id);
        let total = walk.parts(id, self.along).channels;
        let mut first = 0;
        for (part, input) in inputs.iter().enumerate() {
            let shape = walk.parts(*input, self.along);
            let call = Call::ConcatPart { rows: shape.rows, channels: shape.channels, first, total };
            let operands = [walk.value(*input), y].map(Operand::Tensor).to_vec();
            walk.push(id, &format!("part{part}.forward"), Phase::Forward, call, operands);
            first += shape.channels;
        }
        y
    }

    /// Gives each part its channels, or its rows.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let total = walk.parts(id, self.along).channels;
        let mut first = 0;
        for (part, input) in walk.network.layer(id).inputs.iter().enumerate() {
            let shape = walk.parts(*input, self.along);
            let suffix = format!("part{part}.backward");
            walk.contribute_as(&suffix, id, *input, dy, false, |accumulate, dx| {
                let (rows, channels) = (shape.rows, shape.channels);
                let call = Call::SplitPart { rows, channels, first, total, accumulate };
                (call, [dy, dx].map(Operand::Tensor).to_vec())
            });
            first += shape.channels;
        }
    }
}
