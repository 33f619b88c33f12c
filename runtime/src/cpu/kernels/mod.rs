//! The kernels of the CPU: every [`Call`] in f32, on operands that lie in the device's memory.
//!
//! [`run`] is the whole seam: what to compute, where the operands lie, scratch memory, threads. Kernels are plain
//! functions on addresses, for two reasons: an operand may be the output of the same call (in place), which references
//! cannot say, and the executor has proved before that nothing else touches the bytes meanwhile.
//!
//! The same inputs give the same bits, with any number of threads and at any address. `unsafe` is the price of addresses:
//! it is kept to taking slices and to the two loops of `vector`.
//!
//! What it deliberately does not do: allocate what grows with the batch (scratch comes with the call), choose between
//! algorithms by measuring, or check operands: `run` is unsafe, and its caller is the executor.

mod activation;
mod attention;
mod bias;
mod columns;
mod conv;
mod elementwise;
mod embedding;
mod exponential;
mod gelu;
mod layer_norm;
mod loss;
mod lrn;
mod lstm;
mod multiply;
mod norm;
mod pool;
mod rms_norm;
mod rotary;
mod sgd;
mod threads;
mod vector;
mod winograd;

pub use threads::Threads;

use plimsoll_ir::Bytes;
use plimsoll_ir::program::Call;
use vector::Ptr;

/// What a device address must be a multiple of: operands and workspace.
const ALIGNMENT: usize = 256;

/// How much scratch memory a call takes when it runs on so many threads.
pub fn workspace_bytes(call: &Call, threads: u32) -> Bytes {
    let lanes = threads as usize;
    let floats = match call {
        Call::ConvForward { shape } => conv::forward_scratch(shape, lanes),
        Call::ConvBackwardFilter { shape, .. } => conv::backward_filter_scratch(shape, lanes),
        Call::ConvBackwardData { shape, .. } => conv::backward_data_scratch(shape, lanes),
        Call::BatchNormForward { shape, .. } | Call::BatchNormBackward { shape, .. } => norm::scratch(shape),
        Call::LayerNormBackward { shape, .. } => layer_norm::backward_scratch(shape),
        Call::RmsNormBackward { shape, .. } => rms_norm::backward_scratch(shape),
        Call::LrnBackward { shape, .. } => lrn::backward_scratch(shape, lanes),
        Call::BiasBackward { shape, .. } => bias::backward_scratch(shape),
        Call::MultiplySums { shape, .. } => multiply::sums_scratch(shape),
        Call::AttentionBackward { shape, .. } => attention::backward_scratch(shape, lanes),
        Call::RotaryForward { shape, .. } | Call::RotaryBackward { shape, .. } => rotary::scratch(shape),
        Call::SoftmaxCrossEntropyForward { shape } => loss::forward_scratch(shape),
        _ => 0,
    };
    Bytes(4 * floats as u64).round_up(ALIGNMENT as u64)
}

