//! What each op of a trace computes: the kernel, its shapes, and where its operands lie.
//!
//! Kernel `i` of a program is op `i` of its trace. Every device implements every [`Call`] with the same operands in the
//! same order; what a call computes is said here, once, for all of them. Numbers are f32, labels i32. A feature map of a
//! batch is `[batch][height][width][channels]`; convolution weights are `[out][kernel rows][kernel columns][in / groups]`,
//! fully connected ones `[out][in]`, which makes a fully connected layer a convolution with a 1x1 window on a 1x1 image, and
//! one of a sequence, whose positions are rows of an image one column wide, a 1x1 convolution.
//!
//! What it deliberately does not do: name a device, an algorithm or an address of the pool.

use crate::ids::TensorId;
use crate::network::{Function, Window};
use crate::trace::Trace;
use crate::units::Bytes;

/// Every tensor and every resident region is a multiple of this many bytes, so that any sum of sizes is an aligned
/// address on every device and no planner needs to know of alignment.
pub const STORAGE_ALIGNMENT: u64 = 256;

/// One training iteration (or one forward pass, for evaluation), ready to be planned and run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What the ops touch; seconds are 0 until a model fills them in.
    pub trace: Trace,
    /// The kernel of each op.
    pub kernels: Vec<Kernel>,
    /// What stays on the device: the same regions for every batch size and for evaluation of one network.
    pub resident: Vec<Region>,
    /// The images: f32 `[batch][height][width][channels]`; or tokens, i32 `[batch][length]`, of networks that take those
    /// ([`Network::takes_tokens`](crate::network::Network::takes_tokens)). Written by the host before each iteration.
    pub images: TensorId,
    /// The labels: i32 `[batch][height][width]` of the logits' positions (of which most networks have one), -1 for one that
    /// does not count; written by the host before each iteration.
    pub labels: TensorId,
}

/// A kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What to compute.
    pub call: Call,
    /// In the order that the call's documentation gives.
    pub operands: Vec<Operand>,
}

/// One way in which a device runs a call: a kernel, or an algorithm of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// What it is called, such as `winograd`.
    pub name: String,
    /// The scratch that it needs.
    pub workspace: Bytes,
}

/// Where an operand lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// In a tensor of the trace, from its first byte.
    Tensor(TensorId),
    /// In the resident part, at this offset from its start.
    Resident(Bytes),
}

/// A named part of the resident bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Such as `layer1.0.conv2.weight`; unique together with the role.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// From the start of the resident part; a multiple of [`STORAGE_ALIGNMENT`].
    pub offset: Bytes,
    /// The lengths of its dimensions; its bytes are 4 times their product.
    pub shape: Vec<u64>,
}

/// What a resident region is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Trained; starts as the initialisation says.
    Parameter(Init),
    /// The gradient of the parameter of the same name.
    Gradient,
    /// The momentum of the parameter of the same name; starts at 0.
    Momentum,
    /// Updated by kernels and not trained (running statistics); starts at this value.
    State(f32),
    /// [`Hyper`], written by the host before each iteration. There is one.
    Hyper,
    /// f32 `[mean loss, correct, counted]` of the last iteration, read by the host after it. There is one.
    Metrics,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform in (-bound, bound).
    Uniform(f32),
}

/// What changes from iteration to iteration without a new schedule; it lies on the device so that a captured graph
/// replays with new values. Each field is 4 bytes, in this order, little-endian.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Step length of SGD.
    pub learning_rate: f32,
    /// Share of the old momentum kept.
    pub momentum: f32,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f32,
    /// Seed of dropout, low half.
    pub seed_low: u32,
    /// Seed of dropout, high half.
    pub seed_high: u32,
    /// Number of the iteration from the start of training.
    pub step: u32,
}

impl Hyper {
    /// How many f32-sized words it takes.
    pub const WORDS: u64 = 6;

    /// How many bytes.
    pub const BYTES: usize = 4 * Hyper::WORDS as usize;

