//! A network before it is lowered: layers, shapes, parameters, FLOPs.
//!
//! Layers stand in topological order; a layer names the layers whose outputs it takes. Shapes are those of one sample;
//! lowering adds the batch. A sequence is an image of one column, its positions the rows.

use crate::ids::LayerId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The recipe to build a network again: a name of the zoo and the network's dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// Name in the zoo, such as `resnet18`.
    pub name: String,
    /// Image height and width in pixels; for text, its length in tokens, and 1.
    pub image: [u32; 2],
    /// Image channels.
    pub channels: u32,
    /// Classes; for text, the size of the vocabulary.
    pub classes: u32,
}

impl NetworkSpec {
    /// Returns the name; for a text network, also the vocabulary and the length of a text, which come from the data.
    pub fn in_words(&self) -> String {
        let NetworkSpec { name, image, channels, classes } = self;
        match *image {
            [length, 1] if *channels == 1 => format!("{name}, a vocabulary of {classes}, texts of {length}"),
            _ => name.clone(),
        }
    }
}

/// The shape of one sample's activation. In memory a batch is `[batch][height][width][channels]`, channels innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    pub channels: u32,
}

impl Shape {
    /// Returns the elements of one sample.
    pub fn elements(self) -> u64 {
        self.pixels() * u64::from(self.channels)
    }

    /// Returns the positions of one sample, each with all channels.
    pub fn pixels(self) -> u64 {
        u64::from(self.height) * u64::from(self.width)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.height, self.width, self.channels)
    }
}

/// The sliding window of a convolution or a pooling layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Rows and columns of the window.
    pub size: [u32; 2],
    /// Step between windows.
    pub stride: [u32; 2],
    /// Rows and columns of zeros (of minus infinity, for max pooling) on each side.
    pub padding: [u32; 2],
    /// Step between the window's own positions; 1 is dense.
    pub dilation: [u32; 2],
}

/// The axis along which activations are concatenated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    Channels,
    /// Rows: one activation below the other, or one step of a sequence after the other.
    Rows,
}

/// The unit that has a separate bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    Channels,
    /// Each channel at each position: the learned positions of a sequence.
    Positions,
}

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// x times the probability that a standard normal number is below x (Hendrycks and Gimpel 2016), computed exactly: the
    /// approximation by tanh is up to 5e-4 off, was made for machines without erf, and is no faster where memory is slower
    /// than arithmetic.
    Gelu,
    /// x / (1 + exp(-x)).
    Silu,
}

impl Function {
    /// All functions.
    pub const ALL: [Function; 2] = [Function::Gelu, Function::Silu];

    /// Returns the layer that computes this function.
    pub const fn layer(self) -> LayerKind {
        LayerKind::Activation { function: self }
    }

    /// Returns the layer type, as `trace/1` and the performance model name it.
    pub fn name(self) -> &'static str {
        match self {
            Function::Gelu => "gelu",
            Function::Silu => "silu",
        }
    }

    /// Returns the floating-point operations per element.
    pub fn flops(self) -> u64 {
        match self {
            Function::Gelu => 50,
            Function::Silu => 26,
        }
    }
}

impl Window {
    /// Returns a square window.
    pub fn square(size: u32, stride: u32, padding: u32) -> Window {
        Window { size: [size; 2], stride: [stride; 2], padding: [padding; 2], dilation: [1; 2] }
    }

    /// Returns the rows or columns that the window covers, dilation included; `None` for a window of size 0.
    fn reach(&self, d: usize) -> Option<u64> {
        Some(u64::from(self.dilation[d]) * u64::from(self.size[d]).checked_sub(1)? + 1)
    }

    /// Returns the rows and columns of the output; `None` if the window does not fit the padded input.
    pub fn output(&self, height: u32, width: u32) -> Option<[u32; 2]> {
        let along = |input: u32, d: usize| {
            let room = (u64::from(input) + 2 * u64::from(self.padding[d])).checked_sub(self.reach(d)?)?;
            u32::try_from(room / u64::from(self.stride[d]) + 1).ok()
        };
        Some([along(height, 0)?, along(width, 1)?])
    }

    /// Returns [`Window::output`] with one more window if it starts on the input, or on the padding before it, even where it
    /// reaches beyond the padding after it (PyTorch's `ceil_mode`).
    pub fn output_ceil(&self, height: u32, width: u32) -> Option<[u32; 2]> {
        let along = |input: u32, d: usize| {
            let [padding, stride] = [self.padding[d], self.stride[d]].map(u64::from);
            let room = (u64::from(input) + 2 * padding).checked_sub(self.reach(d)?)?;
            let last = room.div_ceil(stride);
            let starts_behind = last * stride >= u64::from(input) + padding;
            u32::try_from(last + u64::from(!starts_behind)).ok()
        };
        Some([along(height, 0)?, along(width, 1)?])
    }

