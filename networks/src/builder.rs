//! Puts a network together layer by layer; computes each layer's shape and refuses what makes no sense.
//!
//! A network that the builder has finished is sound: names are unique, every layer is used, shapes agree, sizes fit in
//! their types. The lowering relies on that and checks none of it again.

use crate::error::NetworkError;
use plimsoll_ir::network::{Axis, DropUnit, Extent, Layer, LayerKind, Network, NetworkSpec, Shape, Window};
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

    /// Sets how many classes there are, where that is known only in the end.
    pub(crate) fn set_classes(&mut self, classes: u32) {
        self.spec.classes = classes;
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
            LayerKind::Concat { .. } => inputs.len().max(1),
            LayerKind::LstmCell => inputs.len().clamp(1, 2),
            LayerKind::Add | LayerKind::Multiply => 2,
            LayerKind::Learned { .. } => 0,
            _ => 1,
        };
        if inputs.len() != wanted {
            return Err(bad(format!("it takes {wanted} input(s), not {}", inputs.len())));
        }
        self.check_inputs(name, &kind, inputs)?;
        let shapes: Vec<Shape> = inputs.iter().map(|i| self.shape(*i)).collect();
        let output = output_shape(name, &kind, &shapes)?;
        self.push(name, kind, inputs, output)
    }

    /// Appends a layer that uses the parameters of an earlier one in place of its own: a convolution, a fully connected
    /// layer, a lookup or a bias, of a weight as large in both dimensions (outputs, or rows of a table, and the rest), with a
    /// bias where the other has one.
    pub fn add_sharing(
        &mut self,
        name: &str,
        kind: LayerKind,
        inputs: &[LayerId],
        of: LayerId,
    ) -> Result<LayerId, NetworkError> {
        let bad = |why: String| NetworkError::BadLayer { layer: name.to_owned(), why };
        let Some(owner) = self.layers.get(of.index()) else {
            return Err(bad(format!("the layer {of}, whose parameters it shares, does not exist")));
        };
        let of = owner.shares.unwrap_or(of);
        let owner = &self.layers[of.index()];
        let theirs = weight_matrix(&owner.kind, owner.inputs.first().map(|i| self.shape(*i)));
        let ours = weight_matrix(
            &kind,
            inputs.first().filter(|i| i.index() < self.layers.len()).map(|i| self.shape(*i)),
        );
        if theirs.is_none() || theirs != ours {
            return Err(bad(format!(
                "it cannot share the parameters of `{}`: they are of another shape",
                owner.name
            )));
        }
        let id = self.add(name, kind, inputs)?;
        self.layers[id.index()].shares = Some(of);
        Ok(id)
    }

    /// What a kind of layer asks of the layers that it takes, besides their shapes.
    fn check_inputs(&self, name: &str, kind: &LayerKind, inputs: &[LayerId]) -> Result<(), NetworkError> {
        let bad = |why: &str| Err(NetworkError::BadLayer { layer: name.to_owned(), why: why.to_owned() });
        let of_tokens = |layer: &Layer| matches!(layer.kind, LayerKind::Embedding { .. });
        let takes_images = |layer: &Layer| layer.inputs.contains(&self.images()) && !of_tokens(layer);
        let embeds = matches!(kind, LayerKind::Embedding { .. });
        if embeds && inputs != [self.images()] {
            return bad("it looks up tokens, which only the input holds");
        }
        let mixed = if embeds {
            self.layers.iter().any(takes_images)
        } else {
            inputs.contains(&self.images()) && self.layers.iter().any(of_tokens)
        };
        if mixed {
            return bad(
                "the input holds tokens for some layers and images for others; it can hold one of them",
            );
        }
        if let (LayerKind::LstmCell, Some(before)) = (kind, inputs.get(1)) {
            if self.layers[before.index()].kind != LayerKind::LstmCell {
                return bad("its second input is the step before, another memory cell");
            }
            let follows =
                |layer: &Layer| layer.kind == LayerKind::LstmCell && layer.inputs.get(1) == Some(before);
            if self.layers.iter().any(follows) {
                return bad("another step follows the step before already; the cell state goes to one");
            }
        }
        Ok(())
    }

    /// Appends the loss and gives the network, where `logits` holds one number a class at each position that has a label, and
    /// every layer is used.
    pub fn finish(mut self, logits: LayerId) -> Result<Network, NetworkError> {
        let bad = |layer: &Layer, why: String| Err(NetworkError::BadLayer { layer: layer.name.clone(), why });
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
        // A step of a memory takes the cell state of the step before, and not its output.
        let takes = if kind == LayerKind::LstmCell { 1 } else { inputs.len() };
        for input in &inputs[..takes] {
            self.used[input.index()] = true;
        }
        let id = LayerId::new(self.layers.len());
        self.layers.push(Layer {
            name: name.to_owned(),
            kind,
            inputs: inputs.to_vec(),
            shares: None,
            output,
        });
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
        self.add(name, LayerKind::RELU, &[input])
    }

    /// x times the normal distribution at x.
    pub fn gelu(&mut self, name: &str, input: LayerId) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::GELU, &[input])
    }

    /// Lays what the inputs give side by side, channel after channel.
    pub fn concat(&mut self, name: &str, inputs: &[LayerId]) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Concat { along: Axis::Channels }, inputs)
    }

    /// Dropout, element by element.
    pub fn dropout(&mut self, name: &str, input: LayerId, probability: f32) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::Dropout { probability, unit: DropUnit::Element }, &[input])
    }

    /// Max pooling.
    pub fn max_pool(&mut self, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::MaxPool { window, ceil: false }, &[input])
    }

    /// Mean pooling, padding counted.
    pub fn avg_pool(&mut self, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
        self.add(name, LayerKind::AvgPool { window }, &[input])
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

/// Rows and columns of the weight that a layer multiplies with or looks up, and whether it has a bias; none for layers that
/// cannot share theirs.
fn weight_matrix(kind: &LayerKind, input: Option<Shape>) -> Option<(u64, u64, bool)> {
    let input = input?;
    match kind {
        LayerKind::Conv { out_channels, window, groups, bias } => {
            let taps = u64::from(window.size[0]) * u64::from(window.size[1]);
            Some((u64::from(*out_channels), taps * u64::from(input.channels / (*groups).max(1)), *bias))
        }
        LayerKind::FullyConnected { outputs, bias } => Some((u64::from(*outputs), input.elements(), *bias)),
        LayerKind::Embedding { vocabulary, width, .. } => {
            Some((u64::from(*vocabulary), u64::from(*width), false))
        }
        LayerKind::Bias { over: Extent::Channels, spare: 0 } => Some((1, u64::from(input.channels), true)),
        _ => None,
    }
}

/// Weights of a layer, biases left aside, without overflow.
fn weights(kind: &LayerKind, input: Option<Shape>) -> u128 {
    if let LayerKind::Learned { rows, channels } = kind {
        return u128::from(*rows) * u128::from(*channels);
    }
    let Some(input) = input else { return 0 };
    match kind {
        LayerKind::Conv { out_channels, window, groups, .. } => {
            let taps = u128::from(window.size[0]) * u128::from(window.size[1]);
            u128::from(*out_channels) * taps * u128::from(input.channels / groups)
        }
        LayerKind::FullyConnected { outputs, .. } => u128::from(*outputs) * u128::from(input.elements()),
        LayerKind::ConvTranspose { out_channels, window } => {
            let taps = u128::from(window.size[0]) * u128::from(window.size[1]);
            u128::from(*out_channels) * taps * u128::from(input.channels)
        }
        LayerKind::Embedding { vocabulary, width, .. } => u128::from(*vocabulary) * u128::from(*width),
        LayerKind::Bias { spare, .. } => u128::from(input.elements()) * (1 + u128::from(*spare)),
        _ => 0,
    }
}

/// The shape of what a layer gives, or what is wrong with the layer.
fn output_shape(name: &str, kind: &LayerKind, inputs: &[Shape]) -> Result<Shape, NetworkError> {
    let bad = |why: String| Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    if let LayerKind::Learned { rows, channels } = *kind {
        let output = Shape { height: rows, width: 1, channels };
        return if output.elements() > 0 { Ok(output) } else { bad("it has no rows or no channels".into()) };
    }
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
        LayerKind::MaxPool { window, .. } | LayerKind::AvgPool { window } => {
            if u64::from(window.size[0]) * u64::from(window.size[1]) > 256 {
                return bad("a pooling window has at most 256 positions; use a global pooling".into());
            }
            let mut output = slide(name, window, input)?;
            if let LayerKind::MaxPool { ceil: true, .. } = kind {
                output = window.output_ceil(input.height, input.width).unwrap_or(output);
            }
            let [height, width] = output;
            if matches!(kind, LayerKind::MaxPool { .. }) && sees_only_padding(window, input, [height, width])
            {
                return bad("some of its windows lie wholly in the padding; make the padding smaller".into());
            }
            Ok(Shape { height, width, ..input })
        }
        LayerKind::ConvTranspose { out_channels, window } => transposed(name, window, *out_channels, input),
        LayerKind::Bias { .. } if !matches!(kind, LayerKind::Bias { spare: 0..1024, .. }) => {
            bad("a bias has fewer than 1024 spare rows".into())
        }
        LayerKind::Embedding { .. }
        | LayerKind::Attention { .. }
        | LayerKind::Rotary { .. }
        | LayerKind::LstmCell => sequence_shape(name, kind, inputs),
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
        LayerKind::Relu { ceiling } if ceiling.is_nan() || *ceiling <= 0.0 => {
            bad(format!("a ReLU's ceiling is above 0, not {ceiling}"))
        }
        LayerKind::Dropout { probability, .. } if !(0.0..1.0).contains(probability) => {
            bad(format!("a dropout probability is from 0 to below 1, not {probability}"))
        }
        LayerKind::LayerNorm { epsilon } | LayerKind::RmsNorm { epsilon }
            if !(*epsilon > 0.0 && epsilon.is_finite()) =>
        {
            bad(format!(
                "epsilon is above 0 and finite, not {epsilon}: rows of one value have no variance, and of zeros no length"
            ))
        }
        LayerKind::LayerNorm { .. } if input.channels == 1 => {
            bad("over one channel it leaves nothing but its shift; it needs at least 2".into())
        }
        LayerKind::Lrn { size, .. } if size % 2 == 0 => bad(format!("the neighbourhood is odd, not {size}")),
        LayerKind::Add if inputs[1] != input => bad(format!("{input} and {} cannot be added", inputs[1])),
        LayerKind::Multiply if ![input, Shape { height: 1, width: 1, ..input }].contains(&inputs[1]) => {
            bad(format!("{input} cannot be multiplied by {}, only by as much or by one position", inputs[1]))
        }
        LayerKind::Concat { along } => concat_shape(name, *along, inputs),
        LayerKind::Slice { along, first, length } => {
            let all = if *along == Axis::Rows { input.height } else { input.channels };
            if *length == 0 || first.checked_add(*length).is_none_or(|end| end > all) {
                return bad(format!("{length} from {first} on are not among the {all} there are"));
            }
            Ok(match along {
                Axis::Rows => Shape { height: *length, ..input },
                Axis::Channels => Shape { channels: *length, ..input },
            })
        }
        LayerKind::Flatten => match u32::try_from(input.pixels()) {
            Ok(height) => Ok(Shape { height, width: 1, ..input }),
            Err(_) => bad(format!("{} rows are too many", input.pixels())),
        },
        _ => Ok(input),
    }
}

