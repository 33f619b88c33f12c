//! Densely connected networks (Huang et al. 2017) for ImageNet, as in torchvision.
//!
//! Each layer of a dense block reads the outputs of all layers before it. Here it reads the concatenation of the previous
//! layer's input and output: the same channels in the same order as a concatenation of all, and the outputs of single layers
//! need not be kept until the end of the block.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// The dimensions of a densely connected network.
struct Plan {
    /// Channels that each layer adds.
    growth: u32,
    /// Channels of the first convolution.
    stem: u32,
    /// Layers of each block.
    blocks: [u32; 4],
}

/// Returns the network that a spec names, if it names one.
pub(super) fn named(spec: &NetworkSpec) -> Option<Result<Network, NetworkError>> {
    let plan = match spec.name.as_str() {
        "densenet121" => Plan { growth: 32, stem: 64, blocks: [6, 12, 24, 16] },
        "densenet161" => Plan { growth: 48, stem: 96, blocks: [6, 12, 36, 24] },
        "densenet169" => Plan { growth: 32, stem: 64, blocks: [6, 12, 32, 32] },
        "densenet201" => Plan { growth: 32, stem: 64, blocks: [6, 12, 48, 32] },
        _ => return None,
    };
    Some(build(spec, &plan))
}

/// Builds four dense blocks, with a transition that halves channels and sides between each two.
fn build(spec: &NetworkSpec, plan: &Plan) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.conv("conv0", b.images(), plan.stem, Window::square(7, 2, 3), false)?;
    x = b.batch_norm("norm0", x)?;
    x = b.relu("relu0", x)?;
    x = b.max_pool("pool0", x, Window::square(3, 2, 1))?;
    for (block, layers) in (1..).zip(plan.blocks) {
        if block > 1 {
            let name = format!("transition{}", block - 1);
            let half = b.shape(x).channels / 2;
            x = normalised_conv(&mut b, &name, "", x, half, Window::square(1, 1, 0))?;
            x = b.avg_pool(&format!("{name}.pool"), x, Window::square(2, 2, 0))?;
        }
        for layer in 1..=layers {
            let name = format!("denseblock{block}.denselayer{layer}");
            // A 1x1 convolution first, the "bottleneck" of §3, to four times the growth.
            let inner = normalised_conv(&mut b, &name, "1", x, 4 * plan.growth, Window::square(1, 1, 0))?;
            let new = normalised_conv(&mut b, &name, "2", inner, plan.growth, Window::square(3, 1, 1))?;
            x = b.concat(&format!("{name}.cat"), &[x, new])?;
        }
    }
    x = b.batch_norm("norm5", x)?;
    x = b.relu("relu5", x)?;
    x = b.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = b.fully_connected("classifier", x, spec.classes)?;
    b.finish(x)
}

/// Adds conv(relu(norm(x))).
fn normalised_conv(
    b: &mut Builder,
    name: &str,
    i: &str,
    input: LayerId,
    channels: u32,
    window: Window,
) -> Result<LayerId, NetworkError> {
    let mut x = b.batch_norm(&format!("{name}.norm{i}"), input)?;
    x = b.relu(&format!("{name}.relu{i}"), x)?;
    b.conv(&format!("{name}.conv{i}"), x, channels, window, false)
}
