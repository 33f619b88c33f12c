//! The computation of a kernel: every call, with its shapes, its floating-point operations and its name.
//!
//! The table in `operands.rs` lists its operands. The module deliberately does not say where operands lie, or how a device
//! computes a call.

use crate::network::{Function, Window};

/// The shape of a convolution over a batch.
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
    /// Sliding window.
    pub window: Window,
    /// Groups of channels.
    pub groups: u32,
    /// `true` if there is a bias.
    pub bias: bool,
}

impl ConvShape {
    /// Returns `true` for a matrix product in place of an image's convolution: a fully connected layer, on a 1x1 image or on
    /// a sequence, whose positions are rows of an image one column wide.
    pub fn is_matrix_product(&self) -> bool {
        let Window { size, stride, padding, dilation } = self.window;
        let pixel = size == [1, 1] && stride == [1, 1] && padding == [0, 0] && dilation == [1, 1];
        pixel && self.input[1] == 1 && self.groups == 1
    }
}

/// The shape of a pooling over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Samples.
    pub batch: u64,
    /// Rows and columns of the input.
    pub input: [u32; 2],
    /// Rows and columns of the output.
    pub output: [u32; 2],
    pub channels: u32,
    /// Sliding window.
    pub window: Window,
}

/// The shape of a normalisation: rows are batch x height x width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowShape {
    /// Positions of the whole batch.
    pub rows: u64,
    /// Channels, innermost.
    pub channels: u64,
}

/// The ops fused after a batch normalisation, in this order; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct After {
    /// `true` if it adds the other term of a sum, of the same shape.
    pub add: bool,
    /// ReLU applied last, if any.
    pub relu: Option<FusedRelu>,
}

/// A ReLU fused into a different call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedRelu {
    /// Largest output; infinite for a plain ReLU.
    pub ceiling: f32,
    /// `true` if the forward pass writes a mask, as [`Call::ReluMaskForward`] does, and the backward pass reads it; otherwise
    /// the backward pass reads y.
    pub mask: bool,
}

impl After {
    /// Returns `true` for a ReLU that saves a mask.
    pub fn masks(&self) -> bool {
        self.relu.is_some_and(|relu| relu.mask)
    }

    /// Returns the kind of op: such as `bn+add+relu`, or `bn` alone.
    pub fn kind(&self) -> &'static str {
        match (self.add, self.relu.is_some()) {
            (false, false) => "bn",
            (false, true) => "bn+relu",
            (true, false) => "bn+add",
            (true, true) => "bn+add+relu",
        }
    }

    /// Returns the floating-point operations per element.
    fn flops(&self) -> u64 {
        u64::from(self.add) + u64::from(self.relu.is_some())
    }
}

/// The shape of a lookup of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingShape {
    /// Samples.
    pub batch: u64,
    /// Tokens of a sample.
    pub length: u64,
    /// First token to look up.
    pub first: u64,
    /// Number of tokens to look up.
    pub count: u64,
    /// Rows of the table; tokens are from 0 to below it.
    pub vocabulary: u64,
    /// Elements of a row.
    pub width: u64,
}

/// The shape of an attention over a batch of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Samples.
    pub batch: u64,
    /// Positions of a sample.
    pub length: u64,
    /// Heads of queries, each of `width / heads` channels.
    pub heads: u64,
    /// Heads of keys, and of values, of the same width; a divisor of `heads`.
    pub kv_heads: u64,
    /// Channels of the queries.
    pub width: u64,
    /// `true` if a position sees only itself and earlier ones.
    pub causal: bool,
}

impl AttentionShape {
    /// Returns the channels of a head.
    pub fn of_head(&self) -> u64 {
        self.width / self.heads.max(1)
    }

    /// Returns the channels of the keys, and of the values.
    pub fn kv_width(&self) -> u64 {
        self.of_head().saturating_mul(self.kv_heads)
    }

    /// Returns the channels of queries, keys and values together.
    pub fn qkv_width(&self) -> u64 {
        self.width.saturating_add(self.kv_width().saturating_mul(2))
    }