/// [`output_shape`] of the layers that know of positions.
fn sequence_shape(name: &str, kind: &LayerKind, inputs: &[Shape]) -> Result<Shape, NetworkError> {
    let bad = |why: String| Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    let input = inputs[0];
    match kind {
        LayerKind::Embedding { vocabulary, width, first, length } => {
            if input.width != 1 || input.channels != 1 {
                return bad(format!("tokens are images of one column and one channel, not {input}"));
            }
            if *vocabulary == 0 || *width == 0 || *length == 0 || i32::try_from(*vocabulary).is_err() {
                return bad("vocabulary, width and length are at least 1, the vocabulary below 2^31".into());
            }
            if first.checked_add(*length).is_none_or(|end| end > input.height) {
                return bad(format!(
                    "{length} tokens from {first} on are not among the {} there are",
                    input.height
                ));
            }
            Ok(Shape { height: *length, width: 1, channels: *width })
        }
        LayerKind::Attention { heads, kv_heads, .. } => {
            if *heads == 0 || *kv_heads == 0 || !heads.is_multiple_of(*kv_heads) {
                return bad(format!(
                    "{heads} heads of queries cannot share {kv_heads} of keys and values evenly; both are at least 1"
                ));
            }
            let all = u64::from(*heads) + 2 * u64::from(*kv_heads);
            if input.width != 1 || !u64::from(input.channels).is_multiple_of(all) {
                return bad(format!(
                    "it takes {heads} heads of queries, {kv_heads} of keys and {kv_heads} of values side by side, in one \
                     column, not {input}"
                ));
            }
            let of_head = u64::from(input.channels) / all;
            let channels = u32::try_from(of_head * u64::from(*heads)).unwrap_or(u32::MAX);
            Ok(Shape { channels, ..input })
        }
        LayerKind::Rotary { width, base } => {
            if !(*base > 0.0 && base.is_finite()) {
                return bad(format!("the base of rotary embeddings is above 0 and finite, not {base}"));
            }
            if *width == 0
                || !width.is_multiple_of(2)
                || input.width != 1
                || !input.channels.is_multiple_of(*width)
            {
                return bad(format!(
                    "it takes heads of {width} channels, which must be even, side by side in one column, not {input}"
                ));
            }
            Ok(input)
        }
        LayerKind::LstmCell => {
            let output = Shape { channels: input.channels / 4, ..input };
            if !input.channels.is_multiple_of(4) {
                return bad(format!("it takes four gates side by side, not {input}"));
            }
            match inputs.get(1) {
                Some(before) if *before != output => {
                    bad(format!("the step before gives {before}, and this one {output}"))
                }
                _ => Ok(output),
            }
        }
        _ => unreachable!("{} is no layer of sequences", kind.name()),
    }
}

