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
mod rms_norm;
mod rotary;
mod sgd;
mod threads;
mod vector;
mod winograd;

pub use threads::Threads;

use maps::Map;
pub(crate) use maps::rounded;
use plimsoll_ir::Bytes;
use plimsoll_ir::program::Call;
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
        Call::LayerNormBackward { shape, .. } => layer_norm::backward_scratch(shape),
        Call::RmsNormBackward { shape, .. } => rms_norm::backward_scratch(shape),
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
        Call::BatchNormForward { shape, .. } | Call::BatchNormBackward { shape, .. } => norm::chunk(shape),
        Call::LayerNormForward { shape, .. }
        | Call::LayerNormBackward { shape, .. }
        | Call::RmsNormForward { shape, .. }
        | Call::RmsNormBackward { shape, .. } => layer_norm::Chunks::of(shape).elements(),
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
#[expect(clippy::too_many_lines, reason = "one arm for each call, and nothing else")]
unsafe fn run_on(
    call: &Call,
    operands: &[*mut u8],
    map: &dyn Fn(usize) -> Map,
    workspace: *mut u8,
    threads: &Threads,
) {
    let specs = call.operands();
    let address = |name| operands[specs.index(name)];
    let m = |name| map(specs.index(name));
    let f = |name| Ptr::<f32>::of(address(name));
    let bytes = |name| Ptr::<u8>::of(address(name));
    let words = |name| Ptr::<u32>::of(address(name));
    let integers = |name| Ptr::<i32>::of(address(name));
    // Operands that some calls of a kind omit.
    let some = |name| specs.position(name).map(|i| Ptr::<f32>::of(operands[i]));
    let scratch = Ptr::<f32>::of(workspace);
    // SAFETY: each kernel requires what the caller promised: operands of the call's shapes, and its workspace.
    unsafe {
        match *call {
            Call::ConvForward { shape: s } => {
                conv::forward(&s, f("x"), f("weight"), some("bias"), f("y"), scratch, threads);
            }
            Call::ConvBackwardFilter { shape: s, accumulate } => {
                let [x, dy, dweight] = ["x", "dy", "dweight"].map(f);
                conv::backward_filter(&s, accumulate, x, dy, dweight, some("dbias"), scratch, threads);
            }
            Call::ConvBackwardData { shape: s, accumulate } => {
                conv::backward_data(&s, accumulate, f("dy"), f("weight"), f("dx"), scratch, threads);
            }
            Call::BatchNormForward { shape: s, epsilon, then } => {
                let mask = then.masks().then(|| bytes("mask"));
                let relu = then.relu.map(|relu| relu.ceiling);
                let then = norm::Following { r: then.add.then(|| m("r")), relu, mask };
                let (maps, parameters) = (["x", "y"].map(m), ["gamma", "beta", "stats"].map(f));
                norm::forward(&s, epsilon, then, maps, parameters, scratch, threads);
            }
            Call::BatchNormRunning { shape: s, epsilon, momentum } => {
                norm::running(&s, epsilon, momentum, f("stats"), ["running mean", "running variance"].map(f));
            }
            Call::BatchNormInference { shape: s, epsilon } => {
                norm::inference(
                    &s,
                    epsilon,
                    ["x", "gamma", "beta", "running mean", "running variance"].map(f),
                    f("y"),
                    threads,
                );
            }
            Call::BatchNormBackward { shape: s, then, accumulate } => {
                let gate = match then.relu {
                    None => norm::Gate::Open,
                    Some(relu) if relu.mask => norm::Gate::Mask(bytes("kept")),
                    Some(relu) => norm::Gate::Output(m("kept"), relu.ceiling),
                };
                let gated = (gate, then.add.then(|| m("dr")));
                let parameters = ["gamma", "stats", "dgamma", "dbeta"].map(f);
                norm::backward(&s, accumulate, gated, ["x", "dy", "dx"].map(m), parameters, scratch, threads);
            }
            Call::LayerNormForward { shape: s, epsilon } => {
                let (maps, parameters) = (["x", "y"].map(m), ["gamma", "beta"].map(f));
                layer_norm::forward(&s, epsilon, maps, parameters, f("stats"), threads);
            }
            Call::LayerNormBackward { shape: s, accumulate } => {
                let (maps, inputs) = (["x", "dy", "dx"].map(m), ["gamma", "stats"].map(f));
                let gradients = ["dgamma", "dbeta"].map(f);
                layer_norm::backward(&s, accumulate, maps, inputs, gradients, scratch, threads);
            }
            Call::RmsNormForward { shape: s, epsilon } => {
                rms_norm::forward(&s, epsilon, ["x", "y"].map(m), f("gamma"), f("stats"), threads);
            }
            Call::RmsNormBackward { shape: s, accumulate } => {
                let (maps, inputs) = (["x", "dy", "dx"].map(m), ["gamma", "stats"].map(f));
                rms_norm::backward(&s, accumulate, maps, inputs, f("dgamma"), scratch, threads);
            }
            Call::ActivationForward { elements, function } => {
                activation::forward(elements, function, m("x"), m("y"), threads);
            }
            Call::ActivationBackward { elements, function, accumulate } => {
                activation::backward(elements, function, accumulate, ["x", "dy"].map(m), m("dx"), threads);
            }
            Call::Multiply { elements, accumulate } => {
                elementwise::multiply(elements, accumulate, ["a", "b"].map(m), m("y"), threads);
            }
            Call::ReluForward { elements, ceiling } => {
                elementwise::relu_forward(elements, ceiling, m("x"), m("y"), threads);
            }
            Call::ReluBackward { elements, ceiling, accumulate } => {
                elementwise::relu_backward(elements, ceiling, accumulate, m("y"), m("dy"), m("dx"), threads);
            }
            Call::ReluMaskForward { elements, ceiling } => {
                elementwise::relu_mask_forward(elements, ceiling, f("x"), f("y"), bytes("mask"), threads);
            }
            Call::ReluMaskBackward { elements, accumulate } => {
                elementwise::relu_mask_backward(
                    elements,
                    accumulate,
                    bytes("mask"),
                    f("dy"),
                    f("dx"),
                    threads,
                );
            }
            Call::MaxPoolForward { shape: s } => {
                pool::max_forward(&s, f("x"), f("y"), bytes("places"), threads);
            }
            Call::MaxPoolBackward { shape: s, accumulate } => {
                pool::max_backward(&s, accumulate, bytes("places"), f("dy"), f("dx"), threads);
            }
            Call::AvgPoolForward { shape: s } => pool::avg_forward(&s, f("x"), f("y"), threads),
            Call::AvgPoolBackward { shape: s, accumulate } => {
                pool::avg_backward(&s, accumulate, f("dy"), f("dx"), threads);
            }
            Call::DropoutForward { elements, probability, stream } => {
                let drop = elementwise::Dropout { elements, probability, stream };
                elementwise::dropout(&drop, false, words("hyper"), m("x"), m("y"), threads);
            }
            Call::DropoutBackward { elements, probability, stream, accumulate } => {
                let drop = elementwise::Dropout { elements, probability, stream };
                elementwise::dropout(&drop, accumulate, words("hyper"), m("dy"), m("dx"), threads);
            }
            Call::BiasForward { shape: s } => bias::forward(&s, f("x"), f("bias"), f("y"), threads),
            Call::BiasBackward { shape: s, accumulate } => {
                bias::backward(&s, accumulate, f("dy"), f("dbias"), scratch, threads);
            }
            Call::EmbeddingForward { shape: s } => {
                embedding::forward(&s, integers("tokens"), f("weight"), f("y"), threads);
            }
            Call::EmbeddingBackward { shape: s, accumulate } => {
                embedding::backward(&s, accumulate, integers("tokens"), f("dy"), f("dweight"), threads);
            }
            Call::AttentionForward { shape: s } => {
                attention::forward(&s, f("qkv"), f("y"), f("stats"), scratch, threads);
            }
            Call::AttentionBackward { shape: s, accumulate } => {
                let inputs = ["qkv", "stats", "dy"].map(f);
                attention::backward(&s, accumulate, inputs, f("dqkv"), scratch, threads);
            }
            Call::RotaryForward { shape: s, base } => {
                rotary::forward(&s, base, f("x"), f("y"), scratch, threads);
            }
            Call::RotaryBackward { shape: s, base, accumulate } => {
                rotary::backward(&s, base, accumulate, f("dy"), f("dx"), scratch, threads);
            }
            Call::LstmForward { shape: s, .. } => {
                lstm::forward(&s, f("gates"), some("previous"), ["h", "cell", "activated"].map(f), threads);
            }
            Call::LstmBackward { shape: s, .. } => {
                let other = lstm::Backward {
                    previous: some("previous"),
                    cell: f("cell"),
                    dh: f("dh"),
                    dcell: some("dcell"),
                    dprevious: some("dprevious"),
                };
                lstm::backward(&s, f("activated"), other, f("dgates"), threads);
            }
            Call::Add { elements } => elementwise::add(elements, m("a"), m("b"), m("y"), threads),
            Call::ConcatPart { rows, channels, first, total } => {
                let part = elementwise::Part { rows, channels, first, total };
                elementwise::concat_part(&part, f("x"), f("y"), threads);
            }
            Call::SplitPart { rows, channels, first, total, accumulate } => {
                let part = elementwise::Part { rows, channels, first, total };
                elementwise::split_part(&part, accumulate, f("dy"), f("dx"), threads);
            }
            Call::LrnForward { shape: s, size, alpha, beta, bias } => {
                let lrn = lrn::Lrn { size, alpha, beta, bias };
                lrn::forward(&s, &lrn, f("x"), f("y"), threads);
            }
            Call::LrnBackward { shape: s, size, alpha, beta, bias, accumulate } => {
                let lrn = lrn::Lrn { size, alpha, beta, bias };
                lrn::backward(&s, &lrn, accumulate, f("x"), f("dy"), f("dx"), scratch, threads);
            }
            Call::SoftmaxCrossEntropyForward { shape: s } => {
                loss::forward(
                    &s,
                    f("logits"),
                    integers("labels"),
                    f("differences"),
                    f("metrics"),
                    scratch,
                    threads,
                );
            }
            Call::SoftmaxCrossEntropyBackward { shape: s } => {
                loss::backward(&s, f("differences"), integers("labels"), f("dlogits"), threads);
            }
            Call::Sgd { elements, decay, .. } => {
                let operands = (f("parameter"), some("gradient"), f("momentum"));
                sgd::step(elements, decay, f("hyper"), operands, threads);
            }
            Call::Adamw { elements, .. } => {
                let operands = ["parameter", "first moment", "second moment"].map(f);
                adamw::step(elements, f("hyper"), operands, some("gradient"), threads);
            }
        }
    }
}
