//! The choice of modules against all sets of them, on chains small enough to try every set.
//!
//! What PyTorch makes of the lines that name them is tested beside PyTorch, in `python/tests/test_exports.py`.

use super::*;
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::{Op, Phase, Tensor, TensorKind, TraceKind};
use plimsoll_ir::{BytesPerSecond, Document, TensorId};

/// One op of a layer that takes 1 s and reads and writes these tensors.
fn op(name: &str, layer: &str, phase: Phase, reads: &[u32], writes: &[u32]) -> Op {
    Op {
        name: name.to_owned(),
        layer: layer.to_owned(),
        kind: "conv".to_owned(),
        phase,
        seconds: Seconds(1.0),
        reads: reads.iter().copied().map(TensorId).collect(),
        writes: writes.iter().copied().map(TensorId).collect(),
        workspace_bytes: Bytes::ZERO,
        flops: 0,
        recomputable: true,
        alternatives: Vec::new(),
    }
}

/// `blocks` modules of `layers` layers each, every layer of which reads its input again in the backward pass. The feature maps
/// have the sizes that are given, the first being the input's; gradients have 1 byte.
fn chain(blocks: usize, layers: usize, sizes: &dyn Fn(usize) -> u64) -> Trace {
    let all = blocks * layers;
    let tensor = |name: String, bytes, kind| Tensor { name, bytes: Bytes(bytes), kind };
    let mut tensors = vec![tensor("x".to_owned(), sizes(0), TensorKind::Input)];
    tensors.extend((1..=all).map(|i| tensor(format!("y{i}"), sizes(i), TensorKind::Activation)));
    tensors.extend((0..=all).map(|i| tensor(format!("dy{i}"), 1, TensorKind::Gradient)));
    let gradient = |i: usize| (all + 1 + i) as u32;
    let layer = |i: usize| format!("block{}.conv{}", i / layers, i % layers);
    let mut ops = Vec::new();
    for i in 0..all {
        ops.push(op("forward", &layer(i), Phase::Forward, &[i as u32], &[i as u32 + 1]));
    }
    ops.push(op("loss", "loss", Phase::Forward, &[all as u32], &[gradient(all)]));
    for i in (0..all).rev() {
        ops.push(op("backward", &layer(i), Phase::Backward, &[i as u32, gradient(i + 1)], &[gradient(i)]));
    }
    let name = "chain".to_owned();
    Trace { kind: TraceKind, name, batch: 8, resident_bytes: Bytes(100), tensors, ops }
}

/// 1 byte a second out, 2 back.
fn link() -> Link {
    let mut link = Link::symmetric(BytesPerSecond(1.0));
    link.prefetch_bytes_per_second = BytesPerSecond(2.0);
    link
}

fn names(wrapping: &Wrapping) -> Vec<&str> {
    wrapping.modules.iter().map(String::as_str).collect()
}

#[test]
fn what_fits_is_left_as_it_is() {
    let trace = chain(3, 3, &|_| 10);
    let whole = peak(&trace);
    let wrapping = wrap(&trace, whole, Means::Recompute).expect("it fits");
    assert_eq!((wrapping.modules.len(), &wrapping.trace), (0, &trace));
    assert!(!wrap(&trace, whole - Bytes(1), Means::Recompute).expect("it can").modules.is_empty());
}

#[test]
fn a_wrapped_module_keeps_its_input_and_computes_the_rest_twice() {
    // Each block has 3 layers: its first input stays, two feature maps are freed and computed again, the last layer is not.
    let trace = chain(4, 3, &|_| 10);
    let whole = peak(&trace);
    let wrapping = wrap(&trace, whole - Bytes(20), Means::Recompute).expect("it can");
    wrapping.trace.validate().expect("a trace");
    assert_eq!(wrapping.peak(), whole - Bytes(20));
    assert_eq!(wrapping.seconds(), trace.compute_seconds() + Seconds(2.0));
    assert_eq!(wrapping.modules.len(), 1);
    // While the last block is in its backward pass, its own feature maps are there again, but not its output.
    let all = wrap(&trace, whole - Bytes(69), Means::Recompute).expect("it can");
    assert_eq!(names(&all), ["block0", "block1", "block2", "block3"]);
    assert_eq!(all.peak(), whole - Bytes(69));
    let none = wrap(&trace, whole - Bytes(70), Means::Recompute).expect_err("all are wrapped");
    let least = whole - Bytes(69);
    assert_eq!(none, WrapError::TooLarge { batch: 8, least, budget: whole - Bytes(70), fits: 7 });
}

