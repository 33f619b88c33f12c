//! Inception v3 (Szegedy et al. 2016) as in torchvision, without the auxiliary head.
//!
//! A module is data: its branches, each a chain of steps that starts at the module's input, concatenated at the end. A branch
//! that forks again (figure 7 of the paper) is two branches with a common beginning.

use super::googlenet::conv;
use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// A step of a branch.
#[derive(Clone, Copy)]
enum Step {
    /// Convolution, batch normalisation, ReLU: name, output channels, rows and columns of the window, stride; padded to keep
    /// the size at stride 1, not padded at stride 2.
    Conv(&'static str, u32, [u32; 2], u32),
    /// Mean over 3x3, size kept.
    AvgPool,
    /// Largest of 3x3, stride 2.
    MaxPool,
}
use Step::{AvgPool, Conv, MaxPool};

/// A branch, as its steps.
type Branch = Vec<Step>;

/// Returns a module of the first kind (figure 5): `pool` channels come from the branch with the pooling.
fn a(pool: u32) -> Vec<Branch> {
    vec![
        vec![Conv("branch1x1", 64, [1, 1], 1)],
        vec![Conv("branch5x5_1", 48, [1, 1], 1), Conv("branch5x5_2", 64, [5, 5], 1)],
        vec![
            Conv("branch3x3dbl_1", 64, [1, 1], 1),
            Conv("branch3x3dbl_2", 96, [3, 3], 1),
            Conv("branch3x3dbl_3", 96, [3, 3], 1),
        ],
        vec![AvgPool, Conv("branch_pool", pool, [1, 1], 1)],
    ]
}

/// Returns the module that halves the size after those of the first kind (figure 10).
fn b() -> Vec<Branch> {
    vec![
        vec![Conv("branch3x3", 384, [3, 3], 2)],
        vec![
            Conv("branch3x3dbl_1", 64, [1, 1], 1),
            Conv("branch3x3dbl_2", 96, [3, 3], 1),
            Conv("branch3x3dbl_3", 96, [3, 3], 2),
        ],
        vec![MaxPool],
    ]
}

/// Returns a module of the second kind (figure 6), with 7x7 convolutions as rows after columns, `inner` channels between
/// them.
fn c(inner: u32) -> Vec<Branch> {
    vec![
        vec![Conv("branch1x1", 192, [1, 1], 1)],
        vec![
            Conv("branch7x7_1", inner, [1, 1], 1),
            Conv("branch7x7_2", inner, [1, 7], 1),
            Conv("branch7x7_3", 192, [7, 1], 1),
        ],
        vec![
            Conv("branch7x7dbl_1", inner, [1, 1], 1),
            Conv("branch7x7dbl_2", inner, [7, 1], 1),
            Conv("branch7x7dbl_3", inner, [1, 7], 1),
            Conv("branch7x7dbl_4", inner, [7, 1], 1),
            Conv("branch7x7dbl_5", 192, [1, 7], 1),
        ],
        vec![AvgPool, Conv("branch_pool", 192, [1, 1], 1)],
    ]
}

/// Returns the module that halves the size after those of the second kind.
fn d() -> Vec<Branch> {
    vec![
        vec![Conv("branch3x3_1", 192, [1, 1], 1), Conv("branch3x3_2", 320, [3, 3], 2)],
        vec![
            Conv("branch7x7x3_1", 192, [1, 1], 1),
            Conv("branch7x7x3_2", 192, [1, 7], 1),
            Conv("branch7x7x3_3", 192, [7, 1], 1),
            Conv("branch7x7x3_4", 192, [3, 3], 2),
        ],
        vec![MaxPool],
    ]
}

/// Returns a module of the third kind (figure 7): two branches end in a 1x3 next to a 3x1 convolution.
fn e() -> Vec<Branch> {
    let three = Conv("branch3x3_1", 384, [1, 1], 1);
    let double = [Conv("branch3x3dbl_1", 448, [1, 1], 1), Conv("branch3x3dbl_2", 384, [3, 3], 1)];
    vec![
        vec![Conv("branch1x1", 320, [1, 1], 1)],
        vec![three, Conv("branch3x3_2a", 384, [1, 3], 1)],
        vec![three, Conv("branch3x3_2b", 384, [3, 1], 1)],
        vec![double[0], double[1], Conv("branch3x3dbl_3a", 384, [1, 3], 1)],
        vec![double[0], double[1], Conv("branch3x3dbl_3b", 384, [3, 1], 1)],
        vec![AvgPool, Conv("branch_pool", 192, [1, 1], 1)],
    ]
}

/// Builds Inception v3.
pub(super) fn build(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut net = Builder::new(spec)?;
    let mut x = net.images();
    x = conv(&mut net, "Conv2d_1a_3x3", x, 32, Window::square(3, 2, 0))?;
    x = conv(&mut net, "Conv2d_2a_3x3", x, 32, Window::square(3, 1, 0))?;
    x = conv(&mut net, "Conv2d_2b_3x3", x, 64, Window::square(3, 1, 1))?;
    x = net.max_pool("maxpool1", x, Window::square(3, 2, 0))?;
    x = conv(&mut net, "Conv2d_3b_1x1", x, 80, Window::square(1, 1, 0))?;
    x = conv(&mut net, "Conv2d_4a_3x3", x, 192, Window::square(3, 1, 0))?;
    x = net.max_pool("maxpool2", x, Window::square(3, 2, 0))?;
    let modules = [
        ("Mixed_5b", a(32)),
        ("Mixed_5c", a(64)),
        ("Mixed_5d", a(64)),
        ("Mixed_6a", b()),
        ("Mixed_6b", c(128)),
        ("Mixed_6c", c(160)),
        ("Mixed_6d", c(160)),
        ("Mixed_6e", c(192)),
        ("Mixed_7a", d()),
        ("Mixed_7b", e()),
        ("Mixed_7c", e()),
    ];
    for (name, branches) in modules {
        x = module(&mut net, name, x, &branches)?;
    }
    x = net.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = net.dropout("dropout", x, 0.5)?;
    x = net.fully_connected("fc", x, spec.classes)?;
    net.finish(x)
}

/// Adds all branches of a module, and the concatenation of their ends.
fn module(
    net: &mut Builder,
    name: &str,
    input: LayerId,
    branches: &[Branch],
) -> Result<LayerId, NetworkError> {
    let mut made: Vec<(&str, LayerId)> = Vec::new();
    let mut ends = Vec::new();
    for branch in branches {
        let mut x = input;
        for step in branch {
            x = match *step {
                AvgPool => net.avg_pool(&format!("{name}.pool"), x, Window::square(3, 1, 1))?,
                MaxPool => net.max_pool(&format!("{name}.pool"), x, Window::square(3, 2, 0))?,
                Conv(part, channels, size, stride) => match made.iter().find(|(other, _)| *other == part) {
                    Some((_, layer)) => *layer,
                    None => {
                        let padding = if stride == 1 { size.map(|n| n / 2) } else { [0; 2] };
                        let window = Window { size, stride: [stride; 2], padding, dilation: [1; 2] };
                        let layer = conv(net, &format!("{name}.{part}"), x, channels, window)?;
                        made.push((part, layer));
                        layer
                    }
                },
            };
        }
        ends.push(x);
    }
    net.concat(&format!("{name}.cat"), &ends)
}
