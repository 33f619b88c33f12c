//! What a network computes and what its gradients are, straight from its layers by the chain rule.

use crate::terms::{TermId, Terms};
use plimsoll_ir::network::{Layer, LayerKind, Network, Window};
use plimsoll_ir::program::{ConvShape, PoolShape};
use std::collections::HashMap;

pub struct Reference<'a> {
    network: &'a Network,
    batch: u64,
    train: bool,
    values: Vec<TermId>,
    gradients: HashMap<String, TermId>,
    states: HashMap<String, TermId>,
    pub metrics: TermId,
}

impl<'a> Reference<'a> {
    /// Computes the forward pass.
    pub fn new(terms: &mut Terms, network: &'a Network, batch: u64, train: bool) -> Reference<'a> {
        let (gradients, states) = (HashMap::new(), HashMap::new());
        let mut it = Reference { network, batch, train, values: Vec::new(), gradients, states, metrics: 0 };
        for (index, layer) in network.layers.iter().enumerate() {
            let value = it.forward(terms, index, layer);
            it.values.push(value);
        }
        it
    }

    pub fn gradient(&self, name: &str) -> Option<TermId> {
        self.gradients.get(name).copied()
    }

    pub fn parameter(&self, terms: &mut Terms, name: &str) -> Option<TermId> {
        self.stepped(terms, name, "sgd true", name)
    }

    pub fn momentum(&self, terms: &mut Terms, name: &str) -> Option<TermId> {
        self.stepped(terms, name, "sgd momentum true", &format!("momentum of {name}"))
    }

    /// What one step makes of a parameter or its momentum; in evaluation it stays as it is.
    fn stepped(&self, terms: &mut Terms, name: &str, function: &str, otherwise: &str) -> Option<TermId> {
        if !self.train {
            return Some(terms.atom(otherwise));
        }
        let gradient = self.gradient(name).expect("every parameter has a gradient");
        let momentum = terms.atom(&format!("momentum of {name}"));
        let (hyper, parameter) = (terms.atom("hyper"), terms.atom(name));
        Some(terms.apply(function, &[hyper, parameter, gradient, momentum]))
    }

    pub fn state(&self, terms: &mut Terms, name: &str) -> Option<TermId> {
        self.states.get(name).copied().or_else(|| Some(terms.atom(name)))
    }

    fn forward(&mut self, terms: &mut Terms, index: usize, layer: &Layer) -> TermId {
        let inputs: Vec<TermId> = layer.inputs.iter().map(|i| self.values[i.index()]).collect();
        let Some(&x) = inputs.first() else { return terms.atom("images") };
        let mut own = |part: &str| terms.atom(&format!("{}.{part}", layer.name));
        match layer.kind {
            LayerKind::Conv { bias, .. } | LayerKind::FullyConnected { bias, .. } => {
                let mut arguments = vec![x, own("weight")];
                if bias {
                    arguments.push(own("bias"));
                }
                terms.apply(&format!("conv {:?}", self.conv(layer)), &arguments)
            }
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
            LayerKind::Relu => terms.apply("relu", &[x]),
            LayerKind::Gelu => terms.apply("gelu", &[x]),
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
            LayerKind::Concat => {
                let mut whole = terms.apply("part from 0", &[x]);
                let mut first = self.network.layer(layer.inputs[0]).output.channels;
                for (input, id) in inputs.iter().zip(&layer.inputs).skip(1) {
                    whole = terms.apply(&format!("part from {first}"), &[*input, whole]);
                    first += self.network.layer(*id).output.channels;
                }
                whole
            }
            LayerKind::Lrn { size, alpha, beta, bias } => {
                terms.apply(&format!("lrn {size} {alpha} {beta} {bias}"), &[x])
            }
            LayerKind::SoftmaxCrossEntropy => {
                let labels = terms.atom("labels");
                self.metrics = terms.apply("metrics", &[x, labels]);
                terms.apply("softmax", &[x])
            }
            LayerKind::Input => unreachable!("it has no inputs"),
        }
    }

    /// The chain rule, from the loss up. Gradients that nobody needs are derived too, and simply not looked at.
    pub fn differentiate(&mut self, terms: &mut Terms) {
        let mut sums: Vec<Option<TermId>> = vec![None; self.network.layers.len()];
        for (index, layer) in self.network.layers.iter().enumerate().skip(1).rev() {
            for (input, gradient) in self.backward(terms, index, layer, sums[index]) {
                let sum = &mut sums[input];
                *sum = Some(sum.map_or(gradient, |before| terms.sum(before, gradient)));
            }
        }
    }

    /// The gradients that a layer gives its inputs; those of its parameters are kept.
    fn backward(
        &mut self,
        terms: &mut Terms,
        index: usize,
        layer: &Layer,
        dy: Option<TermId>,
    ) -> Vec<(usize, TermId)> {
        let input = layer.inputs[0].index();
        let x = self.values[input];
        let name = &layer.name;
        if layer.kind == LayerKind::SoftmaxCrossEntropy {
            let labels = terms.atom("labels");
            return vec![(input, terms.apply("dlogits", &[x, labels]))];
        }
        let dy = dy.expect("every layer leads to the loss");
        let dx = match layer.kind {
            LayerKind::Conv { bias, .. } | LayerKind::FullyConnected { bias, .. } => {
                let shape = self.conv(layer);
                let weight = terms.atom(&format!("{name}.weight"));
                let dweight = terms.apply(&format!("dweight {shape:?}"), &[x, dy]);
                self.gradients.insert(format!("{name}.weight"), dweight);
                if bias {
                    self.gradients.insert(format!("{name}.bias"), terms.apply("dbias", &[dy]));
                }
                terms.apply(&format!("conv dx {shape:?}"), &[dy, weight])
            }
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
            LayerKind::Relu => terms.apply("relu dx", &[x, dy]),
            LayerKind::Gelu => terms.apply("gelu dx", &[x, dy]),
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
            LayerKind::Concat => {
                let mut first = 0;
                let part = |id: &plimsoll_ir::LayerId| {
                    let channels = self.network.layer(*id).output.channels;
                    first += channels;
                    (id.index(), terms.apply(&format!("split {channels} from {}", first - channels), &[dy]))
                };
                return layer.inputs.iter().map(part).collect();
            }
            LayerKind::Input | LayerKind::SoftmaxCrossEntropy => unreachable!("handled above"),
        };
        vec![(input, dx)]
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
            _ => unreachable!("{} has no weights", layer.name),
        }
    }

    fn pool(&self, layer: &Layer) -> PoolShape {
        let (x, y) = (self.network.input_shape(layer), layer.output);
        let window = match layer.kind {
            LayerKind::MaxPool { window } | LayerKind::AvgPool { window } => window,
            _ => Window { size: [x.height, x.width], ..Window::square(1, 1, 0) },
        };
        let (input, output) = ([x.height, x.width], [y.height, y.width]);
        PoolShape { batch: self.batch, input, output, channels: x.channels, window }
    }
}
