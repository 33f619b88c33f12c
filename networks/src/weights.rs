//! The tensors of a network in a file saved from PyTorch: names, shapes, and the order of their numbers.
//!
//! A name consists of a layer's and its part's, `layer1.0.conv1.weight`, as for resident regions. PyTorch stores channels
//! before positions, Plimsoll positions before channels: a convolution is then one matrix product over the rows of many
//! images. The difference concerns windows of convolutions, and the columns of a fully connected layer whose input is an
//! image.
//!
//! The module deliberately does not open files, or report their faults.

use crate::layers::{Purpose, rules};
use plimsoll_ir::network::{Layer, LayerKind, Network, Shape};

/// A tensor of a layer, of 4-byte numbers, as stored in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// Names of the layer and of the tensor, such as `conv1.weight`.
    pub name: String,
    /// Lengths of its dimensions in the file.
    pub shape: Vec<u64>,
    /// `true` if it is trained; a running statistic is not.
    pub trained: bool,
    /// Sizes of its rows: `[channels][positions]` in the file and `[positions][channels]` on the device.
    row: [usize; 2],
}

impl FileTensor {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns `true` if a tensor of this shape can replace it: dimensions of length 1 do not count.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let long = |shape: &[u64]| shape.iter().copied().filter(|length| *length != 1).collect::<Vec<u64>>();
        long(shape) == long(&self.shape)
    }

    /// Converts its bytes in the file to those on the device.
    pub fn to_device(&self, in_file: &[u8]) -> Vec<u8> {
        let [channels, positions] = self.row;
        transposed(in_file, [channels, positions])
    }

    /// Converts its bytes on the device to those in a file.
    pub fn to_file(&self, on_device: &[u8]) -> Vec<u8> {
        let [channels, positions] = self.row;
        transposed(on_device, [positions, channels])
    }
}

/// Transposes each of consecutive matrices of 4-byte numbers.
fn transposed(bytes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    let matrices = bytes.as_chunks::<4>().0.chunks_exact(rows * columns);
    let transposed = matrices.flat_map(|matrix| {
        (0..columns).flat_map(move |column| (0..rows).map(move |row| matrix[row * columns + column]))
    });
    transposed.collect::<Vec<[u8; 4]>>().into_flattened()
}

/// Returns all tensors of a network, in the order of its layers. A layer that shares its parameters has none.
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
        // A matrix product at each position of a sequence, which is an image one column wide.
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
    FileTensor { name, shape, trained, row: [channels, positions].map(|length| length as usize) }
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
}
