//! The way back of weights: a network's tensors under the names of its file's initialisers, in their shapes, with their bits.

use crate::onnx::writer::{file, floats, int, integers, node, small};
use crate::onnx::{export, weights::source};
use plimsoll_networks::onnx::{External, Written, read, weights, written};
use plimsoll_networks::{FileTensor, file_tensors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn no_other(_: &External) -> Result<Vec<u8>, String> {
    Err("there is no other file".to_owned())
}

/// How a file's weights are written, from what a study keeps of it: its architecture.
fn of_file(file: &[u8]) -> Written {
    let read = read(source(file, &no_other)).unwrap_or_else(|error| panic!("{error}"));
    let kept = source(&read.architecture, &no_other);
    written(kept, &read.network).expect("it is sound").expect("it is of this network")
}

/// The tensors that a file's own weights are written as, by name: shape and numbers.
fn round(parts: &[Vec<u8>]) -> BTreeMap<String, (Vec<u64>, Vec<f32>)> {
    let bytes = file(parts);
    let network = read(source(&bytes, &no_other)).expect("it is sound").network;
    let layers =
        weights(source(&bytes, &no_other), &network).expect("it has weights").expect("of this network");
    let bytes_of = |numbers: &[f32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let layers: BTreeMap<String, Vec<u8>> =
        layers.iter().map(|(name, numbers)| (name.clone(), bytes_of(numbers))).collect();
    let mut back: BTreeMap<String, Vec<u8>> =
        layers.iter().map(|(name, bytes)| (name.clone(), vec![0; bytes.len()])).collect();
    let mut found = BTreeMap::new();
    for tensor in of_file(&file(parts)).tensors {
        let mut all = vec![0; 4 * tensor.elements() as usize];
        tensor.parts.iter().for_each(|part| part.to_file(&layers[&part.of.name], &mut all));
        for part in &tensor.parts {
            part.to_device(&all, back.get_mut(&part.of.name).expect("it has weights"));
        }
        let numbers = all.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        found.insert(tensor.name, (tensor.shape, numbers));
    }
    assert_eq!(back, layers, "what was written is read back");
    found
}

fn numbers(count: i64, first: f32) -> Vec<f32> {
    (0..count).map(|at| first + at as f32).collect()
}

fn check(parts: &[Vec<u8>], expected: &[(&str, &[u64], f32)]) {
    let found = round(parts);
    let expected = expected.iter().map(|(name, shape, first)| {
        let count = shape.iter().product::<u64>() as i64;
        ((*name).to_owned(), (shape.to_vec(), numbers(count, *first)))
    });
    assert_eq!(found, expected.collect());
}

#[test]
fn untouched_weights_have_the_bits_and_shapes_of_the_file() {
    let mut parts = small();
    parts[1] = floats("c.weight", &[4, 3, 3, 3], &numbers(108, 1.0));
    parts[2] = floats("onnx::MatMul_7", &[4, 5], &numbers(20, 200.0));
    parts[6] = node("MatMul", &["c", "onnx::MatMul_7"], &["m"], &[]);
    parts.insert(7, node("Add", &["b5", "m"], &["y"], &[]));
    parts.push(floats("b5", &[5], &numbers(5, 300.0)));
    let expected: [(&str, &[u64], f32); 3] =
        [("c.weight", &[4, 3, 3, 3], 1.0), ("onnx::MatMul_7", &[4, 5], 200.0), ("b5", &[5], 300.0)];
    check(&parts, &expected);
}

/// The small network, with these nodes and tensors in place of its product with `f.weight`.
fn with(more: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parts = small();
    parts[1] = floats("c.weight", &[4, 3, 3, 3], &numbers(108, 0.0));
    parts.splice(6..7, more.iter().cloned());
    parts.remove(2);
    parts
}

#[test]
fn parts_of_one_tensor_are_put_together_again() {
    let slice = |from: i64, name: &str| {
        let ends = [[from], [from + 4]].map(|at| integers(&format!("{name}.{}", at[0]), &at));
        let bounds = [from, from + 4].map(|at| format!("{name}.{at}"));
        let inputs = ["w", bounds[0].as_str(), bounds[1].as_str(), "axis"];
        vec![ends.concat(), node("Slice", &inputs, &[name], &[])]
    };
    let products = [
        vec![floats("w", &[4, 8], &numbers(32, 5.0)), integers("axis", &[1])],
        slice(0, "left"),
        slice(4, "right"),
        vec![
            node("MatMul", &["c", "left"], &["h"], &[]),
            node("Relu", &["h"], &["r"], &[]),
            node("MatMul", &["r", "right"], &["y"], &[]),
        ],
    ];
    check(&with(&products.concat()), &[("c.weight", &[4, 3, 3, 3], 0.0), ("w", &[4, 8], 5.0)]);
    // Not at even distances: two tensors that are one weight, side by side in the network.
    let halves = [
        floats("upper", &[2, 5], &numbers(10, 7.0)),
        floats("lower", &[2, 5], &numbers(10, 90.0)),
        node("Concat", &["upper", "lower"], &["both"], &[int("axis", 0)]),
        node("MatMul", &["c", "both"], &["y"], &[]),
    ];
    let expected: [(&str, &[u64], f32); 3] =
        [("c.weight", &[4, 3, 3, 3], 0.0), ("upper", &[2, 5], 7.0), ("lower", &[2, 5], 90.0)];
    check(&with(&halves), &expected);
}

#[test]
fn what_is_no_initialiser_has_its_layers_name_and_a_note() {
    let check = |more: &[Vec<u8>], names: &[&str], notes: &[&str]| {
        let written = of_file(&file(&with(more)));
        let found: BTreeSet<&str> = written.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let expected = names.iter().copied().chain(["c.weight"]).collect();
        assert_eq!((found, written.tensors.len()), (expected, names.len() + 1));
        assert_eq!(written.notes.len(), notes.len(), "{:?}", written.notes);
        for (note, part) in written.notes.iter().zip(notes) {
            assert!(note.contains(part), "`{part}` is not in: {note}");
        }
    };
    let norm = |shift: &[&str], input: &str, output: &str| {
        let inputs = [&[input, "n.weight"], shift].concat();
        node("LayerNormalization", &inputs, &[output], &[])
    };
    let scale = floats("n.weight", &[4], &[1.5; 4]);
    let product = |input: &str| node("MatMul", &[input, "f.weight"], &["y"], &[]);
    let weight = floats("f.weight", &[4, 5], &numbers(20, 1.0));
    check(
        &[scale.clone(), weight.clone(), norm(&[], "c", "n"), product("n")],
        &["n.weight", "n.bias", "f.weight"],
        &[
            "these tensors have the names and shapes of Plimsoll's layers, since the ONNX file does not have them: n.bias",
        ],
    );
    // One scale of two layers, which have learned two.
    check(
        &[scale.clone(), weight.clone(), norm(&[], "c", "n"), norm(&[], "n", "m"), product("m")],
        &["n.weight", "n.bias", "n_2.weight", "n_2.bias", "f.weight"],
        &["does not have them: n.bias, n_2.bias", "were trained apart: n.weight, n_2.weight"],
    );
    let half = floats("half", &[], &[0.5]);
    check(
        &[
            weight.clone(),
            half,
            node("Mul", &["f.weight", "half"], &["w"], &[]),
            node("MatMul", &["c", "w"], &["y"], &[]),
        ],
        &["MatMul.weight"],
        &["the ONNX file computes them from its initialisers: MatMul.weight"],
    );
    let bounds = [integers("from", &[0]), integers("to", &[5]), integers("axis", &[1])].concat();
    let wide = floats("wide", &[4, 7], &numbers(28, 1.0));
    let part = node("Slice", &["wide", "from", "to", "axis"], &["w"], &[]);
    check(
        &[wide, bounds, part, node("MatMul", &["c", "w"], &["y"], &[])],
        &["MatMul.weight"],
        &["a part of an initialiser, and the network does not have the rest: MatMul.weight"],
    );
    // The bias of the product has the name that the shift of the normalisation gets.
    let bias = floats("n.bias", &[5], &[0.5; 5]);
    let product = node("Gemm", &["n", "f.weight", "n.bias"], &["y"], &[]);
    check(
        &[scale, weight, bias, norm(&[], "c", "n"), product],
        &["n.weight", "n.bias", "f.weight", "f.bias"],
        &["does not have them: n.bias", "under the name of their initialiser: f.bias"],
    );
}

#[test]
fn exports_have_the_names_and_shapes_of_pytorchs_state_dict() {
    let found = |name: &str| -> BTreeMap<String, Vec<u64>> {
        let Written { tensors, notes } = of_file(&export(name));
        assert_eq!(notes, [""; 0], "{name}");
        tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
    };
    let mut expected = BTreeMap::new();
    let mut add = |name: &str, shape: &[u64]| drop(expected.insert(name.to_owned(), shape.to_vec()));
    // torchvision.models.vit_b_16, whose positions and class token lead with a dimension of 1.
    add("class_token", &[1, 1, 768]);
    add("conv_proj.weight", &[768, 3, 16, 16]);
    add("conv_proj.bias", &[768]);
    add("encoder.pos_embedding", &[1, 197, 768]);
    for i in 0..12 {
        let mut add =
            |name: &str, shape: &[u64]| add(&format!("encoder.layers.encoder_layer_{i}.{name}"), shape);
        add("self_attention.in_proj_weight", &[2304, 768]);
        add("self_attention.in_proj_bias", &[2304]);
        let linear =
            [("self_attention.out_proj", [768, 768]), ("mlp.0", [3072, 768]), ("mlp.3", [768, 3072])];
        for (name, shape) in linear {
            add(&format!("{name}.weight"), &shape);
            add(&format!("{name}.bias"), &shape[..1]);
        }
        for name in ["ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"] {
            add(name, &[768]);
        }
    }
    add("encoder.ln.weight", &[768]);
    add("encoder.ln.bias", &[768]);
    add("heads.head.weight", &[1000, 768]);
    add("heads.head.bias", &[1000]);
    assert_eq!(found("vit_b_16.dynamo.train"), expected);
    let resnet = found("resnet18.dynamo.train");
    // 62 parameters, and a mean and a variance of each of 20 normalisations.
    assert_eq!(resnet.len(), 102);
    assert_eq!(resnet["layer2.0.downsample.0.weight"], [128, 64, 1, 1]);
    assert_eq!(resnet["bn1.running_var"], [64]);
}

#[test]
fn every_tensor_of_every_export_is_in_the_file_and_written_once() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/files");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let Ok(found) = read(source(&bytes, &no_other)) else { continue };
        let Written { tensors, notes } = of_file(&bytes);
        let names: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!((names.len(), &notes[..]), (tensors.len(), &[][..]), "{}", path.display());
        let numbers: u64 = tensors.iter().map(FileTensor::elements).sum();
        let layers: u64 = file_tensors(&found.network).iter().map(FileTensor::elements).sum();
        assert_eq!(numbers, layers, "{}", path.display());
        count += 1;
    }
    assert!(count > 40, "{count} exports were read");
}
