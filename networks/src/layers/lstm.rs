//! A step of a long short-term memory: gates and, after the first step, the previous step, whose cell state it continues.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::{Named, Walk};
use plimsoll_ir::network::{Layer, LayerKind, Shape};
use plimsoll_ir::program::Call;
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct LstmCell;

impl Rules for LstmCell {
    fn arity(&self, given: usize) -> usize {
        given.clamp(1, 2)
    }

    fn check_inputs(&self, layers: &[Layer], inputs: &[LayerId]) -> Result<(), &'static str> {
        let Some(before) = inputs.get(1) else { return Ok(()) };
        if layers[before.index()].kind != LayerKind::LstmCell {
            return Err("its second input is the step before, another memory cell");
        }
        let follows =
            |layer: &Layer| layer.kind == LayerKind::LstmCell && layer.inputs.get(1) == Some(before);
        if layers.iter().any(follows) {
            return Err("another step follows the step before already; the cell state goes to one");
        }
        Ok(())
    }

    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        let input = inputs[0];
        let output = Shape { channels: input.channels / 4, ..input };
        if !input.channels.is_multiple_of(4) {
            return bad(name, format!("it takes four gates side by side, not {input}"));
        }
        match inputs.get(1) {
            Some(before) if *before != output => {
                bad(name, format!("the step before gives {before}, and this one {output}"))
            }
            _ => Ok(output),
        }
    }

    fn flops(&self, _input: Shape, output: Shape) -> u64 {
        product([100, output.elements()])
    }

    /// It reads the previous step's cell state, not its output.
    fn reads(&self, _inputs: usize) -> usize {
        1
    }

    /// Appends gates, [the cell before] -> h, cell, activated gates; these overwrite the gates if no other layer needs them.
    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let shape = walk.rows(id);
        let bytes = walk.map_bytes(shape.rows * shape.channels);
        let activated = walk.overwritten(id, &inputs[..1]).unwrap_or_else(|| {
            let name = format!("{}.activated", walk.network.layer(id).name);
            walk.tensor(&name, bytes * 4, TensorKind::Activation)
        });
        walk.keep(id, "activated", activated);
        walk.save(id, "cell", bytes);
        let mut given = vec![("h", walk.output(id))];
        given.extend(previous(walk, inputs));
        let call = Call::LstmForward { shape, first: inputs.len() == 1 };
        walk.push(id, "forward", Phase::Forward, call, &given);
        given[0].1
    }

    /// Writes the gradient of the gates over the activated gates, which no later op needs; that of the cell state goes to the
    /// previous step, over the one from the next step.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        let (shape, inputs) = (walk.rows(id), &walk.network.layer(id).inputs);
        let activated = walk.saved(id, "activated").expect("the forward pass kept it");
        let dcell = walk.gradients.cells[id.index()];
        let mut given = vec![("dh", dy), ("dgates", activated)];
        given.extend(previous(walk, inputs));
        given.extend(dcell.map(|dcell| ("dcell", dcell)));
        if let Some(before) = inputs.get(1) {
            let dbefore = dcell.unwrap_or_else(|| {
                let name = format!("{}.dcell", walk.network.layer(*before).name);
                walk.tensor(&name, walk.map_bytes(shape.rows * shape.channels), TensorKind::Gradient)
            });
            walk.gradients.cells[before.index()] = Some(dbefore);
            given.push(("dprevious", dbefore));
        }
        let call = Call::LstmBackward { shape, first: inputs.len() == 1, last: dcell.is_none() };
        walk.push(id, "backward", Phase::Backward, call, &given);
        if walk.trained(inputs[0]) {
            walk.give(id, inputs[0], activated);
        }
    }
}

/// Returns the cell state of the step before, if there is one.
fn previous(walk: &Walk<'_>, inputs: &[LayerId]) -> Option<Named> {
    Some(("previous", walk.saved(*inputs.get(1)?, "cell")?))
}
