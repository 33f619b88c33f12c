//! Graphs that look like layers of ours and compute something else: each is refused with its node, or read as what it is.
//!
//! A wrong network that trains is worse than none: nobody would notice. So whatever changes a number is in here twice, as
//! exporters write it and with the one difference that matters.

use crate::onnx::judge::{judge_bytes, read_bytes};
use crate::onnx::writer::{
    file, file_of, float, floats, input, int, integers, ints, node, output, weight, word,
};
use plimsoll_networks::onnx::OnnxNetwork;

/// A type of ONNX: floats of 32, 16 and 64 bits, truth values, integers.
const FLOAT: i64 = 1;
const FLOAT16: i64 = 10;
const DOUBLE: i64 = 11;
const BOOL: i64 = 9;
const INT8: i64 = 3;
const INT32: i64 = 6;
const INT64: i64 = 7;

/// The network of a file that is read, and the kinds of its layers between input and loss.
fn read(file: &[u8]) -> (OnnxNetwork, String) {
    let found = read_bytes(file).unwrap_or_else(|error| panic!("{error}"));
    assert!(judge_bytes(file));
    let inner = &found.network.layers[1..found.network.layers.len() - 1];
    let kinds: Vec<&str> = inner.iter().map(|layer| layer.kind.name()).collect();
    let kinds = kinds.join(", ");
    (found, kinds)
}

