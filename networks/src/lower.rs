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
use crate::layers::{Draw, rules};
use crate::resident::{Resident, resident};
use analysis::Analysis;
use backward::Gradients;
use plimsoll_ir::network::{Axis, Layer, LayerKind, Network, Shape, Window};
use plimsoll_ir::program::{
    Call, Kernel, Operand, OperandSpec, PoolShape, Program, RowShape, STORAGE_ALIGNMENT, Way,
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
    let input = |name: &str, elements: u64| {
        let bytes = Bytes(4 * batch * elements).round_up(STORAGE_ALIGNMENT);
        Tensor { name: name.to_owned(), bytes, kind: TensorKind::Input }
    };
    let mut lowering = Lowering {
        network,
        batch,
        options,
        analysis: Analysis::new(network, options)?,
        resident: resident(network)?,
        tensors: vec![
            input("images", network.layers[0].output.elements()),
            input("labels", network.labels()),
        ],
        images: TensorId(0),
        labels: TensorId(1),
        ops: Vec::new(),
        kernels: Vec::new(),
        values: Vec::new(),
        saved: vec![Vec::new(); network.layers.len()],
        gradients: Gradients::new(network.layers.len()),
    };
    lowering.forward();
    if options.mode == Mode::Train {
        lowering.backward();
        lowering.update();
    }
    let spec = &network.spec;
    let suffix = if options.mode == Mode::Evaluate { "-evaluate" } else { "" };
    let [height, width] = spec.image;
    let Lowering { resident, tensors, images, labels, ops, kernels, .. } = lowering;
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
        let rules = rules(&layer.kind);
        total += rules.saved_bytes(layer.output) * u128::from(batch);
        let positions = u128::from(batch) * u128::from(layer.output.pixels());
        if mode == Mode::Train && rules.needs_variance() && positions == 1 {
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
pub(crate) struct Lowering<'a> {
    pub(crate) network: &'a Network,
    pub(crate) batch: u64,
    pub(crate) options: &'a LowerOptions<'a>,
    analysis: Analysis,
    resident: Resident,
    tensors: Vec<Tensor>,
    /// Where the images or tokens lie.
    pub(crate) images: TensorId,
    /// Where the labels lie.
    pub(crate) labels: TensorId,
    ops: Vec<Op>,
    kernels: Vec<Kernel>,
    /// Where each layer's output lies.
    values: Vec<TensorId>,
    /// What each layer keeps for its backward pass besides feature maps, such as a mask or statistics.
    saved: Vec<Vec<TensorId>>,
    pub(crate) gradients: Gradients,
}

impl Lowering<'_> {
    /// A new tensor, its size rounded up to [`STORAGE_ALIGNMENT`].
    pub(crate) fn tensor(&mut self, name: &str, bytes: Bytes, kind: TensorKind) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        self.tensors.push(Tensor { name: name.to_owned(), bytes: bytes.round_up(STORAGE_ALIGNMENT), kind });
        id
    }

    /// The tensor where a layer's output lies.
    pub(crate) fn value(&self, layer: LayerId) -> TensorId {
        self.values[layer.index()]
    }

    /// The bytes of a batch of f32 feature maps.
    pub(crate) fn f32s(&self, shape: Shape) -> Bytes {
        Bytes(4 * shape.elements() * self.batch)
    }

    /// Appends an op and its kernel; what the op reads and writes follows from the operands.
    pub(crate) fn push(
        &mut self,
        layer: LayerId,
        suffix: &str,
        phase: Phase,
        call: Call,
        operands: Vec<Operand>,
    ) {
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
        let hyper = self.hyper();
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
    pub(crate) fn elements(&self, layer: LayerId) -> u64 {
        self.network.layer(layer).output.elements() * self.batch
    }

    /// The positions and channels of a layer's output over the batch.
    pub(crate) fn rows(&self, layer: LayerId) -> RowShape {
        let shape = self.network.layer(layer).output;
        RowShape { rows: shape.pixels() * self.batch, channels: u64::from(shape.channels) }
    }

    /// The rows of a layer's output that are side by side in memory, and the elements of each: what parts of a concatenation
    /// along rows are, and what has a bias of its own at each position.
    pub(crate) fn samples(&self, layer: LayerId) -> RowShape {
        RowShape { rows: self.batch, channels: self.network.layer(layer).output.elements() }
    }

    /// What a concatenation along an axis copies of a layer's output: rows of so many elements.
    pub(crate) fn parts(&self, layer: LayerId, along: Axis) -> RowShape {
        match along {
            Axis::Channels => self.rows(layer),
            Axis::Rows => self.samples(layer),
        }
    }

    /// The shape of a layer that pools by this window.
    pub(crate) fn pool_shape(&self, layer: LayerId, window: Window) -> PoolShape {
        let layer = self.network.layer(layer);
        let (input, output) = (self.network.input_shape(layer), layer.output);
        PoolShape {
            batch: self.batch,
            input: [input.height, input.width],
            output: [output.height, output.width],
            channels: input.channels,
            window,
        }
    }

    /// Whether a parameter is trained at or above a layer, so that the gradient of its output is needed.
    pub(crate) fn trained(&self, layer: LayerId) -> bool {
        self.analysis.trained[layer.index()]
    }

    /// Whether a layer saves a mask in place of its output.
    pub(crate) fn masked(&self, layer: LayerId) -> bool {
        self.analysis.masked[layer.index()]
    }

    /// Whether the gradients of a layer's parameters are added to what a later layer, which shares them, has given.
    pub(crate) fn adds_up(&self, layer: LayerId) -> bool {
        self.analysis.adds_up[layer.index()]
    }

    /// Where the parameters of a layer lie, in the order in which its calls take them.
    pub(crate) fn parameters(&self, layer: LayerId) -> Vec<Operand> {
        let parameters = &self.resident.layers[layer.index()].parameters;
        parameters.iter().map(|trained| Operand::Resident(trained.parameter)).collect()
    }

    /// Where their gradients lie, in the same order.
    pub(crate) fn parameter_gradients(&self, layer: LayerId) -> Vec<Operand> {
        let parameters = &self.resident.layers[layer.index()].parameters;
        parameters.iter().map(|trained| Operand::Resident(trained.gradient)).collect()
    }

    /// Where the running statistics of a layer lie.
    pub(crate) fn states(&self, layer: LayerId) -> Vec<Operand> {
        self.resident.layers[layer.index()].states.iter().map(|offset| Operand::Resident(*offset)).collect()
    }

    /// Where the hyper-parameters lie.
    pub(crate) fn hyper(&self) -> Operand {
        Operand::Resident(self.resident.hyper)
    }

    /// Where the metrics lie.
    pub(crate) fn metrics(&self) -> Operand {
        Operand::Resident(self.resident.metrics)
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
