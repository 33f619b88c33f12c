//! Wide residual networks (Zagoruyko and Komodakis 2016) for CIFAR.
//!
//! They are as in the authors' program: three groups of n blocks, normalisation before each convolution, a 1x1 convolution as
//! shortcut where a block changes the number of channels, which like the block takes its input normalised; normalisation and
//! ReLU again after the last block. `wrn-28-10` has 36,479,194 parameters for the 10 classes of CIFAR-10 and 36,536,884 for
//! the 100 of CIFAR-100. The blocks have no dropout, which the paper tries and other programs omit.
//!
//! The authors' depth is 6n + 4: the first convolution, two per block, three shortcuts. Layrub's `WRN-8-256` counts as He et
//! al. do, without shortcuts and with the classifier, 6n + 2. No number is both.

use super::{impossible, numbers};
use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// Possible depths of a name.
const RULE: &str = "wide residual networks have the depths 6n + 4 (three groups of n blocks, shortcuts counted) and 6n + 2 \
                    (the same, the classifier counted instead) from 8 to 9998";

/// Largest width.
const WIDEST: u32 = 1 << 16;

/// Returns the network that a spec names, if it names one.
pub(super) fn named(spec: &NetworkSpec) -> Option<Result<Network, NetworkError>> {
    let [depth, widening] = numbers(&spec.name, "wrn-<D>-<W>")?[..] else { return None };
    // Beyond this a layer's size would overflow its type.
    let widening = widening.min(WIDEST);
    Some(match blocks(depth) {
        Some(blocks) => build(spec, blocks, widening),
        None => {
            Err(impossible(&spec.name, depth, RULE, |d| blocks(d).map(|_| format!("wrn-{d}-{widening}"))))
        }
    })
}

/// Returns the blocks of each group.
fn blocks(depth: u32) -> Option<u32> {
    let possible = (8..10_000).contains(&depth) && (depth % 6 == 4 || depth % 6 == 2);
    possible.then_some((depth - 2) / 6)
}

/// Builds three groups of blocks.
fn build(spec: &NetworkSpec, blocks: u32, widening: u32) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.conv("conv1", b.images(), 16, Window::square(3, 1, 1), false)?;
    for (group, width) in [16, 32, 64].into_iter().enumerate() {
        for i in 0..blocks {
            let name = format!("group{}.{i}", group + 1);
            let stride = if group > 0 && i == 0 { 2 } else { 1 };
            x = block(&mut b, &name, x, width * widening, stride)?;
        }
    }
    x = b.batch_norm("bn", x)?;
    x = b.relu("relu", x)?;
    x = b.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = b.fully_connected("fc", x, spec.classes)?;
    b.finish(x)
}

/// Adds branch(y) + x or shortcut(y), where y = relu(bn(x)).
fn block(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    width: u32,
    stride: u32,
) -> Result<LayerId, NetworkError> {
    let mut normalised = b.batch_norm(&format!("{name}.bn1"), input)?;
    normalised = b.relu(&format!("{name}.relu1"), normalised)?;
    let mut x = b.conv(&format!("{name}.conv1"), normalised, width, Window::square(3, stride, 1), false)?;
    x = b.batch_norm(&format!("{name}.bn2"), x)?;
    x = b.relu(&format!("{name}.relu2"), x)?;
    x = b.conv(&format!("{name}.conv2"), x, width, Window::square(3, 1, 1), false)?;
    let mut shortcut = input;
    if stride != 1 || b.shape(input).channels != width {
        let window = Window::square(1, stride, 0);
        shortcut = b.conv(&format!("{name}.shortcut"), normalised, width, window, false)?;
    }
    b.add(&format!("{name}.add"), LayerKind::Add, &[x, shortcut])
}
