//! A step of a long short-term memory: gates and, after the first step, the previous step, whose cell state it continues.

use super::{Rules, bad, product};
use crate::error::NetworkError;
use crate::walk::Walk;
use plimsoll_ir::network::{Layer, LayerKind, Shape};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{LayerId, TensorId};

pub(super) struct LstmCell;

/// Returns the tensors that a step keeps: its activated gates and its cell state, in this order.
fn kept(walk: &Walk<'_>, id: LayerId) -> [TensorId; 2] {
    [0, 1].map(|i| walk.saved(id)[i])
}

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
        let (shape, gates) = (walk.rows(id), walk.value(inputs[0]));
        let before = inputs.get(1).map(|before| kept(walk, *before)[1]);
        let elements = shape.rows * shape.channels;
        let activated = match walk.overwritten(id, &inputs[..1]) {
            Some(gates) => gates,
            None => {
                let name = format!("{}.activated", walk.network.layer(id).name);
                walk.tensor(&name, walk.map_bytes(4 * elements), TensorKind::Activation)
            }
        };
        walk.keep(id, activated);
        let cell = walk.save(id, "cell", walk.map_bytes(elements));
        let h = walk.output(id);
        let mut operands = vec![Operand::Tensor(gates)];
        operands.extend(before.map(Operand::Tensor));
        operands.extend([Operand::Tensor(h), cell, Operand::Tensor(activated)]);
        let call = Call::LstmForward { shape, first: before.is_none() };
        walk.push(id, "forward", Phase::Forward, call, operands);
        h
    }

    /// Writes the gradient of the gates over the activated gates, which no later op needs; that of the cell state goes to the
    /// previous step, over the one from the next step.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId) {
        use Operand::Tensor as T;
        let layer = walk.network.layer(id);
        let (shape, gates, before) = (walk.rows(id), layer.inputs[0], layer.inputs.get(1).copied());
        let [activated, cell] = kept(walk, id);
        let dcell = walk.gradients.cells[id.index()];
        let mut operands = vec![T(activated)];
        operands.extend(before.map(|before| T(kept(walk, before)[1])));
        operands.extend([T(cell), T(dy)]);
        operands.extend(dcell.map(T));
        operands.push(T(activated));
        if let Some(before) = before {
            let dbefore = dcell.unwrap_or_else(|| {
                let name = format!("{}.dcell", walk.network.layer(before).name);
                walk.tensor(&name, walk.map_bytes(shape.rows * shape.channels), TensorKind::Gradient)
            });
            walk.gradients.cells[before.index()] = Some(dbefore);
            operands.push(T(dbefore));
        }
        let call = Call::LstmBackward { shape, first: before.is_none(), last: dcell.is_none() };
        walk.push(id, "backward", Phase::Backward, call, operands);
        if walk.trained(gates) {
            walk.give(id, gates, activated);
        }
    }
}
