//! Operands of each call: names and accesses as documented, and bytes.

use plimsoll_ir::network::{Function, Window};
use plimsoll_ir::precision::Float;
use plimsoll_ir::program::{
    Access, After, AttentionShape, Call, ConvShape, EmbeddingShape, FusedRelu, PoolShape, RotaryShape,
    RowShape,
};
use plimsoll_testing::every_call;

fn check(call: Call, expected: &[u64]) {
    let found: Vec<u64> = call.operands().iter().map(|operand| operand.bytes.0).collect();
    assert_eq!(found, expected, "{call:?}");
}

/// Parses `x, \[weight\] -> y: ...` to names and accesses: those read, then those written; a name on both sides is
/// updated, at its place among those read.
fn documented(formula: &str) -> Vec<(String, Access)> {
    let (read, written) = formula.split_once(" -> ").expect("a formula");
    let end = written.find([':', '.', '=']).unwrap_or(written.len());
    let names = |list: &str| -> Vec<String> {
        list.split(',').map(|name| name.trim().trim_matches(['\\', '[', ']']).to_owned()).collect()
    };
    let (read, written) = (names(read), names(&written[..end]));
    let read_part = read.iter().map(|name| {
        let access = if written.contains(name) { Access::Update } else { Access::Read };
        (name.clone(), access)
    });
    let write_part = written.iter().filter(|name| !read.contains(name));
    read_part.chain(write_part.map(|name| (name.clone(), Access::Write))).collect()
}

#[test]
fn the_documentation_of_a_call_names_its_operands() {
    let text = include_str!("../src/program/call.rs");
    let (_, variants) = text.split_once("pub enum Call {").expect("the calls");
    let (variants, _) = variants.split_once("\n}").expect("their end");
    let mut documents = Vec::new();
    let mut first = None;
    for line in variants.lines().map(str::trim) {
        match (line.strip_prefix("/// "), line.split_once(" {")) {
            (Some(words), _) => first = first.or(Some(words)),
            (None, Some((variant, _))) => documents.push((variant, first.take().expect("documentation"))),
            (None, None) => {}
        }
    }
    let calls = every_call();
    assert_eq!(documents.len(), calls.len());
    for ((variant, formula), call) in documents.into_iter().zip(calls) {
        assert!(format!("{call:?}").starts_with(&format!("{variant} {{")), "{variant} is {call:?}");
        let found = call.operands().into_iter().map(|spec| (spec.name.to_owned(), spec.access));
        assert_eq!(found.collect::<Vec<_>>(), documented(formula), "{variant}");
    }
}

