//! One iteration of a network: forward, backward, update; the kernels and the trace from one walk.
//!
//! What an op reads and writes follows from its kernel's operands ([`Call::operands`]); nothing is
//! listed twice. A tensor exists only if some op needs it, and lives only as long:
//!
//! - The backward pass reads the input of convolutions, of batch and response normalisation, and the output or the mask
//!   of ReLUs; nothing else of the forward pass outlives its last forward reader.
//! - Backward is Layrub's coordinated order (§3.1): the parameter gradient of a layer before its neuron gradient, so
//!   that the layer's input is dead when the gradient of the same size is born.
//! - ReLU, dropout, addition and softmax write over their input where nobody needs it afterwards.
//! - The gradient of a sum is one tensor, shared by all that were added. Whoever would write over a shared gradient
//!   writes elsewhere; further gradients of the same feature map are added to the first where it stands.
//!
//! A draw of stochastic depth (Huang et al. 2016) may be known beforehand. Then what it drops has no ops, and its parameters
//! move by momentum and decay alone, as where its gradients are 0; the running statistics of its normalisations stay.
//!
//! Weight decay holds for every parameter, as PyTorch's SGD has it by default. What it deliberately does not do: choose
//! addresses, reorder ops, or say how long anything takes (seconds are 0 until a model fills them in).

mod analysis;
mod backward;
mod forward;

use crate::builder::BYTES_LIMIT;
use crate::error::NetworkError;
use crate::resident::{Resident, resident};
use analysis::Analysis;
use plimsoll_ir::network::{DropUnit, Layer, LayerKind, Network, Shape, Window};
use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::program::{
    Call, ConvShape, Kernel, Operand, OperandSpec, PoolShape, Program, RowShape, STORAGE_ALIGNMENT, Way,
};
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::{Bytes, LayerId, Seconds, TensorId};

/// What an iteration is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Forward, backward, update.
    #[default]
    Train,
    /// Forward only, with running statistics and without dropout; ends in the metrics.
    Evaluate,
}

/// What a ReLU keeps for its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReluStorage {
    /// The mask where no other backward op needs its output, else the output, which is there anyway.
    #[default]
    Auto,
    /// Its output.
    Output,
    /// The mask, one bit an element (Layrub §4.2). Where its output is needed by another op too, that output dies
    /// one op earlier than with [`ReluStorage::Output`], before the gradient of the same size is born.
    Mask,
}

/// Which branches an iteration drops: what a dropout of whole batches draws in its kernel, known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// The seed of the training.
    pub seed: u64,
    /// The number of the iteration.
    pub step: u32,
}

impl Draw {
    /// Whether the layer is a branch that is dropped.
    pub fn drops(self, layer: LayerId, kind: &LayerKind) -> bool {
        let LayerKind::Dropout { probability, unit: DropUnit::Batch } = *kind else { return false };
        unit_f32(philox4x32(self.seed, [0, 0, self.step, layer.0])[0]) < probability
    }
}

/// How to lower.
#[derive(Clone, Copy)]
pub struct LowerOptions<'a> {
    /// What the iteration is for.
    pub mode: Mode,
    /// What ReLUs keep; of no meaning in evaluation.
    pub relu: ReluStorage,
    /// The draw of stochastic depth to lower for; none for ops that serve every draw. Of no meaning in evaluation.
    pub draw: Option<Draw>,
    /// How the device can run a call, the usual way first; never empty. The others become the op's alternatives.
    pub ways: &'a dyn Fn(&Call) -> Vec<Way>,
}

impl Default for LowerOptions<'_> {
    /// Training, ReLU masks where they save memory, one way for each call, without workspace.
    fn default() -> Self {
        LowerOptions {
            mode: Mode::Train,
            relu: ReluStorage::Auto,
            draw: None,
            ways: &|_| Way::sole(Bytes::ZERO),
        }
    }
}

