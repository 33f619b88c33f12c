//! A convolution as matrix products: our own kernel writes the windows to scratch as rows of a matrix, and cuBLAS
//! multiplies.
//!
//! It serves the filter gradient of any window, and all passes of one-pixel windows with a stride above 1, as between the
//! stages of a residual network. Scratch holds the windows of a few images at a time.
//!
//! Deliberately does not serve groups, or the other passes of larger windows, which cuDNN's kernels compute without a
//! layout step.

use super::super::kernels::{Grid, layout};
use super::cublas::Product;
use super::{Operands, Pass};
use plimsoll_ir::network::Window;
use plimsoll_ir::program::{Call, ConvShape};
use plimsoll_ir::{Bytes, Float};

/// Most bytes of the windows of several images together; those of a single image may exceed it.
const MOST_WINDOWS: u64 = 64 << 20;

/// A pass, ready to enqueue.
pub(super) struct Columns {
    shape: ConvShape,
    chunks: Vec<Chunk>,
    /// Start of the windows in the scratch, after the products' scratch.
    at: u64,
    /// Total scratch.
    pub(super) workspace: Bytes,
}

/// Some images.
struct Chunk {
    /// Number of the first image, and their count.
    images: [u64; 2],
    product: Product,
}

/// A step of a pass, in order.
pub(super) enum Step<'a> {
    /// Our own kernels.
    Own(Vec<Grid>),
    /// A product of these operands.
    Product(&'a Product, Operands),
}

/// Elements of a block with these sides.
fn count(sides: [u32; 2], others: [u64; 2]) -> u64 {
    sides.map(u64::from).into_iter().chain(others).fold(1, u64::saturating_mul)
}

impl Columns {
    /// `None` if a pass is not such a product, or needs no layout step. The input gradient is summed from f32; other
    /// windows are stored as activations are.
    pub(super) fn of(pass: Pass, shape: &ConvShape, float: Float, most: u64) -> Option<Columns> {
        let pixel = shape.window.size == [1, 1];
        if shape.groups > 1 || !(pixel || pass == Pass::BackwardFilter) || shape.batch == 0 {
            return None;
        }
        let taps = shape.window.size[0].checked_mul(shape.window.size[1])?;
        let in_channels = taps.checked_mul(shape.in_channels)?;
        let number = if pass == Pass::BackwardData { Float::F32 } else { float };
        let of_image = count(shape.output, [number.bytes(), u64::from(in_channels)]);
        let chunks = shape.batch.div_ceil((MOST_WINDOWS / of_image.max(1)).max(1));
        let each = shape.batch.div_ceil(chunks);
        let chunk = |first: u64| {
            let batch = each.min(shape.batch - first);
            let (input, window) = (shape.output, Window::square(1, 1, 0));
            let rows = ConvShape { batch, input, in_channels, window, ..*shape };
            Some(Chunk { images: [first, batch], product: Product::of(pass, &rows, most)? })
        };
        let chunks: Vec<Chunk> =
            (0..shape.batch).step_by(usize::try_from(each).ok()?).map(chunk).collect::<Option<_>>()?;
        let at = chunks.iter().map(|chunk| chunk.product.workspace.0).max()?;
        let workspace = Bytes(at.saturating_add(of_image.saturating_mul(each)));
        Some(Columns { shape: *shape, chunks, at, workspace })
    }