/// The shape of what lies side by side.
fn concat_shape(name: &str, along: Axis, inputs: &[Shape]) -> Result<Shape, NetworkError> {
    let bad = |why: String| Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    let input = inputs[0];
    match along {
        Axis::Rows => {
            if let Some(other) =
                inputs.iter().find(|s| (s.width, s.channels) != (input.width, input.channels))
            {
                return bad(format!("{input} and {other} cannot lie below one another"));
            }
            let height: u64 = inputs.iter().map(|s| u64::from(s.height)).sum();
            match u32::try_from(height) {
                Ok(height) => Ok(Shape { height, ..input }),
                Err(_) => bad(format!("{height} rows are too many")),
            }
        }
        Axis::Channels => {
            if let Some(other) = inputs.iter().find(|s| (s.height, s.width) != (input.height, input.width)) {
                return bad(format!("{input} and {other} cannot lie side by side"));
            }
            let channels: u64 = inputs.iter().map(|s| u64::from(s.channels)).sum();
            match u32::try_from(channels) {
                Ok(channels) => Ok(Shape { channels, ..input }),
                Err(_) => bad(format!("{channels} channels are too many")),
            }
        }
    }
}

/// The shape of what a transposed convolution gives.
fn transposed(name: &str, window: &Window, channels: u32, input: Shape) -> Result<Shape, NetworkError> {
    let bad = |why: String| Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    if channels == 0 {
        return bad("it has no output channels; give at least 1".into());
    }
    check_window(name, window)?;
    match window.transposed_output(input.height, input.width) {
        Some([height, width]) if window.output(height, width) == Some([input.height, input.width]) => {
            Ok(Shape { height, width, channels })
        }
        _ => bad(format!("its padding leaves nothing of {input}, or more than fits 32 bits")),
    }
}

/// Refuses a window of nothing, or one that stands still.
fn check_window(name: &str, window: &Window) -> Result<(), NetworkError> {
    if window.size.contains(&0) || window.stride.contains(&0) || window.dilation.contains(&0) {
        let why = "size, stride and dilation of a window are at least 1".into();
        return Err(NetworkError::BadLayer { layer: name.to_owned(), why });
    }
    Ok(())
}

/// Rows and columns of the output of a sliding window.
fn slide(name: &str, window: &Window, input: Shape) -> Result<[u32; 2], NetworkError> {
    check_window(name, window)?;
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
