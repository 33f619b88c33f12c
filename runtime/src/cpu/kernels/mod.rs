//! The kernels of the CPU: every [`Call`] in f32, on operands in the device's memory. Kernels on bf16 activations use the
//! same arithmetic: [`bf16`].
//!
//! [`run`] is the whole interface: call, operand addresses, scratch memory, threads. Kernels are plain functions on
//! addresses, for two reasons: an operand may be the output of the same call (in place), which references cannot express,
//! and the executor has proved before that nothing else touches the bytes meanwhile.
//!
//! The same inputs give the same bits, with any number of threads and at any address. Addresses require `unsafe`: it is
//! limited to taking slices and to the two loops of `vector`.
//!
//! Deliberately does not allocate memory that grows with the batch (scratch comes with the call), choose between algorithms
//! by measuring, or check operands: `run` is unsafe, and its caller is the executor.

mod activation;
mod adamw;
mod attention;
pub mod bf16;
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
mod maps;
mod matrix;
mod norm;
mod pool;
mod rotary;
mod sgd;
mod threads;
mod vector;
mod winograd;

pub use threads::Threads;

use maps::Map;
pub(crate) use maps::rounded;
use plimsoll_ir::Bytes;
use plimsoll_ir::program::{Call, Operands};
use vector::Ptr;

/// Required alignment of device addresses: operands and workspace.
const ALIGNMENT: usize = 256;

/// Scratch memory of a call on this many threads.
pub fn workspace_bytes(call: &Call, threads: u32) -> Bytes {
    let lanes = threads as usize;
    let floats = match call {
        Call::ConvForward { shape } => conv::forward_scratch(shape, lanes),
        Call::ConvBackwardFilter { shape, .. } => conv::backward_filter_scratch(shape, lanes),
        Call::ConvBackwardData { shape, .. } => conv::backward_data_scratch(shape, lanes),
        Call::BatchNormForward { shape, .. } => norm::scratch(shape),
        Call::BatchNormBackward { shape, then, accumulate } => {
            norm::backward_scratch(shape, then, *accumulate, lanes)
        }
        Call::LayerNormBackward { shape, .. } => layer_norm::backward_scratch(shape, 2),
        Call::RmsNormBackward { shape, .. } => layer_norm::backward_scratch(shape, 1),
        Call::LrnBackward { shape, .. } => lrn::backward_scratch(shape, lanes),
        Call::BiasBackward { shape, .. } => bias::backward_scratch(shape),
        Call::AttentionForward { shape } => attention::forward_scratch(shape, lanes),
        Call::AttentionBackward { shape, .. } => attention::backward_scratch(shape, lanes),
        Call::RotaryForward { shape, .. } | Call::RotaryBackward { shape, .. } => rotary::scratch(shape),
        Call::SoftmaxCrossEntropyForward { shape } => loss::forward_scratch(shape),
        _ => 0,
    };
    Bytes(4 * floats as u64).round_up(ALIGNMENT as u64)
}

/// Elements of the largest chunk for which each lane has a buffer, for a call whose kernel takes activations in any storage;
/// 0 if the kernel goes element by element, and needs no buffer.
fn chunk(call: &Call) -> Option<usize> {
    Some(match call {
        Call::BatchNormForward { shape, .. } | Call::BatchNormBackward { shape, .. } => {
            norm::chunks(shape).elements()
        }
        Call::LayerNormForward { shape, .. }
        | Call::LayerNormBackward { shape, .. }
        | Call::RmsNormForward { shape, .. }
        | Call::RmsNormBackward { shape, .. } => layer_norm::chunks(shape).elements(),
        Call::DropoutForward { elements, .. } | Call::DropoutBackward { elements, .. } => {
            elementwise::PIECE.min(*elements as usize)
        }
        Call::ReluForward { .. }
        | Call::ReluBackward { .. }
        | Call::ActivationForward { .. }
        | Call::ActivationBackward { .. }
        | Call::Multiply { .. }
        | Call::Add { .. } => 0,
        _ => return None,
    })
}

