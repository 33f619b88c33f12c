//! U-Net (Ronneberger et al. 2015): a class for every pixel.
//!
//! The channels are the paper's, with padding that keeps sizes, so that logits are as large as the image and nothing is
//! cropped: two 3x3 convolutions with bias and ReLU at each of five sizes, 2x2 poolings down, 2x2 transposed convolutions up,
//! concatenated with the activation of the way down. Without the paper's dropout.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{Extent, LayerKind, Network, NetworkSpec, Window};

/// Channels at each size.
const WIDTHS: [u32; 5] = [64, 128, 256, 512, 1024];
/// Divisor of the sides, which are halved four times and must be restored at the end.
const MULTIPLE: u32 = 1 << (WIDTHS.len() - 1);

/// Builds the U-Net.
pub(super) fn build(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    if spec.image.iter().any(|side| !side.is_multiple_of(MULTIPLE)) {
        let ([height, width], name) = (spec.image, &spec.name);
        let nearest = spec.image.map(|side| side.div_ceil(MULTIPLE).saturating_mul(MULTIPLE));
        return Err(NetworkError::new(format_args!(
            "{height}x{width} images do not work for `{name}`, which halves and doubles its maps: both sides are multiples \
             of {MULTIPLE}; give {}x{}",
            nearest[0], nearest[1]
        )));
    }
    let mut x = b.images();
    let mut kept = Vec::new();
    for (i, width) in WIDTHS.into_iter().enumerate() {
        if i > 0 {
            kept.push(x);
            x = b.max_pool(&format!("down{i}.pool"), x, Window::square(2, 2, 0))?;
        }
        x = two_convs(&mut b, &format!("down{i}"), x, width)?;
    }
    for (i, across) in kept.into_iter().enumerate().rev() {
        let name = format!("up{i}");
        let upward = LayerKind::ConvTranspose { out_channels: WIDTHS[i], window: Window::square(2, 2, 0) };
        x = b.add(&format!("{name}.up"), upward, &[x])?;
        let bias = LayerKind::Bias { over: Extent::Channels, spare: 0 };
        x = b.add(&format!("{name}.up.bias"), bias, &[x])?;
        x = b.concat(&format!("{name}.cat"), &[across, x])?;
        x = two_convs(&mut b, &name, x, WIDTHS[i])?;
    }
    x = b.conv("out", x, spec.classes, Window::square(1, 1, 0), true)?;
    b.finish(x)
}

/// Adds two 3x3 convolutions with ReLU.
fn two_convs(b: &mut Builder, name: &str, input: LayerId, width: u32) -> Result<LayerId, NetworkError> {
    let mut x = input;
    for i in [1, 2] {
        x = b.conv(&format!("{name}.conv{i}"), x, width, Window::square(3, 1, 1), true)?;
        x = b.relu(&format!("{name}.relu{i}"), x)?;
    }
    Ok(x)
}
