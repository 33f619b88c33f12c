//! The gradients of activations: their tensors, and the sums of several readers' gradients.
//!
//! A gradient may belong to several activations at once (all terms of a sum have the sum's gradient). `holders` counts for
//! each tensor the layers that still need its contents; only a sole holder may overwrite it.

use super::{Named, Walk};
use plimsoll_ir::program::Call;
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{LayerId, TensorId};

/// The tensors of the gradients.
pub(crate) struct Gradients {
    /// Gradient of each layer's output, as far as it has been summed.
    pub(crate) of: Vec<Option<TensorId>>,
    /// Number of holders by tensor: the layers whose gradient it holds, and the layer being walked.
    holders: Vec<u32>,
    /// Gradient of each step's cell state, written by the step after it.
    pub(crate) cells: Vec<Option<TensorId>>,
}

/// The op that computes a gradient of one input.
pub(crate) struct Contribution<'a> {
    /// Last part of the op's name.
    pub suffix: &'a str,
    /// Names of the operands dy and dx.
    pub names: [&'static str; 2],
    /// `true` if the op may overwrite `dy`, which it does if no other holder needs `dy`.
    pub over_dy: bool,
    /// Further operands that the layer does not determine.
    pub given: &'a [Named],
}

/// A plain op, whose gradient has a separate tensor.
pub(crate) const SEPARATE: Contribution<'static> =
    Contribution { suffix: "backward", names: ["dy", "dx"], over_dy: false, given: &[] };

/// A plain op that may overwrite `dy`.
pub(crate) const IN_PLACE: Contribution<'static> = Contribution { over_dy: true, ..SEPARATE };

impl Gradients {
    /// Returns gradients for this many layers, none of which has one yet.
    pub(crate) fn new(layers: usize) -> Gradients {
        Gradients { of: vec![None; layers], holders: Vec::new(), cells: vec![None; layers] }
    }

    /// Makes `tensor` the gradient of `layer`.
    pub(crate) fn hold(&mut self, layer: LayerId, tensor: TensorId) {
        self.of[layer.index()] = Some(tensor);
        self.count(tensor);
    }

    /// Adds a holder.
    fn count(&mut self, tensor: TensorId) {
        if self.holders.len() <= tensor.index() {
            self.holders.resize(tensor.index() + 1, 0);
        }
        self.holders[tensor.index()] += 1;
    }

    /// Removes a holder.
    pub(crate) fn release(&mut self, tensor: TensorId) {
        self.holders[tensor.index()] -= 1;
    }

    /// Returns `true` if only one holder needs the tensor's contents.
    fn sole(&self, tensor: TensorId) -> bool {
        self.holders[tensor.index()] == 1
    }
}

impl Walk<'_> {
    /// Gives all terms the sum's gradient, without an op unless a term has a different gradient already.
    pub(crate) fn pass_on(&mut self, id: LayerId, dy: TensorId) {
        let inputs = &self.network.layer(id).inputs;
        for (term, input) in inputs.iter().enumerate() {
            if !self.trained(*input) {
                continue;
            }
            let Some(held) = self.gradients.of[input.index()] else {
                self.gradients.hold(*input, dy);
                continue;
            };
            let last = term + 1 == inputs.len();
            let [a, b, sum] = if self.gradients.sole(held) {
                [held, dy, held]
            } else if last && self.gradients.sole(dy) {
                [dy, held, dy]
            } else {
                [held, dy, self.gradient_tensor(*input, dy, false)]
            };
            self.sum(id, term, [a, b, sum]);
            self.gradients.release(held);
            self.gradients.hold(*input, sum);
        }
    }

    /// Appends the op that computes a gradient of `to`, an input of the layer, if that is needed; `call` takes `true` if the op
    /// adds to the gradient of other layers, which it does in place if no other holder needs that.
    pub(crate) fn contribute(
        &mut self,
        id: LayerId,
        to: LayerId,
        dy: TensorId,
        how: &Contribution<'_>,
        call: impl Fn(bool) -> Call,
    ) {
        if !self.trained(to) {
            return;
        }
        let held = self.gradients.of[to.index()];
        let (accumulate, dx) = match held {
            Some(held) if self.gradients.sole(held) => (true, held),
            _ => (false, self.gradient_tensor(to, dy, how.over_dy)),
        };
        self.gradient_op(id, [dy, dx], how, call(accumulate));
        if !accumulate {
            self.give(id, to, dx);
        }
    }

    /// Appends the op that computes the gradient `dx` from `dy`.
    pub(crate) fn gradient_op(
        &mut self,
        id: LayerId,
        [dy, dx]: [TensorId; 2],
        how: &Contribution<'_>,
        call: Call,
    ) {
        let [name, to] = how.names;
        let given = [&[(name, dy), (to, dx)], how.given].concat();
        self.push(id, how.suffix, Phase::Backward, call, &given);
    }

    /// Makes `dx`, a new gradient from a layer, the gradient of `to`, or adds it to the one that `to` has.
    pub(crate) fn give(&mut self, id: LayerId, to: LayerId, dx: TensorId) {
        if let Some(held) = self.gradients.of[to.index()] {
            let term = self.network.layer(id).inputs.iter().position(|i| *i == to).unwrap_or_default();
            self.sum(id, term, [dx, held, dx]);
            self.gradients.release(held);
        }
        self.gradients.hold(to, dx);
    }

    /// Appends a + b -> sum, gradients of one activation; `sum` is a or a new tensor.
    fn sum(&mut self, id: LayerId, term: usize, tensors: [TensorId; 3]) {
        let elements = self.elements(self.network.layer(id).inputs[term]);
        let [a, b, sum] = tensors;
        let given = [("a", a), ("b", b), ("y", sum)];
        self.push(id, &format!("sum{term}.backward"), Phase::Backward, Call::Add { elements }, &given);
    }

    /// Returns the tensor for a gradient of `to`: `dy` if that is allowed and only the layer being walked holds it, otherwise
    /// a new tensor.
    pub(crate) fn gradient_tensor(&mut self, to: LayerId, dy: TensorId, over_dy: bool) -> TensorId {
        if over_dy && self.gradients.sole(dy) {
            return dy;
        }
        let layer = self.network.layer(to);
        self.tensor(&format!("{}.dy", layer.name), self.maps(layer.output), TensorKind::Gradient)
    }
}
