//! Residual networks (He et al., "Deep Residual Learning for Image Recognition", 2015).
//!
//! For ImageNet as torchvision builds them (the stride of a bottleneck is in its 3x3 convolution), and deeper ones as
//! the papers on memory use them; for CIFAR as in §4.2 of the paper. Where a block changes shape its shortcut is a 1x1
//! convolution with batch normalisation (option B of the paper), for CIFAR too: it has weights where the paper's option
//! A pads with zeros, 2,752 more in resnet20.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// What a residual network is made of.
struct Plan {
    /// Whether images start with a 7x7 convolution and a pooling, as for ImageNet, or with a 3x3 convolution.
    large_images: bool,
    /// Whether a block is 1x1, 3x3, 1x1 with four times the channels at its end, or 3x3 twice.
    bottleneck: bool,
    /// Channels of the first group; each later group has twice as many.
    width: u32,
    /// Blocks of each group.
    blocks: Vec<u32>,
}

/// Depths that the paper gives CIFAR networks, 6n + 2; as bottleneck depths, which many of these also are, they are
/// not used.
const CIFAR_DEPTHS: [u32; 6] = [20, 32, 44, 56, 110, 1202];

/// What depth a name may have.
pub(crate) const RULE: &str = "residual networks have the depths 18 and 34 (basic blocks), 20, 32, 44, 56, 110 and \
                               1202 (CIFAR), and every other 3n + 2 from 35 to 9998 (bottlenecks)";

/// Whether there is a residual network of this depth.
pub(crate) fn has_depth(depth: u32) -> bool {
    plan(depth).is_some()
}

/// The groups of a depth. The bottlenecks of 50, 101 and 152 are torchvision's; any other depth has 3, 4 (8 from 152
/// on), the rest and 3 blocks, so that the third group grows, as the papers' ResNet-1001 and -1517 do.
fn plan(depth: u32) -> Option<Plan> {
    let imagenet = |bottleneck, blocks| Plan { large_images: true, bottleneck, width: 64, blocks };
    Some(match depth {
        18 => imagenet(false, vec![2, 2, 2, 2]),
        34 => imagenet(false, vec![3, 4, 6, 3]),
        _ if CIFAR_DEPTHS.contains(&depth) => {
            Plan { large_images: false, bottleneck: false, width: 16, blocks: vec![(depth - 2) / 6; 3] }
        }
        35..10_000 if depth % 3 == 2 => {
            let second = if depth < 152 { 4 } else { 8 };
            imagenet(true, vec![3, second, (depth - 2) / 3 - 6 - second, 3])
        }
        _ => return None,
    })
}

/// Builds the residual network of a depth that [`has_depth`].
pub(crate) fn build(spec: &NetworkSpec, depth: u32) -> Result<Network, NetworkError> {
    let plan = plan(depth).expect("the caller asked whether there is one");
    let mut b = Builder::new(spec)?;
    let first = if plan.large_images { Window::square(7, 2, 3) } else { Window::square(3, 1, 1) };
    let mut x = b.conv("conv1", b.images(), plan.width, first, false)?;
    x = b.batch_norm("bn1", x)?;
    x = b.relu("relu", x)?;
    if plan.large_images {
        x = b.max_pool("maxpool", x, Window::square(3, 2, 1))?;
    }
    for (group, blocks) in plan.blocks.iter().enumerate() {
        for block in 0..*blocks {
            let name = format!("layer{}.{block}", group + 1);
            let stride = if group > 0 && block == 0 { 2 } else { 1 };
            x = residual_block(&mut b, &name, x, plan.width << group, stride, plan.bottleneck)?;
        }
    }
    x = b.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = b.fully_connected("fc", x, spec.classes)?;
    b.finish(x)
}

/// relu(branch(x) + shortcut(x)).
fn residual_block(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    width: u32,
    stride: u32,
    bottleneck: bool,
) -> Result<LayerId, NetworkError> {
    let steps: &[(u32, Window)] = if bottleneck {
        &[
            (width, Window::square(1, 1, 0)),
            (width, Window::square(3, stride, 1)),
            (4 * width, Window::square(1, 1, 0)),
        ]
    } else {
        &[(width, Window::square(3, stride, 1)), (width, Window::square(3, 1, 1))]
    };
    let mut x = input;
    for (i, (channels, window)) in steps.iter().enumerate() {
        if i > 0 {
            x = b.relu(&format!("{name}.relu{i}"), x)?;
        }
        x = b.conv(&format!("{name}.conv{}", i + 1), x, *channels, *window, false)?;
        x = b.batch_norm(&format!("{name}.bn{}", i + 1), x)?;
    }
    let mut shortcut = input;
    if stride != 1 || b.shape(input).channels != b.shape(x).channels {
        let channels = b.shape(x).channels;
        let window = Window::square(1, stride, 0);
        shortcut = b.conv(&format!("{name}.downsample.0"), input, channels, window, false)?;
        shortcut = b.batch_norm(&format!("{name}.downsample.1"), shortcut)?;
    }
    let sum = b.add(&format!("{name}.add"), LayerKind::Add, &[x, shortcut])?;
    b.relu(&format!("{name}.relu"), sum)
}
