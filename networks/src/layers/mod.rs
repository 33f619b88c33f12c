//! The kinds of layers: shape, resident regions, FLOPs, forward and backward pass.
//!
//! A new kind is a variant of [`LayerKind`] with its name, its rules in a file here, and a line in [`rules`]. Nothing else in
//! this crate depends on a layer's kind, except a rule that concerns several layers at once (tokens or images).
//!
//! The module deliberately does not walk over layers. `../builder.rs` and `../lower.rs` do, and call it.

mod attention;
mod batch_norm;
mod bias;
mod concat;
mod conv;
mod elementwise;
mod embedding;
mod ends;
mod lstm;
mod norm;
mod pool;
mod window;

use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::{Layer, LayerKind, Shape};
use plimsoll_ir::program::Init;
use plimsoll_ir::{LayerId, TensorId};

/// The rules of a kind of layer. Shapes are those of one sample.
pub(crate) trait Rules {
    /// Returns the number of inputs that the layer accepts, given this many.
    fn arity(&self, _given: usize) -> usize {
        1
    }

    /// Checks the input layers, besides their shapes.
    fn check_inputs(&self, _layers: &[Layer], _inputs: &[LayerId]) -> Result<(), &'static str> {
        Ok(())
    }

    /// Returns the shape of its output, or the fault of the layer of this name. The number of inputs is that of
    /// [`Rules::arity`].
    fn shape(&self, _name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError> {
        Ok(inputs[0])
    }

    /// Returns its resident regions, parameters in the order in which its calls take them. `tied` is `true` if a layer of a
    /// different kind shares its parameters.
    fn resident(&self, _input: Shape, _tied: bool) -> Vec<Resident> {
        Vec::new()
    }

    /// Returns the weight that a different layer may share, if any.
    fn shared(&self, _input: Shape) -> Option<SharedWeight> {
        None
    }

    /// Returns the floating-point operations of the forward pass; a multiply and an add are two.
    fn flops(&self, input: Shape, output: Shape) -> u64;

    /// Returns the bytes of a sample that it keeps for the backward pass, if they may exceed its activations.
    fn saved_bytes(&self, _output: Shape) -> u128 {
        0
    }

    /// Returns `true` if it needs more than one position to train.
    fn needs_variance(&self) -> bool {
        false
    }

    /// Returns `true` if it has no op and forwards its input.
    fn hands_on(&self, _mode: Mode) -> bool {
        false
    }

    /// Returns the number of inputs whose outputs it reads: all, or the first ones.
    fn reads(&self, inputs: usize) -> usize {
        inputs
    }

    /// Returns `true` if its backward pass reads an input; `trained` returns `true` for an input whose gradient is needed.
    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        false
    }

    /// Returns `true` if its backward pass reads its output, or a mask of one bit per element in place of the output.
    fn may_mask(&self) -> bool {
        false
    }

    /// Appends its forward ops; returns the tensor of its output. `inputs` are the layers that compute its inputs.
    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId;

    /// Appends its backward ops. `dy` is the gradient of its output; for the loss, its output.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId);
}

/// A region that stays on the device.
#[derive(Clone)]
pub(crate) struct Resident {
    /// Name, such as `weight`.
    pub name: &'static str,
    /// Lengths of its dimensions.
    pub shape: Vec<u64>,
    pub purpose: Purpose,
}

/// The purpose of a resident region.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Purpose {
    /// Trained parameter, which starts with this initialisation.
    Parameter(Init),
    /// Counted as a parameter, but no op reads it, so nothing trains it.
    Spare,
    /// State that kernels update and that is not trained; starts at this value.
    State(f32),
}

impl Resident {
    fn parameter(name: &'static str, shape: Vec<u64>, init: Init) -> Resident {
        Resident { name, shape, purpose: Purpose::Parameter(init) }
    }

    /// Returns its elements, without overflow.
    pub(crate) fn elements(&self) -> u128 {
        self.shape.iter().map(|n| u128::from(*n)).product()
    }
}

/// A weight as seen by the layers that share it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedWeight {
    /// Outputs, or rows of a table.
    rows: u64,
    /// Remaining elements per row.
    columns: u64,
    /// `true` if it has a bias.
    bias: bool,
}

/// Returns a product that saturates: a size too large for any machine stays too large.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor))
}

/// Returns the error of an invalid layer.
fn bad<T>(layer: &str, why: impl std::fmt::Display) -> Result<T, NetworkError> {
    Err(NetworkError::of_layer(layer, why))
}

/// Returns the rules of a kind of layer.
pub(crate) fn rules(kind: &LayerKind) -> Box<dyn Rules> {
    use LayerKind as K;
    match *kind {
        K::Input => Box::new(ends::Input),
        K::Conv { out_channels, window, groups, bias } => {
            Box::new(conv::Conv { out_channels, window, groups, bias })
        }
        K::ConvTranspose { out_channels, window } => Box::new(conv::ConvTranspose { out_channels, window }),
        K::Bias { over, spare } => Box::new(bias::Bias { over, spare }),
        K::Embedding { vocabulary, width, first, length } => {
            Box::new(embedding::Embedding { vocabulary, width, first, length })
        }
        K::Attention { heads, kv_heads, causal } => {
            Box::new(attention::Attention { heads, kv_heads, causal })
        }
        K::Rotary { width, base } => Box::new(attention::Rotary { width, base }),
        K::LstmCell => Box::new(lstm::LstmCell),
        K::BatchNorm { epsilon, momentum } => Box::new(batch_norm::BatchNorm { epsilon, momentum }),
        K::LayerNorm { epsilon } => Box::new(norm::RowNorm { epsilon, centred: true }),
        K::RmsNorm { epsilon } => Box::new(norm::RowNorm { epsilon, centred: false }),
        K::Relu { ceiling } => Box::new(elementwise::Relu { ceiling }),
        K::Activation { function } => Box::new(elementwise::Activation { function }),
        K::MaxPool { window, ceil } => Box::new(pool::MaxPool { window, ceil }),
        K::AvgPool { window } => Box::new(pool::AvgPool { window: Some(window) }),
        K::GlobalAvgPool => Box::new(pool::AvgPool { window: None }),
        K::FullyConnected { outputs, bias } => Box::new(conv::FullyConnected { outputs, bias }),
        K::Dropout { probability } => Box::new(elementwise::Dropout { probability }),
        K::Add => Box::new(elementwise::Add),
        K::Multiply => Box::new(elementwise::Multiply),
        K::Concat { along } => Box::new(concat::Concat { along }),
        K::Lrn { size, alpha, beta, bias } => Box::new(norm::Lrn { size, alpha, beta, bias }),
        K::SoftmaxCrossEntropy => Box::new(ends::SoftmaxCrossEntropy),
    }
}
