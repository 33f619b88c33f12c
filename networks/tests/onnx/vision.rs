//! What image classifiers of today are made of beside convolutions: stochastic depth, class tokens, parts of maps, and the note
//! where a normalisation was folded away. Each pattern as exporters write it, and with the one difference that matters.

use crate::onnx::export;
use crate::onnx::judge::{judge_bytes, read_bytes};
use crate::onnx::writer::{file, float, floats, input, int, integers, ints, node, output, weight};

/// The kinds and shapes of the layers between input and loss.
fn layers(file: &[u8]) -> String {
    let network = read_bytes(file).unwrap_or_else(|error| panic!("{error}")).network;
    assert!(judge_bytes(file));
    let inner = &network.layers[1..network.layers.len() - 1];
    let all = inner.iter().map(|layer| format!("{:?} {}", layer.kind, layer.output));
    all.collect::<Vec<_>>().join("; ")
}

/// That a file is refused with all of these words.
fn refused(file: &[u8], expected: &[&str]) {
    assert!(!judge_bytes(file), "{expected:?}: it was read as {}", layers(file));
    let text = read_bytes(file).expect_err("it is refused").to_string();
    for part in expected {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// Images of four channels, whose batch is open, some nodes from `x` to `b`, a mean and a product.
fn images(nodes: &[Vec<u8>]) -> Vec<u8> {
    let end = [
        node("GlobalAveragePool", &["b"], &["p"], &[]),
        node("Flatten", &["p"], &["c"], &[]),
        weight("f.weight", &[4, 5]),
        node("MatMul", &["c", "f.weight"], &["y"], &[]),
        output("y"),
    ];
    file(&[&[input("x", 1, &[-2, 4, 9, 9])], nodes, &end].concat())
}

/// Numbers that are drawn for the samples of `x`, so many more dimensions of so many, kept where below `limit`, and divided by
/// `by`.
fn drawn(more: &[i64], limit: f32, by: f32) -> Vec<Vec<u8>> {
    vec![
        floats("zero", &[], &[0.0]),
        floats("limit", &[], &[limit]),
        floats("by", &[], &[by]),
        integers("more", more),
        node("Shape", &["x"], &["batch"], &[int("end", 1)]),
        node("Concat", &["batch", "more"], &["shape"], &[int("axis", 0)]),
        node("Expand", &["zero", "shape"], &["empty"], &[]),
        node("RandomUniformLike", &["empty"], &["drawn"], &[]),
        node("Less", &["drawn", "limit"], &["below"], &[]),
        node("CastLike", &["below", "empty"], &["kept"], &[]),
        node("Div", &["kept", "by"], &["noise"], &[]),
    ]
}

#[test]
fn products_with_what_is_drawn_are_stochastic_depth() {
    let read = |more: &[i64], inputs: [&str; 2], unit: &str| {
        let nodes = [drawn(more, 0.75, 0.75), vec![node("Mul", &inputs, &["b"], &[])]].concat();
        let pool = "GlobalAvgPool 1x1x4; FullyConnected { outputs: 5, bias: false } 1x1x5";
        let drop = format!("Dropout {{ probability: 0.25, unit: {unit} }} 9x9x4; {pool}");
        assert_eq!(layers(&images(&nodes)), drop);
    };
    read(&[1, 1, 1], ["x", "noise"], "Sample");
    read(&[1, 1, 1], ["noise", "x"], "Sample");
    read(&[4, 9, 9], ["x", "noise"], "Element");
    let one = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut nodes = drawn(&[1, 1, 1], 0.75, 0.75);
        nodes.push(node("Mul", &["x", "noise"], &["b"], &[]));
        change(&mut nodes);
        images(&nodes)
    };
    // One draw for all samples.
    let whole = one(&|nodes| nodes[5] = integers("shape", &[1, 1, 1, 1]));
    assert!(layers(&whole).starts_with("Dropout { probability: 0.25, unit: Batch }"));
    let no = |change: &dyn Fn(&mut Vec<Vec<u8>>), expected: &str| refused(&one(change), &[expected]);
    no(&|nodes| nodes[3] = integers("more", &[4, 1, 1]), "Mul by random numbers of [509, 4, 1, 1]");
    no(&|nodes| nodes[2] = floats("by", &[], &[0.5]), "not divided by the probability to be kept (node `b`)");
    no(&|nodes| nodes[1] = floats("limit", &[], &[0.0]), "Less of random numbers");
    no(&|nodes| nodes[1] = floats("limit", &[], &[1.5]), "Less of random numbers");
    no(&|nodes| nodes[2] = floats("by", &[], &[-0.75]), "Div of random numbers");
    // Kept where above it, which is another probability.
    no(&|nodes| nodes[8] = node("Less", &["limit", "drawn"], &["below"], &[]), "Less of random numbers");
    no(&|nodes| nodes[9] = node("Not", &["below"], &["kept"], &[]), "Not of random numbers");
    no(
        &|nodes| nodes[7] = node("RandomUniformLike", &["empty"], &["drawn"], &[float("high", 2.0)]),
        "from 0 to 2",
    );
    no(&|nodes| nodes[11] = node("Mul", &["x", "drawn"], &["b"], &[]), "that are not 0 or 1");
    no(&|nodes| nodes[11] = node("Add", &["x", "noise"], &["b"], &[]), "Add of random numbers");
    no(&|nodes| nodes[8] = node("Cast", &["drawn"], &["below"], &[int("to", 7)]), "Cast of random numbers");
    no(
        &|nodes| nodes[7] = node("RandomNormalLike", &["empty"], &["drawn"], &[]),
        "operator RandomNormalLike",
    );
}

/// Nine positions of eight channels with a token before them, a normalisation, and a product with what `pick` takes as `b`.
fn tokens(repeat: &[i64], dims: &[i64], pick: &[Vec<u8>]) -> Vec<u8> {
    let parts = [
        input("x", 1, &[-2, 3, 6, 6]),
        weight("c.weight", &[8, 3, 2, 2]),
        weight("token", dims),
        weight("s", &[8]),
        weight("f.weight", &[8, 5]),
        integers("flat", &[0, 8, 9]),
        integers("repeat", repeat),
        node("Conv", &["x", "c.weight"], &["c"], &[ints("strides", &[2, 2])]),
        node("Reshape", &["c", "flat"], &["r"], &[]),
        node("Transpose", &["r"], &["t"], &[ints("perm", &[0, 2, 1])]),
        node("Shape", &["x"], &["batch"], &[int("end", 1)]),
        node("Concat", &["batch", "repeat"], &["shape"], &[int("axis", 0)]),
        node("Expand", &["token", "shape"], &["e"], &[]),
        node("Concat", &["e", "t"], &["all"], &[int("axis", 1)]),
        node("LayerNormalization", &["all", "s", "s"], &["n"], &[]),
    ];
    let end = [node("MatMul", &["b", "f.weight"], &["y"], &[]), output("y")];
    file(&[&parts[..], pick, &end].concat())
}

#[test]
fn a_weight_before_the_positions_of_every_sample_is_a_class_token() {
    let first = || {
        [
            integers("0", &[0]),
            node("Gather", &["n", "0"], &["g"], &[int("axis", 1)]),
            node("Squeeze", &["g"], &["b"], &[ints("axes", &[1])]),
        ]
    };
    let conv = "Conv { out_channels: 8, window: Window { size: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, \
                1] }, groups: 1, bias: false } 3x3x8";
    let norm = "LayerNorm { epsilon: 1e-5 }";
    let head = "FullyConnected { outputs: 5, bias: false } 1x1x5";
    assert_eq!(
        layers(&tokens(&[1, 1], &[1, 1, 8], &first())),
        format!(
            "{conv}; Learned {{ rows: 1, channels: 8 }} 1x1x8; Flatten 9x1x8; Concat {{ along: Rows }} 10x1x8; {norm} 10x1x8; \
             Slice {{ along: Rows, first: 0, length: 1 }} 1x1x8; {head}"
        )
    );
    // Three rows.
    assert!(
        layers(&tokens(&[1, 1], &[1, 3, 8], &first()))
            .contains("Learned { rows: 3, channels: 8 } 3x1x8; Flatten 9x1x8; Concat { along: Rows } 12x1x8")
    );
    // One number for all channels, or one row for three positions, is no table of rows.
    let no = "Concat with a weight that is not one for all samples";
    refused(&tokens(&[1, 8], &[1, 1, 1], &first()), &[no, "node `all`"]);
    refused(&tokens(&[3, 1], &[1, 1, 8], &first()), &[no]);
    // The last of the positions, and several of them at once.
    let last = [
        integers("9", &[9]),
        node("Gather", &["n", "9"], &["g"], &[int("axis", 1)]),
        node("Squeeze", &["g"], &["b"], &[ints("axes", &[1])]),
    ];
    assert!(
        layers(&tokens(&[1, 1], &[1, 1, 8], &last)).contains("Slice { along: Rows, first: 9, length: 1 }")
    );
    let cut = |start: i64, end: i64| {
        let [starts, ends] = [integers("from", &[start]), integers("to", &[end])];
        [starts, ends, integers("one", &[1]), node("Slice", &["n", "from", "to", "one"], &["b"], &[])]
    };
    assert!(
        layers(&tokens(&[1, 1], &[1, 1, 8], &cut(1, 10)))
            .contains("Slice { along: Rows, first: 1, length: 9 } 9x1x8")
    );
}

#[test]
fn a_part_that_gates_itself_is_one_layer_and_channels_are_parts_too() {
    // Twice: the first half times the sigmoid of itself, times the other half.
    let nodes = [
        node("Split", &["x"], &["u", "v"], &[int("axis", 1)]),
        node("Sigmoid", &["u"], &["s"], &[]),
        node("Mul", &["u", "s"], &["g"], &[]),
        node("Mul", &["g", "v"], &["m"], &[]),
        node("Concat", &["m", "m"], &["b"], &[int("axis", 1)]),
    ];
    let found = layers(&images(&nodes));
    let expected = "Slice { along: Channels, first: 0, length: 2 } 9x9x2; Activation { function: Silu } 9x9x2; \
                    Slice { along: Channels, first: 2, length: 2 } 9x9x2; Multiply 9x9x2; Concat { along: Channels } 9x9x4";
    assert!(found.starts_with(expected), "{found}");
    // What is not in order is no part.
    let perm = [
        integers("pairs", &[0, 2, 2, 9, 9]),
        integers("back", &[0, 4, 9, 9]),
        node("Reshape", &["x", "pairs"], &["r"], &[]),
        node("Transpose", &["r"], &["t"], &[ints("perm", &[0, 2, 1, 3, 4])]),
        node("Reshape", &["t", "back"], &["q"], &[]),
        node("MaxPool", &["q"], &["b"], &[ints("kernel_shape", &[2, 2])]),
    ];
    refused(&images(&perm), &["MaxPool of what is not (batch, channels, rows, columns)", "node `b`"]);
}

#[test]
fn products_of_what_does_not_lie_alike_are_refused() {
    let mean = node("GlobalAveragePool", &["x"], &["m"], &[]);
    let turned = node("Transpose", &["x"], &["t"], &[ints("perm", &[0, 1, 3, 2])]);
    refused(
        &images(&[turned, node("Mul", &["x", "t"], &["b"], &[])]),
        &["Mul of [509, 4, 9, 9] and [509, 4, 9, 9]"],
    );
    // The mean of each channel, along rows.
    let four =
        [weight("w", &[9, 4, 1, 1]), node("Conv", &["m", "w"], &["n"], &[]), integers("s", &[0, 1, 9, 1])];
    let along = node("Reshape", &["n", "s"], &["r"], &[]);
    refused(
        &images(&[&[mean], &four[..], &[along, node("Mul", &["x", "r"], &["b"], &[])]].concat()),
        &["Mul of [509, 4, 9, 9] and [509, 1, 9, 1], which do not lie alike", "node `b`"],
    );
}

#[test]
fn a_normalisation_that_was_folded_away_is_missed_aloud() {
    let notes = |name: &str| read_bytes(&export(name)).expect("it is sound").notes;
    for kept in [
        "resnet18.script.train",
        "resnet18.dynamo.train",
        "mobilenet_v2.dynamo.train",
        "vit_b_16.dynamo.train",
        "convnext_tiny.dynamo.train",
        "efficientnet_b0.dynamo.train",
    ] {
        assert_eq!(notes(kept), [""; 0], "{kept}");
    }
    for (folded, convolutions) in
        [("resnet18.dynamo.eval", "9"), ("resnet50.dynamo.eval", "33"), ("mobilenet_v2.script.eval", "35")]
    {
        let said = notes(folded);
        let said = said.iter().find(|note| note.contains("feed an activation without a normalisation"));
        let said = said.unwrap_or_else(|| panic!("{folded}: {:?}", notes(folded)));
        assert!(said.starts_with(&format!("{convolutions} convolution")), "{folded}: {said}");
        assert!(
            said.contains("torch.onnx.export(model.train(), args, path, dynamo=True, optimize=False)"),
            "{said}"
        );
    }
}

/// Positions of six channels over the root of their mean square, times `scale`, and a product at each position; `change` gets
/// the nodes first.
fn rooted(change: &dyn Fn(&mut Vec<Vec<u8>>)) -> Vec<u8> {
    let mut nodes = vec![
        node("Pow", &["x", "two"], &["squares"], &[]),
        node("ReduceMean", &["squares", "last"], &["mean"], &[int("keepdims", 1)]),
        node("Add", &["mean", "epsilon"], &["more"], &[]),
        node("Sqrt", &["more"], &["root"], &[]),
        node("Reciprocal", &["root"], &["inverse"], &[]),
        node("Mul", &["x", "inverse"], &["unit"], &[]),
        node("Mul", &["unit", "n.weight"], &["b"], &[]),
    ];
    change(&mut nodes);
    let parts = [
        input("x", 1, &[2, 8, 6]),
        floats("two", &[], &[2.0]),
        floats("three", &[], &[3.0]),
        integers("last", &[-1]),
        integers("rows", &[1]),
        floats("epsilon", &[], &[1e-5]),
        weight("n.weight", &[6]),
        weight("f.weight", &[6, 5]),
    ];
    let end = [node("MatMul", &["b", "f.weight"], &["y"], &[]), output("y")];
    file(&[&parts[..], &nodes, &end].concat())
}

#[test]
fn what_is_divided_by_the_root_of_its_mean_square_is_a_normalisation() {
    let norm = "RmsNorm { epsilon: 1e-5 } 8x1x6; Conv";
    assert!(layers(&rooted(&|_| ())).starts_with(norm), "{}", layers(&rooted(&|_| ())));
    let turned = rooted(&|nodes| {
        nodes[5] = node("Mul", &["inverse", "x"], &["unit"], &[]);
        nodes[6] = node("Mul", &["n.weight", "unit"], &["b"], &[]);
    });
    assert!(layers(&turned).starts_with(norm));
    let whole = |more: &[Vec<u8>]| {
        let nodes = [node("RMSNormalization", &["x", "n.weight"], &["b"], more)];
        rooted(&|all| *all = nodes.to_vec())
    };
    assert!(layers(&whole(&[])).starts_with(norm));
    refused(&whole(&[int("axis", 1)]), &["RMSNormalization over something else than channels"]);
    let no = |change: &dyn Fn(&mut Vec<Vec<u8>>), expected: &[&str]| refused(&rooted(change), expected);
    no(
        &|nodes| nodes[0] = node("Pow", &["x", "three"], &["squares"], &[]),
        &["Pow with another power than 2"],
    );
    no(
        &|nodes| nodes[1] = node("ReduceMean", &["squares", "rows"], &["mean"], &[]),
        &["ReduceMean of squares"],
    );
    no(
        &|nodes| nodes[2] = node("Mul", &["mean", "epsilon"], &["more"], &[]),
        &["Mul of the number", "node `more`"],
    );
    no(
        &|nodes| nodes[2] = node("Identity", &["mean"], &["more"], &[]),
        &["Sqrt of what depends on the input"],
    );
    no(
        &|nodes| nodes[3] = node("Identity", &["more"], &["root"], &[]),
        &["Reciprocal of what depends on the input"],
    );
    no(
        &|nodes| nodes[4] = node("Identity", &["root"], &["inverse"], &[]),
        &["Mul by a mean square", "node `unit`"],
    );
    no(
        &|nodes| nodes[6] = node("Add", &["unit", "n.weight"], &["b"], &[]),
        &["Add of squares that are no normalisation"],
    );
    no(
        &|nodes| nodes[6] = node("Identity", &["unit"], &["b"], &[]),
        &["MatMul of squares that are no normalisation"],
    );
    // The root of another value.
    let other = |nodes: &mut Vec<Vec<u8>>| {
        nodes.insert(5, node("Relu", &["x"], &["z"], &[]));
        nodes[6] = node("Mul", &["z", "inverse"], &["unit"], &[]);
    };
    no(&other, &["Mul by a mean square", "or of something else"]);
}
