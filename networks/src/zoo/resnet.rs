//! Residual networks (He et al., "Deep Residual Learning for Image Recognition", 2015).
//!
//! ImageNet networks are as in torchvision (the stride of a bottleneck is in its 3x3 convolution), with deeper ones from the
//! papers on memory; CIFAR networks as in §4.2 of the paper. The shortcut of a block that changes shape is a 1x1 convolution
//! with batch normalisation (option B of the paper), for CIFAR too: it has weights where the paper's option A pads with
//! zeros, 2,752 more in resnet20.

use super::{impossible, numbers};
use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// The parts of a residual network.
struct Plan {
    /// `true` if images start with a 7x7 convolution and a pooling, as for ImageNet, `false` for a 3x3 convolution.
    large_images: bool,
    /// `true` if a block is 1x1, 3x3, 1x1 with four times the channels at its end, `false` for 3x3 twice.
    bottleneck: bool,
    /// Channels of the first group; each later group doubles them.
    width: u32,
    /// Width factor of the inner convolutions of a bottleneck (Zagoruyko and Komodakis 2016).
    inner: u32,
    /// Blocks of each group.
    blocks: Vec<u32>,
}

/// Depths of `resnet<N>` that are networks for CIFAR: those of the paper. Many of them are also bottleneck depths, which are
/// named `resnet<N>-imagenet`.
const CIFAR_DEPTHS: [u32; 6] = [20, 32, 44, 56, 110, 1202];

/// Possible depths of a name.
const RULE: &str = "residual networks have the depths 18 and 34 (basic blocks), 20, 32, 44, 56, 110 and 1202 (CIFAR), and \
                    every other 3n + 2 from 35 to 9998 (bottlenecks)";
const IMAGENET_RULE: &str = "residual networks for ImageNet have the depths 18 and 34 (basic blocks), and every 3n + 2 \
                             from 35 to 9998 (bottlenecks)";
const CIFAR_RULE: &str = "residual networks for CIFAR have the depths 6n + 2 up to 9998";

/// Returns the residual network that a spec names, if it names one.
pub(super) fn named(spec: &NetworkSpec) -> Option<Result<Network, NetworkError>> {
    let name = spec.name.as_str();
    let wide = |depth| imagenet(depth).map(|plan| build(spec, &Plan { inner: 2, ..plan }));
    match name {
        "wide_resnet50_2" => return wide(50),
        "wide_resnet101_2" => return wide(101),
        _ => {}
    }
    type Groups = fn(u32) -> Option<Plan>;
    let families: [(&str, Groups, &'static str); 3] = [
        (
            "resnet<N>",
            |depth| if CIFAR_DEPTHS.contains(&depth) { cifar(depth) } else { imagenet(depth) },
            RULE,
        ),
        ("resnet<N>-imagenet", imagenet, IMAGENET_RULE),
        ("resnet<N>-cifar", cifar, CIFAR_RULE),
    ];
    families.into_iter().find_map(|(pattern, groups, rule)| {
        let depth = *numbers(name, pattern)?.first()?;
        let possible = |depth| groups(depth).map(|_| pattern.replace("<N>", &depth.to_string()));
        Some(match groups(depth) {
            Some(plan) => build(spec, &plan),
            None => Err(impossible(name, depth, rule, possible)),
        })
    })
}

/// Returns the groups of a network for ImageNet. The bottlenecks of 50, 101 and 152 are torchvision's; any other depth has 3,
/// 4 (8 from 152 on), the rest and 3 blocks, so that the third group grows, as in the papers' ResNet-1001 and -1517.
fn imagenet(depth: u32) -> Option<Plan> {
    let plan = |bottleneck, blocks| Plan { large_images: true, bottleneck, width: 64, inner: 1, blocks };
    Some(match depth {
        18 => plan(false, vec![2, 2, 2, 2]),
        34 => plan(false, vec![3, 4, 6, 3]),
        35..10_000 if depth % 3 == 2 => {
            let second = if depth < 152 { 4 } else { 8 };
            plan(true, vec![3, second, (depth - 2) / 3 - 6 - second, 3])
        }
        _ => return None,
    })
}

/// Returns the groups of a network for CIFAR, §4.2 of the paper.
fn cifar(depth: u32) -> Option<Plan> {
    let blocks = vec![(depth.checked_sub(2)?) / 6; 3];
    let possible = (8..10_000).contains(&depth) && depth % 6 == 2;
    possible.then_some(Plan { large_images: false, bottleneck: false, width: 16, inner: 1, blocks })
}

/// Builds the residual network of a plan.
fn build(spec: &NetworkSpec, plan: &Plan) -> Result<Network, NetworkError> {
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
            x = residual_block(&mut b, &name, x, plan.width << group, stride, plan)?;
        }
    }
    x = b.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = b.fully_connected("fc", x, spec.classes)?;
    b.finish(x)
}

/// Adds relu(branch(x) + shortcut(x)).
fn residual_block(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    width: u32,
    stride: u32,
    plan: &Plan,
) -> Result<LayerId, NetworkError> {
    let steps: &[(u32, Window)] = if plan.bottleneck {
        &[
            (plan.inner * width, Window::square(1, 1, 0)),
            (plan.inner * width, Window::square(3, stride, 1)),
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
