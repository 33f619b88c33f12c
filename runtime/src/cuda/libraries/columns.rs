//! A convolution as products of matrices whose rows are windows: our own kernel lays the windows out in scratch, and cuBLAS
//! multiplies.
//!
//! It serves the filter gradient of any window, and all passes where the window is one pixel that moves by several, as between
//! the stages of a residual network. The windows of a few images at a time are in scratch.
//!
//! What it deliberately does not do: serve groups, or the other passes of larger windows, which cuDNN's kernels compute without
//! laying anything out.

use super::super::kernels::{Grid, layout};
use super::cublas::Product;
use super::{Operands, Pass};
use plimsoll_ir::network::Window;
use plimsoll_ir::program::{Call, ConvShape};
use plimsoll_ir::{Bytes, Float};

/// Bytes that the windows of several images may take together; those of a single image may take more.
const MOST_WINDOWS: u64 = 64 << 20;

/// A pass, ready to be enqueued.
pub(super) struct Columns {
    shape: ConvShape,
    chunks: Vec<Chunk>,
    /// Where the windows start in the scratch, behind that of the products.
    at: u64,
    /// All the scratch that it needs.
    pub(super) workspace: Bytes,
}

/// Some images.
struct Chunk {
    /// The number of the first, and how many they are.
    images: [u64; 2],
    product: Product,
}

/// What a pass enqueues, in order.
pub(super) enum Step<'a> {
    /// Our own kernels.
    Own(Vec<Grid>),
    /// A product of these operands.
    Product(&'a Product, Operands),
}

/// What lies in sides of these lengths.
fn count(sides: [u32; 2], others: [u64; 2]) -> u64 {
    sides.map(u64::from).into_iter().chain(others).fold(1, u64::saturating_mul)
}

impl Columns {
    /// None where a pass is no such product, or is one without laying anything out.
    pub(super) fn of(pass: Pass, shape: &ConvShape, most: u64) -> Option<Columns> {
        let pixel = shape.window.size == [1, 1];
        if shape.groups > 1 || !(pixel || pass == Pass::BackwardFilter) || shape.batch == 0 {
            return None;
        }
        let taps = shape.window.size[0].checked_mul(shape.window.size[1])?;
        let in_channels = taps.checked_mul(shape.in_channels)?;
        let of_image = count(shape.output, [4, u64::from(in_channels)]);
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

    /// Enqueues a pass by `go`.
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
            let y = operands.y + count(self.shape.output, [4 * images[0], self.shape.out_channels.into()]);
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
        let columns = Columns::of(Pass::BackwardFilter, shape, 4 << 20)?;
        Some(columns.chunks.iter().map(|chunk| chunk.images).collect())
    }

    #[test]
    fn the_windows_of_some_images_at_a_time_are_in_scratch() {
        // 56 x 56 positions x 9 taps x 64 channels x 4 bytes: 7.2 MB an image.
        let block = shape(64, 56, 64, Window::square(3, 1, 1));
        let chunks = images(&block).expect("it is a product");
        assert_eq!(chunks[..2], [[0, 8], [8, 8]]);
        assert_eq!(chunks.len(), 8);
        let columns = Columns::of(Pass::BackwardFilter, &block, 4 << 20).expect("it is a product");
        assert!(columns.workspace.0 <= MOST_WINDOWS + (4 << 20), "{}", columns.workspace);
        // One image alone is more than several may be.
        assert_eq!(images(&shape(2, 224, 64, Window::square(3, 1, 1))), Some(vec![[0, 1], [1, 1]]));
        // What is left over is spread: 3 chunks of 17 images at most.
        let uneven = shape(50, 28, 64, Window::square(5, 1, 2));
        let chunks = images(&uneven).expect("it is a product");
        assert_eq!(chunks.iter().map(|[_, images]| images).sum::<u64>(), 50);
        assert!(chunks.iter().all(|[_, images]| *images <= 13), "{chunks:?}");
    }

    #[test]
    fn other_passes_are_products_of_single_pixels_only() {
        let check = |pass, window, groups, expected: bool| {
            let shape = ConvShape { groups, ..shape(2, 8, 8, window) };
            assert_eq!(Columns::of(pass, &shape, 4 << 20).is_some(), expected, "{pass:?} of {shape:?}");
        };
        for pass in [Pass::Forward, Pass::BackwardData] {
            check(pass, Window::square(1, 2, 0), 1, true);
            check(pass, Window::square(3, 1, 1), 1, false);
        }
        check(Pass::BackwardFilter, Window::square(3, 1, 1), 1, true);
        check(Pass::BackwardFilter, Window::square(3, 1, 1), 2, false);
    }
}