    /// Returns the heads of queries that share a head of keys and values.
    pub fn group(&self) -> u64 {
        self.heads / self.kv_heads.max(1)
    }
}

/// The shape of heads that are rotated by their position.
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
    /// Returns all elements.
    pub fn elements(&self) -> u64 {
        [self.length, self.channels].iter().fold(self.batch, |n, factor| n.saturating_mul(*factor))
    }
}

/// The computation of a kernel. `x -> y` names operands: those read, then those written; a name on both sides is one operand,
/// at its place among those read. If `accumulate` is set, the op adds the gradient to the operand's value, and so reads it
/// too ([`Call::operands`] holds all this as data). Computed in place, two operands are the same tensor; each call says where
/// that is allowed. Sums run in a fixed order: the same inputs give the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// x, weight, \[bias\] -> y.
    ConvForward { shape: ConvShape },
    /// x, dy -> dweight, \[dbias\]. Overwrites, or adds if other layers share the parameters.
    ConvBackwardFilter { shape: ConvShape, accumulate: bool },
    /// dy, weight -> dx.
    ConvBackwardData { shape: ConvShape, accumulate: bool },
    /// x, gamma, beta, \[r\] -> y, stats, \[mask\]: with the batch's mean and biased variance per channel; stats is
    /// `[mean; channels][1 / sqrt(variance + epsilon); channels]`. r is the term that `then` adds, and y may be r; the mask
    /// is that of a [`FusedRelu`]. In f32 the bits are those of the separate calls, [`Call::Add`] and the ReLU's; in bf16 y
    /// is rounded once, and the mask is that of y.
    BatchNormForward { shape: RowShape, epsilon: f32, then: After },
    /// stats, running mean, running variance -> running mean, running variance: each moved by `momentum` towards the batch's
    /// (the variance unbiased, rows / (rows - 1)).
    BatchNormRunning { shape: RowShape, epsilon: f32, momentum: f32 },
    /// x, gamma, beta, running mean, running variance -> y. In place allowed. For evaluation.
    BatchNormInference { shape: RowShape, epsilon: f32 },
    /// x, dy, gamma, stats, \[kept\] -> dx, dgamma, dbeta, \[dr\]: with dr = dy where the ReLU of `then` passes, else 0, and
    /// all of dy without a ReLU; kept is that ReLU's y, or its mask. dr is an operand if `then` adds. dr may be dy; without
    /// dr, dx may be. Overwrites dgamma, dbeta and dr. The bits are those of the ReLU's call and a plain one.
    BatchNormBackward { shape: RowShape, then: After, accumulate: bool },
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
    /// x -> y, mask: y as above; one bit per element, set where 0 < x < ceiling, bit i % 8 of byte i / 8 (Layrub §4.2, with 1
    /// bit where the paper's CUDA code has 8). y may be x.
    ReluMaskForward { elements: u64, ceiling: f32 },
    /// mask, dy -> dx = dy where the bit is set, else 0. dx may be dy.
    ReluMaskBackward { elements: u64, accumulate: bool },
    /// x -> y = f(x). In place allowed. GELU is x * P(x), where P(x) = (1 + erf(x / sqrt(2))) / 2 is the normal distribution.
    ActivationForward { elements: u64, function: Function },
    /// x, dy -> dx = dy * f'(x). dx may be dy.
    ActivationBackward { elements: u64, function: Function, accumulate: bool },
    /// a, b -> y = a * b. y may be a.
    Multiply { elements: u64, accumulate: bool },
    /// x -> y, places: one byte per output element, the position in the window (row * columns + column) of the first largest
    /// element. Windows have at most 256 positions.
    MaxPoolForward { shape: PoolShape },
    /// places, dy -> dx.
    MaxPoolBackward { shape: PoolShape, accumulate: bool },
    /// x -> y: mean over the window, padding counted as zeros. Global pooling is a window of the whole image.
    AvgPoolForward { shape: PoolShape },
    /// dy -> dx.
    AvgPoolBackward { shape: PoolShape, accumulate: bool },
    /// hyper, x -> y = x / (1 - p) where kept, else 0. Element i of layer number `stream` is dropped if
    /// `philox4x32(seed, [i / 4 low, i / 4 high, step, stream])[i % 4]`, as a number in [0, 1), is below p. In place allowed.
    DropoutForward { elements: u64, probability: f32, stream: u32 },
    /// hyper, dy -> dx: drawn again from the same counter. dx may be dy.
    DropoutBackward { elements: u64, probability: f32, stream: u32, accumulate: bool },
    /// x, bias -> y: bias, of `channels` elements, added to each row. In place allowed.
    BiasForward { shape: RowShape },
    /// dy -> dbias: the sum of the rows. Overwrites, or adds if other layers share the parameter.
    BiasBackward { shape: RowShape, accumulate: bool },
    /// tokens, weight -> y: for each sample, the rows of the table for its tokens `first..first + count`. Tokens are i32
    /// `[batch][length]`, weight is `[vocabulary][width]`, y `[batch][count][width]`.
    EmbeddingForward { shape: EmbeddingShape },
    /// tokens, dy -> dweight: each row is the sum of dy at the positions of its token, in their order, and 0 for absent
    /// tokens. Overwrites, or adds if other layers share the table.
    EmbeddingBackward { shape: EmbeddingShape, accumulate: bool },
    /// qkv -> y, stats: scaled dot-product attention (Vaswani et al. 2017, eq. (1)), head by head. A row of qkv is query,
    /// key, value: `heads`, `kv_heads` and `kv_heads` heads of w = width / heads channels. Head h of the queries has the
    /// channels `h * w..(h + 1) * w` of query and y, and uses head h / (heads / kv_heads) of keys and values.
    /// probability_ij = exp((s_ij - m_i) / sqrt(w)) * r_i, where s_ij = q_i * k_j, m_i is the largest s_ij of a row, and r_i
    /// is 1 / the sum of the row's exponentials, both without j > i if `causal`; y_i = the sum of probability_ij * v_j. stats
    /// `[batch][heads][length][2]` = (m_i, r_i).
    AttentionForward { shape: AttentionShape },
    /// qkv, stats, dy -> dqkv. Scores and probabilities are recomputed.
    AttentionBackward { shape: AttentionShape, accumulate: bool },
    /// x -> y: rotary position embeddings (Su et al. 2021, eq. (34)). With h = width / 2, channels i and i + h (i below h) of
    /// each head at position p are rotated by a = p * base^(-i / h): y_i = x_i cos a - x_{i+h} sin a, y_{i+h} = x_{i+h} cos
    /// a + x_i sin a. Positions count from 0. In place allowed.
    RotaryForward { shape: RotaryShape, base: f32 },
    /// dy -> dx: rotated back by the same angles. dx may be dy.
    RotaryBackward { shape: RotaryShape, base: f32, accumulate: bool },
    /// gates, \[previous\] -> h, cell, activated: a step of a long short-term memory (Hochreiter and Schmidhuber 1997, with
    /// forget gates). A row of gates is input, forget, candidate, output, `channels` each: i, f, o are their sigmoids, g is
    /// the candidate's tanh. cell = f * previous + i * g, h = o * tanh(cell), activated = (i, f, g, o). If `first` is set
    /// there is no previous cell, and it counts as 0. activated may be gates.
    LstmForward { shape: RowShape, first: bool },
    /// activated, \[previous\], cell, dh, \[dcell\] -> dgates, \[dprevious\]. If `first` is set there is neither previous nor
    /// dprevious; if `last` is set there is no dcell. dgates may be activated, dprevious may be dcell.
    LstmBackward { shape: RowShape, first: bool, last: bool },
    /// a, b -> y = a + b. y may be a.
    Add { elements: u64 },
    /// x -> y: copies x to `channels` channels of y from channel `first` on; y has `total` channels. One op per part, in the
    /// order of `first`; each but the one with `first` 0 updates y.
    ConcatPart { rows: u64, channels: u64, first: u64, total: u64 },
    /// dy -> dx: the channels of one part.
    SplitPart { rows: u64, channels: u64, first: u64, total: u64, accumulate: bool },
    /// x -> y. See [`crate::network::LayerKind::Lrn`].
    LrnForward { shape: RowShape, size: u32, alpha: f32, beta: f32, bias: f32 },
    /// x, dy -> dx. Recomputes the sums from x.
    LrnBackward { shape: RowShape, size: u32, alpha: f32, beta: f32, bias: f32, accumulate: bool },
    /// logits, labels -> differences, metrics. Rows are samples. In place allowed. differences = softmax(logits) - one-hot, 0
    /// for samples that do not count.
    SoftmaxCrossEntropyForward { shape: RowShape },
    /// differences, labels -> dlogits = differences / counted, the number of samples that count. In place allowed.
    SoftmaxCrossEntropyBackward { shape: RowShape },
    /// hyper, parameter, gradient, momentum -> parameter, momentum: g = gradient + decay * parameter if `decay` is set,
    /// m = momentum * m + g, parameter -= learning rate * m.
    Sgd { elements: u64, decay: bool },
    /// hyper, parameter, gradient, first moment, second moment -> parameter, first moment, second moment: with the names of
    /// [`crate::optimizer::UpdateNumbers::Adamw`], m = beta1 * m + (1 - beta1) * gradient, v = beta2 * v + (1 - beta2) *
    /// gradient^2, parameter = keep * parameter - length * m / (root * sqrt(v) + epsilon).
    Adamw { elements: u64 },
}