    /// As it lies on the device.
    pub fn to_bytes(self) -> [u8; Hyper::BYTES] {
        let words = [
            self.learning_rate.to_bits(),
            self.momentum.to_bits(),
            self.weight_decay.to_bits(),
            self.seed_low,
            self.seed_high,
            self.step,
        ];
        let mut bytes = [0; Hyper::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Shape of a convolution over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Samples.
    pub batch: u64,
    /// Rows and columns of the input.
    pub input: [u32; 2],
    /// Channels of the input.
    pub in_channels: u32,
    /// Rows and columns of the output.
    pub output: [u32; 2],
    /// Channels of the output.
    pub out_channels: u32,
    /// The window.
    pub window: Window,
    /// Groups of channels.
    pub groups: u32,
    /// Whether there is a bias.
    pub bias: bool,
}

/// Shape of a pooling over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Samples.
    pub batch: u64,
    /// Rows and columns of the input.
    pub input: [u32; 2],
    /// Rows and columns of the output.
    pub output: [u32; 2],
    /// Channels.
    pub channels: u32,
    /// The window.
    pub window: Window,
}

/// Shape of a normalisation: rows are batch x height x width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowShape {
    /// Positions of the whole batch.
    pub rows: u64,
    /// Channels, innermost.
    pub channels: u64,
}

/// Shape of a product with a scale: what is scaled is `[groups][rows][channels]`, the scale `[groups][channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleShape {
    /// Parts that have a scale each: samples, or one for the whole batch.
    pub groups: u64,
    /// Positions of a group.
    pub rows: u64,
    /// Channels, innermost.
    pub channels: u64,
}

impl ScaleShape {
    /// Elements of what is scaled, saturating.
    pub fn elements(self) -> u64 {
        self.scales().saturating_mul(self.rows)
    }

    /// Elements of the scale, saturating.
    pub fn scales(self) -> u64 {
        self.groups.saturating_mul(self.channels)
    }
}

/// Shape of a lookup of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingShape {
    /// Samples.
    pub batch: u64,
    /// Tokens of a sample.
    pub length: u64,
    /// The first of them that is looked up.
    pub first: u64,
    /// How many are.
    pub count: u64,
    /// Rows of the table; tokens are from 0 to below it.
    pub vocabulary: u64,
    /// Elements of a row.
    pub width: u64,
}

/// Shape of an attention over a batch of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Samples.
    pub batch: u64,
    /// Positions of a sample.
    pub length: u64,
    /// Heads of queries, each of `width / heads` channels.
    pub heads: u64,
    /// Heads of keys, and of values, as wide; a divisor of `heads`.
    pub kv_heads: u64,
    /// Channels of the queries.
    pub width: u64,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl AttentionShape {
    /// Channels of a head.
    pub fn of_head(&self) -> u64 {
        self.width / self.heads.max(1)
    }

    /// Channels of the keys, and of the values.
    pub fn kv_width(&self) -> u64 {
        self.of_head().saturating_mul(self.kv_heads)
    }

    /// Channels of queries, keys and values together.
    pub fn qkv_width(&self) -> u64 {
        self.width.saturating_add(self.kv_width().saturating_mul(2))
    }

    /// Heads of queries that share a head of keys and values.
    pub fn group(&self) -> u64 {
        self.heads / self.kv_heads.max(1)
    }
}

/// Shape of heads that are turned by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryShape {
    /// Samples.
    pub batch: u64,
    /// Positions of a sample.
    pub length: u64,
    /// Channels of all heads.
    pub channels: u64,
    /// Channels of a head; even, and a divisor of `channels`.
    pub width: u64,
}

impl RotaryShape {
    /// All of them.
    pub fn elements(&self) -> u64 {
        [self.length, self.channels].iter().fold(self.batch, |n, factor| n.saturating_mul(*factor))
    }
}

