//! The backward pass, in the reverse of the layers' order: by the time a layer's turn comes, all that read its output
//! have added their gradients.
//!
//! A gradient may belong to several feature maps at once (all terms of a sum have the sum's gradient). `holders` counts
//! for each tensor how many still need what it holds; only a sole holder may write over it.

use super::Lowering;
use plimsoll_ir::network::{Axis, Extent, LayerKind};
use plimsoll_ir::program::{Call, Operand};
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{Bytes, LayerId, TensorId};

/// Where the gradients lie.
struct Gradients {
    /// The gradient of each layer's output, as far as it has been summed.
    of: Vec<Option<TensorId>>,
    /// By tensor: the layers whose gradient it holds, and the layer whose turn it is.
    holders: Vec<u32>,
    /// The gradient of each step's cell state, which the step after it has given.
    cells: Vec<Option<TensorId>>,
}

impl Gradients {
    /// Makes `tensor` the gradient of `layer`.
    fn hold(&mut self, layer: LayerId, tensor: TensorId) {
        self.of[layer.index()] = Some(tensor);
        self.count(tensor);
    }

    /// One more holder.
    fn count(&mut self, tensor: TensorId) {
        if self.holders.len() <= tensor.index() {
            self.holders.resize(tensor.index() + 1, 0);
        }
        self.holders[tensor.index()] += 1;
    }

    /// One holder less.
    fn release(&mut self, tensor: TensorId) {
        self.holders[tensor.index()] -= 1;
    }

    /// Whether only one needs what the tensor holds.
    fn sole(&self, tensor: TensorId) -> bool {
        self.holders[tensor.index()] == 1
    }
}

