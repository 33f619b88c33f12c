//! How many bytes each operand of a call spans: the contract that makes a launch safe to run.
//!
//! The executor compares these spans with the tensors and regions that a program names, once, when it is loaded; a
//! kernel then needs no bounds of its own. What a call does with an operand is `Call::accesses`.

use plimsoll_ir::Bytes;
use plimsoll_ir::network::Window;
use plimsoll_ir::program::{
    AttentionShape, Call, ConvShape, EmbeddingShape, Hyper, PoolShape, RotaryShape, ScaleShape,
};

/// Bytes of `count` f32 or i32, saturating: a product too large for any memory stays too large.
fn words(factors: &[u64]) -> u64 {
    factors.iter().fold(4, |product: u64, f| product.saturating_mul(*f))
}

fn taps(window: &Window) -> u64 {
    u64::from(window.size[0]) * u64::from(window.size[1])
}

/// x, y, weight, bias of a convolution.
fn conv(shape: &ConvShape) -> [u64; 4] {
    let [height, width] = shape.input.map(u64::from);
    let [rows, columns] = shape.output.map(u64::from);
    let (inner, outer) = (u64::from(shape.in_channels), u64::from(shape.out_channels));
    [
        words(&[shape.batch, height, width, inner]),
        words(&[shape.batch, rows, columns, outer]),
        words(&[outer, taps(&shape.window), inner / u64::from(shape.groups.max(1))]),
        words(&[outer]),
    ]
}

/// x, y, places of a pooling.
fn pool(shape: &PoolShape) -> [u64; 3] {
    let [height, width] = shape.input.map(u64::from);
    let [rows, columns] = shape.output.map(u64::from);
    let channels = u64::from(shape.channels);
    let y = words(&[shape.batch, rows, columns, channels]);
    [words(&[shape.batch, height, width, channels]), y, y / 4]
}

/// Tokens, table, rows that are looked up. Positions beyond the sample ask for more tokens than there are, and are refused
/// for that.
fn embedding(s: &EmbeddingShape) -> [u64; 3] {
    let length = s.length.max(s.first.saturating_add(s.count));
    [words(&[s.batch, length]), words(&[s.vocabulary, s.width]), words(&[s.batch, s.count, s.width])]
}

/// qkv, y, probabilities. Heads that do not share the channels evenly ask for more than there is, and are refused for that.
fn attention(s: &AttentionShape) -> [u64; 3] {
    let even = |all: u64, parts: u64| parts > 0 && all.is_multiple_of(parts);
    let fits = even(s.width, s.heads) && even(s.heads, s.kv_heads);
    let of = |width: u64| words(&[s.batch, s.length, if fits { width } else { u64::MAX }]);
    [of(s.qkv_width()), of(s.width), words(&[s.batch, s.heads, s.length, s.length])]
}

/// x of heads that are turned. Heads that have no halves, or do not fill the channels, ask for more than there is.
fn turned(s: &RotaryShape) -> u64 {
    let fits = s.width > 0 && s.width.is_multiple_of(2) && s.channels.is_multiple_of(s.width);
    if fits { words(&[s.elements()]) } else { u64::MAX }
}

/// x, scale.
fn scaled(s: &ScaleShape) -> [u64; 2] {
    [words(&[s.groups, s.rows, s.channels]), words(&[s.groups, s.channels])]
}

/// The bytes that each operand of a call spans, in the documented order; as many as `Call::accesses` has entries.
pub fn operand_bytes(call: &Call) -> Vec<Bytes> {
    spans(call).into_iter().map(Bytes).collect()
}

