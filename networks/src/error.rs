//! Why a network cannot be built or lowered, by what the caller can do about it.

use plimsoll_ir::Bytes;
use plimsoll_ir::network::Shape;

/// Why a network cannot be built or lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Choose another name.
    #[error("no network is called `{name}`{}", meant(.nearest))]
    UnknownName {
        /// What was asked for.
        name: String,
        /// Names that may have been meant, the nearest first; none where no name is near.
        nearest: Vec<String>,
    },
    /// Choose another depth of that family.
    #[error("there is no `{name}`: {rule}; the nearest are {}", either(.nearest))]
    ImpossibleDepth {
        /// What was asked for.
        name: String,
        /// Which depths there are.
        rule: &'static str,
        /// The nearest possible names, the shallower first.
        nearest: Vec<String>,
    },
    /// Give a number of at least 1.
    #[error("{what} is 0; give at least 1")]
    Zero {
        /// What is 0, such as `the number of classes`.
        what: &'static str,
    },
    /// Give larger images, or choose a network for small ones.
    #[error(
        "{}x{} images are too small for `{network}`: its layer `{layer}` has nothing left to work on; give images of \
         at least {smallest}x{smallest}, or choose a network for small images such as resnet20 or mlp", .image[0], .image[1]
    )]
    ImageTooSmall {
        /// The network's name.
        network: String,
        /// Height and width that were asked for.
        image: [u32; 2],
        /// The first layer that does not fit.
        layer: String,
        /// The least height and width with which the network works.
        smallest: u32,
    },
    /// Give images whose sides are multiples of this.
    #[error(
        "{}x{} images do not work for `{network}`, which halves and doubles its maps: both sides are multiples of \
         {multiple}; give {}x{}", .image[0], .image[1], .nearest[0], .nearest[1]
    )]
    ImageNotMultiple {
        /// The network's name.
        network: String,
        /// Height and width that were asked for.
        image: [u32; 2],
        /// What both must be a multiple of.
        multiple: u32,
        /// The next larger image that works.
        nearest: [u32; 2],
    },
    /// A window reaches beyond its padded input: change the layer, or enlarge what it takes.
    #[error("layer `{layer}`: a window of {}x{} does not fit its input of {input}", .window[0], .window[1])]
    WindowTooLarge {
        /// The layer.
        layer: String,
        /// Rows and columns that the window reaches over, dilation included.
        window: [u64; 2],
        /// What the layer takes.
        input: Shape,
    },
    /// The layer makes no sense: change it.
    #[error("layer `{layer}`: {why}")]
    BadLayer {
        /// The layer.
        layer: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// Choose a smaller image, batch or network: no machine addresses so many bytes.
    #[error(
        "{what} would take {bytes} bytes; sizes above {limit} fit no machine: make the batch, the image or the network smaller"
    )]
    TooLarge {
        /// What is too large, such as `layer conv1 at batch 4`.
        what: String,
        /// Its size.
        bytes: u128,
        /// The most that is accepted.
        limit: Bytes,
    },
    /// Choose a larger batch or image.
    #[error(
        "batch normalisation `{layer}` sees one position of one sample, which has no variance: train with a batch of \
         at least 2, or on larger images"
    )]
    NoVariance {
        /// The layer.
        layer: String,
    },
}

/// The question whether one of these was meant.
fn meant(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", either(names)) }
}

/// `a`, `a or b`, `a, b or c`.
fn either(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
