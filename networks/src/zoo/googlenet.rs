//! GoogLeNet (Szegedy et al. 2015) as in torchvision: batch normalisation, no auxiliary heads, and 3x3 convolutions in place
//! of the paper's 5x5.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::LayerId;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec, Window};

/// The channels of a module: 1x1, 3x3 after its reduction, "5x5" after its reduction, 1x1 after the pooling.
struct Module {
    name: &'static str,
    ones: u32,
    threes: [u32; 2],
    fives: [u32; 2],
    pooled: u32,
}

/// Returns one line of table 1.
const fn module(name: &'static str, ones: u32, threes: [u32; 2], fives: [u32; 2], pooled: u32) -> Module {
    Module { name, ones, threes, fives, pooled }
}

/// Table 1 of the paper.
const MODULES: [Module; 9] = [
    module("inception3a", 64, [96, 128], [16, 32], 32),
    module("inception3b", 128, [128, 192], [32, 96], 64),
    module("inception4a", 192, [96, 208], [16, 48], 64),
    module("inception4b", 160, [112, 224], [24, 64], 64),
    module("inception4c", 128, [128, 256], [24, 64], 64),
    module("inception4d", 112, [144, 288], [32, 64], 64),
    module("inception4e", 256, [160, 320], [32, 128], 128),
    module("inception5a", 256, [160, 320], [32, 128], 128),
    module("inception5b", 384, [192, 384], [48, 128], 128),
];

/// Builds GoogLeNet.
pub(super) fn build(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let images = b.images();
    let mut x = conv(&mut b, "conv1", images, 64, Window::square(7, 2, 3))?;
    x = pool(&mut b, "maxpool1", x, Window::square(3, 2, 0))?;
    x = conv(&mut b, "conv2", x, 64, Window::square(1, 1, 0))?;
    x = conv(&mut b, "conv3", x, 192, Window::square(3, 1, 1))?;
    x = pool(&mut b, "maxpool2", x, Window::square(3, 2, 0))?;
    for module in &MODULES {
        match module.name {
            "inception4a" => x = pool(&mut b, "maxpool3", x, Window::square(3, 2, 0))?,
            "inception5a" => x = pool(&mut b, "maxpool4", x, Window::square(2, 2, 0))?,
            _ => {}
        }
        x = inception(&mut b, module, x)?;
    }
    x = b.add("avgpool", LayerKind::GlobalAvgPool, &[x])?;
    x = b.dropout("dropout", x, 0.2)?;
    x = b.fully_connected("fc", x, spec.classes)?;
    b.finish(x)
}

/// Adds four branches and their concatenation.
fn inception(b: &mut Builder, module: &Module, input: LayerId) -> Result<LayerId, NetworkError> {
    let (name, one, three) = (module.name, Window::square(1, 1, 0), Window::square(3, 1, 1));
    let ones = conv(b, &format!("{name}.branch1"), input, module.ones, one)?;
    let mut ends = vec![ones];
    for (branch, [reduced, channels]) in [("branch2", module.threes), ("branch3", module.fives)] {
        let x = conv(b, &format!("{name}.{branch}.0"), input, reduced, one)?;
        ends.push(conv(b, &format!("{name}.{branch}.1"), x, channels, three)?);
    }
    let x = pool(b, &format!("{name}.branch4.0"), input, three)?;
    ends.push(conv(b, &format!("{name}.branch4.1"), x, module.pooled, one)?);
    b.concat(&format!("{name}.cat"), &ends)
}

/// Adds max pooling whose last windows may reach beyond the image.
fn pool(b: &mut Builder, name: &str, input: LayerId, window: Window) -> Result<LayerId, NetworkError> {
    b.add(name, LayerKind::MaxPool { window, ceil: true }, &[input])
}

/// Adds convolution, batch normalisation with the epsilon of TensorFlow, ReLU.
pub(super) fn conv(
    b: &mut Builder,
    name: &str,
    input: LayerId,
    channels: u32,
    window: Window,
) -> Result<LayerId, NetworkError> {
    let mut x = b.conv(&format!("{name}.conv"), input, channels, window, false)?;
    x = b.add(&format!("{name}.bn"), LayerKind::BatchNorm { epsilon: 1e-3, momentum: 0.1 }, &[x])?;
    b.relu(&format!("{name}.relu"), x)
}