/// Returns the product, saturating at the largest number.
fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor))
}

/// Returns the floating-point operations of a convolution in one of its passes.
fn conv_flops(shape: &ConvShape) -> u64 {
    let [rows, columns] = shape.output.map(u64::from);
    let outputs = product(&[shape.batch, rows, columns, u64::from(shape.out_channels)]);
    let [kernel_rows, kernel_columns] = shape.window.size.map(u64::from);
    let taps = product(&[2, kernel_rows, kernel_columns, u64::from(shape.in_channels / shape.groups)]);
    product(&[outputs, taps.saturating_add(u64::from(shape.bias))])
}

/// Returns the floating-point operations of all rows, of which each element takes this many.
fn row_flops(shape: &RowShape, each: u64) -> u64 {
    product(&[each, shape.rows, shape.channels])
}

/// Returns the floating-point operations of a pooling, of which each output takes this many.
fn pool_flops(shape: &PoolShape, each: u64) -> u64 {
    let [rows, columns] = shape.output.map(u64::from);
    product(&[shape.batch, rows, columns, u64::from(shape.channels), each])
}

/// Returns the positions of a window.
fn taps(shape: &PoolShape) -> u64 {
    let [rows, columns] = shape.window.size.map(u64::from);
    rows * columns
}

/// Returns the floating-point operations of an attention: for each pair of positions, so many for each channel of the queries
/// and so many for each head. Masked or not, everything is computed.
fn attention_flops(shape: &AttentionShape, of_channel: u64, of_head: u64) -> u64 {
    let of_pair = (of_channel * shape.width).saturating_add(of_head * shape.heads);
    product(&[shape.batch, shape.length, shape.length, of_pair])
}

