//! The weights of files: in the order in which layers have them, with the bits of the file, or refused in words.

use crate::onnx::writer::{
    bytes, file, floats, input, int, ints, node, number, output, small, tensor, text, weight,
};
use plimsoll_ir::network::Network;
use plimsoll_networks::onnx::{External, OnnxError, OnnxSource, read, weights};
use std::collections::BTreeMap;

pub fn source<'a>(file: &[u8], external: &'a dyn Fn(&External) -> Result<Vec<u8>, String>) -> OnnxSource<'a> {
    OnnxSource { file: file.to_vec(), name: "net", image: None, external }
}

fn network(parts: &[Vec<u8>]) -> Network {
    read(source(&file(parts), &|_| Err("there is no other file".to_owned()))).expect("it is sound").network
}

fn found(parts: &[Vec<u8>]) -> Result<BTreeMap<String, Vec<f32>>, OnnxError> {
    let external = |wanted: &External| match wanted.location.as_str() {
        "there.bin" => Ok((0..wanted.length / 4).flat_map(|i| (i as f32).to_le_bytes()).collect()),
        _ => Err("No such file".to_owned()),
    };
    let all = weights(source(&file(parts), &external), &network(parts))?;
    Ok(all.expect("of this network"))
}

fn counted(count: usize) -> Vec<f32> {
    (0..count).map(|at| at as f32).collect()
}

/// The small network with the weight of its convolution and of its product.
fn with(conv: Vec<u8>, product: Vec<u8>) -> Vec<Vec<u8>> {
    let mut parts = small();
    (parts[1], parts[2]) = (conv, product);
    parts
}

fn conv() -> Vec<u8> {
    floats("c.weight", &[4, 3, 3, 3], &counted(108))
}

fn product() -> Vec<u8> {
    floats("f.weight", &[5, 4], &counted(20))
}

/// Data that lie in this file.
fn beside(location: &str) -> Vec<u8> {
    [bytes(13, &[text(1, "location"), text(2, location)].concat()), number(14, 1)].concat()
}

#[test]
fn windows_have_their_channels_inside_and_products_their_inputs() {
    let all = found(&with(conv(), product())).expect("it has weights");
    // Output, row, column, channel; the file has the channel before the row.
    assert_eq!(all["c.weight"][..4], [0.0, 9.0, 18.0, 1.0]);
    assert_eq!(all["c.weight"][27], 27.0);
    assert_eq!(all["f.weight"], counted(20));
    let mut parts = with(conv(), floats("f.weight", &[4, 5], &counted(20)));
    parts[6] = node("MatMul", &["c", "f.weight"], &["y"], &[]);
    let turned: Vec<f32> = (0..20).map(|at| (at % 4 * 5 + at / 4) as f32).collect();
    assert_eq!(found(&parts).expect("it has weights")["f.weight"], turned);
    // The same by a node, in front of the product.
    let mut parts = with(conv(), product());
    parts[6] = node("Transpose", &["f.weight"], &["t"], &[ints("perm", &[1, 0])]);
    parts.insert(7, node("MatMul", &["c", "t"], &["y"], &[]));
    assert_eq!(found(&parts).expect("it has weights")["f.weight"], counted(20));
}

#[test]
fn columns_behind_an_image_are_in_our_order() {
    let parts = vec![
        input("x", 1, &[-2, 2, 2, 3]),
        floats("f.weight", &[2, 12], &counted(24)),
        floats("f.bias", &[2], &[7.0, 8.0]),
        node("Relu", &["x"], &["r"], &[]),
        node("Flatten", &["r"], &["c"], &[]),
        node("Gemm", &["c", "f.weight", "f.bias"], &["y"], &[int("transB", 1)]),
        output("y"),
    ];
    let all = found(&parts).expect("it has weights");
    assert_eq!(all["f.bias"], [7.0, 8.0]);
    assert_eq!(all["f.weight"][..5], [0.0, 6.0, 1.0, 7.0, 2.0]);
    assert_eq!(all["f.weight"][12..14], [12.0, 18.0]);
}

