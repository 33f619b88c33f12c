//! Puts a network together layer by layer; computes each layer's shape and refuses what makes no sense.
//!
//! A network that the builder has finished is sound: names are unique, every layer is used, shapes agree, sizes fit in
//! their types. The lowering relies on that and checks none of it again.

use crate::error::NetworkError;
use plimsoll_ir::network::{Layer, LayerKind, Network, NetworkSpec, Shape, Window};
use plimsoll_ir::{Bytes, LayerId};
use std::collections::HashSet;

/// No size passes this: it is what today's processors address. Products of a few sizes stay far below 2^128.
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
            return Err(NetworkError::Zero { what });
        }
        let mut builder =
            Builder { spec: spec.clone(), layers: Vec::new(), names: HashSet::new(), used: Vec::new() };
        builder.push("images", LayerKind::Input, &[], Shape { height, width, channels: spec.channels })?;
        Ok(builder)
    }

    /// The images.
    pub fn images(&self) -> LayerId {
        LayerId(0)
    }

    /// How many classes there are to tell apart.
    pub fn classes(&self) -> u32 {
        self.spec.classes
    }

    /// The shape of a layer's output, of one sample.
    pub fn shape(&self, layer: LayerId) -> Shape {
        self.layers[layer.index()].output
    }

    /// Appends a layer that takes the outputs of `inputs`.
    pub fn add(&mut self, name: &str, kind: LayerKind, inputs: &[LayerId]) -> Result<LayerId, NetworkError> {
        let bad = |why: String| NetworkError::BadLayer { layer: name.to_owned(), why };
        if let Some(missing) = inputs.iter().find(|i| i.index() >= self.layers.len()) {
            return Err(bad(format!("its input {missing} does not exist")));
        }
        let wanted = match kind {
            LayerKind::Input | LayerKind::SoftmaxCrossEntropy => {
                return Err(bad("the input and the loss are added by the builder itself".into()));
            }
            LayerKind::Concat => inputs.len().max(1),
            LayerKind::Add => 2,
            _ => 1,
        };
        if inputs.len() != wanted {
            return Err(bad(format!("it takes {wanted} input(s), not {}", inputs.len())));
        }
        let shapes: Vec<Shape> = inputs.iter().map(|i| self.shape(*i)).collect();
        let output = output_shape(name, &kind, &shapes)?;
        self.push(name, kind, inputs, output)
    }

    /// Appends the loss and gives the network, where `logits` holds one number a class and every layer is used.
    pub fn finish(mut self, logits: LayerId) -> Result<Network, NetworkError> {
        let bad = |layer: &Layer, why: String| Err(NetworkError::BadLayer { layer: layer.name.clone(), why });
        let shape = self.shape(logits);
        let wanted = Shape { height: 1, width: 1, channels: self.spec.classes };
        if shape != wanted {
            return bad(&self.layers[logits.index()], format!("the loss needs {wanted}, not {shape}"));
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
            return Err(NetworkError::BadLayer {
                layer: name.to_owned(),
                why: "the name is taken; use another".into(),
            });
        }
        let elements = u128::from(output.height) * u128::from(output.width) * u128::from(output.channels);
        let weights = weights(&kind, inputs.first().map(|i| self.shape(*i)));
        for (what, count) in [("one sample of layer", elements), ("the weights of layer", weights)] {
            if 4 * count > u128::from(BYTES_LIMIT.0) {
                let what = format!("{what} `{name}`");
                return Err(NetworkError::TooLarge { what, bytes: 4 * count, limit: BYTES_LIMIT });
            }
        }
        for input in inputs {
            self.used[input.index()] = true;
        }
        let id = LayerId::new(self.layers.len());
        self.layers.push(Layer { name: name.to_owned(), kind, inputs: inputs.to_vec(), output });
        self.used.push(false);
        Ok(id)
    }
}

/// The layers that the zoo is made of, in short.
impl Builder {
    /// A convolution with a square window and padding of zeros.
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

    /// Batch normalisation as PyTorch has it by default.
    pub fn batch_norm(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::BatchNorm { epsilon: 1e-5, momentum: 0.1 }, &[input])
    }

    /// Layer normalisation as PyTorch has it by default.
    pub fn layer_norm(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::LayerNorm { epsilon: 1e-5 }, &[input])
    }

    /// max(x, 0).
    pub fn relu(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Relu, &[input])
    }

    /// x times the normal distribution at x.
    pub fn gelu(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Gelu, &[input])
    }

    /// Max pooling.
    pub fn max_pool(&mut self, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::MaxPool { window }, &[input])
    }

    /// Mean pooling, padding counted.
    pub fn avg_pool(&mut self, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::AvgPool { window }, &[input])
    }

    /// Dropout of single elements.
    pub fn dropout(&mut self, name: &str, input: LayerId, probability: f32) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Dropout { probability }, &[input])
    }

    /// Channels of the inputs side by side.
    pub fn concat(&mut self, name: &str, inputs: &[LayerId]) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Concat, inputs)
    }

    /// A fully connected layer with bias.
    pub fn fully_connected(
        &mut self,
        name: &str,
        input: LayerId,
        outputs: u32,
    ) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::FullyConnected { outputs, bias: true }, &[input])
    }
}