/// Returns the elements that a lookup copies.
fn looked_up(shape: &EmbeddingShape) -> u64 {
    product(&[shape.batch, shape.count, shape.width])
}

impl Call {
    /// Returns the floating-point operations; a multiply and an add are two. Those of a convolution are the same in its three
    /// passes. Saturates at the largest number.
    pub fn flops(&self) -> u64 {
        self.name_and_flops().1
    }

    /// Returns the call's name in kernels and profiles.
    pub fn name(&self) -> &'static str {
        self.name_and_flops().0
    }

    fn name_and_flops(&self) -> (&'static str, u64) {
        use Call as C;
        match self {
            C::ConvForward { shape } => ("conv_forward", conv_flops(shape)),
            C::ConvBackwardFilter { shape, .. } => ("conv_backward_filter", conv_flops(shape)),
            C::ConvBackwardData { shape, .. } => ("conv_backward_data", conv_flops(shape)),
            C::BatchNormForward { shape, then, .. } => {
                ("batch_norm_forward", row_flops(shape, 8 + then.flops()))
            }
            C::BatchNormRunning { shape, .. } => ("batch_norm_running", product(&[8, shape.channels])),
            C::BatchNormInference { shape, .. } => ("batch_norm_inference", row_flops(shape, 2)),
            C::BatchNormBackward { shape, then, .. } => {
                ("batch_norm_backward", row_flops(shape, 8 + u64::from(then.relu.is_some())))
            }
            C::LayerNormForward { shape, .. } => ("layer_norm_forward", row_flops(shape, 8)),
            C::LayerNormBackward { shape, .. } => ("layer_norm_backward", row_flops(shape, 15)),
            C::RmsNormForward { shape, .. } => ("rms_norm_forward", row_flops(shape, 4)),
            C::RmsNormBackward { shape, .. } => ("rms_norm_backward", row_flops(shape, 11)),
            C::ReluForward { elements, .. } => ("relu_forward", *elements),
            C::ReluBackward { elements, .. } => ("relu_backward", *elements),
            C::ReluMaskForward { elements, .. } => ("relu_mask_forward", *elements),
            C::ReluMaskBackward { elements, .. } => ("relu_mask_backward", *elements),
            C::ActivationForward { elements, function } => {
                ("activation_forward", product(&[function.flops(), *elements]))
            }
            C::ActivationBackward { elements, function, .. } => {
                ("activation_backward", product(&[function.flops() + 2, *elements]))
            }
            C::Multiply { elements, .. } => ("multiply", *elements),
            C::MaxPoolForward { shape } => ("max_pool_forward", pool_flops(shape, taps(shape))),
            C::MaxPoolBackward { shape, .. } => ("max_pool_backward", pool_flops(shape, 1)),
            C::AvgPoolForward { shape } => ("avg_pool_forward", pool_flops(shape, taps(shape))),
            C::AvgPoolBackward { shape, .. } => ("avg_pool_backward", pool_flops(shape, taps(shape))),
            C::DropoutForward { elements, .. } => ("dropout_forward", product(&[2, *elements])),
            C::DropoutBackward { elements, .. } => ("dropout_backward", product(&[2, *elements])),
            C::BiasForward { shape } => ("bias_forward", row_flops(shape, 1)),
            C::BiasBackward { shape, .. } => ("bias_backward", row_flops(shape, 1)),
            C::EmbeddingForward { shape } => ("embedding_forward", looked_up(shape)),
            C::EmbeddingBackward { shape, .. } => ("embedding_backward", looked_up(shape)),
            // Two matrix products forward and five backward, and the softmax.
            C::AttentionForward { shape } => ("attention_forward", attention_flops(shape, 4, 6)),
            C::AttentionBackward { shape, .. } => ("attention_backward", attention_flops(shape, 10, 9)),
            C::RotaryForward { shape, .. } => ("rotary_forward", product(&[3, shape.elements()])),
            C::RotaryBackward { shape, .. } => ("rotary_backward", product(&[3, shape.elements()])),
            // Three sigmoids and two tanh, each an exponential and a division.
            C::LstmForward { shape, .. } => ("lstm_forward", row_flops(shape, 100)),
            C::LstmBackward { shape, .. } => ("lstm_backward", row_flops(shape, 50)),
            C::Add { elements } => ("add", *elements),
            C::ConcatPart { rows, channels, .. } => ("concat_part", product(&[*rows, *channels])),
            C::SplitPart { rows, channels, .. } => ("split_part", product(&[*rows, *channels])),
            C::LrnForward { shape, size, .. } => ("lrn_forward", row_flops(shape, 2 * u64::from(*size) + 20)),
            C::LrnBackward { shape, size, .. } => {
                ("lrn_backward", row_flops(shape, 4 * u64::from(*size) + 40))
            }
            C::SoftmaxCrossEntropyForward { shape } => ("softmax_cross_entropy_forward", row_flops(shape, 5)),
            C::SoftmaxCrossEntropyBackward { shape } => {
                ("softmax_cross_entropy_backward", row_flops(shape, 2))
            }
            C::Sgd { elements, .. } => ("sgd", product(&[6, *elements])),
            C::Adamw { elements, .. } => ("adamw", product(&[14, *elements])),
        }
    }
}
