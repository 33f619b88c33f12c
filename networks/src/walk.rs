//! The walk over a network's layers: the ops and tensors appended so far, and the services for the kinds of layers.
//!
//! An op's reads and writes follow from its kernel's operands ([`Call::operands`]); nothing is listed twice.
//!
//! The walk deliberately does not depend on the kinds of layers. The kinds (`layers/`) append their ops here, and `lower.rs`
//! iterates over the layers.

mod facts;
mod gradients;
mod resident;

pub(crate) use facts::{Facts, Fused};
pub(crate) use gradients::{Contribution, Gradients, IN_PLACE, SEPARATE};
pub(crate) use resident::{LayerRegions, Resident, Trained};

use plimsoll_ir::network::{Axis, Layer, LayerKind, Network, Shape, Window};
use plimsoll_ir::program::{
    Call, Kernel, KernelAlternative, Operand, OperandSpec, PoolShape, Program, RowShape, STORAGE_ALIGNMENT,
};
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::{Bytes, Float, LayerId, Optimizer, Seconds, TensorId};

/// The purpose of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Forward, backward, update.
    #[default]
    Train,
    /// Forward only, with running statistics and without dropout; ends in the metrics.
    Evaluate,
}

/// The tensor that a ReLU keeps for its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReluStorage {
    /// The mask if no other backward op needs its output, otherwise the output, which is kept anyway.
    #[default]
    Auto,
    Output,
    /// The mask, one bit per element (Layrub §4.2). If a different op also needs the output, the output dies one op earlier
    /// than with [`ReluStorage::Output`], before the gradient of the same size is born.
    Mask,
}

/// Options of lowering.
#[derive(Clone, Copy)]
pub struct LowerOptions<'a> {
    /// Purpose of the iteration.
    pub mode: Mode,
    /// Storage of ReLUs; ignored in evaluation.
    pub relu: ReluStorage,
    /// Optimizer of the parameters; it determines the resident regions, in evaluation too.
    pub optimizer: Optimizer,
    /// Storage format of activations and their gradients.
    pub feature_maps: Float,
    /// `true` if a batch normalisation fuses the sum and the ReLU that follow it into one op. In f32 the bits are the same
    /// either way. Ignored in evaluation.
    pub fuse: bool,
    /// `true` if a layer's gradients reuse the memory of its own data (Layrub §3.1 and §3.2). Then the parameter gradient of
    /// a convolution or a fully connected layer comes before its neuron gradient, so that the layer's input is dead when the
    /// gradient of the same size is born, and a normalisation writes the gradient of its input over that of its output.
    /// Otherwise the neuron gradient comes first, and a normalisation's has a separate tensor, as in Caffe. The bits are the
    /// same either way.
    pub intra_layer_reuse: bool,
    /// Returns the alternatives of a call on the device, the default first; never empty. The others become the op's
    /// alternatives.
    pub alternatives: &'a dyn Fn(&Call) -> Vec<KernelAlternative>,
}

impl Default for LowerOptions<'_> {
    /// Returns training by SGD, ReLU masks where they save memory, f32, a separate op for each layer, gradients that reuse
    /// the memory of data, one alternative for each call, without workspace.
    fn default() -> Self {
        LowerOptions {
            mode: Mode::Train,
            relu: ReluStorage::Auto,
            optimizer: Optimizer::Sgd,
            feature_maps: Float::F32,
            fuse: false,
            intra_layer_reuse: true,
            alternatives: &|_| KernelAlternative::sole(Bytes::ZERO),
        }
    }
}

/// A tensor by the name of an operand.
pub(crate) type Named = (&'static str, TensorId);

/// The operands that a forward call writes for the backward pass.
const SAVED: [&str; 3] = ["stats", "mask", "places"];

/// The tensor of the images or tokens, which the host writes.
pub(crate) const IMAGES: TensorId = TensorId(0);

/// The tensor of the labels, which the host writes too.
pub(crate) const LABELS: TensorId = TensorId(1);

/// The walk and its result so far.
pub(crate) struct Walk<'a> {
    pub(crate) network: &'a Network,
    pub(crate) batch: u64,
    pub(crate) options: &'a LowerOptions<'a>,
    pub(crate) facts: Facts,
    pub(crate) resident: Resident,
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    kernels: Vec<Kernel>,
    /// Tensor of each layer's output.
    pub(crate) values: Vec<TensorId>,
    /// Tensors that each layer keeps for its backward pass besides activations, such as a mask or statistics, by the names of
    /// its calls' operands.
    saved: Vec<Vec<Named>>,
    pub(crate) gradients: Gradients,
}