/// Weights of a layer, biases left aside, without overflow.
fn weights(kind: &LayerKind, input: Option<Shape>) -> u128 {
    let Some(input) = input else { return 0 };
    match kind {
        LayerKind::Conv { out_channels, window, groups, .. } => {
            let taps = u128::from(window.size[0]) * u128::from(window.size[1]);
            u128::from(*out_channels) * taps * u128::from(input.channels / groups)
        }
        LayerKind::FullyConnected { outputs, .. } => u128::from(*outputs) * u128::from(input.elements()),
        _ => 0,
    }
}

/// The shape of what a layer gives, or what is wrong with the layer.
fn output_shape(name: &str, kind: &LayerKind, inputs: &[Shape]) -> Result<Shape, NetworkError> {
    let bad = |why: String| Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    let Some(&input) = inputs.first() else { return bad("it takes at least one input".into()) };
    match kind {
        LayerKind::Conv { out_channels, window, groups, .. } => {
            if *out_channels == 0 || *groups == 0 {
                return bad("it has no output channels or no groups; both are at least 1".into());
            }
            if input.channels % groups != 0 || out_channels % groups != 0 {
                return bad(format!(
                    "{} and {out_channels} channels do not fall into {groups} groups",
                    input.channels
                ));
            }
            let [height, width] = slide(name, window, input)?;
            Ok(Shape { height, width, channels: *out_channels })
        }
        LayerKind::MaxPool { window } | LayerKind::AvgPool { window } => {
            if u64::from(window.size[0]) * u64::from(window.size[1]) > 256 {
                return bad("a pooling window has at most 256 positions; use a global pooling".into());
            }
            let [height, width] = slide(name, window, input)?;
            if matches!(kind, LayerKind::MaxPool { .. }) && sees_only_padding(window, input, [height, width])
            {
                return bad("some of its windows lie wholly in the padding; make the padding smaller".into());
            }
            Ok(Shape { height, width, ..input })
        }
        LayerKind::GlobalAvgPool => Ok(Shape { height: 1, width: 1, ..input }),
        LayerKind::FullyConnected { outputs, .. } => {
            if *outputs == 0 || u32::try_from(input.elements()).is_err() {
                return bad(format!(
                    "it has {} inputs and {outputs} outputs; both are from 1 to 2^32 - 1",
                    input.elements()
                ));
            }
            Ok(Shape { height: 1, width: 1, channels: *outputs })
        }
        LayerKind::Dropout { probability } if !(0.0..1.0).contains(probability) => {
            bad(format!("a dropout probability is from 0 to below 1, not {probability}"))
        }
        LayerKind::LayerNorm { epsilon } if !(*epsilon > 0.0 && epsilon.is_finite()) => {
            bad(format!("epsilon is above 0 and finite, not {epsilon}: rows of one value have no variance"))
        }
        LayerKind::LayerNorm { .. } if input.channels == 1 => {
            bad("over one channel it leaves nothing but its shift; it needs at least 2".into())
        }
        LayerKind::Lrn { size, .. } if size % 2 == 0 => bad(format!("the neighbourhood is odd, not {size}")),
        LayerKind::Add if inputs[1] != input => bad(format!("{input} and {} cannot be added", inputs[1])),
        LayerKind::Concat => {
            if let Some(other) = inputs.iter().find(|s| (s.height, s.width) != (input.height, input.width)) {
                return bad(format!("{input} and {other} cannot lie side by side"));
            }
            let channels: u64 = inputs.iter().map(|s| u64::from(s.channels)).sum();
            match u32::try_from(channels) {
                Ok(channels) => Ok(Shape { channels, ..input }),
                Err(_) => bad(format!("{channels} channels are too many")),
            }
        }
        _ => Ok(input),
    }
}

/// Rows and columns of the output of a sliding window.
fn slide(name: &str, window: &Window, input: Shape) -> Result<[u32; 2], NetworkError> {
    if window.size.contains(&0) || window.stride.contains(&0) || window.dilation.contains(&0) {
        let why = "size, stride and dilation of a window are at least 1".into();
        return Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    }
    window.output(input.height, input.width).ok_or_else(|| NetworkError::WindowTooLarge {
        layer: name.to_owned(),
        window: [0, 1].map(|d| u64::from(window.dilation[d]) * u64::from(window.size[d] - 1) + 1),
        input,
    })
}

/// Whether a window somewhere has no element of the input under it, so that it has no largest.
fn sees_only_padding(window: &Window, input: Shape, output: [u32; 2]) -> bool {
    [input.height, input.width].into_iter().enumerate().any(|(d, length)| {
        let [size, stride, padding, dilation] =
            [window.size[d], window.stride[d], window.padding[d], window.dilation[d]].map(i64::from);
        let starts_at = |i: i64| i * stride - padding;
        let misses =
            |i: i64| !(0..size).any(|k| (0..i64::from(length)).contains(&(starts_at(i) + k * dilation)));
        // A window that starts on the input sees it; so only those that start before or after it can miss it.
        let before = i64::from(output[d]).min(padding.div_euclid(stride) + 1);
        starts_at(i64::from(output[d]) - 1) >= i64::from(length) || (0..before).any(misses)
    })
}