fn spans(call: &Call) -> Vec<u64> {
    let hyper = words(&[Hyper::WORDS]);
    match call {
        Call::ConvForward { shape } => {
            let [x, y, weight, bias] = conv(shape);
            if shape.bias { vec![x, weight, bias, y] } else { vec![x, weight, y] }
        }
        Call::ConvBackwardFilter { shape, .. } => {
            let [x, y, weight, bias] = conv(shape);
            if shape.bias { vec![x, y, weight, bias] } else { vec![x, y, weight] }
        }
        Call::ConvBackwardData { shape, .. } => {
            let [x, y, weight, _] = conv(shape);
            vec![y, weight, x]
        }
        Call::BatchNormForward { .. }
        | Call::BatchNormRunning { .. }
        | Call::BatchNormInference { .. }
        | Call::BatchNormBackward { .. }
        | Call::LayerNormForward { .. }
        | Call::LayerNormBackward { .. }
        | Call::RmsNormForward { .. }
        | Call::RmsNormBackward { .. } => norm_spans(call),
        Call::ReluForward { elements, .. } | Call::ActivationForward { elements, .. } => {
            vec![words(&[*elements]); 2]
        }
        Call::Multiply { shape, .. } => {
            let [x, scale] = scaled(shape);
            vec![x, scale, x]
        }
        Call::MultiplySums { shape, .. } => {
            let [x, scale] = scaled(shape);
            vec![x, x, scale]
        }
        Call::ReluBackward { elements, .. }
        | Call::ActivationBackward { elements, .. }
        | Call::Add { elements } => vec![words(&[*elements]); 3],
        Call::ReluMaskForward { elements, .. } => {
            let x = words(&[*elements]);
            vec![x, x, elements.div_ceil(8)]
        }
        Call::ReluMaskBackward { elements, .. } => {
            let x = words(&[*elements]);
            vec![elements.div_ceil(8), x, x]
        }
        Call::MaxPoolForward { shape } => {
            let [x, y, places] = pool(shape);
            vec![x, y, places]
        }
        Call::MaxPoolBackward { shape, .. } => {
            let [x, y, places] = pool(shape);
            vec![places, y, x]
        }
        Call::AvgPoolForward { shape } => pool(shape)[..2].to_vec(),
        Call::AvgPoolBackward { shape, .. } => {
            let [x, y, _] = pool(shape);
            vec![y, x]
        }
        Call::DropoutForward { elements, .. } | Call::DropoutBackward { elements, .. } => {
            let x = words(&[*elements]);
            vec![hyper, x, x]
        }
        Call::BiasForward { .. }
        | Call::BiasBackward { .. }
        | Call::EmbeddingForward { .. }
        | Call::EmbeddingBackward { .. }
        | Call::AttentionForward { .. }
        | Call::AttentionBackward { .. }
        | Call::RotaryForward { .. }
        | Call::RotaryBackward { .. }
        | Call::LstmForward { .. }
        | Call::LstmBackward { .. } => sequence_spans(call),
        // A part that reaches beyond the whole asks for more than the whole has, and is refused for that.
        Call::ConcatPart { rows, channels, first, total }
        | Call::PadPart { rows, channels, first, total, .. } => {
            let whole = (*total).max(first.saturating_add(*channels));
            vec![words(&[*rows, *channels]), words(&[*rows, whole])]
        }
        Call::Repeat { shape } => vec![words(&[shape.channels]), words(&[shape.rows, shape.channels])],
        Call::SplitPart { rows, channels, first, total, .. } => {
            let whole = (*total).max(first.saturating_add(*channels));
            vec![words(&[*rows, whole]), words(&[*rows, *channels])]
        }
        Call::LrnForward { shape, .. } => vec![words(&[shape.rows, shape.channels]); 2],
        Call::LrnBackward { shape, .. } => vec![words(&[shape.rows, shape.channels]); 3],
        Call::SoftmaxCrossEntropyForward { shape } => {
            let logits = words(&[shape.rows, shape.channels]);
            vec![logits, words(&[shape.rows]), logits, words(&[3])]
        }
        Call::SoftmaxCrossEntropyBackward { shape } => {
            let logits = words(&[shape.rows, shape.channels]);
            vec![logits, words(&[shape.rows]), logits]
        }
        Call::Sgd { elements, idle, .. } => {
            let x = words(&[*elements]);
            if *idle { vec![hyper, x, x] } else { vec![hyper, x, x, x] }
        }
    }
}

/// [`spans`] of normalisations.
fn norm_spans(call: &Call) -> Vec<u64> {
    match call {
        Call::BatchNormForward { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, c, c, x, words(&[2, shape.channels])]
        }
        Call::BatchNormRunning { shape, .. } => {
            let c = words(&[shape.channels]);
            vec![words(&[2, shape.channels]), c, c]
        }
        Call::BatchNormInference { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, c, c, c, c, x]
        }
        Call::BatchNormBackward { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, x, c, words(&[2, shape.channels]), x, c, c]
        }
        Call::LayerNormForward { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, c, c, x, words(&[2, shape.rows])]
        }
        Call::LayerNormBackward { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, x, c, words(&[2, shape.rows]), x, c, c]
        }
        Call::RmsNormForward { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, c, x, words(&[shape.rows])]
        }
        Call::RmsNormBackward { shape, .. } => {
            let (x, c) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, x, c, words(&[shape.rows]), x, c]
        }
        _ => unreachable!("{} is no normalisation", call.name()),
    }
}