impl<'a> Walk<'a> {
    /// Returns a walk before its start, with the tensors that the host fills.
    pub(crate) fn new(
        network: &'a Network,
        batch: u64,
        options: &'a LowerOptions<'a>,
        facts: Facts,
        resident: Resident,
    ) -> Walk<'a> {
        let input = |name: &str, elements: u64, of_one: u64| {
            let bytes = Bytes(of_one * batch * elements).round_up(STORAGE_ALIGNMENT);
            Tensor { name: name.to_owned(), bytes, kind: TensorKind::Input }
        };
        // Tokens and labels are i32.
        let of_images = if network.takes_tokens() { 4 } else { options.feature_maps.bytes() };
        Walk {
            network,
            batch,
            options,
            facts,
            resident,
            tensors: vec![
                input("images", network.layers[0].output.elements(), of_images),
                input("labels", network.labels(), 4),
            ],
            ops: Vec::new(),
            kernels: Vec::new(),
            values: Vec::new(),
            saved: vec![Vec::new(); network.layers.len()],
            gradients: Gradients::new(network.layers.len()),
        }
    }

    /// Returns the resulting program.
    pub(crate) fn finish(self) -> Program {
        let spec = &self.network.spec;
        let suffix = if self.options.mode == Mode::Evaluate { "-evaluate" } else { "" };
        let [height, width] = spec.image;
        let feature_maps = self.options.feature_maps;
        let Walk { batch, resident, tensors, ops, kernels, .. } = self;
        let trace = Trace {
            kind: TraceKind,
            name: format!("{}-{height}x{width}x{}-{}{suffix}", spec.name, spec.channels, spec.classes),
            batch,
            resident_bytes: resident.bytes,
            tensors,
            ops,
        };
        let resident = resident.regions;
        Program { trace, kernels, resident, feature_maps, images: IMAGES, labels: LABELS }
    }
}

