//! What stays on the device: parameters, gradients, momenta, running statistics, hyper-parameters, metrics.
//!
//! The layout follows from the network alone, so it is the same for every batch size and for evaluation. Regions of one
//! role lie side by side in layer order: all gradients are one range, which workers can sum in one go.
//!
//! How parameters start is one rule for every network, PyTorch's own where it has one: convolutions He-normal with
//! fan-out and no bias (torchvision's networks), fully connected layers and their biases uniform within
//! 1 / sqrt(inputs) (PyTorch's default), normalisations and scales the identity, learned positions and tables of tokens normal
//! with a deviation of 0.02 where the head uses the table too (GPT-2, BERT) and of 1 otherwise (PyTorch's default). Layers that share parameters have one region for them.

use crate::builder::BYTES_LIMIT;
use crate::error::NetworkError;
use plimsoll_ir::Bytes;
use plimsoll_ir::network::{Extent, Layer, LayerKind, Network, Shape};
use plimsoll_ir::program::{Hyper, Init, Region, Role, STORAGE_ALIGNMENT};

/// The resident part, and where the kernels of each layer find theirs.
pub(crate) struct Resident {
    /// All regions.
    pub regions: Vec<Region>,
    /// What they take together.
    pub bytes: Bytes,
    /// For each layer.
    pub layers: Vec<LayerRegions>,
    /// Where [`Hyper`] lies.
    pub hyper: Bytes,
    /// Where the metrics lie.
    pub metrics: Bytes,
}

/// A layer's own regions, by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerRegions {
    /// Weight, then bias; scale, then shift; those of another layer where it shares them.
    pub parameters: Vec<Trained>,
    /// Running mean, running variance.
    pub states: Vec<Bytes>,
}

/// A parameter and what is trained with it.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// The parameter's name.
    pub name: String,
    /// How many numbers it has.
    pub elements: u64,
    /// Where it lies.
    pub parameter: Bytes,
    /// Where its gradient lies.
    pub gradient: Bytes,
    /// Where its momentum lies.
    pub momentum: Bytes,
}

/// A region before it has its place: which layer's, name, shape.
type Wanted = (usize, String, Vec<u64>);

/// Lays out what stays on the device for a network.
pub(crate) fn resident(network: &Network) -> Result<Resident, NetworkError> {
    let mut parameters: Vec<(Wanted, Init)> = Vec::new();
    let mut states: Vec<(Wanted, f32)> = Vec::new();
    for (i, layer) in network.layers.iter().enumerate() {
        if layer.shares.is_some() {
            continue;
        }
        for (name, shape, init) in parameters_of(network, layer) {
            parameters.push(((i, format!("{}.{name}", layer.name), shape), init));
        }
        if let LayerKind::Bias { over, spare: 1.. } = layer.kind {
            // Nothing reads these rows, so nothing trains them.
            let own: u64 = bias_shape(over, network.input_shape(layer)).iter().product();
            let shape = vec![network.parameters(layer) - own];
            states.push(((i, format!("{}.spare", layer.name), shape), 0.0));
        }
        if matches!(layer.kind, LayerKind::BatchNorm { .. }) {
            let channels = vec![u64::from(layer.output.channels)];
            states.push(((i, format!("{}.running_mean", layer.name), channels.clone()), 0.0));
            states.push(((i, format!("{}.running_var", layer.name), channels), 1.0));
        }
    }
    let all = parameters.iter().map(|(wanted, _)| wanted).chain(states.iter().map(|(wanted, _)| wanted));
    // Parameter, gradient and momentum are three; the count is an upper bound for the states.
    let total: u128 =
        all.map(|(_, _, shape)| 12 * shape.iter().map(|n| u128::from(*n)).product::<u128>() + 768).sum();
    if total > u128::from(BYTES_LIMIT.0) {
        let what = format!("training `{}`, without its feature maps,", network.spec.name);
        return Err(NetworkError::TooLarge { what, bytes: total, limit: BYTES_LIMIT });
    }
    let mut resident = Resident {
        regions: Vec::new(),
        bytes: Bytes::ZERO,
        layers: vec![LayerRegions::default(); network.layers.len()],
        hyper: Bytes::ZERO,
        metrics: Bytes::ZERO,
    };
    for ((layer, name, shape), init) in &parameters {
        let parameter = resident.place(name, Role::Parameter(*init), shape);
        let (name, elements) = (name.clone(), shape.iter().product());
        let trained = Trained { name, elements, parameter, gradient: Bytes::ZERO, momentum: Bytes::ZERO };
        resident.layers[*layer].parameters.push(trained);
    }
    resident.place_beside(&parameters, Role::Gradient, |trained, offset| trained.gradient = offset);
    resident.place_beside(&parameters, Role::Momentum, |trained, offset| trained.momentum = offset);
    for ((layer, name, shape), start) in &states {
        let offset = resident.place(name, Role::State(*start), shape);
        resident.layers[*layer].states.push(offset);
    }
    for (i, layer) in network.layers.iter().enumerate() {
        if let Some(owner) = layer.shares {
            resident.layers[i] = resident.layers[owner.index()].clone();
        }
    }
    resident.hyper = resident.place("hyper", Role::Hyper, &[Hyper::WORDS]);
    resident.metrics = resident.place("metrics", Role::Metrics, &[3]);
    Ok(resident)
}

