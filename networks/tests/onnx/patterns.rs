//! What single operators become, and what is said where they become nothing: small graphs, one property each.

use crate::onnx::judge::read_bytes;
use crate::onnx::writer::{file, float, input, int, integers, ints, node, output, tensor, weight, word};
use plimsoll_networks::onnx::OnnxError;

/// A graph that ends in a product over all that `b` holds.
fn graph(before: &[Vec<u8>], features: i64) -> Vec<u8> {
    let end = [
        weight("f.weight", &[5, features]),
        node("Flatten", &["b"], &["c"], &[]),
        node("Gemm", &["c", "f.weight"], &["y"], &[int("transB", 1)]),
        output("y"),
    ];
    file(&[before, &end].concat())
}

/// The layers between input and end, in short.
fn layers(file: &[u8]) -> Result<String, OnnxError> {
    let network = read_bytes(file)?.network;
    let inner = &network.layers[1..network.layers.len() - 2];
    let all = inner.iter().map(|layer| format!("{:?} {}", layer.kind, layer.output));
    Ok(all.collect::<Vec<_>>().join("; "))
}

#[test]
fn operators_become_layers() {
    let images = || input("x", 1, &[2, 4, 9, 9]);
    let check = |nodes: &[Vec<u8>], features: i64, expected: &str| {
        let found = layers(&graph(&[&[images()], nodes].concat(), features));
        assert_eq!(found.unwrap_or_else(|error| panic!("{error}")), expected);
    };
    let pool = |op: &str, more: &[Vec<u8>]| {
        node(op, &["x"], &["b"], &[&[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])], more].concat())
    };
    let window = "Window { size: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] }";
    check(&[node("Relu", &["x"], &["b"], &[])], 324, "Relu { ceiling: inf } 9x9x4");
    check(&[pool("MaxPool", &[])], 64, &format!("MaxPool {{ window: {window}, ceil: false }} 4x4x4"));
    check(
        &[pool("MaxPool", &[int("ceil_mode", 1)])],
        100,
        &format!("MaxPool {{ window: {window}, ceil: true }} 5x5x4"),
    );
    check(&[pool("AveragePool", &[])], 64, &format!("AvgPool {{ window: {window} }} 4x4x4"));
    check(
        &[integers("axes", &[-1, -2]), node("ReduceMean", &["x", "axes"], &["b"], &[int("keepdims", 0)])],
        4,
        "GlobalAvgPool 1x1x4",
    );
    check(&[node("Concat", &["x", "x"], &["b"], &[int("axis", 1)])], 648, "Concat { along: Channels } 9x9x8");
    check(&[node("Concat", &["x", "x"], &["b"], &[int("axis", 2)])], 648, "Concat { along: Rows } 18x9x4");
    check(
        &[weight("v", &[4, 1, 1]), node("Add", &["x", "v"], &["b"], &[])],
        324,
        "Bias { over: Channels, spare: 0 } 9x9x4",
    );
    check(&[weight("m", &[4, 1, 1]), node("Mul", &["x", "m"], &["b"], &[])], 324, "Scale 9x9x4");
    check(&[node("Mul", &["x", "x"], &["b"], &[])], 324, "Multiply 9x9x4");
    let mean = node("GlobalAveragePool", &["x"], &["m"], &[]);
    for [a, b] in [["x", "s"], ["s", "x"]] {
        let gate = node("Sigmoid", &["m"], &["s"], &[]);
        check(
            &[mean.clone(), gate, node("Mul", &[a, b], &["b"], &[])],
            324,
            "GlobalAvgPool 1x1x4; Activation { function: Sigmoid } 1x1x4; Multiply 9x9x4",
        );
    }
    // A sigmoid of what it gates is one layer, unless something else reads it.
    let gated = |op: &str, more: &[Vec<u8>]| {
        [&[node(op, &["x"], &["s"], more), node("Mul", &["s", "x"], &["b"], &[])][..], &[]].concat()
    };
    let sixth = [float("alpha", 1.0 / 6.0)];
    check(&gated("Sigmoid", &[]), 324, "Activation { function: Silu } 9x9x4");
    check(&gated("HardSigmoid", &sixth), 324, "Activation { function: HardSwish } 9x9x4");
    check(
        &[
            &gated("Sigmoid", &[])[..1],
            &[node("Mul", &["x", "s"], &["p"], &[]), node("Add", &["p", "s"], &["b"], &[])],
        ]
        .concat(),
        324,
        "Activation { function: Sigmoid } 9x9x4; Multiply 9x9x4; Add 9x9x4",
    );
    for (op, more, function) in
        [("HardSwish", &[][..], "HardSwish"), ("Swish", &[], "Silu"), ("HardSigmoid", &sixth, "HardSigmoid")]
    {
        check(
            &[node(op, &["x"], &["b"], more)],
            324,
            &format!("Activation {{ function: {function} }} 9x9x4"),
        );
    }
    let six = tensor("six", &[], 1, &crate::onnx::writer::bytes(9, &6_f32.to_le_bytes()));
    let zero = tensor("zero", &[], 1, &crate::onnx::writer::bytes(9, &0_f32.to_le_bytes()));
    check(&[six, zero, node("Clip", &["x", "zero", "six"], &["b"], &[])], 324, "Relu { ceiling: 6.0 } 9x9x4");
    check(
        &[node("LRN", &["x"], &["b"], &[int("size", 5)])],
        324,
        "Lrn { size: 5, alpha: 0.0001, beta: 0.75, bias: 1.0 } 9x9x4",
    );
    check(&[node("Dropout", &["x"], &["b"], &[])], 324, "Dropout { probability: 0.5, unit: Element } 9x9x4");
    check(&[node("Identity", &["x"], &["b"], &[])], 324, "");
    check(&[node("Softmax", &["x"], &["b2"], &[]), node("Identity", &["x"], &["b"], &[])], 324, "");
}

