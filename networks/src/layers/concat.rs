//! Concatenation of the inputs: each is copied to its channels, or to its rows, which are adjacent in each sample.

use super::{Rules, bad};
use crate::error::NetworkError;
use crate::walk::{Contribution, SEPARATE, Walk};
use plimsoll_ir::network::{Axis, Shape};
use plimsoll_ir::program::{Call, RowShape};
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
        let (differs, total, lie, what): (fn(&Shape, &Shape) -> bool, _, _, _) = match self.along {
            Axis::Rows => (
                |a, b| (a.width, a.channels) != (b.width, b.channels),
                sum(|s| s.height),
                "below one another",
                "rows",
            ),
            Axis::Channels => (
                |a, b| (a.height, a.width) != (b.height, b.width),
                sum(|s| s.channels),
                "side by side",
                "channels",
            ),
        };
        if let Some(other) = inputs.iter().find(|other| differs(other, &input)) {
            return bad(name, format!("{input} and {other} cannot lie {lie}"));
        }
        match (u32::try_from(total), self.along) {
            (Ok(height), Axis::Rows) => Ok(Shape { height, ..input }),
            (Ok(channels), Axis::Channels) => Ok(Shape { channels, ..input }),
            (Err(_), _) => bad(name, format!("{total} {what} are too many")),
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
            let RowShape { rows, channels } = walk.parts(*input, self.along);
            let call = Call::ConcatPart { rows, channels, first, total };
            let given = [("x", walk.value(*input)), ("y", y)];
            walk.push(id, &format!("part{part}.forward"), Phase::Forward, call, &given);
            first += channels;
        }
        y
    }

    /// Gives each part its channels, or its rows.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let total = walk.parts(id, self.along).channels;
        let mut first = 0;
        for (part, input) in walk.network.layer(id).inputs.iter().enumerate() {
            let RowShape { rows, channels } = walk.parts(*input, self.along);
            let how = Contribution { suffix: &format!("part{part}.backward"), ..SEPARATE };
            let call = |accumulate| Call::SplitPart { rows, channels, first, total, accumulate };
            walk.contribute(id, *input, dy, &how, call);
            first += channels;
        }
    }
}