#[test]
fn what_is_added_to_is_read() {
    let accesses = |call: Call| call.operands().iter().map(|spec| spec.access).collect::<Vec<_>>();
    use Access::{Read, Update, Write};
    let rows = RowShape { rows: 9, channels: 5 };
    let part = |first| Call::ConcatPart { rows: 4, channels: 3, first, total: 5 };
    assert_eq!(accesses(part(0)), [Read, Write]);
    assert_eq!(accesses(part(1)), [Read, Update]);
    assert_eq!(accesses(Call::BiasBackward { shape: rows, accumulate: true }), [Read, Update]);
    // Sums over rows are always overwritten: no layers share them.
    let norm = Call::LayerNormBackward { shape: rows, accumulate: true };
    assert_eq!(accesses(norm), [Read, Read, Read, Read, Update, Write, Write]);
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
    let norm = |add, relu| {
        let then = After { add, relu };
        let forward = Call::BatchNormForward { shape: rows, epsilon: 0.1, then };
        [forward, Call::BatchNormBackward { shape: rows, then, accumulate: true }]
    };
    let relu = |mask| Some(FusedRelu { ceiling: 6.0, mask });
    for ([forward, backward], of_forward, of_backward) in [
        (norm(false, None), &[120, 12, 12, 120, 24][..], &[120, 120, 12, 24, 120, 12, 12][..]),
        (norm(false, relu(false)), &[120, 12, 12, 120, 24], &[120, 120, 12, 24, 120, 120, 12, 12]),
        (norm(false, relu(true)), &[120, 12, 12, 120, 24, 4], &[120, 120, 12, 24, 4, 120, 12, 12]),
        (norm(true, None), &[120, 12, 12, 120, 120, 24], &[120, 120, 12, 24, 120, 12, 12, 120]),
        (norm(true, relu(true)), &[120, 12, 12, 120, 120, 24, 4], &[120, 120, 12, 24, 4, 120, 12, 12, 120]),
    ] {
        check(forward, of_forward);
        check(backward, of_backward);
    }
    check(Call::BatchNormRunning { shape: rows, epsilon: 0.1, momentum: 0.1 }, &[24, 12, 12]);
    check(Call::BatchNormInference { shape: rows, epsilon: 0.1 }, &[120, 12, 12, 12, 12, 120]);
    check(Call::LayerNormForward { shape: rows, epsilon: 0.1 }, &[120, 12, 12, 120, 80]);
    check(Call::LayerNormBackward { shape: rows, accumulate: true }, &[120, 120, 12, 80, 120, 12, 12]);
    let function = Function::Gelu;
    check(Call::ActivationForward { elements: 9, function }, &[36, 36]);
    check(Call::ActivationBackward { elements: 9, function, accumulate: true }, &[36, 36, 36]);
    check(Call::Multiply { elements: 9, accumulate: true }, &[36, 36, 36]);
    check(Call::ReluMaskForward { elements: 9, ceiling: 6.0 }, &[36, 36, 2]);
    check(Call::ReluMaskBackward { elements: 9, accumulate: false }, &[2, 36, 36]);
    check(Call::ConcatPart { rows: 3, channels: 2, first: 1, total: 5 }, &[24, 60]);
    check(Call::SplitPart { rows: 3, channels: 2, first: 1, total: 5, accumulate: true }, &[60, 24]);
    check(Call::SplitPart { rows: 3, channels: 2, first: 4, total: 5, accumulate: false }, &[72, 24]);
    check(Call::SoftmaxCrossEntropyForward { shape: rows }, &[120, 40, 120, 12]);
    check(Call::SoftmaxCrossEntropyBackward { shape: rows }, &[120, 40, 120]);
    check(Call::Sgd { elements: 7, decay: true }, &[44, 28, 28, 28]);
    check(Call::Adamw { elements: 7 }, &[44, 28, 28, 28, 28]);
    check(
        Call::DropoutForward { elements: u64::MAX, probability: 0.1, stream: 0 },
        &[44, u64::MAX, u64::MAX],
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
    check(Call::AttentionForward { shape }, &[576, 192, 96]);
    check(Call::AttentionBackward { shape, accumulate: false }, &[576, 96, 192, 576]);
    shape.kv_heads = 1;
    check(Call::AttentionForward { shape }, &[384, 192, 96]);
    check(Call::AttentionBackward { shape, accumulate: true }, &[384, 96, 192, 384]);
    for (heads, kv_heads) in [(3, 3), (2, 0), (1, 2)] {
        let shape = AttentionShape { heads, kv_heads, ..shape };
        check(Call::AttentionForward { shape }, &[u64::MAX, u64::MAX, 48 * heads]);
    }
    let mut shape = RotaryShape { batch: 2, length: 3, channels: 8, width: 4 };
    check(Call::RotaryForward { shape, base: 1e4 }, &[192, 192]);
    check(Call::RotaryBackward { shape, base: 1e4, accumulate: true }, &[192, 192]);
    for width in [0, 1, 6, 16] {
        shape.width = width;
        check(Call::RotaryForward { shape, base: 1e4 }, &[u64::MAX, u64::MAX]);
    }
}

/// Operands of two bytes per element on the device, call by call; the other operands are the same in bf16.
#[test]
fn feature_maps_take_half_the_bytes_in_bf16_and_nothing_else_does() {
    let check = |call: Call, expected: &[&str]| {
        let specs = call.operands();
        let halved = specs.iter().filter(|spec| spec.bytes_in(Float::Bf16).0 * 2 == spec.bytes.0);
        assert_eq!(halved.map(|spec| spec.name).collect::<Vec<_>>(), expected, "{call:?}");
        for spec in specs {
            assert_eq!(spec.bytes_in(Float::F32), spec.bytes);
            assert!(spec.feature_map || spec.bytes_in(Float::Bf16) == spec.bytes, "{call:?}");
        }
    };
    let rows = RowShape { rows: 6, channels: 4 };
    for (mask, kept) in [(false, &["x", "dy", "kept", "dx", "dr"][..]), (true, &["x", "dy", "dx", "dr"])] {
        let then = After { add: true, relu: Some(FusedRelu { ceiling: 6.0, mask }) };
        check(Call::BatchNormForward { shape: rows, epsilon: 1e-5, then }, &["x", "r", "y"]);
        check(Call::BatchNormBackward { shape: rows, then, accumulate: false }, kept);
    }
    check(Call::BatchNormRunning { shape: rows, epsilon: 1e-5, momentum: 0.1 }, &[]);
    check(Call::LayerNormBackward { shape: rows, accumulate: true }, &["x", "dy", "dx"]);
    check(Call::ReluMaskForward { elements: 24, ceiling: 6.0 }, &["x", "y"]);
    check(Call::SoftmaxCrossEntropyForward { shape: rows }, &["logits", "differences"]);
    check(Call::SoftmaxCrossEntropyBackward { shape: rows }, &["differences", "dlogits"]);
    check(Call::Multiply { elements: 24, accumulate: true }, &["a", "b", "y"]);
    check(Call::BiasBackward { shape: rows, accumulate: false }, &["dy"]);
    check(Call::Sgd { elements: 24, decay: true }, &[]);
    check(Call::Adamw { elements: 24 }, &[]);
    check(
        Call::LstmBackward { shape: rows, first: false, last: false },
        &["activated", "previous", "cell", "dh", "dcell", "dgates", "dprevious"],
    );
    let shape = AttentionShape { batch: 2, length: 3, heads: 2, kv_heads: 2, width: 8, causal: true };
    check(Call::AttentionBackward { shape, accumulate: false }, &["qkv", "dy", "dqkv"]);
    let shape = EmbeddingShape { batch: 2, length: 7, first: 3, count: 4, vocabulary: 11, width: 5 };
    check(Call::EmbeddingForward { shape }, &["y"]);
    // A size too large for any memory stays too large.
    let huge = Call::Add { elements: u64::MAX }.operands()[0];
    assert!(huge.bytes_in(Float::Bf16).0 > 1 << 62);
}