/// Computes a call, and returns when it is done. Activations are f32.
///
/// # Safety
/// `operands` are the call's, in the order that its documentation gives, and `workspace` has [`workspace_bytes`]; all
/// are multiples of 256, in live memory that was initialised (with any values), and nothing else touches them until the
/// call returns. Two operands overlap only by being equal, where the call's documentation allows it.
///
/// # Panics
/// If a label is not below the number of classes, or a token is not in the vocabulary.
pub unsafe fn run(call: &Call, operands: &[*mut u8], workspace: *mut u8, threads: &Threads) {
    let map = |operand: usize| Map::F32(Ptr::of(operands[operand]));
    // SAFETY: passed on.
    unsafe { run_on(call, operands, &map, workspace, threads) }
}

/// [`run`] for kernels that take activations in any storage ([`chunk`]): `map` gives the activation by the number of the
/// operand.
///
/// # Safety
/// As [`run`]; and if a map is bf16, its buffers have [`chunk`] elements for each thread.
unsafe fn run_on(
    call: &Call,
    operands: &[*mut u8],
    map: &dyn Fn(usize) -> Map,
    workspace: *mut u8,
    threads: &Threads,
) {
    let run = &Run { specs: call.operands(), operands, maps: map, scratch: Ptr::of(workspace), threads };
    // SAFETY: each kernel requires what the caller promised: operands of the call's shapes, and its workspace.
    unsafe {
        match *call {
            Call::ConvForward { shape: s } => conv::forward(&s, run),
            Call::ConvBackwardFilter { shape: s, accumulate } => conv::backward_filter(&s, accumulate, run),
            Call::ConvBackwardData { shape: s, accumulate } => conv::backward_data(&s, accumulate, run),
            Call::BatchNormForward { shape: s, epsilon, then } => norm::forward(&s, epsilon, &then, run),
            Call::BatchNormRunning { shape: s, epsilon, momentum } => {
                norm::running(&s, epsilon, momentum, run);
            }
            Call::BatchNormInference { shape: s, epsilon } => norm::inference(&s, epsilon, run),
            Call::BatchNormBackward { shape: s, then, accumulate } => {
                norm::backward(&s, &then, accumulate, run);
            }
            Call::LayerNormForward { shape: s, epsilon } => layer_norm::forward(&s, true, epsilon, run),
            Call::LayerNormBackward { shape: s, accumulate } => {
                layer_norm::backward(&s, true, accumulate, run);
            }
            Call::RmsNormForward { shape: s, epsilon } => layer_norm::forward(&s, false, epsilon, run),
            Call::RmsNormBackward { shape: s, accumulate } => {
                layer_norm::backward(&s, false, accumulate, run);
            }
            Call::ActivationForward { elements, function } => activation::forward(elements, function, run),
            Call::ActivationBackward { elements, function, accumulate } => {
                activation::backward(elements, function, accumulate, run);
            }
            Call::Multiply { elements, accumulate } => elementwise::multiply(elements, accumulate, run),
            Call::ReluForward { elements, ceiling } => elementwise::relu_forward(elements, ceiling, run),
            Call::ReluBackward { elements, ceiling, accumulate } => {
                elementwise::relu_backward(elements, ceiling, accumulate, run);
            }
            Call::ReluMaskForward { elements, ceiling } => {
                elementwise::relu_mask_forward(elements, ceiling, run);
            }
            Call::ReluMaskBackward { elements, accumulate } => {
                elementwise::relu_mask_backward(elements, accumulate, run);
            }
            Call::MaxPoolForward { shape: s } => pool::max_forward(&s, run),
            Call::MaxPoolBackward { shape: s, accumulate } => pool::max_backward(&s, accumulate, run),
            Call::AvgPoolForward { shape: s } => pool::avg_forward(&s, run),
            Call::AvgPoolBackward { shape: s, accumulate } => pool::avg_backward(&s, accumulate, run),
            Call::DropoutForward { elements, probability, stream } => {
                let drop = elementwise::Dropout { elements, probability, stream };
                elementwise::dropout(&drop, false, run.maps(["x", "y"]), run);
            }
            Call::DropoutBackward { elements, probability, stream, accumulate } => {
                let drop = elementwise::Dropout { elements, probability, stream };
                elementwise::dropout(&drop, accumulate, run.maps(["dy", "dx"]), run);
            }
            Call::BiasForward { shape: s } => bias::forward(&s, run),
            Call::BiasBackward { shape: s, accumulate } => bias::backward(&s, accumulate, run),
            Call::EmbeddingForward { shape: s } => embedding::forward(&s, run),
            Call::EmbeddingBackward { shape: s, accumulate } => embedding::backward(&s, accumulate, run),
            Call::AttentionForward { shape: s } => attention::forward(&s, run),
            Call::AttentionBackward { shape: s, accumulate } => attention::backward(&s, accumulate, run),
            Call::RotaryForward { shape: s, base } => rotary::forward(&s, base, run),
            Call::RotaryBackward { shape: s, base, accumulate } => {
                rotary::backward(&s, base, accumulate, run);
            }
            Call::LstmForward { shape: s, .. } => lstm::forward(&s, run),
            Call::LstmBackward { shape: s, .. } => lstm::backward(&s, run),
            Call::Add { elements } => elementwise::add(elements, run),
            Call::ConcatPart { rows, channels, first, total } => {
                elementwise::concat_part(&elementwise::Part { rows, channels, first, total }, run);
            }
            Call::SplitPart { rows, channels, first, total, accumulate } => {
                let part = elementwise::Part { rows, channels, first, total };
                elementwise::split_part(&part, accumulate, run);
            }
            Call::LrnForward { shape: s, size, alpha, beta, bias } => {
                lrn::forward(&s, &lrn::Lrn { size, alpha, beta, bias }, run);
            }
            Call::LrnBackward { shape: s, size, alpha, beta, bias, accumulate } => {
                lrn::backward(&s, &lrn::Lrn { size, alpha, beta, bias }, accumulate, run);
            }
            Call::SoftmaxCrossEntropyForward { shape: s } => loss::forward(&s, run),
            Call::SoftmaxCrossEntropyBackward { shape: s } => loss::backward(&s, run),
            Call::Sgd { elements, decay, .. } => sgd::step(elements, decay, run),
            Call::Adamw { elements, .. } => adamw::step(elements, run),
        }
    }
}

/// A call as its kernel gets it: operands by their names, the workspace, and threads.
struct Run<'a> {
    specs: Operands,
    operands: &'a [*mut u8],
    maps: &'a dyn Fn(usize) -> Map,
    scratch: Ptr<f32>,
    threads: &'a Threads,
}

impl Run<'_> {
    fn at<T: Copy>(&self, name: &str) -> Ptr<T> {
        Ptr::of(self.operands[self.specs.index(name)])
    }

    fn f(&self, name: &str) -> Ptr<f32> {
        self.at(name)
    }

    fn all<const N: usize>(&self, names: [&str; N]) -> [Ptr<f32>; N] {
        names.map(|name| self.at(name))
    }

    /// An operand that some calls of a kind omit.
    fn some(&self, name: &str) -> Option<Ptr<f32>> {
        self.specs.position(name).map(|operand| Ptr::of(self.operands[operand]))
    }

    /// An activation in any storage.
    fn map(&self, name: &str) -> Map {
        (self.maps)(self.specs.index(name))
    }

    fn maps<const N: usize>(&self, names: [&str; N]) -> [Map; N] {
        names.map(|name| self.map(name))
    }
}