/// [`spans`] of the calls that networks of sequences are made of.
fn sequence_spans(call: &Call) -> Vec<u64> {
    match call {
        Call::BiasForward { shape } => {
            let (x, b) = (words(&[shape.rows, shape.channels]), words(&[shape.channels]));
            vec![x, b, x]
        }
        Call::BiasBackward { shape, .. } => {
            vec![words(&[shape.rows, shape.channels]), words(&[shape.channels])]
        }
        Call::EmbeddingForward { shape } => {
            let [tokens, weight, y] = embedding(shape);
            vec![tokens, weight, y]
        }
        Call::EmbeddingBackward { shape, .. } => {
            let [tokens, weight, y] = embedding(shape);
            vec![tokens, y, weight]
        }
        Call::AttentionForward { shape } => {
            let [qkv, y, probabilities] = attention(shape);
            vec![qkv, y, probabilities]
        }
        Call::AttentionBackward { shape, .. } => {
            let [qkv, y, probabilities] = attention(shape);
            vec![qkv, probabilities, y, qkv]
        }
        Call::RotaryForward { shape, .. } | Call::RotaryBackward { shape, .. } => vec![turned(shape); 2],
        Call::LstmForward { shape, first } => {
            let cell = words(&[shape.rows, shape.channels]);
            let gates = cell.saturating_mul(4);
            if *first { vec![gates, cell, cell, gates] } else { vec![gates, cell, cell, cell, gates] }
        }
        Call::LstmBackward { shape, first, last } => {
            let cell = words(&[shape.rows, shape.channels]);
            let gates = cell.saturating_mul(4);
            let read = 2 + usize::from(!first) + usize::from(!last);
            let mut spans = vec![gates];
            spans.extend(vec![cell; read]);
            spans.push(gates);
            spans.extend((!first).then_some(cell));
            spans
        }
        _ => unreachable!("{} is no call of sequences", call.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::network::Function;
    use plimsoll_ir::program::RowShape;

    fn check(call: Call, expected: &[u64]) {
        let found: Vec<u64> = operand_bytes(&call).iter().map(|b| b.0).collect();
        assert_eq!(found, expected, "{call:?}");
        assert_eq!(found.len(), call.accesses().len(), "{call:?}");
    }

    #[test]
    fn spans_stand_in_the_documented_order() {
        let window = Window::square(3, 2, 1);
        let mut shape = ConvShape {
            batch: 2,
            input: [8, 6],
            in_channels: 4,
            output: [4, 3],
            out_channels: 6,
            window,
            groups: 2,
            bias: true,
        };
        let (x, y, w, b) = (4 * 2 * 48 * 4, 4 * 2 * 12 * 6, 4 * 6 * 9 * 2, 4 * 6);
        check(Call::ConvForward { shape }, &[x, w, b, y]);
        check(Call::ConvBackwardFilter { shape, accumulate: true }, &[x, y, w, b]);
        shape.bias = false;
        check(Call::ConvForward { shape }, &[x, w, y]);
        check(Call::ConvBackwardFilter { shape, accumulate: false }, &[x, y, w]);
        check(Call::ConvBackwardFilter { shape, accumulate: true }, &[x, y, w]);
        check(Call::ConvBackwardData { shape, accumulate: true }, &[y, w, x]);
        let pool = PoolShape { batch: 2, input: [8, 6], output: [4, 3], channels: 5, window };
        check(Call::MaxPoolForward { shape: pool }, &[4 * 2 * 48 * 5, 4 * 120, 120]);
        check(Call::MaxPoolBackward { shape: pool, accumulate: false }, &[120, 4 * 120, 4 * 2 * 48 * 5]);
        check(Call::AvgPoolBackward { shape: pool, accumulate: false }, &[4 * 120, 4 * 2 * 48 * 5]);
        let rows = RowShape { rows: 10, channels: 3 };
        check(Call::BatchNormForward { shape: rows, epsilon: 0.1 }, &[120, 12, 12, 120, 24]);
        check(Call::BatchNormBackward { shape: rows, accumulate: true }, &[120, 120, 12, 24, 120, 12, 12]);
        check(Call::BatchNormRunning { shape: rows, epsilon: 0.1, momentum: 0.1 }, &[24, 12, 12]);
        check(Call::BatchNormInference { shape: rows, epsilon: 0.1 }, &[120, 12, 12, 12, 12, 120]);
        check(Call::LayerNormForward { shape: rows, epsilon: 0.1 }, &[120, 12, 12, 120, 80]);
        check(Call::LayerNormBackward { shape: rows, accumulate: true }, &[120, 120, 12, 80, 120, 12, 12]);
        let function = Function::Gelu;
        check(Call::ActivationForward { elements: 9, function }, &[36, 36]);
        check(Call::ActivationBackward { elements: 9, function, accumulate: true }, &[36, 36, 36]);
        let scaled = ScaleShape { groups: 2, rows: 5, channels: 3 };
        check(Call::Multiply { shape: scaled, accumulate: true }, &[120, 24, 120]);
        check(Call::MultiplySums { shape: scaled, accumulate: false }, &[120, 120, 24]);
        check(Call::ReluMaskForward { elements: 9, ceiling: 6.0 }, &[36, 36, 2]);
        check(Call::ReluMaskBackward { elements: 9, accumulate: false }, &[2, 36, 36]);
        check(Call::ConcatPart { rows: 3, channels: 2, first: 1, total: 5 }, &[24, 60]);
        check(Call::SplitPart { rows: 3, channels: 2, first: 1, total: 5, accumulate: true }, &[60, 24]);
        check(Call::PadPart { rows: 3, channels: 2, first: 1, total: 5, accumulate: true }, &[24, 60]);
        check(Call::PadPart { rows: 3, channels: 2, first: 4, total: 5, accumulate: false }, &[24, 72]);
        check(Call::Repeat { shape: rows }, &[12, 120]);
        check(Call::SoftmaxCrossEntropyForward { shape: rows }, &[120, 40, 120, 12]);
        check(Call::SoftmaxCrossEntropyBackward { shape: rows }, &[120, 40, 120]);
        check(Call::Sgd { elements: 7, decay: true, idle: false }, &[24, 28, 28, 28]);
        check(Call::Sgd { elements: 7, decay: true, idle: true }, &[24, 28, 28]);
        check(
            Call::DropoutForward { elements: u64::MAX, probability: 0.1, stream: 0, run: 1 },
            &[24, u64::MAX, u64::MAX],
        );
    }

    #[test]
    fn spans_of_sequences_stand_in_the_documented_order() {
        let rows = RowShape { rows: 10, channels: 3 };
        check(Call::RmsNormForward { shape: rows, epsilon: 0.1 }, &[120, 12, 120, 40]);
        check(Call::RmsNormBackward { shape: rows, accumulate: true }, &[120, 120, 12, 40, 120, 12]);
        check(Call::BiasForward { shape: rows }, &[120, 12, 120]);
        check(Call::BiasBackward { shape: rows, accumulate: true }, &[120, 12]);
        let (gates, cell) = (480, 120);
        check(Call::LstmForward { shape: rows, first: true }, &[gates, cell, cell, gates]);
        check(Call::LstmForward { shape: rows, first: false }, &[gates, cell, cell, cell, gates]);
        for (first, last, expected) in [
            (true, true, &[gates, cell, cell, gates][..]),
            (true, false, &[gates, cell, cell, cell, gates]),
            (false, true, &[gates, cell, cell, cell, gates, cell]),
            (false, false, &[gates, cell, cell, cell, cell, gates, cell]),
        ] {
            check(Call::LstmBackward { shape: rows, first, last }, expected);
        }
        let mut shape = EmbeddingShape { batch: 2, length: 7, first: 3, count: 4, vocabulary: 11, width: 5 };
        check(Call::EmbeddingForward { shape }, &[56, 220, 160]);
        check(Call::EmbeddingBackward { shape, accumulate: true }, &[56, 160, 220]);
        shape.first = 4;
        check(Call::EmbeddingForward { shape }, &[64, 220, 160]);
        let mut shape = AttentionShape { batch: 2, length: 3, heads: 2, kv_heads: 2, width: 8, causal: true };
        check(Call::AttentionForward { shape }, &[576, 192, 144]);
        check(Call::AttentionBackward { shape, accumulate: false }, &[576, 144, 192, 576]);
        shape.kv_heads = 1;
        check(Call::AttentionForward { shape }, &[384, 192, 144]);
        check(Call::AttentionBackward { shape, accumulate: true }, &[384, 144, 192, 384]);
        for (heads, kv_heads) in [(3, 3), (2, 0), (1, 2)] {
            let shape = AttentionShape { heads, kv_heads, ..shape };
            check(Call::AttentionForward { shape }, &[u64::MAX, u64::MAX, 72 * heads]);
        }
        let mut shape = RotaryShape { batch: 2, length: 3, channels: 8, width: 4 };
        check(Call::RotaryForward { shape, base: 1e4 }, &[192, 192]);
        check(Call::RotaryBackward { shape, base: 1e4, accumulate: true }, &[192, 192]);
        for width in [0, 1, 6, 16] {
            shape.width = width;
            check(Call::RotaryForward { shape, base: 1e4 }, &[u64::MAX, u64::MAX]);
        }
    }
}
