//! Calls: one of each kind, for tests that cover every kernel or every operand.

use plimsoll_ir::network::{Function, Window};
use plimsoll_ir::program::{
    After, AttentionShape, Call, ConvShape, EmbeddingShape, FusedRelu, PoolShape, RotaryShape, RowShape,
};

/// Returns a small call of each kind, with every optional operand.
pub fn every_call() -> Vec<Call> {
    let window = Window::square(3, 1, 1);
    let conv = ConvShape {
        batch: 2,
        input: [4, 4],
        in_channels: 3,
        output: [4, 4],
        out_channels: 5,
        window,
        groups: 1,
        bias: true,
    };
    let pool = PoolShape { batch: 2, input: [4, 4], output: [4, 4], channels: 3, window };
    let rows = RowShape { rows: 9, channels: 5 };
    let table = EmbeddingShape { batch: 2, length: 3, first: 0, count: 3, vocabulary: 7, width: 4 };
    let heads = AttentionShape { batch: 2, length: 3, heads: 2, kv_heads: 1, width: 4, causal: true };
    let turned = RotaryShape { batch: 2, length: 3, channels: 8, width: 4 };
    let (size, alpha, beta, bias, epsilon, elements) = (5, 1e-4, 0.75, 2.0, 1e-5, 100);
    let (function, accumulate, ceiling) = (Function::Gelu, false, 6.0);
    // With every optional operand.
    let then = After { add: true, relu: Some(FusedRelu { ceiling, mask: true }) };
    vec![
        Call::ConvForward { shape: conv },
        Call::ConvBackwardFilter { shape: conv, accumulate },
        Call::ConvBackwardData { shape: conv, accumulate },
        Call::BatchNormForward { shape: rows, epsilon, then },
        Call::BatchNormRunning { shape: rows, epsilon, momentum: 0.1 },
        Call::BatchNormInference { shape: rows, epsilon },
        Call::BatchNormBackward { shape: rows, then, accumulate },
        Call::LayerNormForward { shape: rows, epsilon },
        Call::LayerNormBackward { shape: rows, accumulate },
        Call::RmsNormForward { shape: rows, epsilon },
        Call::RmsNormBackward { shape: rows, accumulate },
        Call::ReluForward { elements, ceiling },
        Call::ReluBackward { elements, ceiling, accumulate },
        Call::ReluMaskForward { elements, ceiling },
        Call::ReluMaskBackward { elements, accumulate },
        Call::ActivationForward { elements, function },
        Call::ActivationBackward { elements, function, accumulate },
        Call::Multiply { elements, accumulate },
        Call::MaxPoolForward { shape: pool },
        Call::MaxPoolBackward { shape: pool, accumulate },
        Call::AvgPoolForward { shape: pool },
        Call::AvgPoolBackward { shape: pool, accumulate },
        Call::DropoutForward { elements, probability: 0.5, stream: 1 },
        Call::DropoutBackward { elements, probability: 0.5, stream: 1, accumulate },
        Call::BiasForward { shape: rows },
        Call::BiasBackward { shape: rows, accumulate },
        Call::EmbeddingForward { shape: table },
        Call::EmbeddingBackward { shape: table, accumulate },
        Call::AttentionForward { shape: heads },
        Call::AttentionBackward { shape: heads, accumulate },
        Call::RotaryForward { shape: turned, base: 1e4 },
        Call::RotaryBackward { shape: turned, base: 1e4, accumulate },
        Call::LstmForward { shape: rows, first: false },
        Call::LstmBackward { shape: rows, first: false, last: false },
        Call::Add { elements },
        Call::ConcatPart { rows: 4, channels: 3, first: 0, total: 5 },
        Call::SplitPart { rows: 4, channels: 3, first: 1, total: 5, accumulate },
        Call::LrnForward { shape: rows, size, alpha, beta, bias },
        Call::LrnBackward { shape: rows, size, alpha, beta, bias, accumulate },
        Call::SoftmaxCrossEntropyForward { shape: rows },
        Call::SoftmaxCrossEntropyBackward { shape: rows },
        Call::Sgd { elements, decay: true },
        Call::Adamw { elements },
    ]
}
