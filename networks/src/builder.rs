//! Builds a network layer by layer; computes each layer's shape and refuses invalid layers.
//!
//! A network that the builder has finished is sound: names are unique, every layer is used, shapes agree, sizes fit in their
//! types. The lowering relies on that and does not check it again.

use crate::error::NetworkError;
use crate::layers::{Purpose, Resident, rules};
use plimsoll_ir::network::{Axis, Layer, LayerKind, Network, NetworkSpec, Shape, Window};
use plimsoll_ir::{Bytes, LayerId};
use std::collections::HashSet;

/// Limit of any size: the addressable bytes of today's processors. Products of a few sizes stay far below 2^128.
pub(crate) const BYTES_LIMIT: Bytes = Bytes(1 << 48);

/// A network under construction.
#[derive(Clone, Debug)]
pub struct Builder {
    spec: NetworkSpec,
    layers: Vec<Layer>,
    names: HashSet<String>,
    used: Vec<bool>,
}

impl Builder {
    /// Starts with the input layer, `images`.
    pub fn new(spec: &NetworkSpec) -> Result<Builder, NetworkError> {
        let [height, width] = spec.image;
        let sizes = [
            ("the image's height", height),
            ("the image's width", width),
            ("the number of channels", spec.channels),
            ("the number of classes", spec.classes),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(NetworkError::zero(what));
        }
        let mut builder =
            Builder { spec: spec.clone(), layers: Vec::new(), names: HashSet::new(), used: Vec::new() };
        builder.push("images", LayerKind::Input, &[], Shape { height, width, channels: spec.channels })?;
        Ok(builder)
    }

