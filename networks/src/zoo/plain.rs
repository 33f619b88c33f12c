//! Networks of a few layers, for small images.

use crate::builder::Builder;
use crate::error::NetworkError;
use plimsoll_ir::network::{Network, NetworkSpec, Window};

/// Builds two hidden layers of 256.
pub(super) fn mlp(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.fully_connected("fc1", b.images(), 256)?;
    x = b.relu("relu1", x)?;
    x = b.fully_connected("fc2", x, 256)?;
    x = b.relu("relu2", x)?;
    x = b.fully_connected("fc3", x, spec.classes)?;
    b.finish(x)
}

/// Builds LeNet-5 (LeCun et al. 1998, §II.B) with the modern replacements of its parts: ReLU, plain average pooling, a full
/// second convolution, softmax.
pub(super) fn lenet(spec: &NetworkSpec) -> Result<Network, NetworkError> {
    let mut b = Builder::new(spec)?;
    let mut x = b.conv("conv1", b.images(), 6, Window::square(5, 1, 2), true)?;
    x = b.relu("relu1", x)?;
    x = b.avg_pool("pool1", x, Window::square(2, 2, 0))?;
    x = b.conv("conv2", x, 16, Window::square(5, 1, 0), true)?;
    x = b.relu("relu2", x)?;
    x = b.avg_pool("pool2", x, Window::square(2, 2, 0))?;
    for (i, width) in [120, 84].into_iter().enumerate() {
        x = b.fully_connected(&format!("fc{}", i + 1), x, width)?;
        x = b.relu(&format!("relu{}", i + 3), x)?;
    }
    x = b.fully_connected("fc3", x, spec.classes)?;
    b.finish(x)
}