/// What a kernel computes. `x -> y` names operands: those read, then those written; a name that stands on both sides is
/// one operand, at its place among those read. Where `accumulate` is set, the gradient is added to what the operand
/// holds, and the op reads it too ([`Call::accesses`] says all this as data). Computed in place, two operands are the
/// same tensor; each call says where that is allowed. Sums run in a fixed order: the same inputs give the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the ones that the variant's formula names")]
pub enum Call {
    /// x, weight, \[bias\] -> y.
    ConvForward { shape: ConvShape },
    /// x, dy -> dweight, \[dbias\]. Overwrites, or adds where other layers share the parameters.
    ConvBackwardFilter { shape: ConvShape, accumulate: bool },
    /// dy, weight -> dx.
    ConvBackwardData { shape: ConvShape, accumulate: bool },
    /// x, gamma, beta -> y, stats: with the batch's mean and biased variance per channel; stats is
    /// `[mean; channels][1 / sqrt(variance + epsilon); channels]`.
    BatchNormForward { shape: RowShape, epsilon: f32 },
    /// stats, running mean, running variance -> running mean, running variance: each moved by `momentum` towards the
    /// batch's (the variance unbiased, rows / (rows - 1)).
    BatchNormRunning { shape: RowShape, epsilon: f32, momentum: f32 },
    /// x, gamma, beta, running mean, running variance -> y. In place allowed. For evaluation.
    BatchNormInference { shape: RowShape, epsilon: f32 },
    /// x, dy, gamma, stats -> dx, dgamma, dbeta. dx may be dy. Overwrites dgamma and dbeta.
    BatchNormBackward { shape: RowShape, accumulate: bool },
    /// x, gamma, beta -> y, stats: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta with mean and biased variance
    /// of each row, and gamma and beta of each channel; stats is `[mean; rows][1 / sqrt(variance + epsilon); rows]`. y may
    /// be x.
    LayerNormForward { shape: RowShape, epsilon: f32 },
    /// x, dy, gamma, stats -> dx, dgamma, dbeta. dx may be dy. Overwrites dgamma and dbeta.
    LayerNormBackward { shape: RowShape, accumulate: bool },
    /// x, gamma -> y, stats: y = x / sqrt(mean square + epsilon) * gamma with the mean square of each row, and gamma of each
    /// channel; stats is `[1 / sqrt(mean square + epsilon); rows]`. y may be x.
    RmsNormForward { shape: RowShape, epsilon: f32 },
    /// x, dy, gamma, stats -> dx, dgamma. dx may be dy. Overwrites dgamma.
    RmsNormBackward { shape: RowShape, accumulate: bool },
    /// x -> y = min(max(x, 0), ceiling); plain with an infinite ceiling. In place allowed.
    ReluForward { elements: u64, ceiling: f32 },
    /// y, dy -> dx = dy where 0 < y < ceiling, else 0. dx may be dy.
    ReluBackward { elements: u64, ceiling: f32, accumulate: bool },
    /// x -> y as above, mask: one bit an element, set where 0 < x < ceiling, bit i % 8 of byte i / 8 (Layrub §4.2, with 1 bit where the
    /// paper's CUDA code has 8). y may be x.
    ReluMaskForward { elements: u64, ceiling: f32 },
    /// mask, dy -> dx = dy where the bit is set, else 0. dx may be dy.
    ReluMaskBackward { elements: u64, accumulate: bool },
    /// x -> y = f(x). In place allowed. GELU is x * P(x), where P(x) = (1 + erf(x / sqrt(2))) / 2 is the normal distribution.
    ActivationForward { elements: u64, function: Function },
    /// x, dy -> dx = dy * f'(x). dx may be dy. Where f has no derivative (the ends of a hard sigmoid) it counts as flat.
    ActivationBackward { elements: u64, function: Function, accumulate: bool },
    /// x, scale -> y = x * scale: element (g, r, c) by element (g, c). y may be x.
    Multiply { shape: ScaleShape, accumulate: bool },
    /// x, dy -> dscale: the sums of x * dy over the rows of each group.
    MultiplySums { shape: ScaleShape, accumulate: bool },
    /// x -> y, places: one byte an output element, the position in the window (row * columns + column) of the first
    /// largest element. Windows have at most 256 positions.
    MaxPoolForward { shape: PoolShape },
    /// places, dy -> dx.
    MaxPoolBackward { shape: PoolShape, accumulate: bool },
    /// x -> y: mean over the window, padding counted as zeros. Global pooling is a window of the whole image.
    AvgPoolForward { shape: PoolShape },
    /// dy -> dx.
    AvgPoolBackward { shape: PoolShape, accumulate: bool },
    /// hyper, x -> y = x / (1 - p) where kept, else 0. Runs of `run` elements, at least 1, share a fate: run i of layer number
    /// `stream` is dropped where `philox4x32(seed, [i / 4 low, i / 4 high, step, stream])[i % 4]`, as a number in [0, 1), is
    /// below p. In place allowed.
    DropoutForward { elements: u64, probability: f32, stream: u32, run: u64 },
    /// hyper, dy -> dx: drawn again from the same counter. dx may be dy.
    DropoutBackward { elements: u64, probability: f32, stream: u32, run: u64, accumulate: bool },
    /// x, bias -> y: bias, of `channels` elements, added to each row. In place allowed.
    BiasForward { shape: RowShape },
    /// dy -> dbias: the sum of the rows. Overwrites, or adds where other layers share the parameter.
    BiasBackward { shape: RowShape, accumulate: bool },
    /// tokens, weight -> y: for each sample the rows of the table that its tokens `first..first + count` name. Tokens are i32
    /// `[batch][length]`, weight is `[vocabulary][width]`, y `[batch][count][width]`.
    EmbeddingForward { shape: EmbeddingShape },
    /// tokens, dy -> dweight: each row the sum of dy where its token stood, in their order, 0 for those that stood nowhere.
    /// Overwrites, or adds where other layers share the table.
    EmbeddingBackward { shape: EmbeddingShape, accumulate: bool },
    /// qkv -> y, probabilities: scaled dot-product attention (Vaswani et al. 2017, eq. (1)), head by head. A row of qkv is
    /// query, key, value: `heads`, `kv_heads` and `kv_heads` heads of w = width / heads channels. Head h of the queries has the
    /// channels `h * w..(h + 1) * w` of query and y, and meets head h / (heads / kv_heads) of keys and values.
    /// probabilities `[batch][heads][length][length]` = softmax over j of q_i * k_j / sqrt(w), 0 where j > i and `causal`;
    /// y_i = the sum of probability_ij * v_j.
    AttentionForward { shape: AttentionShape },
    /// qkv, probabilities, dy -> dqkv.
    AttentionBackward { shape: AttentionShape, accumulate: bool },
    /// x -> y: rotary position embeddings (Su et al. 2021, eq. (34)). With h = width / 2, of each head at position p channels i
    /// and i + h, i below h, are turned by a = p * base^(-i / h): y_i = x_i cos a - x_{i+h} sin a,
    /// y_{i+h} = x_{i+h} cos a + x_i sin a. Positions count from 0. In place allowed.
    RotaryForward { shape: RotaryShape, base: f32 },
    /// dy -> dx: turned back by the same angles. dx may be dy.
    RotaryBackward { shape: RotaryShape, base: f32, accumulate: bool },
    /// gates, \[previous\] -> h, cell, activated: a step of a long short-term memory (Hochreiter and Schmidhuber 1997, with
    /// forget gates). A row of gates is input, forget, candidate, output, `channels` each: i, f, o are their sigmoids, g is
    /// the candidate's tanh. cell = f * previous + i * g, h = o * tanh(cell), activated = (i, f, g, o). Where `first` is set
    /// there is no previous cell, and it counts as 0. activated may be gates.
    LstmForward { shape: RowShape, first: bool },
    /// activated, \[previous\], cell, dh, \[dcell\] -> dgates, \[dprevious\]. Where `first` is set there is neither previous nor
    /// dprevious; where `last` is set there is no dcell. dgates may be activated, dprevious may be dcell.
    LstmBackward { shape: RowShape, first: bool, last: bool },
    /// a, b -> y = a + b. y may be a.
    Add { elements: u64 },
    /// x -> y: copies x to `channels` channels of y from channel `first` on; y has `total` channels. One op for each part,
    /// in the order of `first`; each but the one with `first` 0 updates y.
    ConcatPart { rows: u64, channels: u64, first: u64, total: u64 },
    /// dy -> dx: the channels of one part.
    SplitPart { rows: u64, channels: u64, first: u64, total: u64, accumulate: bool },
    /// dy -> dx: dy at its channels of dx, 0 at the others. What [`Call::SplitPart`] takes, put back.
    PadPart { rows: u64, channels: u64, first: u64, total: u64, accumulate: bool },
    /// parameter -> y: every row of y is the parameter, of `channels` elements. Its gradient is that of a bias.
    Repeat { shape: RowShape },
    /// x -> y. See [`crate::network::LayerKind::Lrn`].
    LrnForward { shape: RowShape, size: u32, alpha: f32, beta: f32, bias: f32 },
    /// x, dy -> dx. Computes the sums anew from x.
    LrnBackward { shape: RowShape, size: u32, alpha: f32, beta: f32, bias: f32, accumulate: bool },
    /// logits, labels -> probabilities, metrics. Rows are samples. In place allowed.
    SoftmaxCrossEntropyForward { shape: RowShape },
    /// probabilities, labels -> dlogits = (probabilities - one-hot) / counted, 0 for samples that do not count.
    /// In place allowed.
    SoftmaxCrossEntropyBackward { shape: RowShape },
    /// hyper, parameter, \[gradient\], momentum -> parameter, momentum: g = gradient + decay * parameter where `decay`
    /// is set, m = momentum * m + g, parameter -= learning rate * m. Where `idle` is set there is no gradient, and it counts
    /// as 0: the layer was dropped from this iteration.
    Sgd { elements: u64, decay: bool, idle: bool },
}

