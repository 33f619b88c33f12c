//! MobileNet v2 (Sandler et al. 2018) as in torchvision.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// Table 2 of the paper: expansion, channels, blocks, and the stride of the first block.
const GROUPS: [[u32; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

/// Builds MobileNet v2.
pub(super) fn v2(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let images = b.images();
    let mut x = step(&mut b, "features.0", images, 32, Window::square(3, 2, 1), 1)?;
    let mut number = 1;
    for [expansion, channels, blocks, first_stride] in GROUPS {
        for i in 0..blocks {
            let stride = if i == 0 { first_stride } else { 1 };
            x = inverted_residual(&mut b, &format!("features.{number}"), x, expansion, channels, stride)?;
            number += 1;
        }
    }
    x = step(&mut b, &format!("features.{number}"), x, 1280, Window::square(1, 1, 0), 1)?;
    x = b.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = b.dropout("classifier.0", x, 0.2)?;
    x = b.fully_connected("classifier.1", x, spec.classes)?;
    b.finish(x)
}

/// Adds a block: channels grow, each is convolved separately, and they shrink, without a ReLU at the end; the input is added
/// if the shape is the same.
fn inverted_residual(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    expansion: u32,
    channels: u32,
    stride: u32,
) -> Result<LayerId, NetworkError> {
    let inputs = b.shape(input).channels;
    let inner = inputs * expansion;
    let conv = format!("{name}.conv");
    let (mut x, mut i) = (input, 0);
    if expansion > 1 {
        x = step(b, &format!("{conv}.0"), x, inner, Window::square(1, 1, 0), 1)?;
        i = 1;
    }
    x = step(b, &format!("{conv}.{i}"), x, inner, Window::square(3, stride, 1), inner)?;
    x = b.conv(&format!("{conv}.{}", i + 1), x, channels, Window::square(1, 1, 0), false)?;
    x = b.batch_norm(&format!("{conv}.{}", i + 2), x)?;
    if stride == 1 && inputs == channels {
        x = b.add(&format!("{name}.add"), LayerKind::Add, &[x, input])?;
    }
    Ok(x)
}

/// Adds convolution, batch normalisation, ReLU6: numbered as parts of the name.
fn step(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    out_channels: u32,
    window: Window,
    groups: u32,
) -> Result<LayerId, NetworkError> {
    let kind = LayerKind::Conv { out_channels, window, groups, bias: false };
    let mut x = b.add(&format!("{name}.0"), kind, &[input])?;
    x = b.batch_norm(&format!("{name}.1"), x)?;
    b.add(&format!("{name}.2"), LayerKind::Relu { ceiling: 6.0 }, &[x])
}
