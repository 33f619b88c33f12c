//! Our kernels in CUDA C, and the launches of each [`Call`].
//!
//! NVRTC compiles the text ([`source`]) at start. Its dialect (`dialect.cu`) is also C, so that the same text is tested
//! without a GPU. The launches of a call and its scratch come from one [`Plan`], so that they cannot disagree, and follow
//! from the call alone: the same call gives the same bits on every device of one model, whatever else runs.
//!
//! Deliberately does not talk to a driver, hold an address, choose by measuring, or compute the calls of cuDNN and cuBLAS
//! (`../libraries`): fully connected layers, and convolutions that are not depthwise.

pub(crate) mod attention;
mod conv;
mod layer_norm;
pub(crate) mod layout;
mod norm;
mod rotary;
mod sequences;

pub(crate) use conv::is_depthwise;
use plimsoll_ir::network::{Function, Window};
use plimsoll_ir::program::{Call, Operands, PoolShape, RowShape, STORAGE_ALIGNMENT};
use plimsoll_ir::{Bytes, Float};

/// Threads of a block.
const THREADS: u32 = 256;

/// Parts summed by one thread: more would wait for one another, fewer would take more launches.
const FAN: u64 = 64;

/// Threads that fill a device: sums are cut into about this many parts.
const PARALLEL: u64 = 1 << 17;

/// Most threads that share a row of a softmax: those of a warp; and fewest channels of each, since the pieces' results are
/// scratch, which for one class per pixel would exceed the logits.
const PIECES: u64 = 32;
const LEAST_CHANNELS: u64 = 8;

/// Source of all kernels for this storage of activations, for NVRTC or a C compiler.
pub(crate) fn source(float: Float) -> String {
    let (format, rounding) = match float {
        Float::F32 => ("", ""),
        Float::Bf16 => ("#define BF16", include_str!("rounding.cu")),
    };
    [
        format,
        include_str!("dialect.cu"),
        include_str!("elementwise.cu"),
        include_str!("pool.cu"),
        include_str!("exponential.cu"),
        include_str!("activation.cu"),
        include_str!("embedding.cu"),
        include_str!("lstm.cu"),
        include_str!("norm.cu"),
        include_str!("layer_norm.cu"),
        include_str!("rms_norm.cu"),
        include_str!("loss.cu"),
        include_str!("depthwise.cu"),
        include_str!("layout.cu"),
        include_str!("attention.cu"),
        include_str!("rotary.cu"),
        rounding,
    ]
    .join("\n")
}

/// One launch of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    /// Kernel's name in [`source`].
    pub kernel: &'static str,
    /// Blocks along x, y and z; only x is ever more than 1.
    pub blocks: [u32; 3],
    /// Threads of a block, along x.
    pub threads: u32,
    /// Arguments, in the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
}

/// Argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Argument {
    /// Address of the call's operand of this number.
    Operand(usize),
    /// Address at this byte offset of the call's workspace.
    Workspace(u64),
    U32(u32),
    U64(u64),
    F32(f32),
}

use Argument::{F32, Operand, U32, U64, Workspace};

/// Returns `true` if kernels here compute a call; a library computes convolutions that are not depthwise.
pub(crate) fn serve(call: &Call) -> bool {
    match call {
        Call::ConvForward { shape }
        | Call::ConvBackwardFilter { shape, .. }
        | Call::ConvBackwardData { shape, .. } => is_depthwise(shape),
        _ => true,
    }
}

/// Launches of a call that these kernels [`serve`], for this storage of activations, in order, on the compute stream.
pub(crate) fn grids(call: &Call, float: Float) -> Vec<Grid> {
    plan(call, float).grids
}

/// Scratch of a call's launches, whose earlier contents are not read.
pub(crate) fn workspace_bytes(call: &Call, float: Float) -> Bytes {
    Bytes(plan(call, float).scratch)
}