/// What a kernel does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Overwrites all of it.
    Write,
    /// Reads what it holds, and changes it.
    Update,
}

impl Access {
    /// Whether what the operand holds before matters.
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether the operand holds something else afterwards.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

impl Call {
    /// What the call does with each operand, in the documented order: how many operands there are, and from which an
    /// op's `reads` and `writes` follow.
    ///
    /// `ConcatPart` writes only its own channels, so it updates y; the part with `first` 0 stands first and gives y its
    /// first version.
    pub fn accesses(&self) -> &'static [Access] {
        use Access::{Read as R, Update as U, Write as W};
        match self {
            Call::ConvForward { shape } if shape.bias => &[R, R, R, W],
            Call::ConvForward { .. } => &[R, R, W],
            Call::ConvBackwardFilter { shape, accumulate: false } if shape.bias => &[R, R, W, W],
            Call::ConvBackwardFilter { shape, accumulate: true } if shape.bias => &[R, R, U, U],
            Call::EmbeddingForward { .. } | Call::BiasForward { .. } => &[R, R, W],
            Call::AttentionForward { .. } => &[R, W, W],
            Call::LstmForward { first: true, .. } => &[R, W, W, W],
            Call::LstmForward { first: false, .. } => &[R, R, W, W, W],
            Call::LstmBackward { first: true, last: true, .. } => &[R, R, R, W],
            Call::LstmBackward { first: true, last: false, .. } => &[R, R, R, R, W],
            Call::LstmBackward { first: false, last: true, .. } => &[R, R, R, R, W, W],
            Call::LstmBackward { first: false, last: false, .. } => &[R, R, R, R, R, W, W],
            Call::ReluForward { .. }
            | Call::ActivationForward { .. }
            | Call::AvgPoolForward { .. }
            | Call::LrnForward { .. }
            | Call::RotaryForward { .. }
            | Call::Repeat { .. } => &[R, W],
            Call::ConcatPart { first: 0, .. } => &[R, W],
            Call::ConcatPart { .. } => &[R, U],
            Call::ReluMaskForward { .. } | Call::MaxPoolForward { .. } => &[R, W, W],
            Call::DropoutForward { .. } | Call::Add { .. } => &[R, R, W],
            Call::AvgPoolBackward { accumulate, .. }
            | Call::SplitPart { accumulate, .. }
            | Call::PadPart { accumulate, .. }
            | Call::RotaryBackward { accumulate, .. }
            | Call::BiasBackward { accumulate, .. } => {
                if *accumulate {
                    &[R, U]
                } else {
                    &[R, W]
                }
            }
            Call::ConvBackwardFilter { accumulate, .. }
            | Call::ConvBackwardData { accumulate, .. }
            | Call::EmbeddingBackward { accumulate, .. }
            | Call::ReluBackward { accumulate, .. }
            | Call::ReluMaskBackward { accumulate, .. }
            | Call::ActivationBackward { accumulate, .. }
            | Call::Multiply { accumulate, .. }
            | Call::MultiplySums { accumulate, .. }
            | Call::MaxPoolBackward { accumulate, .. }
            | Call::DropoutBackward { accumulate, .. }
            | Call::LrnBackward { accumulate, .. } => {
                if *accumulate {
                    &[R, R, U]
                } else {
                    &[R, R, W]
                }
            }
            Call::AttentionBackward { accumulate: true, .. } => &[R, R, R, U],
            Call::AttentionBackward { accumulate: false, .. } => &[R, R, R, W],
            Call::BatchNormForward { .. } | Call::LayerNormForward { .. } => &[R, R, R, W, W],
            Call::RmsNormForward { .. } => &[R, R, W, W],
            Call::RmsNormBackward { accumulate: true, .. } => &[R, R, R, R, U, W],
            Call::RmsNormBackward { accumulate: false, .. } => &[R, R, R, R, W, W],
            Call::BatchNormRunning { .. } => &[R, U, U],
            Call::BatchNormInference { .. } => &[R, R, R, R, R, W],
            Call::BatchNormBackward { accumulate, .. } | Call::LayerNormBackward { accumulate, .. } => {
                if *accumulate {
                    &[R, R, R, R, U, W, W]
                } else {
                    &[R, R, R, R, W, W, W]
                }
            }
            Call::SoftmaxCrossEntropyForward { .. } => &[R, R, W, W],
            Call::SoftmaxCrossEntropyBackward { .. } => &[R, R, W],
            Call::Sgd { idle: false, .. } => &[R, U, R, U],
            Call::Sgd { idle: true, .. } => &[R, U, U],
        }
    }

