//! Why data and network do not go together.

use plimsoll_ir::Bytes;
use plimsoll_ir::network::Shape;
use thiserror::Error;

/// Why data and network do not go together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataError {
    /// The network reads texts, and the data are images.
    #[error("`{network}` is for texts, and {data} has images")]
    Images {
        /// The network's name.
        network: String,
        /// The data's name.
        data: String,
    },
    /// The network reads images, and the data are texts.
    #[error("`{network}` is for images, and {data} has texts")]
    Texts {
        /// The network's name.
        network: String,
        /// The data's name.
        data: String,
    },
    /// The images are of another size, or in more classes.
    #[error(
        "{data} has images of {has} in {classes} classes, the network is for {wanted} in {wanted_classes}"
    )]
    Shape {
        /// The data's name.
        data: String,
        /// The data's images.
        has: Shape,
        /// The data's classes.
        classes: u32,
        /// The network's images.
        wanted: Shape,
        /// The network's classes.
        wanted_classes: u32,
    },
    /// A sample has another number of labels.
    #[error("`{network}` learns {wanted} labels of a sample, {data} has {has}")]
    Labels {
        /// The network's name.
        network: String,
        /// The labels that it learns.
        wanted: u64,
        /// The data's name.
        data: String,
        /// The labels of a sample.
        has: u64,
    },
    /// Texts of a width other than 1 are asked for.
    #[error("texts have no width, and {length}x{width} is asked for")]
    TextWidth {
        /// The length that is asked for.
        length: u32,
        /// The width that is asked for.
        width: u32,
    },
    /// The order of the samples does not fit in memory.
    #[error("the order of {samples} samples takes {takes}, and {available} are there")]
    Order {
        /// How many samples.
        samples: u64,
        /// What their order takes.
        takes: Bytes,
        /// What is there.
        available: Bytes,
    },
}
