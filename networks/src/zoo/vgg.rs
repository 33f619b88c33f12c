//! VGG (Simonyan and Zisserman 2015), and its configurations D and E enlarged as in vDNN §4.3. VGG-16 of vDNN is E, named
//! after its 16 convolutions, so its VGG-116 to VGG-516 are `vgg119` to `vgg519` here; a depth also counts the three fully
//! connected layers.

use super::alexnet::classifier;
use super::{impossible, numbers};
use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::network::{Network, NetworkSpec, Window};

/// Possible depths of VGG networks.
const RULE: &str = "VGG networks have the depths 11 and 13, and 16 + 5k and 19 + 5k up to 9999 (k more convolutions in \
                        each of the five groups of VGG D and E)";

/// Returns the convolutions of each of the five groups: configurations A, B, D and E of Simonyan and Zisserman 2015, and the
/// last two enlarged evenly.
fn groups(depth: u32) -> Option<[u32; 5]> {
    let enlarged = |groups: [u32; 5], by: u32| groups.map(|n| n + by / 5);
    match depth {
        11 => Some([1, 1, 2, 2, 2]),
        13 => Some([2; 5]),
        16..10_000 if depth % 5 == 1 => Some(enlarged([2, 2, 3, 3, 3], depth - 16)),
        19..10_000 if depth % 5 == 4 => Some(enlarged([2, 2, 4, 4, 4], depth - 19)),
        _ => None,
    }
}

/// Returns the VGG network that a spec names, if it names one.
pub(super) fn named(spec: &NetworkSpec) -> Option<Result<Network, NetworkError>> {
    let depth = *numbers(&spec.name, "vgg<N>")?.first()?;
    Some(match groups(depth) {
        Some(groups) => build(spec, groups),
        None => Err(impossible(&spec.name, depth, RULE, |d| groups(d).map(|_| format!("vgg{d}")))),
    })
}

/// Builds VGG: 3x3 convolutions in five groups, each closed by a pooling. Images of less than 224x224 leave fewer inputs to
/// the classifier.
fn build(spec: &NetworkSpec, groups: [u32; 5]) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.images();
    for (group, (convolutions, width)) in (1..).zip(groups.into_iter().zip([64, 128, 256, 512, 512])) {
        for i in 1..=convolutions {
            x = b.conv(&format!("conv{group}_{i}"), x, width, Window::square(3, 1, 1), true)?;
            x = b.relu(&format!("relu{group}_{i}"), x)?;
        }
        x = b.max_pool(&format!("pool{group}"), x, Window::square(2, 2, 0))?;
    }
    x = classifier(&mut b, x, 6)?;
    b.finish(x)
}