    /// Whether running the call again on what its tensors held gives what it gave, until the update begins to change
    /// parameters: all but those that move a resident state on or add to a resident gradient. The others overwrite resident
    /// regions (gradients, metrics) with the same values.
    pub fn repeatable(&self) -> bool {
        !matches!(
            self,
            Call::BatchNormRunning { .. }
                | Call::Sgd { .. }
                | Call::ConvBackwardFilter { accumulate: true, .. }
                | Call::BiasBackward { accumulate: true, .. }
                | Call::EmbeddingBackward { accumulate: true, .. }
        )
    }

    /// Floating-point operations; a multiply and an add are two. Those of a convolution are the same in its three
    /// passes. Saturates at the largest number.
    pub fn flops(&self) -> u64 {
        let product = |factors: &[u64]| factors.iter().fold(1, |a: u64, f| a.saturating_mul(*f));
        let window = |w: &Window| [u64::from(w.size[0]), u64::from(w.size[1])];
        match self {
            Call::ConvForward { shape }
            | Call::ConvBackwardFilter { shape, .. }
            | Call::ConvBackwardData { shape, .. } => {
                let [rows, columns] = shape.output.map(u64::from);
                let outputs = product(&[shape.batch, rows, columns, u64::from(shape.out_channels)]);
                let [kernel_rows, kernel_columns] = window(&shape.window);
                let taps =
                    product(&[2, kernel_rows, kernel_columns, u64::from(shape.in_channels / shape.groups)]);
                product(&[outputs, taps.saturating_add(u64::from(shape.bias))])
            }
            Call::BatchNormForward { shape, .. }
            | Call::BatchNormBackward { shape, .. }
            | Call::LayerNormForward { shape, .. } => product(&[8, shape.rows, shape.channels]),
            Call::RmsNormForward { shape, .. } => product(&[4, shape.rows, shape.channels]),
            Call::RmsNormBackward { shape, .. } => product(&[11, shape.rows, shape.channels]),
            Call::LayerNormBackward { shape, .. } => product(&[15, shape.rows, shape.channels]),
            Call::BatchNormInference { shape, .. } => product(&[2, shape.rows, shape.channels]),
            Call::BatchNormRunning { shape, .. } => product(&[8, shape.channels]),
            Call::MaxPoolForward { shape }
            | Call::AvgPoolForward { shape }
            | Call::AvgPoolBackward { shape, .. } => {
                let [rows, columns] = shape.output.map(u64::from);
                let [kernel_rows, kernel_columns] = window(&shape.window);
                product(&[shape.batch, rows, columns, u64::from(shape.channels), kernel_rows, kernel_columns])
            }
            Call::MaxPoolBackward { shape, .. } => {
                let [rows, columns] = shape.output.map(u64::from);
                product(&[shape.batch, rows, columns, u64::from(shape.channels)])
            }
            Call::BiasForward { shape } | Call::BiasBackward { shape, .. } => {
                product(&[shape.rows, shape.channels])
            }
            Call::EmbeddingForward { shape } | Call::EmbeddingBackward { shape, .. } => {
                product(&[shape.batch, shape.count, shape.width])
            }
            // Two products of matrices forward and four backward, and the softmax; masked or not, all is computed.
            Call::AttentionForward { shape } => {
                let pairs = product(&[shape.batch, shape.length, shape.length]);
                product(&[pairs, (4 * shape.width).saturating_add(6 * shape.heads)])
            }
            Call::AttentionBackward { shape, .. } => {
                let pairs = product(&[shape.batch, shape.length, shape.length]);
                product(&[pairs, (8 * shape.width).saturating_add(5 * shape.heads)])
            }
            Call::RotaryForward { shape, .. } | Call::RotaryBackward { shape, .. } => {
                shape.elements().saturating_mul(3)
            }
            // Three sigmoids and two tanh, an exponential and a division each.
            Call::LstmForward { shape, .. } => product(&[100, shape.rows, shape.channels]),
            Call::LstmBackward { shape, .. } => product(&[50, shape.rows, shape.channels]),
            Call::ReluForward { elements, .. }
            | Call::ReluBackward { elements, .. }
            | Call::ReluMaskForward { elements, .. }
            | Call::ReluMaskBackward { elements, .. }
            | Call::Add { elements } => *elements,
            Call::ActivationForward { elements, function } => product(&[function.flops(), *elements]),
            Call::ActivationBackward { elements, function, .. } => {
                product(&[function.flops() + 2, *elements])
            }
            Call::Multiply { shape, .. } => shape.elements(),
            Call::MultiplySums { shape, .. } => product(&[2, shape.elements()]),
            Call::DropoutForward { elements, .. } | Call::DropoutBackward { elements, .. } => {
                product(&[2, *elements])
            }
            Call::ConcatPart { rows, channels, .. } | Call::SplitPart { rows, channels, .. } => {
                product(&[*rows, *channels])
            }
            Call::PadPart { rows, total, .. } => product(&[*rows, *total]),
            Call::Repeat { shape } => product(&[shape.rows, shape.channels]),
            Call::LrnForward { shape, size, .. } => {
                product(&[shape.rows, shape.channels, 2 * u64::from(*size) + 20])
            }
            Call::LrnBackward { shape, size, .. } => {
                product(&[shape.rows, shape.channels, 4 * u64::from(*size) + 40])
            }
            Call::SoftmaxCrossEntropyForward { shape } => product(&[5, shape.rows, shape.channels]),
            Call::SoftmaxCrossEntropyBackward { shape } => product(&[2, shape.rows, shape.channels]),
            Call::Sgd { elements, .. } => product(&[6, *elements]),
        }
    }