/// Computes a call, and returns when it is done.
///
/// # Safety
/// `operands` are the call's, in the order that its documentation gives, and `workspace` has [`workspace_bytes`]; all
/// are multiples of 256, in live memory that was initialised (with any values), and nothing else touches them until the
/// call returns. Two operands overlap only by being equal, where the call's documentation allows it.
///
/// # Panics
/// Where a label is not below the number of classes, or a token not in the vocabulary.
#[expect(clippy::too_many_lines, reason = "one arm for each call, and nothing else")]
pub unsafe fn run(call: &Call, operands: &[*mut u8], workspace: *mut u8, threads: &Threads) {
    let f = |i: usize| Ptr::<f32>::of(operands[i]);
    let bytes = |i: usize| Ptr::<u8>::of(operands[i]);
    let words = |i: usize| Ptr::<u32>::of(operands[i]);
    let labels = |i: usize| Ptr::<i32>::of(operands[i]);
    let scratch = Ptr::<f32>::of(workspace);
    // SAFETY: each kernel asks for what the caller promised: operands of the call's shapes, and its workspace.
    unsafe {
        match *call {
            Call::ConvForward { shape: s } => {
                conv::forward(
                    &s,
                    f(0),
                    f(1),
                    s.bias.then(|| f(2)),
                    f(2 + usize::from(s.bias)),
                    scratch,
                    threads,
                );
            }
            Call::ConvBackwardFilter { shape: s, accumulate } => {
                let dbias = s.bias.then(|| f(3));
                conv::backward_filter(&s, accumulate, f(0), f(1), f(2), dbias, scratch, threads);
            }
            Call::ConvBackwardData { shape: s, accumulate } => {
                conv::backward_data(&s, accumulate, f(0), f(1), f(2), scratch, threads);
            }
            Call::BatchNormForward { shape: s, epsilon } => {
                norm::forward(&s, epsilon, [f(0), f(1), f(2)], f(3), f(4), scratch, threads);
            }
            Call::BatchNormRunning { shape: s, epsilon, momentum } => {
                norm::running(&s, epsilon, momentum, f(0), [f(1), f(2)]);
            }
            Call::BatchNormInference { shape: s, epsilon } => {
                norm::inference(&s, epsilon, [f(0), f(1), f(2), f(3), f(4)], f(5), threads);
            }
            Call::BatchNormBackward { shape: s, accumulate } => {
                norm::backward(
                    &s,
                    accumulate,
                    [f(0), f(1), f(2), f(3)],
                    [f(4), f(5), f(6)],
                    scratch,
                    threads,
                );
            }
            Call::LayerNormForward { shape: s, epsilon } => {
                layer_norm::forward(&s, epsilon, [f(0), f(1), f(2)], f(3), f(4), threads);
            }
            Call::LayerNormBackward { shape: s, accumulate } => {
                let inputs = [f(0), f(1), f(2), f(3)];
                layer_norm::backward(&s, accumulate, inputs, [f(4), f(5), f(6)], scratch, threads);
            }
            Call::RmsNormForward { shape: s, epsilon } => {
                rms_norm::forward(&s, epsilon, [f(0), f(1)], f(2), f(3), threads);
            }
            Call::RmsNormBackward { shape: s, accumulate } => {
                let inputs = [f(0), f(1), f(2), f(3)];
                rms_norm::backward(&s, accumulate, inputs, [f(4), f(5)], scratch, threads);
            }
            Call::ActivationForward { elements, function } => {
                activation::forward(elements, function, f(0), f(1), threads);
            }
            Call::ActivationBackward { elements, function, accumulate } => {
                activation::backward(elements, function, accumulate, [f(0), f(1)], f(2), threads);
            }
            Call::Multiply { shape: s, accumulate } => {
                multiply::multiply(&s, accumulate, [f(0), f(1)], f(2), threads);
            }
            Call::MultiplySums { shape: s, accumulate } => {
                multiply::sums(&s, accumulate, [f(0), f(1)], f(2), scratch, threads);
            }
            Call::ReluForward { elements, ceiling } => {
                elementwise::relu_forward(elements, ceiling, f(0), f(1), threads);
            }
            Call::ReluBackward { elements, ceiling, accumulate } => {
                elementwise::relu_backward(elements, ceiling, accumulate, f(0), f(1), f(2), threads);
            }
            Call::ReluMaskForward { elements, ceiling } => {
                elementwise::relu_mask_forward(elements, ceiling, f(0), f(1), bytes(2), threads);
            }
            Call::ReluMaskBackward { elements, accumulate } => {
                elementwise::relu_mask_backward(elements, accumulate, bytes(0), f(1), f(2), threads);
            }
            Call::MaxPoolForward { shape: s } => pool::max_forward(&s, f(0), f(1), bytes(2), threads),
            Call::MaxPoolBackward { shape: s, accumulate } => {
                pool::max_backward(&s, accumulate, bytes(0), f(1), f(2), threads);
            }
            Call::AvgPoolForward { shape: s } => pool::avg_forward(&s, f(0), f(1), threads),
            Call::AvgPoolBackward { shape: s, accumulate } => {
                pool::avg_backward(&s, accumulate, f(0), f(1), threads);
            }
            Call::DropoutForward { elements, probability, stream, run } => {
                let drop = elementwise::Dropout { elements, probability, stream, run };
                elementwise::dropout(&drop, false, words(0), f(1), f(2), threads);
            }
            Call::DropoutBackward { elements, probability, stream, run, accumulate } => {
                let drop = elementwise::Dropout { elements, probability, stream, run };
                elementwise::dropout(&drop, accumulate, words(0), f(1), f(2), threads);
            }
            Call::BiasForward { shape: s } => bias::forward(&s, f(0), f(1), f(2), threads),
            Call::BiasBackward { shape: s, accumulate } => {
                bias::backward(&s, accumulate, f(0), f(1), scratch, threads);
            }
            Call::EmbeddingForward { shape: s } => {
                embedding::forward(&s, labels(0), f(1), f(2), threads);
            }
            Call::EmbeddingBackward { shape: s, accumulate } => {
                embedding::backward(&s, accumulate, labels(0), f(1), f(2), threads);
            }
            Call::AttentionForward { shape: s } => {
                attention::forward(&s, f(0), f(1), f(2), threads);
            }
            Call::AttentionBackward { shape: s, accumulate } => {
                attention::backward(&s, accumulate, [f(0), f(1), f(2)], f(3), scratch, threads);
            }
            Call::RotaryForward { shape: s, base } => {
                rotary::forward(&s, base, f(0), f(1), scratch, threads);
            }
            Call::RotaryBackward { shape: s, base, accumulate } => {
                rotary::backward(&s, base, accumulate, f(0), f(1), scratch, threads);
            }
            Call::LstmForward { shape: s, first } => {
                let written = 1 + usize::from(!first);
                let outputs = [f(written), f(written + 1), f(written + 2)];
                lstm::forward(&s, f(0), (!first).then(|| f(1)), outputs, threads);
            }
            Call::LstmBackward { shape: s, first, last } => {
                let cell = 1 + usize::from(!first);
                let dgates = cell + 2 + usize::from(!last);
                let other = lstm::Backward {
                    previous: (!first).then(|| f(1)),
                    cell: f(cell),
                    dh: f(cell + 1),
                    dcell: (!last).then(|| f(cell + 2)),
                    dprevious: (!first).then(|| f(dgates + 1)),
                };
                lstm::backward(&s, f(0), other, f(dgates), threads);
            }
            Call::Add { elements } => elementwise::add(elements, f(0), f(1), f(2), threads),
            Call::ConcatPart { rows, channels, first, total } => {
                let part = elementwise::Part { rows, channels, first, total };
                elementwise::concat_part(&part, f(0), f(1), threads);
            }
            Call::SplitPart { rows, channels, first, total, accumulate } => {
                let part = elementwise::Part { rows, channels, first, total };
                elementwise::split_part(&part, accumulate, f(0), f(1), threads);
            }
            Call::PadPart { rows, channels, first, total, accumulate } => {
                let part = elementwise::Part { rows, channels, first, total };
                elementwise::pad_part(&part, accumulate, f(0), f(1), threads);
            }
            Call::Repeat { shape: s } => elementwise::repeat(&s, f(0), f(1), threads),
            Call::LrnForward { shape: s, size, alpha, beta, bias } => {
                let lrn = lrn::Lrn { size, alpha, beta, bias };
                lrn::forward(&s, &lrn, f(0), f(1), threads);
            }
            Call::LrnBackward { shape: s, size, alpha, beta, bias, accumulate } => {
                let lrn = lrn::Lrn { size, alpha, beta, bias };
                lrn::backward(&s, &lrn, accumulate, f(0), f(1), f(2), scratch, threads);
            }
            Call::SoftmaxCrossEntropyForward { shape: s } => {
                loss::forward(&s, f(0), labels(1), f(2), f(3), scratch, threads);
            }
            Call::SoftmaxCrossEntropyBackward { shape: s } => {
                loss::backward(&s, f(0), labels(1), f(2), threads);
            }
            Call::Sgd { elements, decay, idle } => {
                let operands = if idle { (f(1), None, f(2)) } else { (f(1), Some(f(2)), f(3)) };
                sgd::step(elements, decay, f(0), operands, threads);
            }
        }
    }
}
