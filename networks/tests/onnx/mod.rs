//! ONNX files: what PyTorch's exporters write is read as the networks that they are, and whatever else is given is refused
//! in words.
//!
//! `files/` holds exports without weights, which `files/export.py` makes, and small files that once made the import panic:
//! the fuzzer begins with all of them.

mod hostile;
mod judge;
mod llama;
mod meaning;
mod patterns;

mod torchvision;
mod vision;
mod weights;
mod writer;
mod written;

use self::judge::{judge_bytes, read_bytes};
use plimsoll_ir::network::{LayerKind, Network};
use plimsoll_networks::{LowerOptions, build, lower, usual};
use std::path::Path;

/// An export by its name.
fn export(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/files").join(format!("{name}.onnx"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn network(name: &str) -> Network {
    read_bytes(&export(name)).unwrap_or_else(|error| panic!("{name}: {error}")).network
}

#[test]
fn what_pytorch_exports_has_the_parameters_that_it_counts() {
    // The counts of torchvision's documentation; where batch normalisation is folded into the convolution before it, this has
    // one bias a channel in place of a scale and a shift.
    let check = |file: &str, layers: usize, parameters: u64| {
        assert!(judge_bytes(&export(file)), "{file}");
        let network = network(file);
        assert_eq!((network.layers.len(), network.all_parameters()), (layers, parameters), "{file}");
    };
    check("resnet18.script.train", 70, 11_689_512);
    check("resnet18.dynamo.train", 70, 11_689_512);
    check("resnet18.script.eval", 50, 11_689_512 - 4_800);
    check("resnet18.dynamo.eval", 50, 11_689_512 - 4_800);
    check("resnet50.script.train", 176, 25_557_032);
    check("resnet50.dynamo.eval", 123, 25_557_032 - 26_560);
    check("vgg16.script.train", 40, 138_357_544);
    check("vgg16.dynamo.eval", 38, 138_357_544);
    check("densenet121.script.train", 428, 7_978_856);
    check("densenet121.dynamo.eval", 369, 7_978_856 - 7_488);
    check("mobilenet_v2.script.train", 154, 3_504_872);
    check("mobilenet_v2.dynamo.train", 154, 3_504_872);
    check("mobilenet_v2.script.eval", 101, 3_504_872 - 17_056);
    check("mobilenet_v2.dynamo.eval", 101, 3_504_872 - 17_056);
    check("googlenet.script.train", 198, 6_624_904);
    check("googlenet.dynamo.eval", 140, 6_624_904 - 7_280);
    check("inception_v3.script.train", 311, 23_834_568);
    check("inception_v3.dynamo.eval", 220, 23_834_568 - 17_216);
    // PyTorch counts 28,064 for the first: its table of tokens is the weight of its head, too. Constants that are folded tear
    // them apart.
    check("gpt.script.train", 26, 28_064);
    check("gpt.script.eval", 26, 30_144);
    check("gpt.dynamo.train", 26, 30_144);
    check("gpt.dynamo.eval", 26, 30_144);
    check("gpt-manual.script.train", 26, 30_144);
    check("gpt-manual.dynamo.eval", 26, 30_144);
    check("separate.script.train", 36, 30_144);
    check("separate.dynamo.eval", 32, 30_144);
    check("encoder.script.train", 26, 30_209);
    check("encoder.script.eval", 26, 30_209);
    check("encoder.dynamo.train", 26, 30_209);
    check("encoder.dynamo.eval", 26, 30_209);
}

#[test]
fn an_export_is_lowered_to_the_iteration_of_the_zoos_network() {
    let check = |file: &str, name: &str| {
        let zoo = build(&usual(name).expect("a name of the zoo")).expect("it can be built");
        let (ours, theirs) = (zoo, network(file));
        assert_eq!(ours.all_forward_flops(), theirs.all_forward_flops(), "{file}");
        // Branches that know nothing of each other stand in whatever order they were written, and a dense block can be joined
        // at once or piece by piece.
        let in_order = name.starts_with("resnet") || name.starts_with("vgg");
        let dense = name.starts_with("densenet");
        let [ours, theirs] = [ours, theirs].map(|network| {
            let trace = lower(&network, 8, &LowerOptions::default()).expect("it can be lowered").trace;
            let ops =
                trace.ops.iter().filter(|op| !dense || !["concat", "gradient"].contains(&op.kind.as_str()));
            let mut ops: Vec<String> = ops
                .map(|op| format!("{:?} {} {} {:?}", op.phase, op.kind, op.flops, op.workspace_bytes))
                .collect();
            if in_order {
                ops.push(format!("{:?}", trace.memory().peak().map(|(_, bytes)| bytes)));
            } else {
                ops.sort();
            }
            ops.push(format!("{:?}", trace.resident_bytes));
            ops
        });
        assert_eq!(ours.len(), theirs.len(), "{file}: ops");
        let differ = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        assert_eq!(differ, None, "{file}");
    };
    check("resnet18.script.train", "resnet18");
    check("resnet18.dynamo.train", "resnet18");
    check("resnet50.script.train", "resnet50");
    check("vgg16.script.train", "vgg16");
    check("densenet121.script.train", "densenet121");
    check("mobilenet_v2.script.train", "mobilenet_v2");
    check("googlenet.script.train", "googlenet");
    check("inception_v3.script.train", "inception_v3");
}