    /// The call's name, as kernels and profiles carry it.
    pub fn name(&self) -> &'static str {
        match self {
            Call::ConvForward { .. } => "conv_forward",
            Call::ConvBackwardFilter { .. } => "conv_backward_filter",
            Call::ConvBackwardData { .. } => "conv_backward_data",
            Call::BatchNormForward { .. } => "batch_norm_forward",
            Call::BatchNormRunning { .. } => "batch_norm_running",
            Call::BatchNormInference { .. } => "batch_norm_inference",
            Call::BatchNormBackward { .. } => "batch_norm_backward",
            Call::LayerNormForward { .. } => "layer_norm_forward",
            Call::LayerNormBackward { .. } => "layer_norm_backward",
            Call::RmsNormForward { .. } => "rms_norm_forward",
            Call::RmsNormBackward { .. } => "rms_norm_backward",
            Call::ReluForward { .. } => "relu_forward",
            Call::ReluBackward { .. } => "relu_backward",
            Call::ReluMaskForward { .. } => "relu_mask_forward",
            Call::ReluMaskBackward { .. } => "relu_mask_backward",
            Call::ActivationForward { .. } => "activation_forward",
            Call::ActivationBackward { .. } => "activation_backward",
            Call::Multiply { .. } => "multiply",
            Call::MultiplySums { .. } => "multiply_sums",
            Call::MaxPoolForward { .. } => "max_pool_forward",
            Call::MaxPoolBackward { .. } => "max_pool_backward",
            Call::AvgPoolForward { .. } => "avg_pool_forward",
            Call::AvgPoolBackward { .. } => "avg_pool_backward",
            Call::DropoutForward { .. } => "dropout_forward",
            Call::DropoutBackward { .. } => "dropout_backward",
            Call::BiasForward { .. } => "bias_forward",
            Call::BiasBackward { .. } => "bias_backward",
            Call::EmbeddingForward { .. } => "embedding_forward",
            Call::EmbeddingBackward { .. } => "embedding_backward",
            Call::AttentionForward { .. } => "attention_forward",
            Call::AttentionBackward { .. } => "attention_backward",
            Call::RotaryForward { .. } => "rotary_forward",
            Call::RotaryBackward { .. } => "rotary_backward",
            Call::LstmForward { .. } => "lstm_forward",
            Call::LstmBackward { .. } => "lstm_backward",
            Call::Add { .. } => "add",
            Call::ConcatPart { .. } => "concat_part",
            Call::SplitPart { .. } => "split_part",
            Call::PadPart { .. } => "pad_part",
            Call::Repeat { .. } => "repeat",
            Call::LrnForward { .. } => "lrn_forward",
            Call::LrnBackward { .. } => "lrn_backward",
            Call::SoftmaxCrossEntropyForward { .. } => "softmax_cross_entropy_forward",
            Call::SoftmaxCrossEntropyBackward { .. } => "softmax_cross_entropy_backward",
            Call::Sgd { .. } => "sgd",
        }
    }
}

