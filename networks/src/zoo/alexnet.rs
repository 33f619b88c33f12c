//! AlexNet, and OverFeat's fast model, which follows it.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// Builds AlexNet (Krizhevsky et al. 2012, §3) as trained in the papers on memory: local response normalisation, convolutions
/// in two groups, overlapping pooling, dropout. The first convolution is padded by 2, which makes 55x55 of 224x224 images as
/// in the paper.
pub(super) fn alexnet(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    // §3.3 has k = 2, n = 5, alpha = 1e-4 on the plain sum; our alpha is divided by n.
    let lrn = LayerKind::Lrn { size: 5, alpha: 5e-4, beta: 0.75, bias: 2.0 };
    // Output channels, window, groups, LRN follows, pooling follows.
    let convolutions = [
        (96, Window::square(11, 4, 2), 1, true, true),
        (256, Window::square(5, 1, 2), 2, true, true),
        (384, Window::square(3, 1, 1), 1, false, false),
        (384, Window::square(3, 1, 1), 2, false, false),
        (256, Window::square(3, 1, 1), 2, false, true),
    ];
    let mut b = Builder::new(spec)?;
    let mut x = b.images();
    for (i, (out_channels, window, groups, normalised, pooled)) in (1..).zip(convolutions) {
        x = b.add(&format!("conv{i}"), LayerKind::Conv { out_channels, window, groups, bias: true }, &[x])?;
        x = b.relu(&format!("relu{i}"), x)?;
        if normalised {
            x = b.add(&format!("norm{i}"), lrn.clone(), &[x])?;
        }
        if pooled {
            x = b.max_pool(&format!("pool{i}"), x, Window::square(3, 2, 0))?;
        }
    }
    x = classifier(&mut b, x, 6)?;
    b.finish(x)
}

/// Adds the head of AlexNet and VGG: two hidden layers of 4096 with ReLU and dropout, and the logits.
pub(super) fn classifier(b: &mut Builder, mut x: LayerId, first: usize) -> Result<LayerId, NetworkError> {
    let classes = b.classes();
    for i in [first, first + 1] {
        x = b.fully_connected(&format!("fc{i}"), x, 4096)?;
        x = b.relu(&format!("relu{i}"), x)?;
        x = b.dropout(&format!("drop{i}"), x, 0.5)?;
    }
    b.fully_connected(&format!("fc{}", first + 2), x, classes)
}

/// Builds the fast model of OverFeat (Sermanet et al. 2014, table 1) as trained in Chintala's convnet-benchmarks and vDNN,
/// for 231x231 images: no response normalisation, poolings that do not overlap, dropout before the first two fully connected
/// layers.
pub(super) fn overfeat(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    // Output channels, window, pooling follows.
    let convolutions = [
        (96, Window::square(11, 4, 0), true),
        (256, Window::square(5, 1, 0), true),
        (512, Window::square(3, 1, 1), false),
        (1024, Window::square(3, 1, 1), false),
        (1024, Window::square(3, 1, 1), true),
    ];
    let mut b = Builder::new(spec)?;
    let mut x = b.images();
    for (i, (out_channels, window, pooled)) in (1..).zip(convolutions) {
        x = b.conv(&format!("conv{i}"), x, out_channels, window, true)?;
        x = b.relu(&format!("relu{i}"), x)?;
        if pooled {
            x = b.max_pool(&format!("pool{i}"), x, Window::square(2, 2, 0))?;
        }
    }
    for (i, width) in [(6, 3072), (7, 4096)] {
        x = b.dropout(&format!("drop{i}"), x, 0.5)?;
        x = b.fully_connected(&format!("fc{i}"), x, width)?;
        x = b.relu(&format!("relu{i}"), x)?;
    }
    x = b.fully_connected("fc8", x, spec.classes)?;
    b.finish(x)
}