impl Lowering<'_> {
    /// Walks the layers backwards from the loss.
    pub(super) fn backward(&mut self, labels: TensorId) {
        let mut gradients = Gradients {
            of: vec![None; self.network.layers.len()],
            holders: Vec::new(),
            cells: vec![None; self.network.layers.len()],
        };
        let loss = LayerId::new(self.network.layers.len() - 1);
        if self.analysis.trained[loss.index()] {
            self.backward_loss(loss, labels, &mut gradients);
        }
        for index in (1..loss.index()).rev() {
            if self.analysis.trained[index] {
                let id = LayerId::new(index);
                let dy = gradients.of[index].expect("every layer leads to the loss");
                self.backward_layer(id, dy, &mut gradients);
                gradients.release(dy);
            }
        }
    }

    /// The gradient of the logits, in place of the probabilities, which nobody else reads.
    fn backward_loss(&mut self, loss: LayerId, labels: TensorId, gradients: &mut Gradients) {
        let probabilities = self.value(loss);
        let operands = [probabilities, labels, probabilities].map(Operand::Tensor).to_vec();
        let call = Call::SoftmaxCrossEntropyBackward { shape: self.rows(loss) };
        self.push(loss, "backward", Phase::Backward, call, operands);
        gradients.hold(self.network.layer(loss).inputs[0], probabilities);
    }

    /// Appends the backward ops of a layer whose output has the gradient `dy`.
    fn backward_layer(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        use Operand::Tensor as T;
        let layer = self.network.layer(id);
        let Some(input) = layer.inputs.first().copied() else { return self.backward_learned(id, dy) };
        let x = self.value(input);
        let saved = self.saved[id.index()].first().copied();
        let elements = self.elements(id);
        let hyper = Operand::Resident(self.resident.hyper);
        match layer.kind {
            LayerKind::Conv { .. } | LayerKind::FullyConnected { .. } => {
                self.backward_conv(id, dy, gradients);
            }
            LayerKind::ConvTranspose { .. } => self.backward_conv_transpose(id, dy, gradients),
            LayerKind::Bias { over, .. } => self.backward_bias(id, over, dy, gradients),
            LayerKind::Embedding { .. } => {
                let (shape, accumulate) = (self.embedding_shape(id), self.analysis.adds_up[id.index()]);
                let mut operands = vec![T(x), T(dy)];
                operands.extend(self.parameter_gradients(id));
                let call = Call::EmbeddingBackward { shape, accumulate };
                self.push(id, "backward", Phase::Backward, call, operands);
            }
            LayerKind::Attention { .. } => {
                let shape = self.attention_shape(id);
                let probabilities = saved.expect("the forward pass saved them");
                self.contribute(id, input, dy, false, gradients, |accumulate, dx| {
                    let operands = vec![T(x), T(probabilities), T(dy), T(dx)];
                    (Call::AttentionBackward { shape, accumulate }, operands)
                });
            }
            LayerKind::Rotary { .. } => self.backward_rotary(id, dy, gradients),
            LayerKind::LstmCell => self.backward_lstm(id, dy, gradients),
            LayerKind::BatchNorm { .. } | LayerKind::LayerNorm { .. } | LayerKind::RmsNorm { .. } => {
                self.backward_norm(id, dy, gradients);
            }
            LayerKind::Relu { ceiling } => {
                let y = self.value(id);
                self.contribute(id, input, dy, true, gradients, |accumulate, dx| match saved {
                    Some(mask) => {
                        (Call::ReluMaskBackward { elements, accumulate }, vec![T(mask), T(dy), T(dx)])
                    }
                    None => (Call::ReluBackward { elements, ceiling, accumulate }, vec![T(y), T(dy), T(dx)]),
                });
            }
            LayerKind::Activation { function } => {
                self.contribute(id, input, dy, true, gradients, |accumulate, dx| {
                    let call = Call::ActivationBackward { elements, function, accumulate };
                    (call, vec![T(x), T(dy), T(dx)])
                });
            }
            LayerKind::MaxPool { .. } => {
                let shape = self.pool_shape(layer);
                let places = saved.expect("the forward pass saved it");
                self.contribute(id, input, dy, false, gradients, |accumulate, dx| {
                    (Call::MaxPoolBackward { shape, accumulate }, vec![T(places), T(dy), T(dx)])
                });
            }
            LayerKind::AvgPool { .. } | LayerKind::GlobalAvgPool => {
                let shape = self.pool_shape(layer);
                self.contribute(id, input, dy, false, gradients, |accumulate, dx| {
                    (Call::AvgPoolBackward { shape, accumulate }, vec![T(dy), T(dx)])
                });
            }
            LayerKind::Dropout { probability, unit } => {
                let (stream, run) = (id.0, self.run(id, unit));
                self.contribute(id, input, dy, true, gradients, |accumulate, dx| {
                    (
                        Call::DropoutBackward { elements, probability, stream, run, accumulate },
                        vec![hyper, T(dy), T(dx)],
                    )
                });
            }
            LayerKind::Add | LayerKind::Flatten => self.pass_on(id, dy, gradients),
            LayerKind::Slice { along, first, .. } => {
                let [part, whole] = [id, input].map(|id| self.parts(id, along));
                let first = self.first_of(id, along, first);
                let (rows, channels, total) = (part.rows, part.channels, whole.channels);
                self.contribute(id, input, dy, false, gradients, |accumulate, dx| {
                    (Call::PadPart { rows, channels, first, total, accumulate }, vec![T(dy), T(dx)])
                });
            }
            LayerKind::Multiply | LayerKind::Scale => self.backward_scale(id, dy, gradients),
            LayerKind::Concat { along } => self.backward_concat(id, along, dy, gradients),
            LayerKind::Lrn { size, alpha, beta, bias } => {
                let shape = self.rows(id);
                self.contribute(id, input, dy, false, gradients, |accumulate, dx| {
                    let call = Call::LrnBackward { shape, size, alpha, beta, bias, accumulate };
                    (call, vec![T(x), T(dy), T(dx)])
                });
            }
            LayerKind::Input | LayerKind::SoftmaxCrossEntropy | LayerKind::Learned { .. } => {
                unreachable!(
                    "the first two are not between input and loss, and what has no input does not come here"
                )
            }
        }
    }

    /// Parameter gradient first, neuron gradient second and only where something above is trained.
    fn backward_conv(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        let layer = self.network.layer(id);
        let shape = self.conv_shape(layer);
        let input = layer.inputs[0];
        let mut operands = vec![Operand::Tensor(self.value(input)), Operand::Tensor(dy)];
        operands.extend(self.parameter_gradients(id));
        let call = Call::ConvBackwardFilter { shape, accumulate: self.analysis.adds_up[id.index()] };
        self.push(id, "backward_filter", Phase::Backward, call, operands);
        let weight = self.parameters(id)[0];
        self.contribute_as("backward_data", id, input, dy, false, gradients, |accumulate, dx| {
            let operands = vec![Operand::Tensor(dy), weight, Operand::Tensor(dx)];
            (Call::ConvBackwardData { shape, accumulate }, operands)
        });
    }

    /// The roles of a convolution's passes are exchanged: what it takes is the output of the convolution that it is the
    /// transpose of. The forward pass of that cannot add, so the gradient of an input that has one already is added to it.
    fn backward_conv_transpose(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        let layer = self.network.layer(id);
        let (shape, input) = (self.conv_shape(layer), layer.inputs[0]);
        let mut operands = vec![Operand::Tensor(dy), Operand::Tensor(self.value(input))];
        operands.extend(self.parameter_gradients(id));
        let call = Call::ConvBackwardFilter { shape, accumulate: false };
        self.push(id, "backward_filter", Phase::Backward, call, operands);
        if !self.analysis.trained[input.index()] {
            return;
        }
        // Named after who gives it: the input's own gradient may be there beside it.
        let name = format!("{}.dx", layer.name);
        let bytes = self.f32s(self.network.layer(input).output);
        let dx = self.tensor(&name, bytes, TensorKind::Gradient);
        let operands = vec![Operand::Tensor(dy), self.parameters(id)[0], Operand::Tensor(dx)];
        self.push(id, "backward_data", Phase::Backward, Call::ConvForward { shape }, operands);
        self.give(id, input, dx, gradients);
    }

    /// The bias's gradient is the sum of the samples'; what is below has the gradient of the sum.
    fn backward_bias(&mut self, id: LayerId, over: Extent, dy: TensorId, gradients: &mut Gradients) {
        let mut operands = vec![Operand::Tensor(dy)];
        operands.extend(self.parameter_gradients(id));
        let accumulate = self.analysis.adds_up[id.index()];
        let call = Call::BiasBackward { shape: self.bias_rows(id, over), accumulate };
        self.push(id, "backward", Phase::Backward, call, operands);
        self.pass_on(id, dy, gradients);
    }

    /// Turns the gradient back: that takes the position, and nothing that the forward pass has kept.
    fn backward_rotary(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        let ((shape, base), input) = (self.rotary(id), self.network.layer(id).inputs[0]);
        self.contribute(id, input, dy, true, gradients, |accumulate, dx| {
            let operands = [dy, dx].map(Operand::Tensor).to_vec();
            (Call::RotaryBackward { shape, base, accumulate }, operands)
        });
    }

    /// The gradient of learned rows is the sum of the samples'.
    fn backward_learned(&mut self, id: LayerId, dy: TensorId) {
        let operands = [&[Operand::Tensor(dy)][..], &self.parameter_gradients(id)].concat();
        let call = Call::BiasBackward { shape: self.samples(id), accumulate: false };
        self.push(id, "backward", Phase::Backward, call, operands);
    }

    /// A step of a memory. The gradient of the gates lies over the activated gates, which nobody needs afterwards; that of
    /// the cell state goes to the step before, over the one that came from the step after.
    fn backward_lstm(&mut self, id: LayerId, dh: TensorId, gradients: &mut Gradients) {
        use Operand::Tensor as T;
        let layer = self.network.layer(id);
        let (shape, gates, before) = (self.rows(id), layer.inputs[0], layer.inputs.get(1).copied());
        let [activated, cell] = [0, 1].map(|i| self.saved[id.index()][i]);
        let dcell = gradients.cells[id.index()];
        let mut operands = vec![T(activated)];
        operands.extend(before.map(|before| T(self.cell(before))));
        operands.extend([T(cell), T(dh)]);
        operands.extend(dcell.map(T));
        operands.push(T(activated));
        if let Some(before) = before {
            let dbefore = dcell.unwrap_or_else(|| {
                let name = format!("{}.dcell", self.network.layer(before).name);
                self.tensor(&name, Bytes(4 * shape.rows * shape.channels), TensorKind::Gradient)
            });
            gradients.cells[before.index()] = Some(dbefore);
            operands.push(T(dbefore));
        }
        let call = Call::LstmBackward { shape, first: before.is_none(), last: dcell.is_none() };
        self.push(id, "backward", Phase::Backward, call, operands);
        if self.analysis.trained[gates.index()] {
            self.give(id, gates, activated, gradients);
        }
    }

    /// A normalisation: x, dy, gamma, stats -> dx, dgamma, and dbeta where it has a shift. All gradients come from one op, so it runs even where
    /// nobody needs the neuron gradient.
    fn backward_norm(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        let (layer, shape) = (self.network.layer(id), self.rows(id));
        let norm = |accumulate| match layer.kind {
            LayerKind::BatchNorm { .. } => Call::BatchNormBackward { shape, accumulate },
            LayerKind::LayerNorm { .. } => Call::LayerNormBackward { shape, accumulate },
            LayerKind::RmsNorm { .. } => Call::RmsNormBackward { shape, accumulate },
            _ => unreachable!("{} is no normalisation", layer.name),
        };
        let input = layer.inputs[0];
        let x = Operand::Tensor(self.value(input));
        let stats = Operand::Tensor(self.saved[id.index()][0]);
        let gamma = self.parameters(id)[0];
        let own = self.parameter_gradients(id);
        let call = |accumulate, dx| {
            let mut operands = vec![x, Operand::Tensor(dy), gamma, stats, Operand::Tensor(dx)];
            operands.extend(&own);
            (norm(accumulate), operands)
        };
        if self.analysis.trained[input.index()] {
            self.contribute(id, input, dy, true, gradients, call);
        } else {
            let dx = self.gradient_tensor(input, dy, true, gradients);
            let (call, operands) = call(false, dx);
            self.push(id, "backward", Phase::Backward, call, operands);
        }
    }

    /// A product: the gradient of the scale first, which is the smaller, or a parameter's; then that of what is scaled, which
    /// may lie over the product's. Where both factors are of one shape, each is the other's gradient.
    fn backward_scale(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        use Operand::Tensor as T;
        let layer = self.network.layer(id);
        let (shape, input) = (self.scale_shape(id), layer.inputs[0]);
        let x = self.value(input);
        let scale = match layer.inputs.get(1).copied() {
            None => {
                let operands = [&[T(x), T(dy)][..], &self.parameter_gradients(id)].concat();
                let call = Call::MultiplySums { shape, accumulate: false };
                self.push(id, "scale.backward", Phase::Backward, call, operands);
                self.parameters(id)[0]
            }
            Some(scale) => {
                self.contribute_as(
                    "scale.backward",
                    id,
                    scale,
                    dy,
                    false,
                    gradients,
                    |accumulate, dscale| {
                        let call = match shape.rows {
                            1 => Call::Multiply { shape, accumulate },
                            _ => Call::MultiplySums { shape, accumulate },
                        };
                        (call, vec![T(x), T(dy), T(dscale)])
                    },
                );
                T(self.value(scale))
            }
        };
        self.contribute(id, input, dy, true, gradients, |accumulate, dx| {
            (Call::Multiply { shape, accumulate }, vec![T(dy), scale, T(dx)])
        });
    }

    /// All terms have the sum's gradient: no op, unless a term has another gradient already.
    fn pass_on(&mut self, id: LayerId, dy: TensorId, gradients: &mut Gradients) {
        let inputs = &self.network.layer(id).inputs;
        for (term, input) in inputs.iter().enumerate() {
            if !self.analysis.trained[input.index()] {
                continue;
            }
            let Some(held) = gradients.of[input.index()] else {
                gradients.hold(*input, dy);
                continue;
            };
            let last = term + 1 == inputs.len();
            let [a, b, sum] = if gradients.sole(held) {
                [held, dy, held]
            } else if last && gradients.sole(dy) {
                [dy, held, dy]
            } else {
                [held, dy, self.gradient_tensor(*input, dy, false, gradients)]
            };
            self.sum(id, term, [a, b, sum]);
            gradients.release(held);
            gradients.hold(*input, sum);
        }
    }

    /// Each part takes its channels, or its rows.
    fn backward_concat(&mut self, id: LayerId, along: Axis, dy: TensorId, gradients: &mut Gradients) {
        let total = self.parts(id, along).channels;
        let mut first = 0;
        for (part, input) in self.network.layer(id).inputs.iter().enumerate() {
            let shape = self.parts(*input, along);
            let suffix = format!("part{part}.backward");
            self.contribute_as(&suffix, id, *input, dy, false, gradients, |accumulate, dx| {
                let call =
                    Call::SplitPart { rows: shape.rows, channels: shape.channels, first, total, accumulate };
                (call, vec![Operand::Tensor(dy), Operand::Tensor(dx)])
            });
            first += shape.channels;
        }
    }

    /// [`Lowering::contribute_as`], named `backward`.
    fn contribute(
        &mut self,
        id: LayerId,
        to: LayerId,
        dy: TensorId,
        over_dy: bool,
        gradients: &mut Gradients,
        call: impl Fn(bool, TensorId) -> (Call, Vec<Operand>),
    ) {
        self.contribute_as("backward", id, to, dy, over_dy, gradients, call);
    }

    /// Appends the op that gives a gradient of `to`, where that is needed: written over `dy` where `over_dy` allows it
    /// and nobody else needs `dy`; added to what other layers gave before, where it stands if nobody else needs that.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one fact of the op; a struct would only rename them"
    )]
    fn contribute_as(
        &mut self,
        suffix: &str,
        id: LayerId,
        to: LayerId,
        dy: TensorId,
        over_dy: bool,
        gradients: &mut Gradients,
        call: impl Fn(bool, TensorId) -> (Call, Vec<Operand>),
    ) {
        if !self.analysis.trained[to.index()] {
            return;
        }
        let held = gradients.of[to.index()];
        let (accumulate, dx) = match held {
            Some(held) if gradients.sole(held) => (true, held),
            _ => (false, self.gradient_tensor(to, dy, over_dy, gradients)),
        };
        let (call, operands) = call(accumulate, dx);
        self.push(id, suffix, Phase::Backward, call, operands);
        if !accumulate {
            self.give(id, to, dx, gradients);
        }
    }

    /// Makes `dx`, which a layer has given and which is new, a gradient of `to`, or adds it to the one that `to` has.
    fn give(&mut self, id: LayerId, to: LayerId, dx: TensorId, gradients: &mut Gradients) {
        if let Some(held) = gradients.of[to.index()] {
            let term = self.network.layer(id).inputs.iter().position(|i| *i == to).unwrap_or_default();
            self.sum(id, term, [dx, held, dx]);
            gradients.release(held);
        }
        gradients.hold(to, dx);
    }

    /// Appends a + b -> sum, gradients of one feature map; `sum` is a or a new tensor.
    fn sum(&mut self, id: LayerId, term: usize, tensors: [TensorId; 3]) {
        let elements = self.elements(self.network.layer(id).inputs[term]);
        let operands = tensors.map(Operand::Tensor).to_vec();
        self.push(id, &format!("sum{term}.backward"), Phase::Backward, Call::Add { elements }, operands);
    }

    /// Where a gradient of `to` is written: over `dy` where that is allowed and only the layer whose turn it is holds
    /// it, else in a new tensor.
    fn gradient_tensor(
        &mut self,
        to: LayerId,
        dy: TensorId,
        over_dy: bool,
        gradients: &Gradients,
    ) -> TensorId {
        if over_dy && gradients.sole(dy) {
            return dy;
        }
        let layer = self.network.layer(to);
        self.tensor(&format!("{}.dy", layer.name), self.f32s(layer.output), TensorKind::Gradient)
    }

    /// Where the gradients of a layer's parameters lie, in the order in which its calls take them.
    fn parameter_gradients(&self, id: LayerId) -> Vec<Operand> {
        self.resident.layers[id.index()].parameters.iter().map(|t| Operand::Resident(t.gradient)).collect()
    }
}
