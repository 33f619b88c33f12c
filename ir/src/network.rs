//! A network before it is lowered: layers, shapes, parameters, FLOPs.
//!
//! Layers stand in topological order; a layer names the layers whose outputs it takes. Shapes are those of one sample;
//! the batch comes in when a network is lowered. A sequence is an image of one column, its positions the rows.

use crate::ids::LayerId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What names a network, so that it can be built again: a name of the zoo, and what it is built for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// A name that the zoo knows, such as `resnet18`.
    pub name: String,
    /// Image height and width in pixels; for text its length in tokens, and 1.
    pub image: [u32; 2],
    /// Image channels.
    pub channels: u32,
    /// Classes to tell apart; for text the size of the vocabulary.
    pub classes: u32,
}

impl NetworkSpec {
    /// Its name; of a network of text, the vocabulary and the length of a text, too, which are those of the data.
    pub fn in_words(&self) -> String {
        let NetworkSpec { name, image, channels, classes } = self;
        match *image {
            [length, 1] if *channels == 1 => format!("{name}, a vocabulary of {classes}, texts of {length}"),
            _ => name.clone(),
        }
    }
}

/// The shape of one sample's feature map. In memory a batch is `[batch][height][width][channels]`, channels innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// Channels.
    pub channels: u32,
}

impl Shape {
    /// Elements of one sample.
    pub fn elements(self) -> u64 {
        self.pixels() * u64::from(self.channels)
    }

    /// Positions of one sample, each with all channels.
    pub fn pixels(self) -> u64 {
        u64::from(self.height) * u64::from(self.width)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.height, self.width, self.channels)
    }
}

/// A window that slides over rows and columns: of a convolution or a pooling.
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

/// Along what feature maps are put side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Channels.
    Channels,
    /// Rows: one map below the other, or one step of a sequence after the other.
    Rows,
}

/// What has a bias of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Each channel.
    Channels,
    /// Each channel at each position: of a sequence, learned positions.
    Positions,
}

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// x times the probability that a standard normal number is below x (Hendrycks and Gimpel 2016), as it is: its
    /// approximation by tanh is up to 5e-4 off, was made for machines without erf, and is no faster where memory is slower
    /// than arithmetic.
    Gelu,
    /// x / (1 + exp(-x)).
    Silu,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 2] = [Function::Gelu, Function::Silu];

    /// The layer that computes it.
    pub const fn layer(self) -> LayerKind {
        LayerKind::Activation { function: self }
    }

    /// The layer type, as `trace/1` and the performance model name it.
    pub fn name(self) -> &'static str {
        match self {
            Function::Gelu => "gelu",
            Function::Silu => "silu",
        }
    }

    /// Floating-point operations for an element.
    pub fn flops(self) -> u64 {
        match self {
            Function::Gelu => 50,
            Function::Silu => 26,
        }
    }
}

/// What a dropout drops at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropUnit {
    /// Each element by itself.
    Element,
    /// All elements of the batch: stochastic depth (Huang et al. 2016).
    Batch,
}

impl Window {
    /// A square window.
    pub fn square(size: u32, stride: u32, padding: u32) -> Window {
        Window { size: [size; 2], stride: [stride; 2], padding: [padding; 2], dilation: [1; 2] }
    }

    /// Rows or columns that the window reaches over, dilation included; none for a window of size 0.
    fn reach(&self, d: usize) -> Option<u64> {
        Some(u64::from(self.dilation[d]) * u64::from(self.size[d]).checked_sub(1)? + 1)
    }

    /// Rows and columns of the output; none where the window does not fit the padded input.
    pub fn output(&self, height: u32, width: u32) -> Option<[u32; 2]> {
        let along = |input: u32, d: usize| {
            let room = (u64::from(input) + 2 * u64::from(self.padding[d])).checked_sub(self.reach(d)?)?;
            u32::try_from(room / u64::from(self.stride[d]) + 1).ok()
        };
        Some([along(height, 0)?, along(width, 1)?])
    }

    /// [`Window::output`] where a last window that starts on the input, or on the padding before it, counts although it
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

    /// Rows and columns of the output of a transposed convolution: the input of which a convolution makes `height` x `width`.
    pub fn transposed_output(&self, height: u32, width: u32) -> Option<[u32; 2]> {
        let along = |input: u32, d: usize| {
            let [padding, stride] = [self.padding[d], self.stride[d]].map(u64::from);
            let whole = u64::from(input.checked_sub(1)?) * stride + self.reach(d)?;
            u32::try_from(whole.checked_sub(2 * padding)?).ok().filter(|n| *n > 0)
        };
        Some([along(height, 0)?, along(width, 1)?])
    }
}

