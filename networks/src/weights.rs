//! The tensors of a network as a file has them that was saved from PyTorch: names, shapes, and the order of their numbers.
//!
//! A name is a layer's and its part's, `layer1.0.conv1.weight`, as resident regions have it. Numbers lie as PyTorch has them:
//! channels before positions, where Plimsoll has positions before channels
//! (docs/decisions/2026-11-20-channels-last.md). That concerns windows of convolutions, and the columns of a fully connected
//! layer whose input is an image.
//!
//! What it deliberately does not do: open files, or say what is wrong with one.

use crate::layers::{Purpose, rules};
use plimsoll_ir::network::{Layer, LayerKind, Network, Shape};

/// A tensor of a network, as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// The lengths of its dimensions in the file.
    pub shape: Vec<u64>,
    /// Whether it is trained; a running statistic is not.
    pub trained: bool,
    /// Rows of `[channels][positions]` numbers, which are `[positions][channels]` on the device.
    positions: u64,
    channels: u64,
}

impl FileTensor {
    /// The numbers of a file, of 4 bytes each, in the order in which they lie on the device.
    pub fn on_device(&self, in_file: &[u8]) -> Vec<u8> {
        transposed(in_file, self.channels, self.positions)
    }

    /// The numbers of the device in the order of the file.
    pub fn in_file(&self, on_device: &[u8]) -> Vec<u8> {
        transposed(on_device, self.positions, self.channels)
    }

    /// Whether a tensor of this shape can stand for it: dimensions of length 1 do not count.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let long = |shape: &[u64]| shape.iter().copied().filter(|length| *length != 1).collect::<Vec<u64>>();
        long(shape) == long(&self.shape)
    }
}

/// Matrices of so many rows and columns, one behind the other, each turned.
fn transposed(numbers: &[u8], rows: u64, columns: u64) -> Vec<u8> {
    if rows == 1 || columns == 1 {
        return numbers.to_vec();
    }
    let (rows, columns) = (rows as usize, columns as usize);
    let mut turned = Vec::with_capacity(numbers.len());
    for matrix in numbers.chunks_exact(4 * rows * columns) {
        for column in 0..columns {
            for row in 0..rows {
                let at = 4 * (row * columns + column);
                turned.extend_from_slice(&matrix[at..at + 4]);
            }
        }
    }
    turned
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
    let of = |shape: Vec<u64>, positions, channels| FileTensor {
        name: name.clone(),
        shape,
        trained,
        positions,
        channels,
    };
    match (shape, &layer.kind) {
        // A product with a matrix at each position of a sequence, which is an image one column wide.
        ([out, 1, 1, channels], _) if input.width == 1 && input.height > 1 => {
            of(vec![*out, *channels], 1, *channels)
        }
        ([out, rows, columns, channels], _) => {
            of(vec![*out, *channels, *rows, *columns], rows * columns, *channels)
        }
        ([_, _], LayerKind::FullyConnected { .. }) => {
            of(shape.to_vec(), input.pixels(), u64::from(input.channels))
        }
        _ => of(shape.to_vec(), 1, 1),
    }
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
        assert!(!find(&resnet, "bn1.running_mean").trained && find(&resnet, "bn1.weight").trained);
        let gpt = tensors("gpt-tiny", [12, 1], 1);
        assert_eq!(find(&gpt, "h.0.attn.qkv.weight").shape, [384, 128]);
        assert_eq!(find(&gpt, "wte.weight").shape, [10, 128]);
    }

    #[test]
    fn channels_come_before_positions_in_a_file() {
        let vgg = tensors("lenet", [28, 28], 1);
        let first =
            vgg.iter().find(|t| t.shape.len() == 2 && t.positions > 1).expect("its input is an image");
        let count = first.shape.iter().product::<u64>();
        let file: Vec<u8> = (0..count as u32).flat_map(u32::to_le_bytes).collect();
        let device = first.on_device(&file);
        let word = |at: u64| {
            let at = 4 * at as usize;
            u32::from_le_bytes([device[at], device[at + 1], device[at + 2], device[at + 3]])
        };
        // The second channel of the first position lies behind all positions of the first channel.
        assert_eq!([word(0), word(1), word(first.channels)], [0, first.positions as u32, 1]);
        assert_eq!(first.in_file(&device), file, "and back");
        assert_eq!(device.len(), file.len());
    }

    #[test]
    fn dimensions_of_length_one_do_not_count() {
        let gpt = tensors("gpt-tiny", [12, 1], 1);
        let positions = find(&gpt, "wpe.bias");
        assert!(positions.fits(&[12, 128]) && positions.fits(&[1, 12, 128]));
        assert!(!positions.fits(&[128, 12]) && !positions.fits(&[12]));
    }
}