impl Resident {
    /// Appends a region; gives its offset.
    fn place(&mut self, name: &str, role: Role, shape: &[u64]) -> Bytes {
        let region = Region { name: name.to_owned(), role, offset: self.bytes, shape: shape.to_vec() };
        self.bytes += region.bytes().round_up(STORAGE_ALIGNMENT);
        let offset = region.offset;
        self.regions.push(region);
        offset
    }

    /// Appends a region of this role for every parameter, in the parameters' order.
    fn place_beside(
        &mut self,
        parameters: &[(Wanted, Init)],
        role: Role,
        keep: impl Fn(&mut Trained, Bytes),
    ) {
        for ((layer, name, shape), _) in parameters {
            let offset = self.place(name, role, shape);
            let trained = self.layers[*layer].parameters.iter_mut().find(|t| t.name == *name);
            keep(trained.expect("every parameter was placed before"), offset);
        }
    }
}

/// The lengths of a bias's dimensions, for what it is added to.
fn bias_shape(over: Extent, input: Shape) -> Vec<u64> {
    match over {
        Extent::Channels => vec![u64::from(input.channels)],
        Extent::Positions => vec![input.pixels(), u64::from(input.channels)],
    }
}

/// Name, shape and start of a layer's parameters, in the order in which its calls take them.
fn parameters_of(network: &Network, layer: &Layer) -> Vec<(&'static str, Vec<u64>, Init)> {
    let input = network.input_shape(layer);
    match &layer.kind {
        LayerKind::Conv { out_channels, window, groups, bias } => {
            let [rows, columns] = window.size.map(u64::from);
            let out = u64::from(*out_channels);
            let fan_out = (out * rows * columns) as f64;
            let init = Init::Normal((2.0 / fan_out).sqrt() as f32);
            let weight = ("weight", vec![out, rows, columns, u64::from(input.channels / groups)], init);
            let bias = bias.then(|| ("bias", vec![out], Init::Constant(0.0)));
            [weight].into_iter().chain(bias).collect()
        }
        LayerKind::FullyConnected { outputs, bias } => {
            let init = Init::Uniform((1.0 / (input.elements() as f64).sqrt()) as f32);
            let weight = ("weight", vec![u64::from(*outputs), input.elements()], init);
            let bias = bias.then(|| ("bias", vec![u64::from(*outputs)], init));
            [weight].into_iter().chain(bias).collect()
        }
        LayerKind::ConvTranspose { out_channels, window } => {
            let [rows, columns] = window.size.map(u64::from);
            let shape = vec![u64::from(input.channels), rows, columns, u64::from(*out_channels)];
            // He-normal: how many elements of the input meet in one of the output.
            let [down, across] = window.stride.map(u64::from);
            let fan_in = (u64::from(input.channels) * rows * columns) as f64 / (down * across) as f64;
            vec![("weight", shape, Init::Normal((2.0 / fan_in.max(1.0)).sqrt() as f32))]
        }
        LayerKind::Bias { over, .. } => {
            let init = match over {
                Extent::Channels => Init::Constant(0.0),
                Extent::Positions => Init::Normal(0.02),
            };
            vec![("bias", bias_shape(*over, input), init)]
        }
        LayerKind::Embedding { vocabulary, width, .. } => {
            let tied = network.layers.iter().any(|other| {
                let uses = other.shares.is_some_and(|of| std::ptr::eq(network.layer(of), layer));
                uses && !matches!(other.kind, LayerKind::Embedding { .. })
            });
            let init = Init::Normal(if tied { 0.02 } else { 1.0 });
            vec![("weight", vec![u64::from(*vocabulary), u64::from(*width)], init)]
        }
        LayerKind::Learned { rows, channels } => {
            vec![("weight", vec![u64::from(*rows), u64::from(*channels)], Init::Normal(0.02))]
        }
        LayerKind::Scale | LayerKind::RmsNorm { .. } => {
            vec![("weight", vec![u64::from(input.channels)], Init::Constant(1.0))]
        }
        LayerKind::BatchNorm { .. } | LayerKind::LayerNorm { .. } => {
            let channels = vec![u64::from(input.channels)];
            vec![("weight", channels.clone(), Init::Constant(1.0)), ("bias", channels, Init::Constant(0.0))]
        }
        _ => Vec::new(),
    }
}
