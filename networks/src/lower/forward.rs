//! The forward pass: one op a layer, but for batch normalisation (its running statistics are an op of their own, so that
//! the normalisation itself can be computed again) and concatenation (one op a part).

use super::{Lowering, Mode};
use plimsoll_ir::network::{Axis, DropUnit, Extent, LayerKind};
use plimsoll_ir::program::{
    AttentionShape, Call, EmbeddingShape, Operand, RotaryShape, RowShape, ScaleShape,
};
use plimsoll_ir::trace::{Phase, TensorKind};
use plimsoll_ir::{Bytes, LayerId, TensorId};

impl Lowering<'_> {
    /// Walks the layers in their order.
    pub(super) fn forward(&mut self, images: TensorId, labels: TensorId) {
        for index in 0..self.network.layers.len() {
            let id = LayerId::new(index);
            let value = if index == 0 || self.analysis.absent[index] {
                images
            } else if self.analysis.hands_on(id) {
                self.value(self.analysis.source(id))
            } else {
                self.forward_layer(id, labels)
            };
            self.values.push(value);
        }
    }

    /// Appends the forward ops of a layer; gives the tensor where its output lies.
    fn forward_layer(&mut self, id: LayerId, labels: TensorId) -> TensorId {
        let layer = self.network.layer(id);
        let inputs: Vec<LayerId> = layer.inputs.iter().map(|i| self.analysis.source(*i)).collect();
        let Some(x) = inputs.first().map(|input| self.value(*input)) else { return self.forward_learned(id) };
        let elements = self.elements(id);
        match layer.kind {
            LayerKind::Conv { .. } | LayerKind::FullyConnected { .. } => {
                let call = Call::ConvForward { shape: self.conv_shape(layer) };
                let parameters = self.parameters(id);
                self.forward_op(id, call, x, &parameters, None, &[])
            }
            LayerKind::ConvTranspose { .. } => {
                let call = Call::ConvBackwardData { shape: self.conv_shape(layer), accumulate: false };
                let parameters = self.parameters(id);
                self.forward_op(id, call, x, &parameters, None, &[])
            }
            LayerKind::Bias { over, .. } => {
                let call = Call::BiasForward { shape: self.bias_rows(id, over) };
                let (parameters, over) = (self.parameters(id), self.overwritten(id, &inputs));
                self.forward_op(id, call, x, &parameters, over, &[])
            }
            LayerKind::Embedding { .. } => {
                let call = Call::EmbeddingForward { shape: self.embedding_shape(id) };
                let parameters = self.parameters(id);
                self.forward_op(id, call, x, &parameters, None, &[])
            }
            LayerKind::Attention { .. } => {
                let shape = self.attention_shape(id);
                let pairs = shape.length * shape.length;
                let probabilities = self.save(id, "probabilities", 4 * shape.batch * shape.heads * pairs);
                self.forward_op(id, Call::AttentionForward { shape }, x, &[], None, &[probabilities])
            }
            LayerKind::Rotary { .. } => self.forward_rotary(id, &inputs),
            LayerKind::LstmCell => self.forward_lstm(id, &inputs),
            LayerKind::BatchNorm { .. } => self.forward_batch_norm(id, inputs[0]),
            LayerKind::LayerNorm { .. } | LayerKind::RmsNorm { .. } => self.forward_row_norm(id, &inputs),
            LayerKind::Relu { ceiling } if self.analysis.masked[id.index()] => {
                let mask = self.save(id, "mask", elements.div_ceil(8));
                let over = self.overwritten(id, &inputs);
                self.forward_op(id, Call::ReluMaskForward { elements, ceiling }, x, &[], over, &[mask])
            }
            LayerKind::Relu { ceiling } => {
                let over = self.overwritten(id, &inputs);
                self.forward_op(id, Call::ReluForward { elements, ceiling }, x, &[], over, &[])
            }
            LayerKind::Activation { function } => {
                let over = self.overwritten(id, &inputs);
                self.forward_op(id, Call::ActivationForward { elements, function }, x, &[], over, &[])
            }
            LayerKind::MaxPool { .. } => {
                let places = self.save(id, "places", elements);
                let call = Call::MaxPoolForward { shape: self.pool_shape(layer) };
                self.forward_op(id, call, x, &[], None, &[places])
            }
            LayerKind::AvgPool { .. } | LayerKind::GlobalAvgPool => {
                let call = Call::AvgPoolForward { shape: self.pool_shape(layer) };
                self.forward_op(id, call, x, &[], None, &[])
            }
            LayerKind::Dropout { .. } => self.forward_dropout(id, &inputs),
            LayerKind::Add => {
                let [a, b] = [x, self.value(inputs[1])];
                let over = self.overwritten(id, &inputs);
                // The call may write over its first operand only; a sum does not mind the order.
                let (a, b) = if over == Some(b) { (b, a) } else { (a, b) };
                self.forward_op(id, Call::Add { elements }, a, &[Operand::Tensor(b)], over, &[])
            }
            LayerKind::Multiply | LayerKind::Scale => {
                let scale = match inputs.get(1) {
                    Some(scale) => Operand::Tensor(self.value(*scale)),
                    None => self.parameters(id)[0],
                };
                // Only the first factor has the shape of the product for sure.
                let over = self.overwritten(id, &inputs).filter(|over| *over == x);
                let call = Call::Multiply { shape: self.scale_shape(id), accumulate: false };
                self.forward_op(id, call, x, &[scale], over, &[])
            }
            LayerKind::Concat { along } => self.forward_concat(id, &inputs, along),
            LayerKind::Slice { along, first, .. } => {
                let [part, whole] = [id, layer.inputs[0]].map(|id| self.parts(id, along));
                let first = self.first_of(id, along, first);
                let (rows, channels, total) = (part.rows, part.channels, whole.channels);
                let call = Call::SplitPart { rows, channels, first, total, accumulate: false };
                self.forward_op(id, call, x, &[], None, &[])
            }
            LayerKind::Lrn { size, alpha, beta, bias } => {
                let call = Call::LrnForward { shape: self.rows(id), size, alpha, beta, bias };
                self.forward_op(id, call, x, &[], None, &[])
            }
            LayerKind::SoftmaxCrossEntropy => {
                let call = Call::SoftmaxCrossEntropyForward { shape: self.rows(id) };
                let over = self.overwritten(id, &inputs);
                let metrics = Operand::Resident(self.resident.metrics);
                self.forward_op(id, call, x, &[Operand::Tensor(labels)], over, &[metrics])
            }
            LayerKind::Input | LayerKind::Flatten | LayerKind::Learned { .. } => {
                unreachable!("the first layer, what hands on its input, and what has none do not come here")
            }
        }
    }

    /// Normalises each position by itself.
    fn forward_row_norm(&mut self, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (layer, shape) = (self.network.layer(id), self.rows(id));
        let (numbers, call) = match layer.kind {
            LayerKind::LayerNorm { epsilon } => (2, Call::LayerNormForward { shape, epsilon }),
            LayerKind::RmsNorm { epsilon } => (1, Call::RmsNormForward { shape, epsilon }),
            _ => unreachable!("{} normalises no positions", layer.name),
        };
        let stats = self.save(id, "stats", 4 * numbers * shape.rows);
        let (parameters, over) = (self.parameters(id), self.overwritten(id, inputs));
        let x = self.value(inputs[0]);
        self.forward_op(id, call, x, &parameters, over, &[stats])
    }

    /// Drops at random: the numbers follow from the iteration, which lies in resident memory.
    fn forward_dropout(&mut self, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let LayerKind::Dropout { probability, unit } = self.network.layer(id).kind else {
            unreachable!("only dropout drops")
        };
        let (elements, run) = (self.elements(id), self.run(id, unit));
        let call = Call::DropoutForward { elements, probability, stream: id.0, run };
        let (x, over) = (self.value(inputs[0]), self.overwritten(id, inputs));
        let y = over.unwrap_or_else(|| self.output(id));
        let operands = vec![Operand::Resident(self.resident.hyper), Operand::Tensor(x), Operand::Tensor(y)];
        self.push(id, "forward", Phase::Forward, call, operands);
        y
    }

    /// Turns heads by their position, in place where nobody reads them again.
    fn forward_rotary(&mut self, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (shape, base) = self.rotary(id);
        let (x, over) = (self.value(inputs[0]), self.overwritten(id, inputs));
        self.forward_op(id, Call::RotaryForward { shape, base }, x, &[], over, &[])
    }

    /// Appends an op with the operands x, `more` -> y, `saved`, where y is `over` or a new tensor; gives y.
    fn forward_op(
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

    /// Learned rows, the same for every sample.
    fn forward_learned(&mut self, id: LayerId) -> TensorId {
        let y = self.output(id);
        let operands = [&self.parameters(id)[..], &[Operand::Tensor(y)]].concat();
        self.push(id, "forward", Phase::Forward, Call::Repeat { shape: self.samples(id) }, operands);
        y
    }

    /// A batch normalisation: with the batch's statistics, which then move the running ones, or with the running ones.
    fn forward_batch_norm(&mut self, id: LayerId, input: LayerId) -> TensorId {
        let LayerKind::BatchNorm { epsilon, momentum } = self.network.layer(id).kind else {
            unreachable!("asked for batch normalisations only")
        };
        let shape = self.rows(id);
        let x = self.value(input);
        let mut parameters = self.parameters(id);
        let states: Vec<Operand> =
            self.resident.layers[id.index()].states.iter().map(|o| Operand::Resident(*o)).collect();
        if self.options.mode == Mode::Evaluate {
            parameters.extend(states);
            let over = self.overwritten(id, &[input]);
            return self.forward_op(
                id,
                Call::BatchNormInference { shape, epsilon },
                x,
                &parameters,
                over,
                &[],
            );
        }
        let stats = self.save(id, "stats", 8 * shape.channels);
        let y =
            self.forward_op(id, Call::BatchNormForward { shape, epsilon }, x, &parameters, None, &[stats]);
        let operands = [stats].into_iter().chain(states).collect();
        self.push(
            id,
            "running",
            Phase::Forward,
            Call::BatchNormRunning { shape, epsilon, momentum },
            operands,
        );
        y
    }

    /// A step of a memory: gates, [the cell before] -> h, cell, activated gates, which lie over the gates where nobody else
    /// needs those.
    fn forward_lstm(&mut self, id: LayerId, inputs: &[LayerId]) -> TensorId {
        let (shape, gates) = (self.rows(id), self.value(inputs[0]));
        let before = inputs.get(1).map(|before| self.cell(*before));
        let over = self.overwritten(id, &inputs[..1]);
        let state = Bytes(4 * shape.rows * shape.channels);
        let activated = match over {
            Some(gates) => gates,
            None => {
                let name = format!("{}.activated", self.network.layer(id).name);
                self.tensor(&name, Bytes(4 * state.0), TensorKind::Activation)
            }
        };
        self.saved[id.index()].push(activated);
        let cell = self.save(id, "cell", state.0);
        let h = self.output(id);
        let mut operands = vec![Operand::Tensor(gates)];
        operands.extend(before.map(Operand::Tensor));
        operands.extend([Operand::Tensor(h), cell, Operand::Tensor(activated)]);
        let call = Call::LstmForward { shape, first: before.is_none() };
        self.push(id, "forward", Phase::Forward, call, operands);
        h
    }

    /// A concatenation: each part is copied to its channels, or to its rows, which lie side by side in each sample.
    fn forward_concat(&mut self, id: LayerId, inputs: &[LayerId], along: Axis) -> TensorId {
        let y = self.output(id);
        let total = self.parts(id, along).channels;
        let mut first = 0;
        for (part, input) in inputs.iter().enumerate() {
            let shape = self.parts(*input, along);
            let call = Call::ConcatPart { rows: shape.rows, channels: shape.channels, first, total };
            let operands = vec![Operand::Tensor(self.value(*input)), Operand::Tensor(y)];
            self.push(id, &format!("part{part}.forward"), Phase::Forward, call, operands);
            first += shape.channels;
        }
        y
    }

    /// The input's tensor that a layer may compute its output in, if there is one: not where one input is read twice.
    fn overwritten(&self, id: LayerId, inputs: &[LayerId]) -> Option<TensorId> {
        if let [a, b] = inputs
            && a == b
        {
            return None;
        }
        inputs.iter().find(|input| self.analysis.may_overwrite(**input, id)).map(|input| self.value(*input))
    }

    /// A new tensor for a layer's output.
    fn output(&mut self, id: LayerId) -> TensorId {
        let layer = self.network.layer(id);
        self.tensor(&format!("{}.y", layer.name), self.f32s(layer.output), TensorKind::Activation)
    }

    /// A new tensor for what a layer keeps for its backward pass besides feature maps.
    fn save(&mut self, id: LayerId, what: &str, bytes: u64) -> Operand {
        let name = format!("{}.{what}", self.network.layer(id).name);
        let tensor = self.tensor(&name, Bytes(bytes), TensorKind::Other);
        self.saved[id.index()].push(tensor);
        Operand::Tensor(tensor)
    }

    /// The cell state of a step of a memory.
    pub(super) fn cell(&self, id: LayerId) -> TensorId {
        self.saved[id.index()][1]
    }

    /// What a concatenation along an axis copies of a layer's output: rows of so many elements.
    pub(super) fn parts(&self, id: LayerId, along: Axis) -> RowShape {
        match along {
            Axis::Channels => self.rows(id),
            Axis::Rows => self.samples(id),
        }
    }

    /// Where a slice begins in rows of so many elements as [`Lowering::parts`] gives.
    pub(super) fn first_of(&self, id: LayerId, along: Axis, first: u32) -> u64 {
        let shape = self.network.layer(id).output;
        match along {
            Axis::Channels => u64::from(first),
            Axis::Rows => u64::from(first) * u64::from(shape.width) * u64::from(shape.channels),
        }
    }

    /// How many elements, one after the other, a dropout drops at once.
    pub(super) fn run(&self, id: LayerId, unit: DropUnit) -> u64 {
        match unit {
            DropUnit::Element => 1,
            DropUnit::Sample => self.network.layer(id).output.elements(),
            DropUnit::Batch => self.elements(id),
        }
    }

    /// The shape of a product, of two inputs or of one and a parameter.
    pub(super) fn scale_shape(&self, id: LayerId) -> ScaleShape {
        let layer = self.network.layer(id);
        let (pixels, channels) = (layer.output.pixels(), u64::from(layer.output.channels));
        match layer.inputs.get(1).map(|scale| self.network.layer(*scale).output) {
            None => ScaleShape { groups: 1, rows: self.batch * pixels, channels },
            Some(scale) if scale == layer.output => {
                ScaleShape { groups: self.batch * pixels, rows: 1, channels }
            }
            Some(_) => ScaleShape { groups: self.batch, rows: pixels, channels },
        }
    }

    /// The rows that a bias is added to, each as long as the bias.
    pub(super) fn bias_rows(&self, id: LayerId, over: Extent) -> RowShape {
        match over {
            Extent::Channels => self.rows(id),
            Extent::Positions => self.samples(id),
        }
    }

    /// The shape of a lookup.
    pub(super) fn embedding_shape(&self, id: LayerId) -> EmbeddingShape {
        let layer = self.network.layer(id);
        let LayerKind::Embedding { vocabulary, width, first, length } = layer.kind else {
            unreachable!("asked for lookups only")
        };
        let [first, count, vocabulary, width] = [first, length, vocabulary, width].map(u64::from);
        let length = self.network.input_shape(layer).elements();
        EmbeddingShape { batch: self.batch, length, first, count, vocabulary, width }
    }

    /// The shape of an attention.
    pub(super) fn attention_shape(&self, id: LayerId) -> AttentionShape {
        let layer = self.network.layer(id);
        let LayerKind::Attention { heads, kv_heads, causal } = layer.kind else {
            unreachable!("asked for attentions only")
        };
        let (length, width) = (layer.output.pixels(), u64::from(layer.output.channels));
        let [heads, kv_heads] = [heads, kv_heads].map(u64::from);
        AttentionShape { batch: self.batch, length, heads, kv_heads, width, causal }
    }

    /// The shape of what is turned by its position, and the base.
    pub(super) fn rotary(&self, id: LayerId) -> (RotaryShape, f32) {
        let layer = self.network.layer(id);
        let LayerKind::Rotary { width, base } = layer.kind else {
            unreachable!("asked for rotary layers only")
        };
        let (length, channels) = (layer.output.pixels(), u64::from(layer.output.channels));
        (RotaryShape { batch: self.batch, length, channels, width: u64::from(width) }, base)
    }

    /// A layer's parameters, in the order in which its calls take them.
    pub(super) fn parameters(&self, id: LayerId) -> Vec<Operand> {
        self.resident.layers[id.index()].parameters.iter().map(|t| Operand::Resident(t.parameter)).collect()
    }
}
