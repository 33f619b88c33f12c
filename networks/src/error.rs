//! The errors of building and lowering a network, by the caller's remedy.

use plimsoll_ir::Bytes;
use plimsoll_ir::network::Shape;

/// Reason why a network cannot be built or lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Choose a different name.
    #[error("no network is called `{name}`{}", meant(.nearest))]
    UnknownName {
        /// Requested name.
        name: String,
        /// Names that may have been meant, the nearest first; none if no name is near.
        nearest: Vec<String>,
    },
    /// Choose a different depth of that family.
    #[error("there is no `{name}`: {rule}; the nearest are {}", either(.nearest))]
    ImpossibleDepth {
        /// Requested name.
        name: String,
        /// Possible depths.
        rule: &'static str,
        /// Nearest possible names, the shallower first.
        nearest: Vec<String>,
    },
    /// Give a number of at least 1.
    #[error("{what} is 0; give at least 1")]
    Zero {
        /// Quantity that is 0, such as `the number of classes`.
        what: &'static str,
    },
    /// Give larger images, or choose a network for small ones.
    #[error(
        "{}x{} images are too small for `{network}`: its layer `{layer}` has nothing left to work on; give images of \
         at least {smallest}x{smallest}, or choose a network for small images such as resnet20 or mlp", .image[0], .image[1]
    )]
    ImageTooSmall {
        /// Name of the network.
        network: String,
        /// Requested height and width.
        image: [u32; 2],
        /// First layer that does not fit.
        layer: String,
        /// Smallest height and width with which the network works.
        smallest: u32,
    },
    /// Give images whose sides are multiples of this.
    #[error(
        "{}x{} images do not work for `{network}`, which halves and doubles its maps: both sides are multiples of \
         {multiple}; give {}x{}", .image[0], .image[1], .nearest[0], .nearest[1]
    )]
    ImageNotMultiple {
        /// Name of the network.
        network: String,
        /// Requested height and width.
        image: [u32; 2],
        /// Required divisor of both.
        multiple: u32,
        /// Next larger image that works.
        nearest: [u32; 2],
    },
    /// A window reaches beyond its padded input: change the layer, or enlarge its input.
    #[error("layer `{layer}`: a window of {}x{} does not fit its input of {input}", .window[0], .window[1])]
    WindowTooLarge {
        /// Name of the layer.
        layer: String,
        /// Rows and columns that the window covers, dilation included.
        window: [u64; 2],
        /// Input of the layer.
        input: Shape,
    },
    /// The layer is invalid: change it.
    #[error("layer `{layer}`: {why}")]
    BadLayer {
        /// Name of the layer.
        layer: String,
        /// The fault, and the valid values.
        why: String,
    },
    /// Choose a smaller image, batch or network: no machine addresses this many bytes.
    #[error(
        "{what} would take {bytes} bytes; sizes above {limit} fit no machine: make the batch, the image or the network smaller"
    )]
    TooLarge {
        /// Object that is too large, such as `layer conv1 at batch 4`.
        what: String,
        /// Size of the object.
        bytes: u128,
        /// Largest accepted size.
        limit: Bytes,
    },
    /// Choose a larger batch or image.
    #[error(
        "batch normalisation `{layer}` sees one position of one sample, which has no variance: train with a batch of \
         at least 2, or on larger images"
    )]
    NoVariance {
        /// Name of the layer.
        layer: String,
    },
}

/// Returns the question if one of these was meant.
fn meant(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", either(names)) }
}

/// Returns `a`, `a or b`, `a, b or c`.
fn either(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