impl Walk<'_> {
    /// Appends a tensor, its size rounded up to [`STORAGE_ALIGNMENT`].
    pub(crate) fn tensor(&mut self, name: &str, bytes: Bytes, kind: TensorKind) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        self.tensors.push(Tensor { name: name.to_owned(), bytes: bytes.round_up(STORAGE_ALIGNMENT), kind });
        id
    }

    /// Returns the tensor of a layer's output.
    pub(crate) fn value(&self, layer: LayerId) -> TensorId {
        self.values[layer.index()]
    }

    /// Returns the first input of a layer.
    pub(crate) fn input(&self, layer: LayerId) -> LayerId {
        self.network.layer(layer).inputs[0]
    }

    /// Returns the bytes of a batch of activations of this shape.
    pub(crate) fn maps(&self, shape: Shape) -> Bytes {
        self.map_bytes(shape.elements() * self.batch)
    }

    /// Returns the bytes of this many elements of activations.
    pub(crate) fn map_bytes(&self, elements: u64) -> Bytes {
        Bytes(self.options.feature_maps.bytes() * elements)
    }

    /// Appends an op of a layer, its operands found by their names: those of `given` and, of the layer, its inputs and output,
    /// its resident regions, and the tensors that it saved.
    pub(crate) fn push(&mut self, layer: LayerId, suffix: &str, phase: Phase, call: Call, given: &[Named]) {
        let operands = call.operands().iter().map(|spec| self.operand(layer, spec.name, given)).collect();
        self.push_kernel(layer, suffix, phase, Kernel { call, operands });
    }

    /// Returns the operand of this name of a layer's call.
    fn operand(&self, layer: LayerId, name: &str, given: &[Named]) -> Operand {
        use Operand::{Resident as R, Tensor as T};
        let known = given.iter().chain(&self.saved[layer.index()]).find(|(of, _)| *of == name);
        if let Some((_, tensor)) = known {
            return T(*tensor);
        }
        let regions = &self.resident.layers[layer.index()];
        let [first, last] = [regions.parameters.first(), regions.parameters.last()]
            .map(|trained| trained.map_or([Bytes::ZERO; 2], |trained| [trained.parameter, trained.gradient]));
        let input = |at: usize| T(self.value(self.network.layer(layer).inputs[at]));
        match name {
            "hyper" => R(self.resident.hyper),
            "metrics" => R(self.resident.metrics),
            "labels" => T(LABELS),
            "weight" | "gamma" => R(first[0]),
            "dweight" | "dgamma" => R(first[1]),
            "bias" | "beta" => R(last[0]),
            "dbias" | "dbeta" => R(last[1]),
            "running mean" => R(regions.states[0]),
            "running variance" => R(regions.states[1]),
            "x" | "a" | "qkv" | "tokens" | "logits" | "gates" => input(0),
            "b" => input(1),
            "y" => T(self.value(layer)),
            _ => unreachable!("the rules of `{}` give the operand `{name}`", self.network.layer(layer).name),
        }
    }

    /// Appends an op and its kernel; the op's reads and writes follow from the operands.
    pub(crate) fn push_kernel(&mut self, layer: LayerId, suffix: &str, phase: Phase, kernel: Kernel) {
        let layer: &Layer = self.network.layer(layer);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (operand, OperandSpec { access, .. }) in kernel.specified() {
            let Operand::Tensor(tensor) = operand else { continue };
            for (list, listed) in [(&mut reads, access.reads()), (&mut writes, access.writes())] {
                if listed && !list.contains(&tensor) {
                    list.push(tensor);
                }
            }
        }
        let mut alternatives =
            (self.options.alternatives)(&kernel.call).into_iter().map(|alternative| Alternative {
                name: alternative.name,
                seconds: Seconds::ZERO,
                workspace_bytes: alternative.workspace.round_up(STORAGE_ALIGNMENT),
            });
        let usual = alternatives.next().expect("a device has a kernel for every call");
        let alternatives = alternatives.collect();
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

    /// Returns the elements of a layer's output over the batch.
    pub(crate) fn elements(&self, layer: LayerId) -> u64 {
        self.network.layer(layer).output.elements() * self.batch
    }

    /// Returns the positions and channels of a layer's output over the batch.
    pub(crate) fn rows(&self, layer: LayerId) -> RowShape {
        let shape = self.network.layer(layer).output;
        RowShape { rows: shape.pixels() * self.batch, channels: u64::from(shape.channels) }
    }

    /// Returns the samples of a layer's output, adjacent in memory, and the elements of each: the parts of a concatenation
    /// along rows, and the units of a bias at each position.
    pub(crate) fn samples(&self, layer: LayerId) -> RowShape {
        RowShape { rows: self.batch, channels: self.network.layer(layer).output.elements() }
    }

    /// Returns the rows of a layer's output that a concatenation along an axis copies, and the elements of each.
    pub(crate) fn parts(&self, layer: LayerId, along: Axis) -> RowShape {
        match along {
            Axis::Channels => self.rows(layer),
            Axis::Rows => self.samples(layer),
        }
    }

    /// Returns the shape of a layer that pools by this window.
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

    /// Returns `true` if a parameter is trained at or above a layer, so that the gradient of its output is needed.
    pub(crate) fn trained(&self, layer: LayerId) -> bool {
        self.facts.trained[layer.index()]
    }

    /// Returns `true` if a layer saves a mask in place of its output.
    pub(crate) fn masked(&self, layer: LayerId) -> bool {
        self.facts.masked[layer.index()]
    }

    /// Returns `true` if the gradients of a layer's parameters are added to those of a later layer that shares them.
    pub(crate) fn adds_up(&self, layer: LayerId) -> bool {
        self.facts.adds_up[layer.index()]
    }

    /// Appends a layer's forward op, with the tensors that it saves; its output is `over` or a new tensor. Returns the output.
    pub(crate) fn forward_op(
        &mut self,
        id: LayerId,
        call: Call,
        over: Option<TensorId>,
        given: &[Named],
    ) -> TensorId {
        for spec in call.operands().into_iter().filter(|spec| SAVED.contains(&spec.name)) {
            self.save(id, spec.name, spec.bytes);
        }
        let y = over.unwrap_or_else(|| self.output(id));
        // The loss's output are differences.
        let outputs = [("y", y), ("differences", y)];
        self.push(id, "forward", Phase::Forward, call, &[&outputs, given].concat());
        y
    }

    /// Appends a layer's forward op, in place of an input that no other op needs.
    pub(crate) fn forward_in_place(&mut self, id: LayerId, inputs: &[LayerId], call: Call) -> TensorId {
        let over = self.overwritten(id, inputs);
        self.forward_op(id, call, over, &[])
    }

    /// Returns the input's tensor that a layer may compute its output in, if there is one: none if one input is read twice.
    pub(crate) fn overwritten(&self, id: LayerId, inputs: &[LayerId]) -> Option<TensorId> {
        if let [a, b] = inputs
            && a == b
        {
            return None;
        }
        inputs.iter().find(|input| self.facts.may_overwrite(**input, id)).map(|input| self.value(*input))
    }

    /// Appends a tensor for a layer's output.
    pub(crate) fn output(&mut self, id: LayerId) -> TensorId {
        let layer = self.network.layer(id);
        self.tensor(&format!("{}.y", layer.name), self.maps(layer.output), TensorKind::Activation)
    }

    /// Appends a tensor that a layer keeps for its backward pass besides activations.
    pub(crate) fn save(&mut self, id: LayerId, what: &'static str, bytes: Bytes) {
        let name = format!("{}.{what}", self.network.layer(id).name);
        let tensor = self.tensor(&name, bytes, TensorKind::Other);
        self.keep(id, what, tensor);
    }

    /// Notes that a layer keeps a tensor for its backward pass.
    pub(crate) fn keep(&mut self, id: LayerId, what: &'static str, tensor: TensorId) {
        self.saved[id.index()].push((what, tensor));
    }

    /// Returns a tensor that a layer keeps for its backward pass, if it has one of this name.
    pub(crate) fn saved(&self, id: LayerId, what: &str) -> Option<TensorId> {
        self.saved[id.index()].iter().find(|(name, _)| *name == what).map(|(_, tensor)| *tensor)
    }
}

/// Returns the layer type that the performance model groups an op by. The passes of a type differ in the op name's last part.
fn op_kind(call: &Call, layer: &LayerKind) -> &'static str {
    match (call, layer) {
        (Call::Sgd { .. }, _) => "sgd",
        (Call::Adamw { .. }, _) => "adamw",
        (Call::Add { .. }, _) => "add",
        (Call::BatchNormForward { then, .. } | Call::BatchNormBackward { then, .. }, _) => then.kind(),
        _ => layer.name(),
    }
}
