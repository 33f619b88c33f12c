//! The forward pass: each layer in its order, as its kind lowers it (`../layers`).

use super::Lowering;
use crate::layers::rules;
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{Bytes, LayerId, TensorId};

impl Lowering<'_> {
    /// Walks the layers in their order.
    pub(super) fn forward(&mut self) {
        for (index, layer) in self.network.layers.iter().enumerate() {
            let id = LayerId::new(index);
            let value = if self.analysis.absent[index] {
                // Nobody reads what is dropped.
                self.images
            } else if self.analysis.hands_on(id) {
                self.value(self.analysis.source(id))
            } else {
                let inputs: Vec<LayerId> = layer.inputs.iter().map(|i| self.analysis.source(*i)).collect();
                rules(&layer.kind).forward(self, id, &inputs)
            };
            self.values.push(value);
        }
    }

    /// Appends an op with the operands x, `more` -> y, `saved`, where y is `over` or a new tensor; gives y.
    pub(crate) fn forward_op(
        &mut self,
        id: LayerId,
        call: Call,
        x: TensorId,
        more: &[Operand],
        over: Option<TensorId>,
        saved: &[Operand],
    ) -> TensorId {
        let y = over.unwrap_or_else(|| self.output(id));
        let mut operands = vec![Operand::Tensor(x)];
        operands.extend(more);
        operands.push(Operand::Tensor(y));
        operands.extend(saved);
        self.push(id, "forward", Phase::Forward, call, operands);
        y
    }

    /// The input's tensor that a layer may compute its output in, if there is one: not where one input is read twice.
    pub(crate) fn overwritten(&self, id: LayerId, inputs: &[LayerId]) -> Option<TensorId> {
        if let [a, b] = inputs
            && a == b
        {
            return None;
        }
        inputs.iter().find(|input| self.analysis.may_overwrite(**input, id)).map(|input| self.value(*input))
    }

    /// A new tensor for a layer's output.
    pub(crate) fn output(&mut self, id: LayerId) -> TensorId {
        let layer = self.network.layer(id);
        self.tensor(&format!("{}.y", layer.name), self.f32s(layer.output), TensorKind::Activation)
    }

    /// A new tensor for what a layer keeps for its backward pass besides feature maps.
    pub(crate) fn save(&mut self, id: LayerId, what: &str, bytes: u64) -> Operand {
        let name = format!("{}.{what}", self.network.layer(id).name);
        let tensor = self.tensor(&name, Bytes(bytes), TensorKind::Other);
        self.keep(id, tensor);
        Operand::Tensor(tensor)
    }

    /// Notes that a layer keeps a tensor for its backward pass.
    pub(crate) fn keep(&mut self, id: LayerId, tensor: TensorId) {
        self.saved[id.index()].push(tensor);
    }

    /// What a layer keeps for its backward pass, in the order in which the forward pass made it.
    pub(crate) fn saved(&self, id: LayerId) -> &[TensorId] {
        &self.saved[id.index()]
    }
}
