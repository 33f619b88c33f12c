//! The tensors of a network as a file has them that was saved from PyTorch: names, shapes, and the order of their numbers.
//!
//! A name is a layer's and its part's, `layer1.0.conv1.weight`, as resident regions have it. Numbers lie as PyTorch has them:
//! channels before positions, where Plimsoll has positions before channels
//! (docs/decisions/2026-11-20-channels-last.md). That concerns windows of convolutions, and the columns of a fully connected
//! layer whose input is an image.
//!
//! What it deliberately does not do: open files, or say what is wrong with one.

use crate::layers::{Purpose, rules};
use crate::order::Order;
use plimsoll_ir::network::{Layer, LayerKind, Network, Shape};

/// A tensor of a file, of numbers of 4 bytes, and where layers have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// The lengths of its dimensions in the file.
    pub shape: Vec<u64>,
    /// What layers have of it: each of its numbers is in one of these.
    pub parts: Vec<Part>,
}

/// What one tensor of a layer has of a tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor of the layer.
    pub of: LayerTensor,
    /// Where the numbers lie in the tensor of the file.
    pub(crate) in_file: Order,
    /// Where the same numbers lie in the tensor of the layer.
    pub(crate) on_device: Order,
}

/// A tensor of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTensor {
    /// The layer's name and the tensor's, such as `conv1.weight`.
    pub name: String,
    /// How many numbers it has.
    pub elements: u64,
    /// Whether it is trained; a running statistic is not.
    pub trained: bool,
}

impl FileTensor {
    /// How many numbers it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether a tensor of this shape can stand for it: dimensions of length 1 do not count.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let long = |shape: &[u64]| shape.iter().copied().filter(|length| *length != 1).collect::<Vec<u64>>();
        long(shape) == long(&self.shape)
    }
}

impl Part {
    /// Copies its numbers from the bytes of the tensor of the file into those of the layer's.
    pub fn to_device(&self, in_file: &[u8], on_device: &mut [u8]) {
        self.in_file.copy(in_file, &self.on_device, on_device);
    }

    /// Copies its numbers from the bytes of the layer's tensor into those of the tensor of the file.
    pub fn to_file(&self, on_device: &[u8], in_file: &mut [u8]) {
        self.on_device.copy(on_device, &self.in_file, in_file);
    }
}

/// All tensors of a network, in the order of its layers. A layer that shares its parameters has none of its own.
pub fn file_tensors(network: &Network) -> Vec<FileTensor> {
    let mut all = Vec::new();
    for layer in network.layers.iter().filter(|layer| layer.shares.is_none()) {
        let input = network.input_shape(layer);
        for region in rules(&layer.kind).resident(input, false) {
            let trained = match region.purpose {
                Purpose::Parameter(_) => true,
                Purpose::State(_) => false,
                // Rows that no token looks up.
                Purpose::Spare => continue,
            };
            all.push(file_tensor(layer, input, region.name, &region.shape, trained));
        }
    }
    all
}

fn file_tensor(layer: &Layer, input: Shape, part: &str, shape: &[u64], trained: bool) -> FileTensor {
    let name = format!("{}.{part}", layer.name);
    let (shape, [positions, channels]) = match (shape, &layer.kind) {
        // A product with a matrix at each position of a sequence, which is an image one column wide.
        ([out, 1, 1, channels], _) if input.width == 1 && input.height > 1 => {
            (vec![*out, *channels], [1, *channels])
        }
        ([out, rows, columns, channels], _) => {
            (vec![*out, *channels, *rows, *columns], [rows * columns, *channels])
        }
        ([_, _], LayerKind::FullyConnected { .. }) => {
            (shape.to_vec(), [input.pixels(), u64::from(input.channels)])
        }
        _ => (shape.to_vec(), [1, 1]),
    };
    let elements = shape.iter().product::<u64>();
    let of = LayerTensor { name: name.clone(), elements, trained };
    // Rows of `[channels][positions]` numbers, which are `[positions][channels]` on the device.
    let row = positions * channels;
    let on_device = Order::Strided {
        first: 0,
        dims: vec![elements / row, channels, positions],
        strides: [row, 1, channels].map(|step| i64::try_from(step).unwrap_or(i64::MAX)).to_vec(),
    };
    FileTensor { name, shape, parts: vec![Part { of, in_file: Order::same(elements), on_device }] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::build;
    use plimsoll_ir::network::NetworkSpec;

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
        let trained = |name: &str| find(&resnet, name).parts[0].of.trained;
        assert!(!trained("bn1.running_mean") && trained("bn1.weight"));
        let gpt = tensors("gpt-tiny", [12, 1], 1);
        assert_eq!(find(&gpt, "h.0.attn.qkv.weight").shape, [384, 128]);
        assert_eq!(find(&gpt, "wte.weight").shape, [10, 128]);
    }

    #[test]
    fn channels_come_before_positions_in_a_file() {
        let vgg = tensors("lenet", [28, 28], 1);
        // 84 outputs of 16 channels at 5x5 positions, say.
        let first = vgg.iter().find(|t| t.shape.len() == 2).expect("its input is an image");
        let [part] = &first.parts[..] else { panic!("{first:?}") };
        let (count, channels) = (first.elements() as u32, 16);
        let positions = first.shape[1] as u32 / channels;
        let file: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
        let mut device = vec![0; file.len()];
        part.to_device(&file, &mut device);
        let word = |at: u32| u32::from_le_bytes(device.as_chunks().0[at as usize]);
        // The second channel of the first position lies behind all positions of the first channel.
        assert_eq!([word(0), word(1), word(channels)], [0, positions, 1]);
        let mut back = vec![0; file.len()];
        part.to_file(&device, &mut back);
        assert_eq!(back, file);
    }

    #[test]
    fn dimensions_of_length_one_do_not_count() {
        let gpt = tensors("gpt-tiny", [12, 1], 1);
        let positions = find(&gpt, "wpe.bias");
        assert!(positions.fits(&[12, 128]) && positions.fits(&[1, 12, 128]));
        assert!(!positions.fits(&[128, 12]) && !positions.fits(&[12]));
    }
}