/// That a file is refused with all of these words.
fn refused(file: &[u8], expected: &[&str]) {
    assert!(!judge_bytes(file), "{expected:?}: it was read as {}", read(file).1);
    let text = read_bytes(file).expect_err("it is refused").to_string();
    for part in expected {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// Attention over eight positions of twelve channels, whose queries, keys and values are laid out in this shape.
fn attention(shape: &[i64], scale: f32, mask: Option<(i64, f32)>, axis: i64) -> Vec<Vec<u8>> {
    let rank = shape.len() as i64;
    let mut turned: Vec<i64> = (0..rank).collect();
    turned.swap(shape.len() - 2, shape.len() - 1);
    let mut parts = vec![
        input("x", FLOAT, &[2, 8, 12]),
        integers("apart", shape),
        integers("back", &[2, 8, 12]),
        floats("scale", &[], &[scale]),
        weight("f.weight", &[12, 5]),
    ];
    for part in ["q", "k", "v"] {
        let [weights, all] = ["weight", "all"].map(|end| format!("{part}.{end}"));
        parts.push(weight(&weights, &[12, 12]));
        parts.push(node("MatMul", &["x", &weights], &[&all], &[]));
        parts.push(node("Reshape", &[&all, "apart"], &[part], &[]));
    }
    parts.extend([
        node("Transpose", &["k"], &["kt"], &[ints("perm", &turned)]),
        node("MatMul", &["q", "kt"], &["products"], &[]),
    ]);
    let scores = if let Some((side, hidden)) = mask {
        let numbers: Vec<f32> =
            (0..side * side).map(|at| if at % side > at / side { hidden } else { 0.0 }).collect();
        parts.push(floats("mask", &[side, side], &numbers));
        parts.push(node("Add", &["products", "mask"], &["masked"], &[]));
        "masked"
    } else {
        "products"
    };
    parts.extend([
        node("Mul", &[scores, "scale"], &["scores"], &[]),
        node("Softmax", &["scores"], &["shares"], &[int("axis", axis)]),
        node("MatMul", &["shares", "v"], &["mixed"], &[]),
        node("Reshape", &["mixed", "back"], &["o"], &[]),
        node("MatMul", &["o", "f.weight"], &["y"], &[]),
        output("y"),
    ]);
    parts
}

#[test]
fn attention_sees_all_positions_of_a_sample() {
    let scale = 12_f32.sqrt().recip();
    let whole = "conv, conv, conv, concat, attention, conv";
    let check = |shape: &[i64], mask: Option<(i64, f32)>| {
        assert_eq!(read(&file(&attention(shape, scale, mask, -1))).1, whole, "{shape:?}");
    };
    let hides = Some((8, f32::NEG_INFINITY));
    check(&[2, 8, 12], None);
    check(&[2, 8, 12], hides);
    check(&[2, 8, 12], Some((8, -1e9)));
    check(&[2, 1, 8, 12], hides);
    let windows = ["attention within windows", "node `mixed`"];
    let within = |shape: &[i64], mask: Option<(i64, f32)>| {
        refused(&file(&attention(shape, scale, mask, -1)), &windows);
    };
    within(&[2, 4, 2, 12], None);
    within(&[2, 2, 4, 12], None);
    within(&[2, 2, 4, 12], Some((4, f32::NEG_INFINITY)));
    within(&[4, 4, 12], None);
    within(&[2, 8, 1, 12], None);
    // What a negative number hides is shown by the next, and what is made small is not hidden.
    let mut twice = attention(&[2, 8, 12], -scale, hides, -1);
    let products = twice.iter().position(|part| *part == node("MatMul", &["q", "kt"], &["products"], &[]));
    let products = products.expect("the product of queries and keys");
    twice[products] = node("MatMul", &["q", "kt"], &["other"], &[]);
    twice.insert(products + 1, node("Neg", &["other"], &["products"], &[]));
    refused(&file(&twice), &["Neg of what depends on the input"]);
    twice[products + 1] = node("Mul", &["other", "minus"], &["products"], &[]);
    twice.insert(0, floats("minus", &[], &[-1.0]));
    refused(&file(&twice), &["a mask over scores that are multiplied by -1", "node `masked`"]);
    twice[0] = floats("minus", &[], &[1e6]);
    refused(&file(&twice), &["a mask over scores that are multiplied by 1000000"]);
}

#[test]
fn softmax_is_over_one_dimension_as_the_version_of_the_operators_has_it() {
    let scale = 12_f32.sqrt().recip();
    let attends = |version: i64, axis: i64| file_of(version, &attention(&[2, 1, 8, 12], scale, None, axis));
    assert!(read(&attends(12, 3)).1.contains("attention"));
    assert!(read(&attends(13, -1)).1.contains("attention"));
    refused(&attends(12, 2), &["Softmax over something else than keys"]);
    let last = |version: i64, op: &str, window: i64| {
        file_of(
            version,
            &[
                input("x", FLOAT, &[2, 4, 9, 9]),
                weight("c.weight", &[5, 4, window, window]),
                node("Conv", &["x", "c.weight"], &["l"], &[]),
                node(op, &["l"], &["y"], &[int("axis", 1)]),
                output("y"),
            ],
        )
    };
    for op in ["Softmax", "LogSoftmax"] {
        assert_eq!(read(&last(13, op, 3)).1, "conv", "at every position");
        assert_eq!(read(&last(12, op, 9)).1, "conv", "at the only position");
        refused(&last(12, op, 3), &[op, "all dimensions from 1 on", "node `y`"]);
    }
}

/// x times 1 + erf(x / sqrt(2)), halved somewhere: `gate` are the nodes from `e`, that error function, to `b`.
fn gelu(gate: &[Vec<u8>]) -> Vec<u8> {
    let start = [
        input("x", FLOAT, &[2, 4, 9, 9]),
        weight("f.weight", &[324, 5]),
        floats("root", &[], &[2_f32.sqrt()]),
        floats("one", &[], &[1.0]),
        floats("two", &[], &[2.0]),
        floats("half", &[], &[0.5]),
        floats("quarter", &[], &[0.25]),
        node("Div", &["x", "root"], &["d"], &[]),
        node("Erf", &["d"], &["e"], &[]),
    ];
    let end =
        [node("Flatten", &["b"], &["c"], &[]), node("MatMul", &["c", "f.weight"], &["y"], &[]), output("y")];
    file(&[&start, gate, &end].concat())
}

#[test]
fn an_error_function_is_gelu_wherever_it_is_halved_and_nothing_else_is() {
    let [add, mul] = ["Add", "Mul"].map(|op| move |a: &str, b: &str, to: &str| node(op, &[a, b], &[to], &[]));
    let check = |gate: &[Vec<u8>]| assert_eq!(read(&gelu(gate)).1, "gelu, fc");
    check(&[add("e", "one", "g"), mul("x", "g", "p"), mul("p", "half", "b")]);
    check(&[add("e", "one", "g"), mul("x", "half", "h"), mul("h", "g", "b")]);
    check(&[add("e", "one", "g"), mul("g", "half", "h"), mul("h", "x", "b")]);
    check(&[mul("e", "half", "h"), add("h", "half", "g"), mul("x", "g", "b")]);
    check(&[mul("e", "two", "h"), add("h", "two", "g"), mul("x", "g", "p"), mul("p", "quarter", "b")]);
    let no = |gate: &[Vec<u8>], expected: &[&str]| refused(&gelu(gate), expected);
    no(
        &[mul("e", "half", "h"), add("h", "one", "g"), mul("x", "g", "b")],
        &["Add of the number 1", "node `g`"],
    );
    no(
        &[mul("e", "half", "h"), add("h", "one", "g"), mul("x", "g", "p"), mul("p", "half", "b")],
        &["Add of the number 1"],
    );
    no(&[add("e", "half", "g"), mul("x", "g", "b")], &["Add of the number 0.5"]);
    no(&[add("e", "one", "g"), mul("x", "g", "b")], &["MatMul of an error function that is no GELU"]);
}

/// Images of four channels, some nodes from `x` to `b`, and a product.
fn images(nodes: &[Vec<u8>]) -> Vec<u8> {
    let end = [
        node("GlobalAveragePool", &["b"], &["p"], &[]),
        node("Flatten", &["p"], &["c"], &[]),
        weight("f.weight", &[4, 5]),
        node("MatMul", &["c", "f.weight"], &["y"], &[]),
        output("y"),
    ];
    file(&[&[input("x", FLOAT, &[2, 4, 9, 9])], nodes, &end].concat())
}

/// Tokens, some nodes from `x` to `b`, a table that `b` is looked up in, and a product.
fn tokens(nodes: &[Vec<u8>]) -> Vec<u8> {
    let end = [
        weight("t.weight", &[9, 6]),
        weight("f.weight", &[6, 9]),
        node("Gather", &["t.weight", "b"], &["e"], &[]),
        node("MatMul", &["e", "f.weight"], &["y"], &[]),
        output("y"),
    ];
    file(&[&[input("x", INT64, &[2, 4])], nodes, &end].concat())
}

/// A conversion to another type.
fn cast(from: &str, to: &str, kind: i64) -> Vec<u8> {
    node("Cast", &[from], &[to], &[int("to", kind)])
}

#[test]
fn conversions_that_change_numbers_are_refused() {
    let pool = "pool, fc";
    let wide = |kind: i64, notes: &[&str]| {
        let (found, kinds) = read(&images(&[cast("x", "a", kind), cast("a", "b", FLOAT)]));
        assert_eq!((kinds.as_str(), found.notes), (pool, notes.iter().map(|n| (*n).to_owned()).collect()));
    };
    wide(FLOAT, &[]);
    let narrow = "what the file converts to floats of 16 or 64 bits is computed in 32 bits";
    wide(FLOAT16, &[narrow]);
    wide(DOUBLE, &[narrow]);
    for (kind, name) in [(BOOL, "bool"), (INT64, "int64"), (INT32, "int32"), (INT8, "int8")] {
        let nodes = [cast("x", "a", kind), cast("a", "r", FLOAT), node("Relu", &["r"], &["b"], &[])];
        refused(&images(&nodes), &[&format!("Cast of floats to {name}"), "node `a`"]);
    }
    refused(&images(&[node("Cast", &["x"], &["b"], &[])]), &["node `b` (Cast)", "it has no `to`"]);
    let like = |other: Vec<u8>| images(&[other, node("CastLike", &["x", "other"], &["b"], &[])]);
    assert_eq!(read(&like(floats("other", &[], &[1.0]))).1, pool);
    refused(&like(integers("other", &[1])), &["CastLike of floats to int64"]);
    // Tokens may be any integers that hold them, and floats on the way.
    for kind in [INT32, INT64, FLOAT, DOUBLE] {
        let (_, kinds) = read(&tokens(&[cast("x", "a", kind), cast("a", "b", INT64)]));
        assert_eq!(kinds, "embedding, conv");
    }
    refused(&tokens(&[cast("x", "a", BOOL), cast("a", "b", INT64)]), &["Cast of tokens to bool"]);
    refused(&tokens(&[cast("x", "a", INT8), cast("a", "b", INT64)]), &["Cast of tokens to int8"]);
    refused(&tokens(&[cast("x", "a", FLOAT16), cast("a", "b", INT64)]), &["Cast of tokens to float16"]);
    // And they stay what they are.
    let two = integers("two", &[2]);
    refused(&tokens(&[two, node("Mul", &["x", "two"], &["b"], &[])]), &["Mul of tokens", "node `b`"]);
}

#[test]
fn what_depends_on_the_input_is_no_setting_of_an_operator() {
    // One number that depends on the input.
    let made = |of: &[Vec<u8>]| images(&[&[node("Relu", &["x"], &["r"], &[])], of].concat());
    let zero = || floats("zero", &[], &[0.0]);
    let check = |op: &str, nodes: &[Vec<u8>]| {
        refused(&made(nodes), &[&format!("{op} whose input "), "depends on the data, too (node `b`)"]);
    };
    check("Clip", &[zero(), node("Clip", &["x", "zero", "r"], &["b"], &[])]);
    check("Dropout", &[node("Dropout", &["x", "r"], &["b"], &[])]);
    check("Squeeze", &[node("Squeeze", &["x", "r"], &["b"], &[])]);
    check("Split", &[node("Split", &["x", "r"], &["b"], &[int("axis", 1)])]);
    check("Reshape", &[node("Reshape", &["x", "r"], &["b"], &[])]);
    check(
        "BatchNormalization",
        &[weight("s", &[4]), node("BatchNormalization", &["x", "s", "r", "s", "s"], &["b"], &[])],
    );
    let all = || integers("i", &[0]);
    check("Slice", &[all(), node("Slice", &["x", "i", "i", "i", "r"], &["b"], &[])]);
}

#[test]
fn settings_that_are_no_single_number_are_refused() {
    let check = |nodes: &[Vec<u8>], expected: &[&str]| refused(&images(nodes), expected);
    let two = || floats("two", &[2], &[6.0, 7.0]);
    let zero = || floats("zero", &[], &[0.0]);
    check(&[zero(), two(), node("Clip", &["x", "zero", "two"], &["b"], &[])], &["its max holds 2 numbers"]);
    check(&[two(), node("Dropout", &["x", "two"], &["b"], &[])], &["its ratio holds 2 numbers"]);
    // A dimension that is named twice is not two.
    check(
        &[node("ReduceMean", &["x"], &["b"], &[ints("axes", &[2, -2])])],
        &["its axes name a dimension twice"],
    );
    // Dimensions that a constant adds.
    let deep = floats("deep", &[1, 1, 1, 1, 1], &[1.0]);
    check(&[deep, node("Mul", &["x", "deep"], &["b"], &[])], &["Mul of a constant with more dimensions"]);
    let shift = |dims: &[i64]| {
        let names = ["x", "s", "shift", "s", "s"];
        [weight("s", &[4]), weight("shift", dims), node("BatchNormalization", &names, &["b"], &[])]
    };
    assert_eq!(read(&images(&shift(&[4]))).1, "bn, pool, fc");
    check(&shift(&[3]), &["a shift of [3] for 4 channels"]);
}

/// Positions of six channels, some nodes from `x` to `b`, and a product at each position.
fn positions(nodes: &[Vec<u8>]) -> Vec<u8> {
    let end = [weight("f.weight", &[6, 5]), node("MatMul", &["b", "f.weight"], &["y"], &[]), output("y")];
    file(&[&[input("x", FLOAT, &[2, 8, 6]), weight("w", &[6, 6])], nodes, &end].concat())
}

#[test]
fn a_weight_of_several_layers_is_the_same_in_all_of_them() {
    let gemm = |from: &str, to: &str, turned: bool, bias: &str| {
        let weights = if turned { "t" } else { "w" };
        let [turn, product, add] = [format!("{to}.t"), format!("{to}.p"), to.to_owned()];
        let weights = if turned { turn.as_str() } else { weights };
        vec![
            node("Transpose", &["w"], &[&turn], &[]),
            node("MatMul", &[from, weights], &[&product], &[]),
            node("Add", &[&product, bias], &[&add], &[]),
        ]
    };
    let twice = |turned: bool, bias: &str| {
        let biases = vec![weight("b1", &[6]), weight("b2", &[6])];
        positions(&[biases, gemm("x", "a", false, "b1"), gemm("a", "b", turned, bias)].concat())
    };
    let (found, kinds) = read(&twice(false, "b1"));
    assert_eq!((kinds.as_str(), found.network.all_parameters()), ("conv, conv, conv", 36 + 6 + 30));
    refused(&twice(false, "b2"), &["one weight of several layers with a bias each", "node `b.p`"]);
    refused(&twice(true, "b1"), &["one weight of several layers, transposed in one of them", "node `b.p`"]);
}

#[test]
fn a_computed_weight_of_several_layers_is_refused() {
    let product = |from: &str, to: &str, weights: &str| node("MatMul", &[from, weights], &[to], &[]);
    let twice = |other: &str| {
        let doubled = |to: &str| node("Add", &["w", "w"], &[to], &[]);
        positions(&[doubled("d"), doubled("d2"), product("x", "a", "d"), product("a", "b", other)])
    };
    assert_eq!(read(&twice("d2")).1, "conv, conv, conv", "two that are equal, but not one");
    refused(&twice("d"), &["one computed weight of several layers", "node `b`"]);
}

#[test]
fn scales_of_several_layers_are_trained_apart_with_a_word() {
    let norms = |scale: &str| {
        let norm =
            |from: &str, to: &str, scale: &str| node("LayerNormalization", &[from, scale, "h"], &[to], &[]);
        let scales = [weight("s", &[6]), weight("s2", &[6]), weight("h", &[6])];
        read(&positions(&[&scales[..], &[norm("x", "a", "s"), norm("a", "b", scale)]].concat()))
    };
    assert!(norms("s2").0.notes.is_empty());
    let (found, kinds) = norms("s");
    assert_eq!((kinds.as_str(), found.network.all_parameters()), ("layernorm, layernorm, conv", 24 + 30));
    let note = "scales, shifts and biases that are one tensor of several layers are trained apart";
    assert_eq!(found.notes, [note]);
}

#[test]
fn a_layer_normalisation_without_shift_is_read_with_a_word() {
    let norm = |inputs: &[&str]| {
        let parts = [weight("s", &[6]), weight("h", &[6]), node("LayerNormalization", inputs, &["b"], &[])];
        read(&positions(&parts))
    };
    assert!(norm(&["x", "s", "h"]).0.notes.is_empty());
    let (found, kinds) = norm(&["x", "s"]);
    assert_eq!(kinds, "layernorm, conv");
    assert_eq!(found.notes, ["a normalisation without a shift is trained with one, which begins at 0"]);
}

#[test]
fn a_position_that_is_looked_up_keeps_the_dimensions_of_its_index() {
    let pick = |index: Vec<u8>, rank: i64| {
        let parts = [
            input("x", FLOAT, &[2, 8, 6]),
            index,
            weight("f.weight", &[6, 5]),
            node("Relu", &["x"], &["r"], &[]),
            node("Gather", &["r", "index"], &["g"], &[int("axis", 1)]),
            node("Shape", &["g"], &["shape"], &[]),
            node("Shape", &["shape"], &["rank"], &[]),
            node("Reshape", &["x", "rank"], &["b"], &[]),
            node("MatMul", &["b", "f.weight"], &["y"], &[]),
            output("y"),
        ];
        // The shape of the shape is the rank; no layer has so few elements, and the refusal names it.
        refused(&file(&parts), &[&format!("cannot lie as [{rank}]")]);
    };
    pick(
        crate::onnx::writer::tensor(
            "index",
            &[],
            INT64,
            &crate::onnx::writer::bytes(9, &1_i64.to_le_bytes()),
        ),
        2,
    );
    pick(integers("index", &[1]), 3);
    pick(
        crate::onnx::writer::tensor(
            "index",
            &[1, 1],
            INT64,
            &crate::onnx::writer::bytes(9, &1_i64.to_le_bytes()),
        ),
        4,
    );
}

/// What these nodes become, or why they are refused, says so.
fn check(nodes: &[Vec<u8>], expected: &str) {
    match read_bytes(&images(nodes)) {
        Ok(found) => {
            assert!(judge_bytes(&images(nodes)));
            let layers = &found.network.layers[1..found.network.layers.len() - 3];
            let all: Vec<String> = layers.iter().map(|l| format!("{:?} {}", l.kind, l.output)).collect();
            let all = all.join("; ");
            assert!(all.contains(expected), "`{expected}` is not in {all}");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(expected), "`{expected}` is not in: {text}");
        }
    }
}

/// A node of one input.
fn one(op: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    node(op, &["x"], &["b"], attributes)
}

#[test]
fn every_attribute_of_windows_is_honoured_or_refused() {
    let kernel = || ints("kernel_shape", &[3, 3]);
    let conv =
        |attributes: &[Vec<u8>]| [weight("w", &[4, 4, 3, 3]), node("Conv", &["x", "w"], &["b"], attributes)];
    check(&conv(&[ints("dilations", &[2, 1])]), "dilation: [2, 1] }, groups: 1, bias: false } 5x7x4");
    check(&conv(&[ints("strides", &[2, 1])]), "stride: [2, 1]");
    check(&conv(&[ints("pads", &[1, 2, 1, 2])]), "padding: [1, 2]");
    check(&conv(&[word("auto_pad", "VALID")]), "7x7x4");
    check(&conv(&[word("auto_pad", "SAME_LOWER")]), "Conv with auto_pad SAME_LOWER");
    check(&conv(&[int("group", 2)]), "do not fit a window");
    check(&conv(&[int("group", 1), int("group", 4)]), "attribute `group` is there twice");
    check(&[one("MaxPool", &[kernel(), ints("dilations", &[1, 2])])], "MaxPool with dilation");
    check(&[one("MaxPool", &[kernel(), int("storage_order", 1)])], "MaxPool in column-major order");
    let pads = || ints("pads", &[1, 1, 1, 1]);
    let counted = [kernel(), pads(), int("count_include_pad", 1)];
    check(
        &[one("AveragePool", &counted)],
        "AvgPool { window: Window { size: [3, 3], stride: [1, 1], padding: [1, 1]",
    );
    let strided = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2]), int("ceil_mode", 1)];
    check(&[one("AveragePool", &strided)], "AveragePool with a last window that is cut off");
}