#[test]
fn the_cheapest_bytes_are_taken() {
    // The second block frees four times as much in the same time.
    let trace = chain(4, 3, &|i| if (4..=6).contains(&i) { 40 } else { 10 });
    let whole = peak(&trace);
    let one = wrap(&trace, whole - Bytes(70), Means::Recompute).expect("it can");
    assert_eq!(names(&one), ["block1"]);
    let two = wrap(&trace, whole - Bytes(90), Means::Recompute).expect("it can");
    assert_eq!(two.modules.len(), 2, "{:?}", two.modules);
    assert!(two.modules.contains(&"block1".to_owned()));
}

/// The choice against all sets of modules, on chains whose layers differ in bytes and seconds, and whose blocks end in a layer
/// that saves its output, as the next one does.
#[test]
fn no_other_set_is_shorter() {
    for (seed, shares) in (0..40u64).flat_map(|seed| [(seed, false), (seed, true)]) {
        let draw = |i: usize| (seed + 1) * (i as u64 * 7919 + 13) % 97 + 1;
        let mut trace = chain(5, 2, &draw);
        for (i, op) in trace.ops.iter_mut().enumerate() {
            op.seconds = Seconds(draw(i + 50) as f64);
            if shares && op.phase == Phase::Backward && op.layer.ends_with('1') {
                op.reads.push(op.reads[0].next());
            }
        }
        let saved = Saved::of(&trace);
        let modules = modules(&saved.layers);
        assert_eq!(modules.len(), 5);
        for means in [Means::Recompute, Means::Offload(link())] {
            let budget = Bytes(peak(&trace).0 - 60 - draw(3) / 2);
            let sets = (0..1u32 << modules.len()).map(|set| {
                let of_set = modules.iter().enumerate().filter(|(i, _)| set & (1 << i) != 0);
                let spans: Vec<Range<usize>> = of_set.map(|(_, module)| module.layers.clone()).collect();
                saved.rewritten(&spans, means)
            });
            let fitting = sets.filter(|trace| peak(trace) <= budget).map(|trace| trace.compute_seconds());
            let shortest = fitting.reduce(Seconds::min);
            let made = wrap(&trace, budget, means).ok();
            if let Some(made) = &made {
                made.trace.validate().expect("a trace");
                assert!(made.peak() <= budget);
            }
            assert_eq!(made.map(|made| made.seconds()), shortest, "seed {seed}, {shares}, {means:?}");
        }
    }
}

#[test]
fn copies_take_the_link_and_nothing_beside_them() {
    let trace = chain(4, 3, &|_| 10);
    let whole = peak(&trace);
    let means = Means::Offload(link());
    let wrapping = wrap(&trace, whole - Bytes(30), means).expect("it can");
    wrapping.trace.validate().expect("a trace");
    // Three inputs of ten bytes: 10 s each there, 5 s back.
    assert_eq!(wrapping.seconds(), trace.compute_seconds() + Seconds(45.0));
    assert_eq!(wrapping.modules.len(), 1);
    assert!(wrapping.peak() <= whole - Bytes(30));
    // What is copied back is there for one layer alone, so that far less fits than by recomputing.
    let all = wrap(&trace, Bytes(100 + 10 + 10 + 10 + 2), means).expect("it can");
    assert_eq!(all.modules.len(), 4);
}

#[test]
fn modules_are_what_names_have_in_common() {
    let found = |layers: &[&'static str]| -> Vec<String> {
        modules(layers).into_iter().map(|module| module.name.to_owned()).collect()
    };
    let layers = ["conv1", "layer1.0.conv1", "layer1.0.bn1", "layer1.1.conv1", "layer1.1.bn1", "fc"];
    assert_eq!(found(&layers), ["layer1.0", "layer1", "layer1.1"]);
    // One layer, one that is interrupted, all layers, and what is no name in Python.
    assert!(found(&["a.conv", "b"]).is_empty());
    assert!(found(&["a.conv", "b", "a.bn"]).is_empty());
    assert!(found(&["a.conv", "a.bn"]).is_empty());
    assert!(found(&["a\".b", "a\".c", "d"]).is_empty());
    let flat = chain(1, 4, &|_| 10);
    let error = wrap(&flat, Bytes(120), Means::Recompute).expect_err("one module, and the loss");
    assert!(matches!(error, WrapError::TooLarge { .. }), "{error}");
    let mut flat = flat;
    flat.ops.iter_mut().for_each(|op| op.layer = op.layer.replace('.', "_"));
    let error = wrap(&flat, Bytes(120), Means::Recompute).expect_err("no modules");
    assert_eq!(error, WrapError::NoModules("chain".to_owned()));
}