/// Launches after a library's convolution, which computes no bias, and their scratch, which may overlap the library's.
pub(crate) fn after_library(call: &Call, float: Float) -> (Vec<Grid>, Bytes) {
    let mut plan = Plan::of(call, float);
    match *call {
        Call::ConvForward { shape } if shape.bias => conv::add_bias(&mut plan, &shape),
        Call::ConvBackwardFilter { shape, accumulate } if shape.bias => {
            conv::bias_gradient(&mut plan, &shape, accumulate);
        }
        _ => {}
    }
    (plan.grids, Bytes(plan.scratch))
}

/// Launches of a call under construction, and the bytes of their scratch.
struct Plan {
    operands: Operands,
    /// Storage format of activations.
    float: Float,
    grids: Vec<Grid>,
    scratch: u64,
}

impl Plan {
    /// Plan of a call, without launches yet.
    fn of(call: &Call, float: Float) -> Plan {
        Plan { operands: call.operands(), float, grids: Vec::new(), scratch: 0 }
    }

    fn operand(&self, name: &str) -> Argument {
        Operand(self.operands.index(name))
    }

    fn operands<const N: usize>(&self, names: [&str; N]) -> [Argument; N] {
        names.map(|name| self.operand(name))
    }

    /// The call's operand of this name; `other` if it has none, as a placeholder that the kernel does not read.
    fn operand_or(&self, name: &str, other: &str) -> Argument {
        self.operands.position(name).map_or_else(|| self.operand(other), Operand)
    }

    /// All operands of the call, in order, and then `others`.
    fn all_operands_and(&self, others: &[Argument]) -> Vec<Argument> {
        (0..self.operands.len()).map(Operand).chain(others.iter().copied()).collect()
    }

    /// Adds a launch of at least `threads` threads; none if there are 0.
    fn launch(&mut self, kernel: &'static str, threads: u64, arguments: Vec<Argument>) {
        if threads > 0 {
            // A count of blocks above the driver's limit means more elements than any memory holds.
            let blocks = narrow(threads.div_ceil(u64::from(THREADS)));
            self.grids.push(Grid { kernel, blocks: [blocks, 1, 1], threads: THREADS, arguments });
        }
    }

    /// Scratch for this many f32.
    fn floats(&mut self, count: u64) -> Argument {
        self.room(count, Float::F32)
    }

    /// Scratch for this many numbers.
    fn room(&mut self, count: u64, float: Float) -> Argument {
        let start = self.scratch;
        let end = start.saturating_add(count.saturating_mul(float.bytes()));
        self.scratch = end.checked_next_multiple_of(STORAGE_ALIGNMENT).unwrap_or(end);
        Workspace(start)
    }

    /// A parameter in the format in which kernels multiply by it: stored as activations are, and rounded into scratch if
    /// they are not f32.
    fn multiplier(&mut self, name: &str) -> Argument {
        let parameter = self.operand(name);
        if self.float == Float::F32 {
            return parameter;
        }
        let n = self.numbers(name);
        let rounded = self.room(n, self.float);
        self.round(parameter, rounded, n, false);
        rounded
    }

    /// Numbers in an operand.
    fn numbers(&self, name: &str) -> u64 {
        self.operands[self.operands.index(name)].bytes.0 / Float::F32.bytes()
    }

    /// Widens n numbers stored as activations are to f32, or adds them to `to`.
    fn widen(&mut self, from: Argument, to: Argument, n: u64, accumulate: bool) {
        self.widen_from(0, from, to, n, accumulate);
    }

    /// The same from number `first` on.
    fn widen_from(&mut self, first: u64, from: Argument, to: Argument, n: u64, accumulate: bool) {
        self.launch("widen_map", fours(n), vec![from, to, U64(first), U64(n), flag(accumulate)]);
    }

    /// Rounds n f32 to the storage format of activations, or adds them to `to`.
    fn round(&mut self, from: Argument, to: Argument, n: u64, accumulate: bool) {
        self.round_from(0, from, to, n, accumulate);
    }

