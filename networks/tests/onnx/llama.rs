//! Rotary embeddings, and keys and values that heads share: read from Hugging Face's Llama as both ways of its attention are
//! exported, and refused with their node where one thing is different from what the layers compute.

use crate::onnx::judge::{judge_bytes, read_bytes};
use crate::onnx::writer::{file, floats, input, int, integers, ints, node, output, weight};
use crate::onnx::{export, network};
use plimsoll_ir::Document;
use plimsoll_ir::network::LayerKind;
use plimsoll_networks::{LowerOptions, lower};

/// A type of ONNX.
const FLOAT: i64 = 1;

const LENGTH: usize = 8;

/// What a graph may have another way.
#[derive(Clone, Copy)]
struct Graph {
    /// The angle of a pair at a position.
    angle: fn(usize, usize) -> f64,
    /// Whether the first half of a head is negated in place of the second.
    first_negated: bool,
    /// The dimension in which heads of keys and values are repeated: after them is 2, before them 1.
    repeated: i64,
    /// Whether one product makes queries, keys and values.
    joint: bool,
    /// The operator between the halves of the sum.
    sum: &'static str,
}

const PLAIN: Graph = Graph {
    angle: |position, pair| position as f64 * 100f64.powf(-(pair as f64) / 2.0),
    first_negated: false,
    repeated: 2,
    joint: false,
    sum: "Add",
};

/// Attention over eight positions, of four heads of four channels that share two of keys and values.
fn graph(g: Graph) -> Vec<u8> {
    let table = |of: fn(f64) -> f64| -> Vec<f32> {
        let places = (0..LENGTH).flat_map(|position| (0..4).map(move |channel| (position, channel % 2)));
        places.map(|(position, pair)| of((g.angle)(position, pair)) as f32).collect()
    };
    let mut parts = vec![
        input("x", FLOAT, &[2, 8, 12]),
        floats("cos", &[8, 4], &table(f64::cos)),
        floats("sin", &[8, 4], &table(f64::sin)),
        integers("zero", &[0]),
        integers("two", &[2]),
        integers("end", &[4]),
        integers("last", &[3]),
        integers("where", &[g.repeated]),
        integers("repeated", &[2, 2, 2, 8, 4]),
        integers("together", &[2, 4, 8, 4]),
        integers("back", &[2, 8, 16]),
        floats("scale", &[], &[0.5]),
        weight("f.weight", &[16, 5]),
    ];
    if g.joint {
        parts.push(weight("qkv.weight", &[12, 32]));
        parts.push(integers("widths", &[16, 8, 8]));
        parts.push(node("MatMul", &["x", "qkv.weight"], &["qkv"], &[]));
        parts.push(node("Split", &["qkv", "widths"], &["q.all", "k.all", "v.all"], &[int("axis", 2)]));
    }
    for (part, heads) in [("q", 4), ("k", 2), ("v", 2)] {
        let name = |what: &str| format!("{part}.{what}");
        parts.push(integers(&name("apart"), &[2, 8, heads, 4]));
        if !g.joint {
            parts.push(weight(&name("weight"), &[12, 4 * heads]));
            parts.push(node("MatMul", &["x", &name("weight")], &[&name("all")], &[]));
        }
        parts.push(node("Reshape", &[&name("all"), &name("apart")], &[&name("rows")], &[]));
        let heads = if part == "v" { "v.turned".to_owned() } else { name("heads") };
        parts.push(node("Transpose", &[&name("rows")], &[&heads], &[ints("perm", &[0, 2, 1, 3])]));
        if part != "v" {
            parts.push(node("Slice", &[&heads, "zero", "two", "last"], &[&name("first")], &[]));
            parts.push(node("Slice", &[&heads, "two", "end", "last"], &[&name("second")], &[]));
            let [negated, other] = if g.first_negated { ["first", "second"] } else { ["second", "first"] };
            parts.push(node("Neg", &[&name(negated)], &[&name("neg")], &[]));
            parts.push(node(
                "Concat",
                &[&name("neg"), &name(other)],
                &[&name("swapped")],
                &[int("axis", -1)],
            ));
            parts.push(node("Mul", &[&heads, "cos"], &[&name("cosines")], &[]));
            parts.push(node("Mul", &[&name("swapped"), "sin"], &[&name("sines")], &[]));
            parts.push(node(g.sum, &[&name("sines"), &name("cosines")], &[&name("turned")], &[]));
        }
        if part != "q" {
            parts.push(node("Unsqueeze", &[&name("turned"), "where"], &[&name("one")], &[]));
            parts.push(node("Expand", &[&name("one"), "repeated"], &[&name("each")], &[]));
            parts.push(node("Reshape", &[&name("each"), "together"], &[&name("shared")], &[]));
        }
    }
    parts.extend([
        node("Transpose", &["k.shared"], &["kt"], &[ints("perm", &[0, 1, 3, 2])]),
        node("MatMul", &["q.turned", "kt"], &["products"], &[]),
        node("Mul", &["products", "scale"], &["scores"], &[]),
        node("Softmax", &["scores"], &["shares"], &[int("axis", -1)]),
        node("MatMul", &["shares", "v.shared"], &["mixed"], &[]),
        node("Transpose", &["mixed"], &["rows"], &[ints("perm", &[0, 2, 1, 3])]),
        node("Reshape", &["rows", "back"], &["o"], &[]),
        node("MatMul", &["o", "f.weight"], &["y"], &[]),
        output("y"),
    ]);
    file(&parts)
}