#[test]
fn a_norm_without_a_shift_has_none_in_the_file() {
    let mut parts = with(conv(), product());
    let numbers = |name: &str, start: f32| floats(name, &[4], &[start, 1.5, 2.5, -0.0]);
    parts.extend([numbers("n.weight", 1.0), numbers("n.mean", 2.0), numbers("n.var", 3.0)]);
    parts.extend([floats("n.bias", &[4], &[0.5; 4])]);
    parts[4] = node("BatchNormalization", &["a", "n.weight", "n.bias", "n.mean", "n.var"], &["n"], &[]);
    parts.insert(5, node("GlobalAveragePool", &["n"], &["b"], &[]));
    let all = found(&parts).expect("it has weights");
    assert_eq!((all["n.weight"][0], all["n.running_mean"][0], all["n.running_var"][0]), (1.0, 2.0, 3.0));
    assert_eq!(all["n.weight"][3].to_bits(), (-0.0_f32).to_bits(), "the bits of the file");
    assert_eq!(all["n.bias"], [0.5; 4]);
    let mut parts = with(conv(), product());
    parts[6] = node("LayerNormalization", &["c", "n.weight"], &["n"], &[]);
    parts.insert(7, node("Gemm", &["n", "f.weight"], &["y"], &[int("transB", 1)]));
    parts.push(numbers("n.weight", 1.0));
    let all = found(&parts).expect("it has weights");
    assert!(all.contains_key("n.weight") && !all.contains_key("n.bias"));
}

#[test]
fn other_types_are_converted_and_data_beside_the_file_are_read() {
    let halves: Vec<u8> = (0..20).flat_map(|_| 0x3e00_u16.to_le_bytes()).collect();
    let parts = with(
        tensor("c.weight", &[4, 3, 3, 3], 1, &beside("there.bin")),
        tensor("f.weight", &[5, 4], 10, &bytes(9, &halves)),
    );
    let all = found(&parts).expect("it has weights");
    assert_eq!(all["f.weight"], [1.5; 20]);
    assert_eq!(all["c.weight"][..4], [0.0, 9.0, 18.0, 1.0]);
    let doubles: Vec<u8> = (0..20).flat_map(|_| 0.1_f64.to_le_bytes()).collect();
    let parts = with(conv(), tensor("f.weight", &[5, 4], 11, &bytes(9, &doubles)));
    assert_eq!(found(&parts).expect("it has weights")["f.weight"], [0.1_f32; 20]);
}

#[test]
fn weights_that_cannot_be_read_are_named() {
    let refused = |parts: &[Vec<u8>], expected: &[&str]| {
        let text = found(parts).expect_err("it is refused").to_string();
        for part in expected {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    };
    let none = weight("f.weight", &[5, 4]);
    refused(&with(conv(), none), &["`f.weight`", "does not hold its numbers", "take the file"]);
    let missing = tensor("f.weight", &[5, 4], 1, &beside("gone.bin"));
    refused(&with(conv(), missing), &["`f.weight`", "cannot read `gone.bin`: No such file"]);
    let bytes_of = tensor("f.weight", &[5, 4], 3, &bytes(9, &[1; 20]));
    refused(&with(conv(), bytes_of), &["`f.weight`", "int8", "export in float32"]);
    let mut spoilt = counted(20);
    spoilt[7] = f32::INFINITY;
    let spoilt = floats("f.weight", &[5, 4], &spoilt);
    refused(&with(conv(), spoilt), &["`f.weight`", "not finite", "take other weights"]);
    let large: Vec<u8> = (0..20).flat_map(|_| 1e300_f64.to_le_bytes()).collect();
    let large = tensor("f.weight", &[5, 4], 11, &bytes(9, &large));
    refused(&with(conv(), large), &["`f.weight`", "not finite in 32 bits"]);
}

#[test]
fn a_file_of_other_layers_has_no_weights_for_a_network() {
    let mut other = with(conv(), product());
    other[4] = node("Relu", &["a"], &["r"], &[]);
    other.insert(5, node("GlobalAveragePool", &["r"], &["b"], &[]));
    let all =
        weights(source(&file(&other), &|_| Err(String::new())), &network(&small())).expect("it is sound");
    assert_eq!(all, None);
}