impl Way {
    /// The ways of a device that has one kernel for each call, with this scratch.
    pub fn sole(workspace: Bytes) -> Vec<Way> {
        vec![Way { name: "kernel".to_owned(), workspace }]
    }
}

impl Region {
    /// How many f32 it holds.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// What it takes of the resident bytes, without the rounding to [`STORAGE_ALIGNMENT`].
    pub fn bytes(&self) -> Bytes {
        Bytes(4 * self.elements())
    }
}

impl Program {
    /// The one region of a role that there is one of.
    fn only(&self, role: Role) -> &Region {
        self.resident
            .iter()
            .find(|r| r.role == role)
            .expect("every program has its hyper and metrics regions")
    }

    /// Of a network that takes tokens: how many different ones the input may hold, those from 0 on.
    pub fn vocabulary(&self) -> Option<u32> {
        let tables = self.kernels.iter().filter_map(|kernel| match &kernel.call {
            Call::EmbeddingForward { shape } => Some(u32::try_from(shape.vocabulary).unwrap_or(u32::MAX)),
            _ => None,
        });
        tables.min()
    }

    /// Labels of a batch: one for each position of the logits of each sample.
    pub fn label_count(&self) -> u64 {
        let rows = self.kernels.iter().find_map(|kernel| match &kernel.call {
            Call::SoftmaxCrossEntropyForward { shape } => Some(shape.rows),
            _ => None,
        });
        rows.unwrap_or(self.trace.batch)
    }

    /// Where [`Hyper`] lies.
    pub fn hyper(&self) -> &Region {
        self.only(Role::Hyper)
    }

    /// Where the metrics lie.
    pub fn metrics(&self) -> &Region {
        self.only(Role::Metrics)
    }
}