    /// The same to number `first` and later ones.
    fn round_from(&mut self, first: u64, from: Argument, to: Argument, n: u64, accumulate: bool) {
        self.launch("round_floats", fours(n), vec![from, to, U64(first), U64(n), flag(accumulate)]);
    }

    /// `to` = the sums of `count` parts of `width` floats each, which start at `parts`; or added to `to`.
    fn sum(&mut self, mut parts: Argument, mut count: u64, width: u64, to: Argument, accumulate: bool) {
        loop {
            let groups = count.div_ceil(FAN);
            let sums = if groups > 1 { self.floats(groups.saturating_mul(width)) } else { to };
            let threads = groups.saturating_mul(width);
            let leading = [parts, sums, U64(threads), U64(width), U32(narrow(count)), U32(FAN as u32)];
            let arguments = [&leading[..], &[flag(accumulate && groups <= 1)]].concat();
            self.launch("sum_parts", threads, arguments);
            (parts, count) = (sums, groups);
            if groups <= 1 {
                return;
            }
        }
    }
}

/// A number in the kernels' integers. The maximum stands for numbers that no memory holds.
fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A window as arguments.
fn window(window: &Window) -> [Argument; 8] {
    let Window { size, stride, padding, dilation } = *window;
    let [height, width] = size;
    [height, width, stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1]].map(U32)
}

/// Elements of rows of channels.
fn elements(shape: &RowShape) -> u64 {
    shape.rows.saturating_mul(shape.channels)
}

fn plan(call: &Call, float: Float) -> Plan {
    let mut plan = Plan::of(call, float);
    let p = &mut plan;
    match *call {
        _ if !serve(call) => unreachable!("a library computes it"),
        Call::ConvForward { shape } => conv::forward(p, &shape),
        Call::ConvBackwardFilter { shape, accumulate } => conv::backward_filter(p, &shape, accumulate),
        Call::ConvBackwardData { shape, accumulate } => conv::backward_data(p, &shape, accumulate),
        Call::BatchNormForward { shape, epsilon, then } => norm::forward(p, &shape, epsilon, &then),
        Call::BatchNormRunning { shape, epsilon, momentum } => {
            norm::running(p, &shape, [epsilon, momentum]);
        }
        Call::BatchNormInference { shape, epsilon } => norm::inference(p, &shape, epsilon),
        Call::BatchNormBackward { shape, then, accumulate } => norm::backward(p, &shape, &then, accumulate),
        Call::LayerNormForward { shape, epsilon } => layer_norm::forward(p, &shape, epsilon),
        Call::LayerNormBackward { shape, accumulate } => layer_norm::backward(p, &shape, accumulate),
        Call::RmsNormForward { shape, epsilon } => layer_norm::rms_forward(p, &shape, epsilon),
        Call::RmsNormBackward { shape, accumulate } => layer_norm::rms_backward(p, &shape, accumulate),
        Call::LrnForward { shape, size, alpha, beta, bias } => {
            norm::lrn(p, &shape, [alpha, beta, bias], size, None);
        }
        Call::LrnBackward { shape, size, alpha, beta, bias, accumulate } => {
            norm::lrn(p, &shape, [alpha, beta, bias], size, Some(accumulate));
        }
        Call::BiasForward { shape } => sequences::bias(p, &shape),
        Call::BiasBackward { shape, accumulate } => sequences::bias_backward(p, &shape, accumulate),
        Call::EmbeddingForward { shape } => sequences::embedding(p, &shape),
        Call::EmbeddingBackward { shape, accumulate } => sequences::embedding_backward(p, &shape, accumulate),
        Call::AttentionForward { shape } => attention::forward(p, &shape),
        Call::AttentionBackward { shape, accumulate } => attention::backward(p, &shape, accumulate),
        Call::RotaryForward { shape, base } => rotary::forward(p, &shape, base),
        Call::RotaryBackward { shape, base, accumulate } => rotary::backward(p, &shape, base, accumulate),
        Call::LstmForward { shape, first } => sequences::lstm(p, &shape, first),
        Call::LstmBackward { shape, first, last } => sequences::lstm_backward(p, &shape, first, last),
        Call::MaxPoolForward { .. }
        | Call::MaxPoolBackward { .. }
        | Call::AvgPoolForward { .. }
        | Call::AvgPoolBackward { .. } => pooling(p, call),
        Call::SoftmaxCrossEntropyForward { shape } => loss(p, &shape),
        Call::SoftmaxCrossEntropyBackward { shape } => loss_backward(p, &shape),
        _ => elementwise(p, call),
    }
    plan
}

