//! Names, shapes and order of the tensors in a file of weights.

use plimsoll_ir::network::NetworkSpec;
use plimsoll_networks::{FileTensor, build, file_tensors};

fn tensors(name: &str, image: [u32; 2], channels: u32) -> Vec<FileTensor> {
    let spec = NetworkSpec { name: name.to_owned(), image, channels, classes: 10 };
    file_tensors(&build(&spec).expect("it fits"))
}

fn find<'a>(all: &'a [FileTensor], name: &str) -> &'a FileTensor {
    all.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn shapes_are_those_of_pytorch() {
    let resnet = tensors("resnet18", [64, 64], 3);
    let check = |name: &str, shape: &[u64]| assert_eq!(find(&resnet, name).shape, shape, "{name}");
    check("conv1.weight", &[64, 3, 7, 7]);
    check("layer2.0.downsample.0.weight", &[128, 64, 1, 1]);
    check("bn1.running_mean", &[64]);
    check("fc.weight", &[10, 512]);
    let trained = |name: &str| find(&resnet, name).trained;
    assert!(!trained("bn1.running_mean") && trained("bn1.weight"));
    let gpt = tensors("gpt-tiny", [12, 1], 1);
    assert_eq!(find(&gpt, "h.0.attn.qkv.weight").shape, [384, 128]);
    assert_eq!(find(&gpt, "wte.weight").shape, [10, 128]);
}

#[test]
fn channels_come_before_positions_in_a_file() {
    let vgg = tensors("lenet", [28, 28], 1);
    // For example, 84 outputs of 16 channels at 5x5 positions.
    let first = vgg.iter().find(|t| t.shape.len() == 2).expect("its input is an image");
    let (count, channels) = (first.elements() as u32, 16);
    let positions = first.shape[1] as u32 / channels;
    let file: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
    let device = first.to_device(&file);
    let word = |at: u32| u32::from_le_bytes(device.as_chunks().0[at as usize]);
    // The second channel of the first position follows all positions of the first channel.
    assert_eq!([word(0), word(1), word(channels)], [0, positions, 1]);
    assert_eq!(first.to_file(&device), file);
}

#[test]
fn dimensions_of_length_one_do_not_count() {
    let gpt = tensors("gpt-tiny", [12, 1], 1);
    let positions = find(&gpt, "wpe.bias");
    assert!(positions.fits(&[12, 128]) && positions.fits(&[1, 12, 128]));
    assert!(!positions.fits(&[128, 12]) && !positions.fits(&[12]));
}