    /// Returns the input layer.
    pub fn images(&self) -> LayerId {
        LayerId(0)
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> u32 {
        self.spec.classes
    }

    /// Returns the shape of a layer's output, of one sample.
    pub fn shape(&self, layer: LayerId) -> Shape {
        self.layers[layer.index()].output
    }

    /// Appends a layer that takes the outputs of `inputs`.
    pub fn add(&mut self, name: &str, kind: LayerKind, inputs: &[LayerId]) -> Result<LayerId, NetworkError> {
        let bad = |why: String| NetworkError::of_layer(name, why);
        if let Some(missing) = inputs.iter().find(|i| i.index() >= self.layers.len()) {
            return Err(bad(format!("its input {missing} does not exist")));
        }
        if matches!(kind, LayerKind::Input | LayerKind::SoftmaxCrossEntropy) {
            return Err(bad("the input and the loss are added by the builder itself".into()));
        }
        let rules = rules(&kind);
        let wanted = rules.arity(inputs.len());
        if inputs.len() != wanted {
            return Err(bad(format!("it takes {wanted} input(s), not {}", inputs.len())));
        }
        self.check_input(name, &kind, inputs)?;
        rules.check_inputs(&self.layers, inputs).map_err(|why| bad(why.to_owned()))?;
        let shapes: Vec<Shape> = inputs.iter().map(|i| self.shape(*i)).collect();
        let output = rules.shape(name, &shapes)?;
        self.push(name, kind, inputs, output)
    }

    /// Appends a layer that uses the parameters of an earlier one in place of its own: a convolution, a fully connected
    /// layer, a lookup or a bias. The weight is equally large in both dimensions (outputs, or rows of a table, and the rest),
    /// with a bias if the other has one.
    pub fn add_sharing(
        &mut self,
        name: &str,
        kind: LayerKind,
        inputs: &[LayerId],
        of: LayerId,
    ) -> Result<LayerId, NetworkError> {
        let bad = |why: String| NetworkError::of_layer(name, why);
        let Some(owner) = self.layers.get(of.index()) else {
            return Err(bad(format!("the layer {of}, whose parameters it shares, does not exist")));
        };
        let of = owner.shares.unwrap_or(of);
        let owner = &self.layers[of.index()];
        let shared = |kind: &LayerKind, inputs: &[LayerId]| {
            let input = self.layers.get(inputs.first()?.index())?.output;
            rules(kind).shared(input)
        };
        let (theirs, ours) = (shared(&owner.kind, &owner.inputs), shared(&kind, inputs));
        if theirs.is_none() || theirs != ours {
            return Err(bad(format!(
                "it cannot share the parameters of `{}`: they are of another shape",
                owner.name
            )));
        }
        let id = self.add(name, kind, inputs)?;
        let layer = &mut self.layers[id.index()];
        (layer.shares, layer.parameters) = (Some(of), 0);
        Ok(id)
    }

    /// Refuses a layer that would make the input hold tokens for some layers and images for others.
    fn check_input(&self, name: &str, kind: &LayerKind, inputs: &[LayerId]) -> Result<(), NetworkError> {
        let of_tokens = |kind: &LayerKind| matches!(kind, LayerKind::Embedding { .. });
        let takes_tokens = of_tokens(kind);
        let differs =
            |layer: &Layer| layer.inputs.contains(&self.images()) && of_tokens(&layer.kind) != takes_tokens;
        if inputs.contains(&self.images()) && self.layers.iter().any(differs) {
            let why = "the input holds tokens for some layers and images for others; it can hold one of them";
            return Err(NetworkError::of_layer(name, why));
        }
        Ok(())
    }

    /// Appends the loss and returns the network, if `logits` holds one number per class at each position that has a label,
    /// and every layer is used.
    pub fn finish(mut self, logits: LayerId) -> Result<Network, NetworkError> {
        let bad = |layer: &Layer, why: String| Err(NetworkError::of_layer(&layer.name, why));
        let shape = self.shape(logits);
        if shape.channels != self.spec.classes {
            let why =
                format!("the loss needs {} channels, one for each class, not {shape}", self.spec.classes);
            return bad(&self.layers[logits.index()], why);
        }
        self.push("loss", LayerKind::SoftmaxCrossEntropy, &[logits], shape)?;
        let last = self.layers.len() - 1;
        if let Some(unused) = self.used[..last].iter().position(|used| !used) {
            return bad(&self.layers[unused], "no layer uses its output; leave it out".into());
        }
        Ok(Network { spec: self.spec, layers: self.layers })
    }

    /// Appends a layer whose shape is known.
    fn push(
        &mut self,
        name: &str,
        kind: LayerKind,
        inputs: &[LayerId],
        output: Shape,
    ) -> Result<LayerId, NetworkError> {
        if !self.names.insert(name.to_owned()) {
            return Err(NetworkError::of_layer(name, "the name is taken; use another"));
        }
        let elements = u128::from(output.height) * u128::from(output.width) * u128::from(output.channels);
        let (rules, input) = (rules(&kind), inputs.first().map_or(output, |i| self.shape(*i)));
        let resident = rules.resident(input, false);
        let weights = resident.iter().map(Resident::elements).max().unwrap_or(0);
        for (what, count) in [("one sample of layer", elements), ("the weights of layer", weights)] {
            if 4 * count > u128::from(BYTES_LIMIT.0) {
                let what = format!("{what} `{name}`");
                return Err(NetworkError::too_large(&what, 4 * count, BYTES_LIMIT));
            }
        }
        for input in &inputs[..rules.reads(inputs.len())] {
            self.used[input.index()] = true;
        }
        let id = LayerId::new(self.layers.len());
        let trained = resident.iter().filter(|region| !matches!(region.purpose, Purpose::State(_)));
        self.layers.push(Layer {
            name: name.to_owned(),
            parameters: trained.map(|region| region.shape.iter().product::<u64>()).sum(),
            forward_flops: rules.flops(input, output),
            kind,
            inputs: inputs.to_vec(),
            shares: None,
            output,
        });
        self.used.push(false);
        Ok(id)
    }
}

/// The layers of the zoo, in short.
impl Builder {
    /// Appends a convolution with a square window and padding of zeros.
    pub fn conv(
        &mut self,
        name: &str,
        input: LayerId,
        out_channels: u32,
        window: Window,
        bias: bool,
    ) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Conv { out_channels, window, groups: 1, bias }, &[input])
    }

    /// Appends batch normalisation with PyTorch's defaults.
    pub fn batch_norm(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::BatchNorm { epsilon: 1e-5, momentum: 0.1 }, &[input])
    }

    /// Appends layer normalisation with PyTorch's defaults.
    pub fn layer_norm(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::LayerNorm { epsilon: 1e-5 }, &[input])
    }

    /// Appends max(x, 0).
    pub fn relu(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::RELU, &[input])
    }

    /// Appends x times the normal distribution at x.
    pub fn gelu(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::GELU, &[input])
    }

    /// Appends the concatenation of the inputs, channel after channel.
    pub fn concat(&mut self, name: &str, inputs: &[LayerId]) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Concat { along: Axis::Channels }, inputs)
    }

    /// Appends dropout.
    pub fn dropout(&mut self, name: &str, input: LayerId, probability: f32) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Dropout { probability }, &[input])
    }

    /// Appends max pooling.
    pub fn max_pool(&mut self, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::MaxPool { window, ceil: false }, &[input])
    }

    /// Appends mean pooling, padding counted.
    pub fn avg_pool(&mut self, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::AvgPool { window }, &[input])
    }

    /// Appends a fully connected layer with bias.
    pub fn fully_connected(
        &mut self,
        name: &str,
        input: LayerId,
        outputs: u32,
    ) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::FullyConnected { outputs, bias: true }, &[input])
    }
}