/// Calls that are a single pass over a tensor.
fn elementwise(p: &mut Plan, call: &Call) {
    /// Launches `kernel` with this many threads, all operands of the call, and then other arguments.
    fn go(p: &mut Plan, kernel: &'static str, threads: u64, others: &[Argument]) {
        let arguments = p.all_operands_and(others);
        p.launch(kernel, threads, arguments);
    }
    // A ceiling in the storage format, so that clipped elements are equal to it afterwards.
    let float = p.float;
    match *call {
        Call::ReluForward { elements: n, ceiling } => {
            go(p, "relu_forward", fours(n), &[U64(n), F32(float.nearest(ceiling))]);
        }
        Call::ReluBackward { elements: n, ceiling, accumulate } => {
            go(p, "relu_backward", fours(n), &[U64(n), F32(float.nearest(ceiling)), flag(accumulate)]);
        }
        Call::ReluMaskForward { elements: n, ceiling } => {
            go(p, "relu_mask_forward", n.div_ceil(8), &[U64(n), F32(float.nearest(ceiling))]);
        }
        Call::ReluMaskBackward { elements: n, accumulate } => {
            go(p, "relu_mask_backward", n.div_ceil(8), &[U64(n), flag(accumulate)]);
        }
        Call::ActivationForward { elements: n, function } => {
            go(p, "activation_forward", fours(n), &[U64(n), number(function)]);
        }
        Call::ActivationBackward { elements: n, function, accumulate } => {
            go(p, "activation_backward", fours(n), &[U64(n), number(function), flag(accumulate)]);
        }
        Call::Add { elements: n } => go(p, "add", fours(n), &[U64(n)]),
        Call::Multiply { elements: n, accumulate } => {
            go(p, "multiply", fours(n), &[U64(n), flag(accumulate)]);
        }
        Call::DropoutForward { elements: n, probability, stream } => {
            go(p, "dropout", fours(n), &dropout(n, probability, stream, false));
        }
        Call::DropoutBackward { elements: n, probability, stream, accumulate } => {
            go(p, "dropout", fours(n), &dropout(n, probability, stream, accumulate));
        }
        Call::ConcatPart { rows, channels, first, total } => {
            let n = rows.saturating_mul(channels);
            let [channels, first, total] = [channels, first, total].map(|n| U32(narrow(n)));
            go(p, "concat_part", n, &[U64(n), channels, first, total]);
        }
        Call::SplitPart { rows, channels, first, total, accumulate } => {
            let n = rows.saturating_mul(channels);
            let [channels, first, total] = [channels, first, total].map(|n| U32(narrow(n)));
            go(p, "split_part", n, &[U64(n), channels, first, total, flag(accumulate)]);
        }
        Call::Sgd { elements: n, decay } => go(p, "sgd", fours(n), &[U64(n), flag(decay)]),
        Call::Adamw { elements: n } => go(p, "adamw", fours(n), &[U64(n)]),
        _ => unreachable!("every other call has an arm of its own in `plan`"),
    }
}

/// Threads of four elements each.
fn fours(elements: u64) -> u64 {
    elements.div_ceil(4)
}

fn flag(set: bool) -> Argument {
    U32(u32::from(set))
}

/// A function's number in `activation.cu`.
fn number(function: Function) -> Argument {
    U32(match function {
        Function::Gelu => 0,
        Function::Silu => 1,
    })
}