    /// Passes each step to `go`.
    pub(super) fn steps<E>(
        &self,
        pass: Pass,
        call: &Call,
        float: Float,
        operands: Operands,
        workspace: u64,
        mut go: impl FnMut(Step<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let windows = workspace + self.at;
        for Chunk { images, product } in &self.chunks {
            let before = [float.bytes() * images[0], self.shape.out_channels.into()];
            let y = operands.y + count(self.shape.output, before);
            let accumulate = match pass {
                Pass::Forward | Pass::BackwardData => false,
                Pass::BackwardFilter => operands.accumulate || images[0] > 0,
            };
            let product = Step::Product(product, Operands { x: windows, y, accumulate, ..operands });
            if pass == Pass::BackwardData {
                go(product)?;
                let (shape, accumulate) = (&self.shape, operands.accumulate);
                go(Step::Own(layout::scatter_pixels(call, float, shape, *images, self.at, accumulate)))?;
            } else {
                go(Step::Own(layout::gather_windows(call, float, &self.shape, *images, self.at)))?;
                go(product)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(batch: u64, image: u32, channels: u32, window: Window) -> ConvShape {
        let output = window.output(image, image).expect("the window fits");
        let (input, in_channels, out_channels) = ([image; 2], channels, 8);
        ConvShape { batch, input, in_channels, output, out_channels, window, groups: 1, bias: false }
    }

    fn images(shape: &ConvShape) -> Option<Vec<[u64; 2]>> {
        let columns = Columns::of(Pass::BackwardFilter, shape, Float::F32, 4 << 20)?;
        Some(columns.chunks.iter().map(|chunk| chunk.images).collect())
    }

    #[test]
    fn the_windows_of_some_images_at_a_time_are_in_scratch() {
        // 56 x 56 positions x 9 taps x 64 channels x 4 bytes: 7.2 MB an image.
        let block = shape(64, 56, 64, Window::square(3, 1, 1));
        let chunks = images(&block).expect("it is a product");
        assert_eq!(chunks[..2], [[0, 8], [8, 8]]);
        assert_eq!(chunks.len(), 8);
        let columns =
            Columns::of(Pass::BackwardFilter, &block, Float::F32, 4 << 20).expect("it is a product");
        assert!(columns.workspace.0 <= MOST_WINDOWS + (4 << 20), "{}", columns.workspace);
        // The windows of one image exceed the limit for several.
        assert_eq!(images(&shape(2, 224, 64, Window::square(3, 1, 1))), Some(vec![[0, 1], [1, 1]]));
        // The remainder is spread: 3 chunks of at most 17 images.
        let uneven = shape(50, 28, 64, Window::square(5, 1, 2));
        let chunks = images(&uneven).expect("it is a product");
        assert_eq!(chunks.iter().map(|[_, images]| images).sum::<u64>(), 50);
        assert!(chunks.iter().all(|[_, images]| *images <= 13), "{chunks:?}");
    }

    #[test]
    fn windows_are_stored_as_feature_maps_are_and_what_is_summed_from_them_is_f32() {
        let pixels = shape(4, 8, 8, Window::square(1, 2, 0));
        let check = |pass, float, bytes: u64| {
            let columns = Columns::of(pass, &pixels, float, 4 << 20).expect("it is a product");
            assert_eq!(columns.workspace.0 - columns.at, 4 * 4 * 4 * 8 * bytes, "{pass:?} in {float:?}");
        };
        for (float, bytes) in [(Float::F32, 4), (Float::Bf16, 2)] {
            check(Pass::Forward, float, bytes);
            check(Pass::BackwardFilter, float, bytes);
            check(Pass::BackwardData, float, 4);
        }
    }

    #[test]
    fn other_passes_are_products_of_single_pixels_only() {
        let check = |pass, window, groups, expected: bool| {
            let shape = ConvShape { groups, ..shape(2, 8, 8, window) };
            let found = Columns::of(pass, &shape, Float::F32, 4 << 20);
            assert_eq!(found.is_some(), expected, "{pass:?} of {shape:?}");
        };
        for pass in [Pass::Forward, Pass::BackwardData] {
            check(pass, Window::square(1, 2, 0), 1, true);
            check(pass, Window::square(3, 1, 1), 1, false);
        }
        check(Pass::BackwardFilter, Window::square(3, 1, 1), 1, true);
        check(Pass::BackwardFilter, Window::square(3, 1, 1), 2, false);
    }
}