/// What a layer computes.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerKind {
    /// The images of the batch, or its tokens; the first layer, and the only one of its kind.
    Input,
    /// 2-D convolution (cross-correlation).
    Conv {
        /// Channels of the output.
        out_channels: u32,
        /// The window.
        window: Window,
        /// Channels of input and output fall into this many groups, each convolved by itself.
        groups: u32,
        /// Whether a bias is added to each output channel.
        bias: bool,
    },
    /// Transposed 2-D convolution, which is what the gradient of a convolution's input is: each element is spread over a window
    /// of the output. Without bias.
    ConvTranspose {
        /// Channels of the output.
        out_channels: u32,
        /// The window of the convolution that it is the transpose of.
        window: Window,
    },
    /// Adds a bias to every sample.
    Bias {
        /// What has a bias of its own.
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
        /// The first position.
        first: u32,
        /// How many positions: rows of the output.
        length: u32,
    },
    /// Scaled dot-product attention over the positions of each sample (Vaswani et al. 2017, §3.2). The input has the heads of
    /// queries, keys and values side by side, all heads as wide; the output is as wide as the queries.
    Attention {
        /// Heads of queries.
        heads: u32,
        /// Heads of keys, and of values. Each serves `heads / kv_heads` heads of queries that stand side by side
        /// (grouped-query attention, Ainslie et al. 2023); as many as `heads` in plain attention.
        kv_heads: u32,
        /// Whether a position sees only itself and those before it.
        causal: bool,
    },
    /// Rotary position embeddings (Su et al. 2021, §3.2) of heads that stand side by side: queries or keys, turned before
    /// they meet in attention. Channel i of a head and channel i + width / 2 are a pair, as in the Llama of Hugging Face, and
    /// are turned by the position times base^(-2 i / width). A layer of its own and no part of attention: values are not
    /// turned, and turning back needs the position and nothing that was computed, so it runs in place and keeps nothing.
    Rotary {
        /// Channels of a head, even.
        width: u32,
        /// The slower the last pair turns, the larger this is.
        base: f32,
    },
    /// A step of a long short-term memory: gates before their activation (input, forget, candidate, output, side by side) and,
    /// after the first step, the step before, whose cell state it takes on. Gives h, a quarter of the gates' channels.
    LstmCell,
    /// Batch normalisation over batch, rows and columns, with scale and shift.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
        /// Share of the new statistics in the running ones.
        momentum: f32,
    },
    /// Layer normalisation (Ba et al. 2016) over the channels of each position, with scale and shift of each channel; the
    /// positions, of one sample or of several, know nothing of one another.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Each position divided by the root of its channels' mean square, with a scale of each channel (Zhang and Sennrich 2019).
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
    Activation {
        /// Which.
        function: Function,
    },
    /// Largest of each window.
    MaxPool {
        /// The window.
        window: Window,
        /// Whether a last window counts that reaches beyond the padding ([`Window::output_ceil`]).
        ceil: bool,
    },
    /// Mean of each window, padding counted.
    AvgPool {
        /// The window.
        window: Window,
    },
    /// Mean over rows and columns.
    GlobalAvgPool,
    /// Every output sees every input element.
    FullyConnected {
        /// Outputs.
        outputs: u32,
        /// Whether a bias is added.
        bias: bool,
    },
    /// Zeroes each unit with this probability and scales the rest by 1 / (1 - p), in training only.
    Dropout {
        /// The probability.
        probability: f32,
        /// What is dropped at once.
        unit: DropUnit,
    },
    /// Sum of two inputs of one shape.
    Add,
    /// Product of two inputs of one shape, element by element.
    Multiply,
    /// The inputs side by side.
    Concat {
        /// Along what.
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

    /// The layer type, as `trace/1` and the performance model name it.
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
    /// Unique in its network, such as `layer1.0.conv2`.
    pub name: String,
    /// What it computes.
    pub kind: LayerKind,
    /// The layers whose outputs it takes; all earlier.
    pub inputs: Vec<LayerId>,
    /// The earlier layer whose parameters it uses, in place of parameters of its own: tied weights.
    pub shares: Option<LayerId>,
    /// Shape of its output, of one sample.
    pub output: Shape,
    /// Trained parameters of its own, biases and scales included, running statistics and parameters of other layers not.
    pub parameters: u64,
    /// Floating-point operations of its forward pass for one sample; a multiply and an add are two.
    pub forward_flops: u64,
}

/// A network: layers in topological order, the first the input, the last the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// What it was built from.
    pub spec: NetworkSpec,
    /// In topological order.
    pub layers: Vec<Layer>,
}

impl Network {
    /// The layer with this id.
    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.index()]
    }

    /// The shape that a layer takes: that of its first input.
    pub fn input_shape(&self, layer: &Layer) -> Shape {
        layer.inputs.first().map_or(layer.output, |i| self.layer(*i).output)
    }

    /// Whether the input holds tokens, which are looked up, and not images.
    pub fn takes_tokens(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.kind, LayerKind::Embedding { .. }))
    }

    /// Labels of a sample: one for each position of the logits.
    pub fn labels(&self) -> u64 {
        self.layers.last().map_or(0, |loss| loss.output.pixels())
    }

    /// Trained parameters of all layers.
    pub fn all_parameters(&self) -> u64 {
        self.layers.iter().map(|layer| self.parameters(layer)).sum()
    }

    /// Floating-point operations of the forward pass of all layers for one sample.
    pub fn all_forward_flops(&self) -> u64 {
        self.layers.iter().map(|layer| self.forward_flops(layer)).sum()
    }

    /// Trained parameters of a layer, biases and scales included, running statistics and parameters of other layers not.
    pub fn parameters(&self, layer: &Layer) -> u64 {
        layer.parameters
    }

    /// Floating-point operations of a layer's forward pass for one sample; a multiply and an add are two.
    pub fn forward_flops(&self, layer: &Layer) -> u64 {
        layer.forward_flops
    }
}
