//! The kinds of layers, one file each: shape, what stays resident, FLOPs, forward and backward pass.
//!
//! Another kind is a variant of [`LayerKind`] with its name, a file here, and a line in [`rules`]. Nothing else in this crate
//! asks what kind a layer is, but for rules that concern several layers at once (tokens or images, stochastic depth).
//!
//! What it deliberately does not do: walk over layers. `../builder.rs` and `../lower.rs` do, and ask here.

mod activation;
mod add;
mod attention;
mod avg_pool;
mod batch_norm;
mod bias;
mod concat;
mod conv;
mod conv_transpose;
mod dropout;
mod embedding;
mod fully_connected;
mod input;
mod layer_norm;
mod loss;
mod lrn;
mod lstm;
mod max_pool;
mod multiply;
mod norm;
mod relu;
mod rms_norm;
mod rotary;
mod window;

use crate::error::NetworkError;
use crate::walk::{Mode, Walk};
use plimsoll_ir::network::{Layer, LayerKind, Shape};
use plimsoll_ir::program::Init;
use plimsoll_ir::{LayerId, TensorId};

/// All that the house knows of a kind of layer. Shapes are those of one sample.
pub(crate) trait Rules {
    /// How many layers it takes the outputs of, where it is given so many.
    fn arity(&self, _given: usize) -> usize {
        1
    }

    /// What it asks of the layers that it takes, besides their shapes.
    fn check_inputs(&self, _layers: &[Layer], _inputs: &[LayerId]) -> Result<(), &'static str> {
        Ok(())
    }

    /// The shape of its output; or what is wrong with the layer of this name. There are as many inputs as
    /// [`Rules::arity`] says.
    fn shape(&self, name: &str, inputs: &[Shape]) -> Result<Shape, NetworkError>;

    /// What of it stays on the device, parameters in the order in which its calls take them. `tied` says whether a layer
    /// of another kind shares its parameters.
    fn resident(&self, _input: Shape, _tied: bool) -> Vec<Resident> {
        Vec::new()
    }

    /// The weight that another layer may share, if any.
    fn shared(&self, _input: Shape) -> Option<SharedWeight> {
        None
    }

    /// Floating-point operations of the forward pass; a multiply and an add are two.
    fn flops(&self, input: Shape, output: Shape) -> u64;

    /// Bytes of a sample that it keeps for the backward pass, where they may be larger than its feature maps.
    fn saved_bytes(&self, _output: Shape) -> u128 {
        0
    }

    /// Whether it trains on more than one position only.
    fn needs_variance(&self) -> bool {
        false
    }

    /// Whether it has no op of its own and hands on its first input, of so many that there are.
    fn hands_on(&self, _inputs: usize, _mode: Mode) -> bool {
        false
    }

    /// How many of its inputs it reads the outputs of: all, or those that come first.
    fn reads(&self, inputs: usize) -> usize {
        inputs
    }

    /// Whether its backward pass reads an input, where `trained` says of each input whether its gradient is needed.
    fn backward_reads(&self, _input: usize, _trained: &dyn Fn(usize) -> bool) -> bool {
        false
    }

    /// Whether its backward pass reads its output, or a mask of one bit an element in place of that.
    fn may_mask(&self) -> bool {
        false
    }

    /// Appends its forward ops; gives the tensor where its output lies. `inputs` are the layers that compute what it takes.
    fn forward(&self, walk: &mut Walk<'_>, id: LayerId, inputs: &[LayerId]) -> TensorId;

    /// Appends its backward ops. `dy` is the gradient of its output; of the loss, its output.
    fn backward(&self, walk: &mut Walk<'_>, id: LayerId, dy: TensorId);
}

/// A region that stays on the device.
pub(crate) struct Resident {
    /// Such as `weight`.
    pub name: &'static str,
    /// The lengths of its dimensions.
    pub shape: Vec<u64>,
    /// What it is for.
    pub purpose: Purpose,
}

/// What a resident region is for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Purpose {
    /// Trained; starts as it says.
    Parameter(Init),
    /// Counts as a parameter, and no op reads it, so nothing trains it.
    Spare,
    /// Updated by kernels and not trained; starts at this value.
    State(f32),
}

impl Resident {
    fn parameter(name: &'static str, shape: Vec<u64>, init: Init) -> Resident {
        Resident { name, shape, purpose: Purpose::Parameter(init) }
    }

    /// Its elements, without overflow.
    pub(crate) fn elements(&self) -> u128 {
        self.shape.iter().map(|n| u128::from(*n)).product()
    }
}

/// A weight as those who share it see it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedWeight {
    /// Outputs, or rows of a table.
    rows: u64,
    /// The rest.
    columns: u64,
    /// Whether a bias comes with it.
    bias: bool,
}

/// A product that saturates: what is too large for any machine stays too large.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor))
}

/// The error that a layer makes no sense.
fn bad<T>(layer: &str, why: impl std::fmt::Display) -> Result<T, NetworkError> {
    Err(NetworkError::of_layer(layer, why))
}

/// The rules of a kind of layer.
pub(crate) fn rules(kind: &LayerKind) -> Box<dyn Rules> {
    use LayerKind as K;
    match *kind {
        K::Input => Box::new(input::Input),
        K::Conv { out_channels, window, groups, bias } => {
            Box::new(conv::Conv { out_channels, window, groups, bias })
        }
        K::ConvTranspose { out_channels, window } => {
            Box::new(conv_transpose::ConvTranspose { out_channels, window })
        }
        K::Bias { over, spare } => Box::new(bias::Bias { over, spare }),
        K::Embedding { vocabulary, width, first, length } => {
            Box::new(embedding::Embedding { vocabulary, width, first, length })
        }
        K::Attention { heads, kv_heads, causal } => {
            Box::new(attention::Attention { heads, kv_heads, causal })
        }
        K::Rotary { width, base } => Box::new(rotary::Rotary { width, base }),
        K::LstmCell => Box::new(lstm::LstmCell),
        K::BatchNorm { epsilon, momentum } => Box::new(batch_norm::BatchNorm { epsilon, momentum }),
        K::LayerNorm { epsilon } => Box::new(layer_norm::LayerNorm { epsilon }),
        K::RmsNorm { epsilon } => Box::new(rms_norm::RmsNorm { epsilon }),
        K::Relu { ceiling } => Box::new(relu::Relu { ceiling }),
        K::Activation { function } => Box::new(activation::Activation { function }),
        K::MaxPool { window, ceil } => Box::new(max_pool::MaxPool { window, ceil }),
        K::AvgPool { window } => Box::new(avg_pool::AvgPool { window: Some(window) }),
        K::GlobalAvgPool => Box::new(avg_pool::AvgPool { window: None }),
        K::FullyConnected { outputs, bias } => Box::new(fully_connected::FullyConnected { outputs, bias }),
        K::Dropout { probability, unit } => Box::new(dropout::Dropout { probability, unit }),
        K::Add => Box::new(add::Add),
        K::Multiply => Box::new(multiply::Multiply),
        K::Concat { along } => Box::new(concat::Concat { along }),
        K::Lrn { size, alpha, beta, bias } => Box::new(lrn::Lrn { size, alpha, beta, bias }),
        K::SoftmaxCrossEntropy => Box::new(loss::SoftmaxCrossEntropy),
    }
}