/// Lowers a network to one iteration at a batch size, at least 1.
///
/// The trace is named after the network's spec, such as `resnet18-64x64x3-10`, with `-evaluate` in evaluation.
pub fn lower(network: &Network, batch: u64, options: &LowerOptions) -> Result<Program, NetworkError> {
    check_sizes(network, batch, options.mode)?;
    let mut lowering = Lowering {
        network,
        batch,
        options,
        analysis: Analysis::new(network, options)?,
        resident: resident(network)?,
        tensors: Vec::new(),
        ops: Vec::new(),
        kernels: Vec::new(),
        values: Vec::new(),
        saved: vec![Vec::new(); network.layers.len()],
    };
    let images = lowering.tensor("images", lowering.f32s(network.layers[0].output), TensorKind::Input);
    let labels = lowering.tensor("labels", Bytes(4 * batch * network.labels()), TensorKind::Input);
    lowering.forward(images, labels);
    if options.mode == Mode::Train {
        lowering.backward(labels);
        lowering.update();
    }
    let spec = &network.spec;
    let suffix = if options.mode == Mode::Evaluate { "-evaluate" } else { "" };
    let [height, width] = spec.image;
    let Lowering { resident, tensors, ops, kernels, .. } = lowering;
    let trace = Trace {
        kind: TraceKind,
        name: format!("{}-{height}x{width}x{}-{}{suffix}", spec.name, spec.channels, spec.classes),
        batch,
        resident_bytes: resident.bytes,
        tensors,
        ops,
    };
    Ok(Program { trace, kernels, resident: resident.regions, images, labels })
}

/// Refuses a batch that is 0, too large for any machine, or too small for a variance.
fn check_sizes(network: &Network, batch: u64, mode: Mode) -> Result<(), NetworkError> {
    if batch == 0 {
        return Err(NetworkError::Zero { what: "the batch size" });
    }
    let mut total = 0;
    for layer in &network.layers {
        // A value and a gradient, 4 bytes an element each.
        total += 8 * u128::from(layer.output.elements()) * u128::from(batch);
        if let LayerKind::Attention { heads, .. } = layer.kind {
            let pairs = u128::from(layer.output.pixels()).pow(2);
            total += 4 * pairs * u128::from(heads) * u128::from(batch);
        }
        let positions = u128::from(batch) * u128::from(layer.output.pixels());
        if mode == Mode::Train && matches!(layer.kind, LayerKind::BatchNorm { .. }) && positions == 1 {
            return Err(NetworkError::NoVariance { layer: layer.name.clone() });
        }
    }
    if total > u128::from(BYTES_LIMIT.0) {
        let what = format!("`{}` at a batch of {batch}", network.spec.name);
        return Err(NetworkError::TooLarge { what, bytes: total, limit: BYTES_LIMIT });
    }
    Ok(())
}

/// The walk: what has come of it so far.
struct Lowering<'a> {
    network: &'a Network,
    batch: u64,
    options: &'a LowerOptions<'a>,
    analysis: Analysis,
    resident: Resident,
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    kernels: Vec<Kernel>,
    /// Where each layer's output lies.
    values: Vec<TensorId>,
    /// What each layer keeps for its backward pass besides feature maps: mask, places, statistics, probabilities; of a step
    /// of a memory its activated gates and its cell state.
    saved: Vec<Vec<TensorId>>,
}