#[test]
fn every_attribute_of_what_has_no_window_is_honoured_or_refused() {
    check(&[one("LRN", &[int("size", 4)])], "odd");
    check(&[one("LRN", &[int("size", 5), float("alpha", f32::NAN)])], "alpha NaN, beta 0.75 and bias 1");
    check(&[one("LRN", &[int("size", 5), float("beta", f32::INFINITY)])], "beta inf and bias 1");
    let mean = |axes: &[i64]| one("ReduceMean", &[ints("axes", axes)]);
    check(&[mean(&[1])], "ReduceMean over something else");
    check(&[mean(&[2])], "ReduceMean over something else");
    check(&[mean(&[0, 2, 3])], "ReduceMean over something else");
    check(&[one("ReduceMean", &[])], "ReduceMean over something else");
    check(&[one("ReduceMean", &[int("noop_with_empty_axes", 1)])], "ReduceMean over something else");
    check(&[one("Dropout", &[float("ratio", 0.25)])], "Dropout { probability: 0.25");
    check(&[one("Dropout", &[float("ratio", 1.5)])], "from 0 to below 1, not 1.5");
    check(&[one("Clip", &[float("min", 0.0), float("max", 6.0)])], "Relu { ceiling: 6.0 }");
    check(&[one("Clip", &[float("min", -1.0), float("max", 6.0)])], "Clip from -1 to 6");
    check(&[one("Clip", &[float("max", 6.0)])], "Clip from -inf to 6");
    check(&[one("Clip", &[float("min", 0.0), float("max", -1.0)])], "Clip from 0 to -1");
    check(&[one("Gelu", &[word("approximate", "tanh")])], "Gelu approximated by tanh");
    check(&[node("Concat", &["x", "x"], &["b"], &[int("axis", 0)])], "Concat along something else");
    check(&[node("Concat", &["x", "x"], &["b"], &[int("axis", 3)])], "Concat along something else");
    check(&[node("Flatten", &["x"], &["b"], &[int("axis", 2)])], "GlobalAveragePool of what is not");
}

