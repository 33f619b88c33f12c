//! A network's results and gradients, derived from its layers by the chain rule.

use crate::symbolic::terms::{TermId, Terms};
use plimsoll_ir::network::{Axis, Extent, Layer, LayerKind, Network, Window};
use plimsoll_ir::program::{AttentionShape, ConvShape, EmbeddingShape, PoolShape, RotaryShape};
use plimsoll_ir::{LayerId, Optimizer};
use std::collections::HashMap;

pub struct Reference<'a> {
    network: &'a Network,
    batch: u64,
    train: bool,
    values: Vec<TermId>,
    /// Cell state of each step of a memory; `dcells` holds its gradient from the next step.
    cells: HashMap<usize, TermId>,
    dcells: HashMap<usize, TermId>,
    gradients: HashMap<String, TermId>,
    states: HashMap<String, TermId>,
    pub metrics: TermId,
}

impl<'a> Reference<'a> {
    /// Computes the forward pass.
    pub fn new(terms: &mut Terms, network: &'a Network, batch: u64, train: bool) -> Reference<'a> {
        let (gradients, states) = (HashMap::new(), HashMap::new());
        let (cells, dcells) = (HashMap::new(), HashMap::new());
        let values = Vec::new();
        let mut it =
            Reference { network, batch, train, values, cells, dcells, gradients, states, metrics: 0 };
        for (index, layer) in network.layers.iter().enumerate() {
            let value = it.forward(terms, index, layer);
            it.values.push(value);
        }
        it
    }

    pub fn gradient(&self, name: &str) -> Option<TermId> {
        self.gradients.get(name).copied()
    }

    pub fn parameter(&self, terms: &mut Terms, name: &str, optimizer: Optimizer) -> Option<TermId> {
        let function = match optimizer {
            Optimizer::Sgd => "sgd true",
            Optimizer::Adamw => "adamw",
        };
        self.stepped(terms, name, optimizer, function, name)
    }

    pub fn momentum(&self, terms: &mut Terms, name: &str) -> Option<TermId> {
        self.stepped(terms, name, Optimizer::Sgd, "sgd momentum true", &format!("momentum of {name}"))
    }

    /// Returns the first or the second moment.
    pub fn moment(&self, terms: &mut Terms, name: &str, which: &str) -> Option<TermId> {
        let (function, otherwise) = (format!("adamw {which} moment"), format!("{which} moment of {name}"));
        self.stepped(terms, name, Optimizer::Adamw, &function, &otherwise)
    }

    /// Returns a parameter or a state of its optimizer after one step; unchanged in evaluation.
    fn stepped(
        &self,
        terms: &mut Terms,
        name: &str,
        optimizer: Optimizer,
        function: &str,
        otherwise: &str,
    ) -> Option<TermId> {
        if !self.train {
            return Some(terms.atom(otherwise));
        }
        let gradient =
            self.gradient(name).unwrap_or_else(|| panic!("{name}: every parameter has a gradient"));
        let states: &[&str] = match optimizer {
            Optimizer::Sgd => &["momentum"],
            Optimizer::Adamw => &["first moment", "second moment"],
        };
        let mut inputs = vec![terms.atom("hyper"), terms.atom(name), gradient];
        inputs.extend(states.iter().map(|state| terms.atom(&format!("{state} of {name}"))));
        Some(terms.apply(function, &inputs))
    }

    pub fn state(&self, terms: &mut Terms, name: &str) -> Option<TermId> {
        self.states.get(name).copied().or_else(|| Some(terms.atom(name)))
    }

    fn forward(&mut self, terms: &mut Terms, index: usize, layer: &Layer) -> TermId {
        let inputs: Vec<TermId> = layer.inputs.iter().map(|i| self.values[i.index()]).collect();
        let Some(&x) = inputs.first() else { return terms.atom("images") };
        let owner = self.owner(layer);
        let mut own = |part: &str| terms.atom(&format!("{owner}.{part}"));
        match layer.kind {
            LayerKind::Conv { bias, .. } | LayerKind::FullyConnected { bias, .. } => {
                let weight = own("weight");
                let bias = bias.then(|| own("bias"));
                let arguments: Vec<TermId> = [x, weight].into_iter().chain(bias).collect();
                terms.apply(&format!("conv {:?}", self.conv(layer)), &arguments)
            }
            LayerKind::ConvTranspose { .. } => {
                let weight = own("weight");
                terms.apply(&format!("conv dx {:?}", self.conv(layer)), &[x, weight])
            }
            LayerKind::Bias { over, .. } => {
                let bias = own("bias");
                terms.apply(&format!("biased by {}", self.biases(layer, over)), &[x, bias])
            }
            LayerKind::Embedding { .. } => {
                let table = own("weight");
                terms.apply(&format!("looked up {:?}", self.lookup(layer)), &[x, table])
            }
            LayerKind::Attention { .. } => {
                terms.apply(&format!("attention {:?}", self.attention(layer)), &[x])
            }
            LayerKind::Rotary { base, .. } => {
                terms.apply(&format!("turned {:?} {base}", self.rotary(layer)), &[x])
            }
            LayerKind::LstmCell => {
                let before = layer.inputs.get(1).map(|before| self.cells[&before.index()]);
                let inputs: Vec<TermId> = [x].into_iter().chain(before).collect();
                self.cells.insert(index, terms.apply("cell", &inputs));
                terms.apply("h", &inputs)
            }
            LayerKind::BatchNorm { .. } | LayerKind::LayerNorm { .. } | LayerKind::RmsNorm { .. } => {
                self.normalise(terms, layer, x)
            }
            LayerKind::Relu { ceiling } => terms.apply(&format!("relu {ceiling}"), &[x]),
            LayerKind::Activation { function } => terms.apply(function.name(), &[x]),
            LayerKind::MaxPool { .. } => terms.apply(&format!("max {:?}", self.pool(layer)), &[x]),
            LayerKind::AvgPool { .. } | LayerKind::GlobalAvgPool => {
                terms.apply(&format!("mean {:?}", self.pool(layer)), &[x])
            }
            LayerKind::Dropout { .. } if !self.train => x,
            LayerKind::Dropout { probability } => {
                let hyper = terms.atom("hyper");
                terms.apply(&format!("dropout {probability} {index}"), &[hyper, x])
            }
            LayerKind::Add => terms.sum(x, inputs[1]),
            LayerKind::Multiply => terms.apply("product", &inputs),
            LayerKind::Concat { along } => self.concatenate(terms, layer, along, &inputs),
            LayerKind::Lrn { size, alpha, beta, bias } => {
                terms.apply(&format!("lrn {size} {alpha} {beta} {bias}"), &[x])
            }
            LayerKind::SoftmaxCrossEntropy => {
                let labels = terms.atom("labels");
                self.metrics = terms.apply("metrics", &[x, labels]);
                terms.apply("softmax - one-hot", &[x, labels])
            }
            LayerKind::Input => unreachable!("it has no inputs"),
        }
    }

    /// Concatenates layers: each follows those before it.
    fn concatenate(&self, terms: &mut Terms, layer: &Layer, along: Axis, inputs: &[TermId]) -> TermId {
        let mut whole = terms.apply("part from 0", &[inputs[0]]);
        let mut first = self.part(layer.inputs[0], along);
        for (input, id) in inputs.iter().zip(&layer.inputs).skip(1) {
            whole = terms.apply(&format!("part from {first}"), &[*input, whole]);
            first += self.part(*id, along);
        }
        whole
    }

    /// Returns the output of a normalisation; that of a batch records its running statistics.
    fn normalise(&mut self, terms: &mut Terms, layer: &Layer, x: TermId) -> TermId {
        let owner = self.owner(layer);
        let mut own = |part: &str| terms.atom(&format!("{owner}.{part}"));
        match layer.kind {
            LayerKind::BatchNorm { epsilon, momentum } => {
                let names = ["running_mean", "running_var"];
                let [gamma, beta] = ["weight", "bias"].map(&mut own);
                let [mean, variance] = names.map(&mut own);
                if !self.train {
                    return terms
                        .apply(&format!("bn inference {epsilon}"), &[x, gamma, beta, mean, variance]);
                }
                for (name, (what, before)) in names.iter().zip([("mean", mean), ("variance", variance)]) {
                    let after = terms.apply(&format!("running {what} {momentum}"), &[x, before]);
                    self.states.insert(format!("{}.{name}", layer.name), after);
                }
                terms.apply(&format!("bn {epsilon}"), &[x, gamma, beta])
            }
            LayerKind::LayerNorm { epsilon } => {
                let [gamma, beta] = ["weight", "bias"].map(&mut own);
                terms.apply(&format!("ln {epsilon}"), &[x, gamma, beta])
            }
            LayerKind::RmsNorm { epsilon } => {
                let gamma = own("weight");
                terms.apply(&format!("rms {epsilon}"), &[x, gamma])
            }
            _ => unreachable!("{} is no normalisation", layer.name),
        }
    }

    /// Applies the chain rule, from the loss up. Unneeded gradients are derived too, and ignored.
    pub fn differentiate(&mut self, terms: &mut Terms) {
        let mut sums: Vec<Option<TermId>> = vec![None; self.network.layers.len()];
        for (index, layer) in self.network.layers.iter().enumerate().skip(1).rev() {
            for (input, gradient) in self.backward(terms, index, layer, sums[index]) {
                let sum = &mut sums[input];
                *sum = Some(sum.map_or(gradient, |before| terms.sum(before, gradient)));
            }
        }
    }

    /// Returns the gradients that a layer gives its inputs; those of its parameters are kept.
    fn backward(
        &mut self,
        terms: &mut Terms,
        index: usize,
        layer: &Layer,
        dy: Option<TermId>,
    ) -> Vec<(usize, TermId)> {
        let input = layer.inputs[0].index();
        let x = self.values[input];
        if layer.kind == LayerKind::SoftmaxCrossEntropy {
            let labels = terms.atom("labels");
            let differences = terms.apply("softmax - one-hot", &[x, labels]);
            return vec![(input, terms.apply("dlogits", &[differences, labels]))];
        }
        let dy = dy.expect("every layer leads to the loss");
        let name = &self.owner(layer);
        let dx = match layer.kind {
            LayerKind::Conv { .. } | LayerKind::FullyConnected { .. } | LayerKind::ConvTranspose { .. } => {
                self.convolve_back(terms, layer, x, dy)
            }
            LayerKind::Bias { over, .. } => {
                let dbias = terms.apply(&format!("dbias of {}", self.biases(layer, over)), &[dy]);
                self.add_gradient(terms, format!("{name}.bias"), dbias);
                dy
            }
            LayerKind::Embedding { .. } => {
                let dtable = terms.apply(&format!("dtable {:?}", self.lookup(layer)), &[x, dy]);
                self.add_gradient(terms, format!("{name}.weight"), dtable);
                return vec![];
            }
            LayerKind::Attention { .. } => {
                terms.apply(&format!("dqkv {:?}", self.attention(layer)), &[x, dy])
            }
            LayerKind::Rotary { base, .. } => {
                terms.apply(&format!("turned back {:?} {base}", self.rotary(layer)), &[dy])
            }
            LayerKind::LstmCell => self.step_back(terms, index, layer, dy),
            LayerKind::BatchNorm { .. } | LayerKind::LayerNorm { .. } | LayerKind::RmsNorm { .. } => {
                self.normalise_back(terms, layer, x, dy)
            }
            LayerKind::Relu { ceiling } => terms.apply(&format!("relu dx {ceiling}"), &[x, dy]),
            LayerKind::Activation { function } => terms.apply(&format!("{} dx", function.name()), &[x, dy]),
            LayerKind::MaxPool { .. } => terms.apply(&format!("max dx {:?}", self.pool(layer)), &[x, dy]),
            LayerKind::AvgPool { .. } | LayerKind::GlobalAvgPool => {
                terms.apply(&format!("mean dx {:?}", self.pool(layer)), &[dy])
            }
            LayerKind::Dropout { probability } => {
                let hyper = terms.atom("hyper");
                terms.apply(&format!("dropout dx {probability} {index}"), &[hyper, dy])
            }
            LayerKind::Lrn { size, alpha, beta, bias } => {
                terms.apply(&format!("lrn dx {size} {alpha} {beta} {bias}"), &[x, dy])
            }
            LayerKind::Add => return layer.inputs.iter().map(|i| (i.index(), dy)).collect(),
            LayerKind::Multiply => {
                let factor = layer.inputs[1].index();
                let dx = terms.apply("product", &[dy, self.values[factor]]);
                return vec![(input, dx), (factor, terms.apply("product", &[x, dy]))];
            }
            LayerKind::Concat { along } => {
                return self.concatenate_back(terms, layer, along, dy);
            }
            LayerKind::Input | LayerKind::SoftmaxCrossEntropy => unreachable!("handled above"),
        };
        vec![(input, dx)]
    }

    /// Returns each concatenated layer's part of the gradient.
    fn concatenate_back(
        &self,
        terms: &mut Terms,
        layer: &Layer,
        along: Axis,
        dy: TermId,
    ) -> Vec<(usize, TermId)> {
        let mut first = 0;
        let part = |id: &LayerId| {
            let channels = self.part(*id, along);
            first += channels;
            (id.index(), terms.apply(&format!("split {channels} from {}", first - channels), &[dy]))
        };
        layer.inputs.iter().map(part).collect()
    }

    /// Returns the gradient that a convolution, or a transposed one, gives its input.
    fn convolve_back(&mut self, terms: &mut Terms, layer: &Layer, x: TermId, dy: TermId) -> TermId {
        let name = &self.owner(layer);
        match layer.kind {
            LayerKind::Conv { bias, .. } | LayerKind::FullyConnected { bias, .. } => {
                let shape = self.conv(layer);
                let weight = terms.atom(&format!("{name}.weight"));
                let dweight = terms.apply(&format!("dweight {shape:?}"), &[x, dy]);
                self.add_gradient(terms, format!("{name}.weight"), dweight);
                if bias {
                    let dbias = terms.apply("dbias", &[dy]);
                    self.add_gradient(terms, format!("{name}.bias"), dbias);
                }
                terms.apply(&format!("conv dx {shape:?}"), &[dy, weight])
            }
            LayerKind::ConvTranspose { .. } => {
                let shape = self.conv(layer);
                let weight = terms.atom(&format!("{name}.weight"));
                let dweight = terms.apply(&format!("dweight {shape:?}"), &[dy, x]);
                self.add_gradient(terms, format!("{name}.weight"), dweight);
                terms.apply(&format!("conv {shape:?}"), &[dy, weight])
            }
            _ => unreachable!("{} is no convolution", layer.name),
        }
    }

    /// Returns the gradient that a normalisation gives its input.
    fn normalise_back(&mut self, terms: &mut Terms, layer: &Layer, x: TermId, dy: TermId) -> TermId {
        let name = &self.owner(layer);
        match layer.kind {
            LayerKind::BatchNorm { epsilon, .. } => {
                let gamma = terms.atom(&format!("{name}.weight"));
                let stats = terms.apply(&format!("stats {epsilon}"), &[x]);
                self.gradients.insert(format!("{name}.weight"), terms.apply("dgamma", &[x, dy, stats]));
                self.gradients.insert(format!("{name}.bias"), terms.apply("dbeta", &[dy]));
                terms.apply("bn dx", &[x, dy, gamma, stats])
            }
            LayerKind::LayerNorm { epsilon } => {
                let gamma = terms.atom(&format!("{name}.weight"));
                let stats = terms.apply(&format!("row stats {epsilon}"), &[x]);
                let dgamma = terms.apply("ln dgamma", &[x, dy, stats]);
                self.gradients.insert(format!("{name}.weight"), dgamma);
                self.gradients.insert(format!("{name}.bias"), terms.apply("dbeta", &[dy]));
                terms.apply("ln dx", &[x, dy, gamma, stats])
            }
            LayerKind::RmsNorm { epsilon } => {
                let gamma = terms.atom(&format!("{name}.weight"));
                let stats = terms.apply(&format!("roots {epsilon}"), &[x]);
                self.gradients.insert(format!("{name}.weight"), terms.apply("rms dgamma", &[x, dy, stats]));
                terms.apply("rms dx", &[x, dy, gamma, stats])
            }
            _ => unreachable!("{} is no normalisation", layer.name),
        }
    }

    /// Returns the gradient of a step's gates; that of the previous cell state is kept for the previous step.
    fn step_back(&mut self, terms: &mut Terms, index: usize, layer: &Layer, dy: TermId) -> TermId {
        let x = self.values[layer.inputs[0].index()];
        let before = layer.inputs.get(1).map(|before| before.index());
        let mut inputs = vec![x];
        inputs.extend(before.map(|before| self.cells[&before]));
        inputs.push(dy);
        inputs.extend(self.dcells.get(&index));
        if let Some(before) = before {
            self.dcells.insert(before, terms.apply("dcell", &inputs));
        }
        terms.apply("dgates", &inputs)
    }

    /// Adds to the gradient of a parameter, which several layers may share.
    fn add_gradient(&mut self, terms: &mut Terms, name: String, gradient: TermId) {
        let before = self.gradients.get(&name).copied();
        self.gradients.insert(name, before.map_or(gradient, |before| terms.sum(before, gradient)));
    }

    /// Returns the name of the layer whose parameters a layer uses.
    fn owner(&self, layer: &Layer) -> String {
        layer.shares.map_or(layer, |owner| self.network.layer(owner)).name.clone()
    }

    /// Returns the size of a part of a concatenation.
    fn part(&self, id: LayerId, along: Axis) -> u64 {
        let shape = self.network.layer(id).output;
        if along == Axis::Rows { shape.elements() } else { u64::from(shape.channels) }
    }

    /// Returns the number of elements of a bias.
    fn biases(&self, layer: &Layer, over: Extent) -> u64 {
        if over == Extent::Positions { layer.output.elements() } else { u64::from(layer.output.channels) }
    }

    fn lookup(&self, layer: &Layer) -> EmbeddingShape {
        let LayerKind::Embedding { vocabulary, width, first, length } = layer.kind else { unreachable!() };
        let [first, count, vocabulary, width] = [first, length, vocabulary, width].map(u64::from);
        let length = self.network.layers[0].output.elements();
        EmbeddingShape { batch: self.batch, length, first, count, vocabulary, width }
    }

    fn attention(&self, layer: &Layer) -> AttentionShape {
        let LayerKind::Attention { heads, kv_heads, causal } = layer.kind else { unreachable!() };
        let (length, width) = (u64::from(layer.output.height), u64::from(layer.output.channels));
        let [heads, kv_heads] = [heads, kv_heads].map(u64::from);
        AttentionShape { batch: self.batch, length, heads, kv_heads, width, causal }
    }

    fn rotary(&self, layer: &Layer) -> RotaryShape {
        let LayerKind::Rotary { width, .. } = layer.kind else { unreachable!() };
        let [length, channels, width] = [layer.output.height, layer.output.channels, width].map(u64::from);
        RotaryShape { batch: self.batch, length, channels, width }
    }

    fn conv(&self, layer: &Layer) -> ConvShape {
        let (x, y) = (self.network.input_shape(layer), layer.output);
        let fully = |bias| ConvShape {
            batch: self.batch,
            input: [1, 1],
            in_channels: x.height * x.width * x.channels,
            output: [1, 1],
            out_channels: y.channels,
            window: Window::square(1, 1, 0),
            groups: 1,
            bias,
        };
        match layer.kind {
            LayerKind::Conv { window, groups, bias, .. } => ConvShape {
                input: [x.height, x.width],
                in_channels: x.channels,
                output: [y.height, y.width],
                window,
                groups,
                ..fully(bias)
            },
            LayerKind::FullyConnected { bias, .. } => fully(bias),
            LayerKind::ConvTranspose { window, .. } => ConvShape {
                input: [y.height, y.width],
                in_channels: y.channels,
                output: [x.height, x.width],
                out_channels: x.channels,
                window,
                ..fully(false)
            },
            _ => unreachable!("{} has no weights", layer.name),
        }
    }

    fn pool(&self, layer: &Layer) -> PoolShape {
        let (x, y) = (self.network.input_shape(layer), layer.output);
        let window = match layer.kind {
            LayerKind::MaxPool { window, .. } | LayerKind::AvgPool { window } => window,
            _ => Window { size: [x.height, x.width], ..Window::square(1, 1, 0) },
        };
        let (input, output) = ([x.height, x.width], [y.height, y.width]);
        PoolShape { batch: self.batch, input, output, channels: x.channels, window }
    }
}
