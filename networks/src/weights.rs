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