#[test]
fn every_attribute_of_norms_and_products_is_honoured_or_refused() {
    let norm = |attributes: &[Vec<u8>]| {
        [weight("s", &[4]), node("BatchNormalization", &["x", "s", "s", "s", "s"], &["b"], attributes)]
    };
    let changed = [float("epsilon", 0.25), float("momentum", 0.75)];
    check(&norm(&changed), "BatchNorm { epsilon: 0.25, momentum: 0.25 }");
    check(&norm(&[int("spatial", 0)]), "statistics of every position");
    check(&norm(&[float("epsilon", f32::NAN)]), "epsilon is at least 0");
    let layer = |attributes: &[Vec<u8>]| {
        let before = node("Transpose", &["x"], &["t"], &[ints("perm", &[0, 2, 3, 1])]);
        let norm = node("LayerNormalization", &["t", "s", "s"], &["n"], attributes);
        [weight("s", &[4]), before, norm, node("Transpose", &["n"], &["b"], &[ints("perm", &[0, 3, 1, 2])])]
    };
    check(&layer(&[float("epsilon", 0.25)]), "LayerNorm { epsilon: 0.25 }");
    check(&layer(&[float("epsilon", f32::NAN)]), "epsilon is above 0 and finite, not NaN");
    check(&layer(&[int("axis", 2)]), "LayerNormalization over something else than channels");
    // The end of each of these graphs, in place of the product.
    let product = |attributes: &[Vec<u8>]| {
        let flat = [node("Flatten", &["x"], &["n"], &[]), weight("g", &[324, 4])];
        let gemm = node("Gemm", &["n", "g"], &["m"], attributes);
        [&flat[..], &[gemm, integers("s", &[2, 4, 1, 1]), node("Reshape", &["m", "s"], &["b"], &[])]].concat()
    };
    check(&product(&[]), "FullyConnected { outputs: 4, bias: false }");
    let refusal = "Gemm with factors, or of what is transposed";
    check(&product(&[float("alpha", 0.5)]), refusal);
    check(&product(&[float("beta", 0.5)]), refusal);
    check(&product(&[int("transA", 1)]), refusal);
    check(&product(&[int("transB", 1)]), "324 values times a weight of [324, 4]");
}