#[test]
fn what_is_not_read_is_named_with_its_node_and_all_at_once() {
    let check = |nodes: &[Vec<u8>], expected: &[&str]| {
        let error = layers(&graph(&[&[input("x", 1, &[2, 4, 9, 9])], nodes].concat(), 324));
        let text = error.expect_err("it is refused").to_string();
        for part in expected {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    };
    let pool = |more: Vec<u8>| node("AveragePool", &["x"], &["b"], &[ints("kernel_shape", &[3, 3]), more]);
    check(
        &[
            node("Softplus", &["x"], &["p"], &[]),
            node("Softplus", &["p"], &["q"], &[]),
            node("Resize", &["q"], &["b"], &[]),
        ],
        &["operator Softplus (2 nodes, the first `p`)", "operator Resize (node `b`)"],
    );
    check(&[pool(ints("pads", &[0, 1, 1, 1]))], &["AveragePool with more padding on one side"]);
    check(&[pool(ints("pads", &[1, 1, 1, 1]))], &["count_include_pad"]);
    check(&[pool(word("auto_pad", "SAME_UPPER"))], &["AveragePool with auto_pad SAME_UPPER"]);
    check(&[pool(ints("dilations", &[2, 2]))], &["AveragePool with dilation"]);
    check(&[pool(int("frames", 2))], &["AveragePool with attribute frames"]);
    check(&[node("Add", &["x", "z"], &["b"], &[]), node("Relu", &["x"], &["z"], &[])], &["reads `z`"]);
    check(&[node("Softmax", &["x"], &["b"], &[])], &["Softmax elsewhere"]);
    check(
        &[weight("m", &[4, 9, 9]), node("Mul", &["x", "m"], &["b"], &[])],
        &["Mul of a weight of [4, 9, 9]"],
    );
    check(&[weight("m", &[4, 1, 1]), node("Div", &["x", "m"], &["b"], &[])], &["Div by a weight"]);
    let hard = |alpha: f32, beta: f32| {
        node("HardSigmoid", &["x"], &["b"], &[float("alpha", alpha), float("beta", beta)])
    };
    check(&[hard(0.2, 0.5)], &["HardSigmoid with alpha 0.2 and beta 0.5"]);
    check(&[hard(1.0 / 6.0, 0.4)], &["HardSigmoid with alpha", "and beta 0.4"]);
    check(&[node("HardSigmoid", &["x"], &["b"], &[])], &["HardSigmoid with alpha 0.2"]);
    check(&[node("Swish", &["x"], &["b"], &[float("alpha", 1.5)])], &["Swish with alpha"]);
    // A scale that is computed is no parameter.
    let doubled = node("Add", &["m", "m"], &["m2"], &[]);
    check(
        &[weight("m", &[4, 1, 1]), doubled, node("Mul", &["x", "m2"], &["b"], &[])],
        &["Mul of a weight of [4, 1, 1]"],
    );
    check(
        &[
            integers("one", &[1]),
            integers("zero", &[0]),
            node("Slice", &["x", "zero", "one", "one"], &["p"], &[]),
            node("Erf", &["p"], &["b"], &[]),
        ],
        &["Erf of a part of what a layer gives"],
    );
}

#[test]
fn inputs_and_outputs_that_cannot_be_trained_are_explained() {
    let check = |parts: &[Vec<u8>], expected: &str| {
        let text = read_bytes(&file(parts)).expect_err("it is refused").to_string();
        assert!(text.contains(expected), "`{expected}` is not in: {text}");
    };
    let relu = |from: &str| node("Relu", &[from], &["y"], &[]);
    check(&[input("x", 1, &[2, 3, 8, 8]), relu("x")], "it has no output");
    check(&[input("x", 1, &[2, 3, 8, 8]), relu("x"), output("y"), output("x")], "it has 2 outputs (y, x)");
    check(
        &[input("x", 1, &[2, 3]), input("z", 1, &[2, 3]), node("Add", &["x", "z"], &["y"], &[]), output("y")],
        "it takes 2 inputs (x, z)",
    );
    check(&[weight("w", &[2]), node("Relu", &["w"], &["y"], &[]), output("y")], "needs no input");
    check(&[input("x", 1, &[2, 3, 8, 8]), output("x")], "needs no input");
    check(&[input("x", 8, &[2, 3]), relu("x"), output("y")], "its elements are of type 8");
    check(&[input("x", 1, &[2, 3, 8]), relu("x"), output("y"), relu("y")], "is there already");
    check(&[input("x", 1, &[2, 3, 8, 8, 8]), relu("x"), output("y")], "it has 5 dimensions of floats");
    check(&[input("x", 1, &[-1, 3, -1, -2]), relu("x"), output("y")], "its rows or columns are open");
    check(&[input("x", 1, &[-1, -2, 8, 8]), relu("x"), output("y")], "its channels are open");
    check(
        &[input("x", 1, &[2, 3, 8, 8]), relu("x"), node("Flatten", &["y"], &["z"], &[]), output("z")],
        "it is [2, 192], which is no number a class",
    );
}

#[test]
fn a_softmax_at_the_end_is_left_out_with_a_word() {
    let parts = [
        input("x", 1, &[-2, 8]),
        weight("f.weight", &[8, 5]),
        node("MatMul", &["x", "f.weight"], &["l"], &[]),
        node("Softmax", &["l"], &["y"], &[int("axis", -1)]),
        output("y"),
    ];
    let found = read_bytes(&file(&parts)).expect("it is sound");
    assert_eq!(found.notes, ["the Softmax at the end is left out: the loss has it"]);
    assert_eq!(found.network.spec.classes, 5);
}

#[test]
fn positions_that_are_looked_up_for_every_sample_are_one_weight() {
    let parts = [
        input("x", 7, &[-2, 4]),
        weight("t.weight", &[9, 6]),
        weight("p.weight", &[7, 6]),
        weight("f.weight", &[6, 9]),
        integers("order", &[0, 1, 2, 3]),
        node("Shape", &["x"], &["s"], &[]),
        node("Expand", &["order", "s"], &["o"], &[]),
        node("Gather", &["p.weight", "o"], &["p"], &[]),
        node("Gather", &["t.weight", "x"], &["e"], &[]),
        node("Add", &["e", "p"], &["a"], &[]),
        node("MatMul", &["a", "f.weight"], &["y"], &[]),
        output("y"),
    ];
    let network = read_bytes(&file(&parts)).expect("it is sound").network;
    let kinds: Vec<&str> = network.layers.iter().map(|layer| layer.kind.name()).collect();
    assert_eq!(kinds, ["input", "embedding", "bias", "conv", "loss"]);
    assert_eq!(network.all_parameters(), 9 * 6 + 4 * 6 + 6 * 9);
}