fn dropout(elements: u64, probability: f32, stream: u32, accumulate: bool) -> [Argument; 5] {
    let scale = 1.0 / (1.0 - probability);
    [U64(elements), F32(probability), F32(scale), U32(stream), flag(accumulate)]
}

/// Pooling, with one thread for each element written.
fn pooling(p: &mut Plan, call: &Call) {
    let n = |shape: &PoolShape, image: [u32; 2]| {
        let factors = [image[0], image[1], shape.channels].map(u64::from);
        factors.iter().fold(shape.batch, |n, f| n.saturating_mul(*f))
    };
    let numbers = |shape: &PoolShape| -> Vec<Argument> {
        let ([height, width], [rows, columns]) = (shape.input, shape.output);
        let image = [height, width, rows, columns, shape.channels].map(U32);
        [&image[..], &window(&shape.window)].concat()
    };
    let share =
        |shape: &PoolShape| 1.0 / (shape.window.size[0] as usize * shape.window.size[1] as usize) as f32;
    let (kernel, shape, threads, leading) = match call {
        Call::MaxPoolForward { shape } => {
            let n = n(shape, shape.output);
            ("max_pool_forward", shape, n, vec![U64(n)])
        }
        Call::MaxPoolBackward { shape, accumulate } => {
            let n = n(shape, shape.input);
            let leading = vec![U64(n), flag(*accumulate)];
            ("max_pool_backward", shape, n, leading)
        }
        Call::AvgPoolForward { shape } => {
            let n = n(shape, shape.output);
            ("avg_pool_forward", shape, n, vec![U64(n), F32(share(shape))])
        }
        Call::AvgPoolBackward { shape, accumulate } => {
            let n = n(shape, shape.input);
            let leading = vec![U64(n), F32(share(shape)), flag(*accumulate)];
            ("avg_pool_backward", shape, n, leading)
        }
        _ => unreachable!("only poolings come here"),
    };
    let arguments = p.all_operands_and(&[leading, numbers(shape)].concat());
    p.launch(kernel, threads, arguments);
}

/// Softmax with cross entropy: a few threads per row, joined after the largest, after the sum, and in the metrics.
fn loss(p: &mut Plan, shape: &RowShape) {
    let [logits, labels, differences, metrics] = p.operands(["logits", "labels", "differences", "metrics"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let pieces = (shape.channels / LEAST_CHANNELS).clamp(1, PIECES);
    let threads = shape.rows.saturating_mul(pieces);
    let pieces = U32(narrow(pieces));
    let [values, channels_of, sums] = [1, 1, 2].map(|words: u64| p.floats(threads.saturating_mul(words)));
    let [largest, gaps, right, of_rows] =
        [1, 1, 1, 3].map(|words: u64| p.floats(shape.rows.saturating_mul(words)));
    let total = p.floats(3);
    p.launch("softmax_largest", threads, vec![logits, values, channels_of, rows, channels, pieces]);
    let found = [sums, largest, gaps, right];
    let arguments = [&[logits, labels, values, channels_of], &found[..], &[rows, channels, pieces]];
    p.launch("softmax_sums", threads, arguments.concat());
    let arguments = [&[logits, differences, labels], &found[..], &[of_rows, rows, channels, pieces]];
    p.launch("softmax_differences", threads, arguments.concat());
    p.sum(of_rows, shape.rows, 3, total, false);
    p.launch("loss_metrics", 1, vec![total, metrics]);
}

fn loss_backward(p: &mut Plan, shape: &RowShape) {
    let [differences, labels, dlogits] = p.operands(["differences", "labels", "dlogits"]);
    let parts = shape.rows.div_ceil(FAN);
    let counts = p.floats(parts);
    let counted = p.floats(1);
    p.launch("count_labels", parts, vec![labels, counts, U64(shape.rows), U32(FAN as u32)]);
    p.sum(counts, parts, 1, counted, false);
    let n = elements(shape);
    p.launch("softmax_backward", n, vec![differences, counted, dlogits, U64(n)]);
}
