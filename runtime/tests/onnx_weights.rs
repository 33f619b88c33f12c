//! Networks of ONNX files with the files' weights: the loss is PyTorch's, and weights are written as PyTorch has them.
//!
//! `onnx_weights/references.py` makes the files and says what PyTorch computes, in f64.

use plimsoll_networks::onnx::{self, OnnxSource, Written};
use plimsoll_runtime::{Cpu, CpuOptions, Executor, MemoryLayout};

/// Of the loss.
const TOLERANCE: f64 = 1e-5;

/// What is made of a file.
fn source(file: &[u8]) -> OnnxSource<'_> {
    OnnxSource {
        file: file.to_vec(),
        name: "net",
        image: None,
        external: &|_| Err("there is no other".to_owned()),
    }
}

fn check(file: &[u8], input: &[u8], expected: f64) {
    let network = onnx::read(source(file)).expect("it is as PyTorch exports").network;
    let mut weights =
        onnx::weights(source(file), &network).expect("it has weights").expect("of this network");
    let program = crate::support::evaluation(&network, 2);
    let schedule = crate::support::keep(&program.trace);
    let device = Box::new(Cpu::new(CpuOptions::default()));
    let mut executor = Executor::new(device, MemoryLayout::of(&program, &schedule)).expect("it fits");
    let loaded = executor.load(&program, &schedule).expect("the schedule is valid");
    for region in loaded.resident() {
        if let Some(numbers) = weights.remove(&region.name) {
            let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
            executor.write_region(region, &bytes).expect("it is as large");
        }
    }
    assert!(weights.is_empty(), "{:?} are no regions", weights.keys());
    let classes = network.spec.classes as i32;
    let labels: Vec<u8> =
        (0..2 * network.labels() as i32).flat_map(|at| (at % classes).to_le_bytes()).collect();
    executor.write_images(&loaded, input).expect("it is as large");
    executor.write_labels(&loaded, &labels).expect("it is as large");
    executor.run(&loaded).expect("the device runs");
    let mut metrics = [0; 12];
    executor.read_region(loaded.metrics(), &mut metrics).expect("it is as large");
    let loss = f64::from(f32::from_le_bytes([metrics[0], metrics[1], metrics[2], metrics[3]]));
    assert!((loss - expected).abs() <= TOLERANCE * expected, "{loss}, and PyTorch has {expected}");
}

#[test]
fn a_convolution_with_batch_norm_before_a_flattened_image_has_pytorchs_loss() {
    let input: [f32; 24] = [
        -0.076644294,
        1.6205508,
        0.35988152,
        -1.596708,
        -0.7820168,
        0.40460715,
        0.071527734,
        0.61129963,
        0.6648394,
        0.7603904,
        -0.2867803,
        -0.03364326,
        -0.34484532,
        0.3384282,
        0.49365357,
        1.352754,
        -0.07758075,
        0.37363538,
        -1.8053645,
        0.013416479,
        0.485114,
        0.7736732,
        0.20523438,
        -0.10924352,
    ];
    let input: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
    check(include_bytes!("onnx_weights/conv.onnx"), &input, 2.4039765359140093);
}

#[test]
fn a_block_with_attention_has_pytorchs_loss() {
    let tokens: [i32; 12] = [4, 2, 1, 4, 0, 5, 6, 6, 1, 2, 4, 3];
    let tokens: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    check(include_bytes!("onnx_weights/block.onnx"), &tokens, 3.1820471279788727);
}

#[test]
fn causal_attention_of_separate_projections_has_pytorchs_loss() {
    let tokens: [i32; 12] = [5, 6, 1, 4, 2, 1, 6, 5, 5, 6, 3, 3];
    let tokens: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    check(include_bytes!("onnx_weights/separate.onnx"), &tokens, 3.412304123215629);
}

#[test]
fn a_class_token_before_the_patches_of_an_image_has_pytorchs_loss() {
    let input = (0..96_u16).map(|at| (f32::from(at * 37 % 64) - 32.0) / 16.0);
    let input: Vec<u8> = input.flat_map(f32::to_le_bytes).collect();
    check(include_bytes!("onnx_weights/class_token.onnx"), &input, 2.7821925792876714);
}

#[test]
fn weights_are_written_with_pytorchs_names_shapes_and_bits() {
    let check = |file: &[u8], expected: &[(&str, &[u64])]| {
        let network = onnx::read(source(file)).expect("it is as PyTorch exports").network;
        let weights =
            onnx::weights(source(file), &network).expect("it has weights").expect("of this network");
        let written = onnx::written(source(file), &network).expect("it is sound").expect("of this network");
        let Written { tensors, notes } = written;
        assert_eq!(notes, [""; 0]);
        for tensor in &tensors {
            let mut bytes = vec![0; 4 * tensor.elements() as usize];
            for part in &tensor.parts {
                let of_layer: Vec<u8> = weights[&part.of.name].iter().flat_map(|n| n.to_le_bytes()).collect();
                part.to_file(&of_layer, &mut bytes);
            }
            // The file has the numbers of a tensor one behind the other.
            let there = file.windows(bytes.len()).any(|window| window == bytes);
            assert!(there, "{} has other bits than in the file", tensor.name);
        }
        let found: Vec<(&str, &[u64])> = tensors.iter().map(|t| (t.name.as_str(), &t.shape[..])).collect();
        for tensor in expected {
            assert!(found.contains(tensor), "{tensor:?} is not in {found:?}");
        }
        found.len()
    };
    let conv = check(
        include_bytes!("onnx_weights/conv.onnx"),
        &[("conv.weight", &[4, 2, 3, 3]), ("fc.weight", &[5, 24])],
    );
    let block =
        check(include_bytes!("onnx_weights/block.onnx"), &[("wte.weight", &[7, 8]), ("wpe", &[6, 8])]);
    let separate = check(include_bytes!("onnx_weights/separate.onnx"), &[("q.bias", &[8]), ("v.bias", &[8])]);
    // As torchvision's and timm's ViT have them: with a dimension of 1 for the samples.
    let vit: [(&str, &[u64]); 3] =
        [("class_token", &[1, 1, 8]), ("pos_embedding", &[1, 7, 8]), ("conv_proj.weight", &[8, 2, 2, 2])];
    let class_token = check(include_bytes!("onnx_weights/class_token.onnx"), &vit);
    // So many tensors the modules have.
    assert_eq!([conv, block, separate, class_token], [7, 11, 11, 12]);
}