#[test]
fn transformers_are_read_as_embeddings_attention_and_products_by_position() {
    let check = |file: &str, expected: &str| {
        let network = network(file);
        assert!(network.takes_tokens() && network.labels() == 16, "{file}");
        let kinds: Vec<String> = (network.layers.iter())
            .map(|layer| match &layer.kind {
                LayerKind::Attention { heads, causal, .. } => format!("attention {heads} {causal}"),
                LayerKind::Bias { over, .. } => format!("bias {over:?}"),
                kind => kind.name().to_owned(),
            })
            .collect();
        assert_eq!(kinds.join(", "), expected, "{file}");
    };
    let block = |causal: bool| {
        format!("layernorm, conv, attention 4 {causal}, conv, add, layernorm, conv, gelu, conv, add")
    };
    let whole = |causal: bool| {
        let block = block(causal);
        format!("input, embedding, bias Positions, {block}, {block}, layernorm, conv, loss")
    };
    for way in ["script.train", "script.eval", "dynamo.train", "dynamo.eval"] {
        check(&format!("gpt.{way}"), &whole(true));
        check(&format!("encoder.{way}"), &whole(false));
    }
    check("gpt-manual.script.train", &whole(true));
    check("gpt-manual.dynamo.eval", &whole(true));
    // Three products side by side; with dropout where ours can have it.
    let separate = |drop: &str| {
        let block = format!(
            "layernorm, conv, conv, conv, concat, attention 4 false, conv{drop}, add, layernorm, conv, gelu, conv{drop}, add"
        );
        format!("input, embedding, bias Positions, {block}, {block}, layernorm, conv, loss")
    };
    check("separate.script.train", &separate(", dropout"));
    check("separate.dynamo.eval", &separate(""));
    let notes = read_bytes(&export("separate.script.train")).expect("it is sound").notes;
    assert_eq!(notes, ["the dropout within attention is left out: no layer of Plimsoll's has it"]);
}

#[test]
fn layers_are_called_as_their_weights_and_modules_are() {
    let check = |file: &str, expected: &[&str]| {
        let network = network(file);
        let names: Vec<&str> = network.layers.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names[..expected.len()], *expected, "{file}");
    };
    let stem =
        ["images", "conv1", "bn1", "relu", "maxpool", "layer1.0.conv1", "layer1.0.bn1", "layer1.0.relu"];
    check(
        "resnet18.script.train",
        &[&stem[..], &["layer1.0.conv2", "layer1.0.bn2", "layer1.0.add"]].concat(),
    );
    check("resnet18.script.eval", &["images", "conv1", "relu", "maxpool", "layer1.0.conv1", "layer1.0.relu"]);
    check(
        "encoder.script.train",
        &["images", "embed", "positions", "encoder.layers.0.norm1", "encoder.layers.0.self_attn.in_proj"],
    );
}

#[test]
fn an_architecture_has_one_name_whatever_the_weights_and_notes() {
    let with_weights = |zero: u8| {
        let mut parts = writer::small();
        let data = writer::bytes(9, &[zero; 4 * 4 * 27]);
        parts[1] = writer::tensor("c.weight", &[4, 3, 3, 3], 1, &data);
        writer::file(&[parts, vec![writer::text(10, "a note")]].concat())
    };
    let [plain, zeros, ones] = [writer::file(&writer::small()), with_weights(0), with_weights(1)]
        .map(|file| read_bytes(&file).expect("it is sound"));
    assert_eq!(plain, zeros);
    assert_eq!(plain, ones);
    let mut other = writer::small();
    other[1] = writer::weight("c.weight", &[4, 3, 1, 1]);
    other[3] = writer::node("Conv", &["x", "c.weight"], &["a"], &[]);
    let other = read_bytes(&writer::file(&other)).expect("it is sound");
    assert_ne!(plain.network.spec, other.network.spec);
    assert_eq!(plain.network.spec.name.split('-').next(), Some("net.onnx"));
}