    /// Returns the rows and columns of a transposed convolution's output: the input of which a convolution makes `height` x
    /// `width`.
    pub fn transposed_output(&self, height: u32, width: u32) -> Option<[u32; 2]> {
        let along = |input: u32, d: usize| {
            let [padding, stride] = [self.padding[d], self.stride[d]].map(u64::from);
            let whole = u64::from(input.checked_sub(1)?) * stride + self.reach(d)?;
            u32::try_from(whole.checked_sub(2 * padding)?).ok().filter(|n| *n > 0)
        };
        Some([along(height, 0)?, along(width, 1)?])
    }
}

/// The computation of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerKind {
    /// The images of the batch, or its tokens; the first layer, and the only one of its kind.
    Input,
    /// 2-D convolution (cross-correlation).
    Conv {
        /// Channels of the output.
        out_channels: u32,
        /// Sliding window.
        window: Window,
        /// Groups of input and output channels, each convolved separately.
        groups: u32,
        /// `true` if a bias is added to each output channel.
        bias: bool,
    },
    /// Transposed 2-D convolution, the gradient of a convolution's input: each element is spread over a window of the output.
    /// Without bias.
    ConvTranspose {
        /// Channels of the output.
        out_channels: u32,
        /// Window of the transposed convolution.
        window: Window,
    },
    /// Adds a bias to every sample.
    Bias {
        /// Unit that has a separate bias.
        over: Extent,
        /// Further rows of the parameter that nothing reads: BERT's table of segments has two, of which a network that sees
        /// one segment uses the first.
        spare: u32,
    },
    /// Looks up some positions of the input, whose elements are tokens, in a table.
    Embedding {
        /// Rows of the table.
        vocabulary: u32,
        /// Channels of the output.
        width: u32,
        /// First position.
        first: u32,
        /// Number of positions: rows of the output.
        length: u32,
    },
    /// Scaled dot-product attention over the positions of each sample (Vaswani et al. 2017, §3.2). The input has the heads of
    /// queries, keys and values side by side, all equally wide; the output is as wide as the queries.
    Attention {
        /// Heads of queries.
        heads: u32,
        /// Heads of keys, and of values. Each serves `heads / kv_heads` adjacent heads of queries (grouped-query attention,
        /// Ainslie et al. 2023); equal to `heads` in plain attention.
        kv_heads: u32,
        /// `true` if a position sees only itself and earlier ones.
        causal: bool,
    },
    /// Rotary position embeddings (Su et al. 2021, §3.2) of heads side by side: queries or keys, rotated before attention.
    /// Channel i of a head and channel i + width / 2 are a pair, as in the Llama of Hugging Face, and are rotated by the
    /// position times base^(-2 i / width). It is a layer and not part of attention: values are not rotated, and rotating back
    /// needs only the position and nothing computed, so the layer runs in place and keeps nothing.
    Rotary {
        /// Channels of a head, even.
        width: u32,
        /// Base of the angles; a larger base rotates the last pair more slowly.
        base: f32,
    },
    /// A step of a long short-term memory. Its inputs are the gates before their activation (input, forget, candidate,
    /// output, side by side) and, after the first step, the previous step, whose cell state it continues. Its output is h, a
    /// quarter of the gates' channels.
    LstmCell,
    /// Batch normalisation over batch, rows and columns, with scale and shift.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
        /// Share of the new statistics in the running ones.
        momentum: f32,
    },
    /// Layer normalisation (Ba et al. 2016) over the channels of each position, with scale and shift of each channel;
    /// positions are independent, within a sample and between samples.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Each position divided by the root mean square of its channels, with a scale of each channel (Zhang and Sennrich 2019).
    RmsNorm {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// min(max(x, 0), ceiling).
    Relu {
        /// 6 for ReLU6, infinite for the plain one.
        ceiling: f32,
    },
    /// A function of each element.
    Activation { function: Function },
    /// Largest of each window.
    MaxPool {
        /// Sliding window.
        window: Window,
        /// `true` if a last window that reaches beyond the padding counts ([`Window::output_ceil`]).
        ceil: bool,
    },
    /// Mean of each window, padding counted.
    AvgPool {
        /// Sliding window.
        window: Window,
    },
    /// Mean over rows and columns.
    GlobalAvgPool,
    /// Every output depends on every input element.
    FullyConnected {
        /// Number of outputs.
        outputs: u32,
        /// `true` if a bias is added.
        bias: bool,
    },
    /// Zeroes each element with this probability and scales the rest by 1 / (1 - p), in training only.
    Dropout {
        /// Probability of a drop.
        probability: f32,
    },
    /// Sum of two inputs of one shape.
    Add,
    /// Product of two inputs of one shape, element by element.
    Multiply,
    /// Concatenation of the inputs.
    Concat {
        /// Axis of the concatenation.
        along: Axis,
    },
    /// Local response normalisation across channels (AlexNet §3.3):
    /// y = x / (bias + alpha / size * sum of x^2 over `size` neighbouring channels)^beta.
    Lrn {
        /// Channels in the neighbourhood, odd.
        size: u32,
        /// Scale of the sum, before the division by `size`.
        alpha: f32,
        /// Exponent.
        beta: f32,
        /// Added to the sum (k in the paper).
        bias: f32,
    },
    /// Softmax and cross entropy against the labels, at every position; the last layer, and the only one of its kind.
    SoftmaxCrossEntropy,
}