impl<'a> Lowering<'a> {
    /// A new tensor, its size rounded up to [`STORAGE_ALIGNMENT`].
    fn tensor(&mut self, name: &str, bytes: Bytes, kind: TensorKind) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        self.tensors.push(Tensor { name: name.to_owned(), bytes: bytes.round_up(STORAGE_ALIGNMENT), kind });
        id
    }

    /// The tensor where a layer's output lies.
    fn value(&self, layer: LayerId) -> TensorId {
        self.values[layer.index()]
    }

    /// The bytes of a batch of f32 feature maps.
    fn f32s(&self, shape: Shape) -> Bytes {
        Bytes(4 * shape.elements() * self.batch)
    }

    /// Appends an op and its kernel; what the op reads and writes follows from the operands.
    fn push(&mut self, layer: LayerId, suffix: &str, phase: Phase, call: Call, operands: Vec<Operand>) {
        let layer: &Layer = self.network.layer(layer);
        let count = call.operands().len();
        assert_eq!(count, operands.len(), "{} takes as many operands as it documents", call.name());
        let kernel = Kernel { call, operands };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (operand, OperandSpec { access, .. }) in kernel.specified() {
            let Operand::Tensor(tensor) = operand else { continue };
            for (list, listed) in [(&mut reads, access.reads()), (&mut writes, access.writes())] {
                if listed && !list.contains(&tensor) {
                    list.push(tensor);
                }
            }
        }
        let mut ways = (self.options.ways)(&kernel.call).into_iter().map(|way| Alternative {
            name: way.name,
            seconds: Seconds::ZERO,
            workspace_bytes: way.workspace.round_up(STORAGE_ALIGNMENT),
        });
        let usual = ways.next().expect("a device has a way to run every call");
        let alternatives = ways.collect();
        self.ops.push(Op {
            name: format!("{}.{suffix}", layer.name),
            layer: layer.name.clone(),
            kind: op_kind(&kernel.call, &layer.kind).to_owned(),
            phase,
            seconds: Seconds::ZERO,
            reads,
            writes,
            workspace_bytes: usual.workspace_bytes,
            flops: kernel.call.flops(),
            recomputable: kernel.repeatable(),
            alternatives,
        });
        self.kernels.push(kernel);
    }

    /// One SGD step for every parameter, in layer order.
    fn update(&mut self) {
        let hyper = Operand::Resident(self.resident.hyper);
        for index in 0..self.network.layers.len() {
            if self.network.layers[index].shares.is_some() {
                continue;
            }
            for trained in self.resident.layers[index].parameters.clone() {
                let idle = self.analysis.absent[index];
                let gradient = (!idle).then_some(trained.gradient);
                let own = [trained.parameter].into_iter().chain(gradient).chain([trained.momentum]);
                let operands = [hyper].into_iter().chain(own.map(Operand::Resident)).collect();
                let call = Call::Sgd { elements: trained.elements, decay: true, idle };
                let part = trained.name.rsplit('.').next().unwrap_or_default();
                self.push(LayerId::new(index), &format!("{part}.update"), Phase::Update, call, operands);
            }
        }
    }

    /// The elements of a layer's output over the batch.
    fn elements(&self, layer: LayerId) -> u64 {
        self.network.layer(layer).output.elements() * self.batch
    }

    /// The positions and channels of a layer's output over the batch.
    fn rows(&self, layer: LayerId) -> RowShape {
        let shape = self.network.layer(layer).output;
        RowShape { rows: shape.pixels() * self.batch, channels: u64::from(shape.channels) }
    }

    /// The rows of a layer's output that are side by side in memory, and the elements of each: what parts of a concatenation
    /// along rows are, and what has a bias of its own at each position.
    fn samples(&self, layer: LayerId) -> RowShape {
        RowShape { rows: self.batch, channels: self.network.layer(layer).output.elements() }
    }

    /// The shape of a convolution, of the one that a transposed one is the transpose of, or of a fully connected layer, which
    /// is a 1x1 convolution on a 1x1 image.
    fn conv_shape(&self, layer: &Layer) -> ConvShape {
        let (input, output) = (self.network.input_shape(layer), layer.output);
        let (input_size, in_channels, window, groups, bias) = match layer.kind {
            LayerKind::Conv { window, groups, bias, .. } => {
                ([input.height, input.width], input.channels, window, groups, bias)
            }
            LayerKind::ConvTranspose { window, .. } => {
                return ConvShape {
                    batch: self.batch,
                    input: [output.height, output.width],
                    in_channels: output.channels,
                    output: [input.height, input.width],
                    out_channels: input.channels,
                    window,
                    groups: 1,
                    bias: false,
                };
            }
            LayerKind::FullyConnected { bias, .. } => {
                let elements = u32::try_from(input.elements()).expect("the builder has checked it");
                ([1, 1], elements, Window::square(1, 1, 0), 1, bias)
            }
            _ => unreachable!("only convolutions and fully connected layers have weights"),
        };
        let (output, out_channels) = ([output.height, output.width], output.channels);
        ConvShape {
            batch: self.batch,
            input: input_size,
            in_channels,
            output,
            out_channels,
            window,
            groups,
            bias,
        }
    }

    /// The shape of a pooling; a global one has a window of the whole image.
    fn pool_shape(&self, layer: &Layer) -> PoolShape {
        let input = self.network.input_shape(layer);
        let whole = Window { size: [input.height, input.width], ..Window::square(1, 1, 0) };
        let window = match layer.kind {
            LayerKind::MaxPool { window, .. } | LayerKind::AvgPool { window } => window,
            _ => whole,
        };
        let (input, channels) = ([input.height, input.width], input.channels);
        PoolShape {
            batch: self.batch,
            input,
            output: [layer.output.height, layer.output.width],
            channels,
            window,
        }
    }
}

/// The layer type that the performance model groups an op by. The passes of a type differ in the op name's last part.
fn op_kind(call: &Call, layer: &LayerKind) -> &'static str {
    match (call, layer) {
        (Call::Sgd { .. }, _) => "sgd",
        (Call::Add { .. }, _) => "add",
        _ => layer.name(),
    }
}