/// The layers that a Llama has and other transformers do not.
fn told(file: &[u8]) -> Vec<String> {
    let network = read_bytes(file).unwrap_or_else(|error| panic!("{error}")).network;
    let layers = network.layers.iter().filter_map(|layer| match layer.kind {
        LayerKind::Rotary { width, base } => {
            Some(format!("rotary {width} {base} of {}", layer.output.channels))
        }
        LayerKind::Attention { heads, kv_heads, causal } => {
            Some(format!("attention {heads} {kv_heads} {causal}"))
        }
        _ => None,
    });
    layers.collect()
}

#[test]
fn heads_that_share_keys_and_are_turned_are_read() {
    let expected = |base: &str| {
        vec![format!("rotary 4 {base} of 16"), format!("rotary 4 {base} of 8"), "attention 4 2 false".into()]
    };
    assert!(judge_bytes(&graph(PLAIN)));
    assert_eq!(told(&graph(PLAIN)), expected("100"));
    let angle = |position, pair| position as f64 * 5e5f64.powf(-(pair as f64) / 2.0);
    assert_eq!(told(&graph(Graph { angle, ..PLAIN })), expected("500000"));
    // Parts of one product: the one that is not turned becomes a layer of its own, too.
    let joint = graph(Graph { joint: true, ..PLAIN });
    assert_eq!(told(&joint), expected("100"));
    let network = read_bytes(&joint).expect("it is read").network;
    let kinds: Vec<&str> = network.layers.iter().map(|layer| layer.kind.name()).collect();
    let expected = "input, conv, slice, rotary, slice, rotary, slice, concat, attention, conv, loss";
    assert_eq!(kinds.join(", "), expected);
}

#[test]
fn what_is_turned_or_shared_another_way_is_refused() {
    let check = |g: Graph, words: &[&str]| {
        assert!(!judge_bytes(&graph(g)), "{words:?}");
        let text = read_bytes(&graph(g)).expect_err("it is another network").to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "`{word}` is not in: {text}"));
    };
    let angles = ["rotary embeddings of other angles", "node `q.turned`"];
    // Twice as slow, as for texts of twice the length; the other way round; and one position late.
    check(Graph { angle: |position, pair| (PLAIN.angle)(position, pair) / 2.0, ..PLAIN }, &angles);
    check(Graph { angle: |position, pair| -(PLAIN.angle)(position, pair), ..PLAIN }, &angles);
    check(Graph { angle: |position, pair| (PLAIN.angle)(position + 1, pair), ..PLAIN }, &angles);
    // One number of the table that is off.
    let one =
        |position, pair| (PLAIN.angle)(position, pair) + if (position, pair) == (7, 0) { 1e-3 } else { 0.0 };
    check(Graph { angle: one, ..PLAIN }, &angles);
    check(Graph { first_negated: true, ..PLAIN }, &["Concat", "node `q.swapped`"]);
    check(Graph { sum: "Mul", ..PLAIN }, &["Mul of two values", "node `q.turned`"]);
    // Head 0 of the queries would meet head 0 of the keys, and head 1 head 1.
    check(
        Graph { repeated: 1, ..PLAIN },
        &["MatMul of two values, which is no attention", "node `products`"],
    );
}

#[test]
fn llama_is_read_as_hugging_face_exports_it() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let row = page.lines().find(|line| line.starts_with("| read |")).expect("it has a table of what is read");
    assert!(row.contains("`LlamaForCausalLM`"), "docs/command-line.md does not say that Llama is read");
    for (file, parameters, kv_heads) in [
        ("llama.dynamo.train", 27_360, 2),
        ("llama.dynamo.eval", 27_360, 2),
        ("llama-eager.dynamo.train", 27_360, 2),
        ("llama-shared.dynamo.train", 24_256, 1),
    ] {
        assert!(judge_bytes(&export(file)), "{file}");
        let network = network(file);
        assert_eq!(network.all_parameters(), parameters, "{file}");
        let names: Vec<&str> = network.layers.iter().map(|layer| layer.kind.name()).collect();
        let block = "rmsnorm, conv, conv, conv, rotary, rotary, concat, attention, conv, add, rmsnorm, conv, silu, conv, \
                     multiply, conv, add";
        assert_eq!(
            names.join(", "),
            format!("input, embedding, {block}, {block}, rmsnorm, conv, loss"),
            "{file}"
        );
        let heads = [
            "rotary 8 10000 of 32".to_owned(),
            format!("rotary 8 10000 of {}", 8 * kv_heads),
            format!("attention 4 {kv_heads} true"),
        ];
        assert_eq!(told(&export(file)), [&heads[..], &heads[..]].concat(), "{file}");
        let trace = lower(&network, 2, &LowerOptions::default()).expect("it can be lowered").trace;
        assert_eq!(trace.validate(), Ok(()), "{file}");
    }
}