impl LayerKind {
    /// The plain ReLU.
    pub const RELU: LayerKind = LayerKind::Relu { ceiling: f32::INFINITY };

    /// The exact GELU.
    pub const GELU: LayerKind = Function::Gelu.layer();

    /// Returns the layer type, as `trace/1` and the performance model name it.
    pub fn name(&self) -> &'static str {
        match self {
            LayerKind::Input => "input",
            LayerKind::Conv { .. } => "conv",
            LayerKind::ConvTranspose { .. } => "convtranspose",
            LayerKind::Bias { .. } => "bias",
            LayerKind::Embedding { .. } => "embedding",
            LayerKind::Attention { .. } => "attention",
            LayerKind::Rotary { .. } => "rotary",
            LayerKind::LstmCell => "lstm",
            LayerKind::FullyConnected { .. } => "fc",
            LayerKind::BatchNorm { .. } => "bn",
            LayerKind::LayerNorm { .. } => "layernorm",
            LayerKind::RmsNorm { .. } => "rmsnorm",
            LayerKind::Relu { .. } => "relu",
            LayerKind::Activation { function } => function.name(),
            LayerKind::MaxPool { .. } | LayerKind::AvgPool { .. } | LayerKind::GlobalAvgPool => "pool",
            LayerKind::Dropout { .. } => "dropout",
            LayerKind::Add => "add",
            LayerKind::Multiply => "multiply",
            LayerKind::Concat { .. } => "concat",
            LayerKind::Lrn { .. } => "lrn",
            LayerKind::SoftmaxCrossEntropy => "loss",
        }
    }
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Unique name in its network, such as `layer1.0.conv2`.
    pub name: String,
    /// Computation.
    pub kind: LayerKind,
    /// Earlier layers whose outputs it takes.
    pub inputs: Vec<LayerId>,
    /// Earlier layer whose parameters it uses in place of its own: tied weights.
    pub shares: Option<LayerId>,
    /// Output shape of one sample.
    pub output: Shape,
    /// Trained parameters, biases and scales included; running statistics and parameters of other layers excluded.
    pub parameters: u64,
    /// Floating-point operations of its forward pass for one sample; a multiply and an add are two.
    pub forward_flops: u64,
}

/// A network: layers in topological order, the first the input, the last the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Recipe that it was built from.
    pub spec: NetworkSpec,
    /// Layers in topological order.
    pub layers: Vec<Layer>,
}

impl Network {
    /// Returns the layer with this id.
    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.index()]
    }

    /// Returns a layer's input shape: that of its first input.
    pub fn input_shape(&self, layer: &Layer) -> Shape {
        layer.inputs.first().map_or(layer.output, |i| self.layer(*i).output)
    }

    /// Returns `true` if the input holds tokens, which are looked up, rather than images.
    pub fn takes_tokens(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.kind, LayerKind::Embedding { .. }))
    }

    /// Returns the labels of a sample: one for each position of the logits.
    pub fn labels(&self) -> u64 {
        self.layers.last().map_or(0, |loss| loss.output.pixels())
    }

    /// Returns the trained parameters of all layers.
    pub fn all_parameters(&self) -> u64 {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the floating-point operations of all layers' forward pass for one sample.
    pub fn all_forward_flops(&self) -> u64 {
        self.layers.iter().map(|layer| layer.forward_flops).sum()
    }
}
