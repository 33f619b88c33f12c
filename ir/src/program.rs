//! What each op of a trace computes: the kernel, its shapes, and where its operands lie.
//!
//! Kernel `i` of a program is op `i` of its trace. Every device implements every [`Call`] with the same operands in the
//! same order; what a call computes is said here, once, for all of them. Numbers are f32, but for feature maps and their
//! gradients, which may be bf16 ([`Program::feature_maps`]); labels are i32. A feature map of a
//! batch is `[batch][height][width][channels]`; convolution weights are `[out][kernel rows][kernel columns][in / groups]`,
//! fully connected ones `[out][in]`, which makes a fully connected layer a convolution with a 1x1 window on a 1x1 image, and
//! one of a sequence, whose positions are rows of an image one column wide, a 1x1 convolution.
//!
//! What it deliberately does not do: name a device, an algorithm or an address of the pool.

mod call;
mod operands;

pub use call::{
    After, AttentionShape, Branch, Call, ConvShape, EmbeddingShape, FusedRelu, PoolShape, RotaryShape,
    RowShape,
};
pub use operands::{Access, OperandSpec, Operands};

use crate::ids::TensorId;
use crate::optimizer::{Optimizer, UpdateNumbers};
use crate::precision::Float;
use crate::trace::Trace;
use crate::units::Bytes;

/// Every tensor and every resident region is a multiple of this many bytes, so that any sum of sizes is an aligned
/// address on every device and no planner needs to know of alignment.
pub const STORAGE_ALIGNMENT: u64 = 256;

/// One training iteration (or one forward pass, for evaluation), ready to be planned and run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What the ops touch; seconds are 0 until a model fills them in.
    pub trace: Trace,
    /// The kernel of each op.
    pub kernels: Vec<Kernel>,
    /// What stays on the device: the same regions for every batch size and for evaluation of one network.
    pub resident: Vec<Region>,
    /// In what feature maps and their gradients are stored.
    pub feature_maps: Float,
    /// The images: `[batch][height][width][channels]`, stored as feature maps are; or tokens, i32 `[batch][length]`, of
    /// networks that take those ([`Network::takes_tokens`](crate::network::Network::takes_tokens)). Written by the host
    /// before each iteration.
    pub images: TensorId,
    /// The labels: i32 `[batch][height][width]` of the logits' positions (of which most networks have one), -1 for one that
    /// does not count; written by the host before each iteration.
    pub labels: TensorId,
}

/// A kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What to compute.
    pub call: Call,
    /// In the order of [`Call::operands`].
    pub operands: Vec<Operand>,
}

/// What a device runs a call with: a kernel, or an algorithm of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelAlternative {
    /// What it is called, such as `winograd`.
    pub name: String,
    /// The scratch that it needs.
    pub workspace: Bytes,
}

/// Where an operand lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// In a tensor of the trace, from its first byte.
    Tensor(TensorId),
    /// In the resident part, at this offset from its start.
    Resident(Bytes),
}

/// A named part of the resident bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Such as `layer1.0.conv2.weight`; unique together with the role.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// From the start of the resident part; a multiple of [`STORAGE_ALIGNMENT`].
    pub offset: Bytes,
    /// The lengths of its dimensions; its bytes are 4 times their product.
    pub shape: Vec<u64>,
}

/// What a resident region is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Trained; starts as the initialisation says.
    Parameter(Init),
    /// The gradient of the parameter of the same name.
    Gradient,
    /// SGD's momentum of the parameter of the same name; starts at 0.
    Momentum,
    /// AdamW's first moment of the parameter of the same name (PyTorch's `exp_avg`); starts at 0.
    FirstMoment,
    /// Its second moment (PyTorch's `exp_avg_sq`); starts at 0.
    SecondMoment,
    /// Updated by kernels and not trained (running statistics); starts at this value.
    State(f32),
    /// [`Hyper`], written by the host before each iteration. There is one.
    Hyper,
    /// f32 `[mean loss, correct, counted]` of the last iteration, read by the host after it. There is one.
    Metrics,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform in (-bound, bound).
    Uniform(f32),
}

/// What changes from iteration to iteration without a new schedule; it lies on the device so that a captured graph
/// replays with new values. Each number is 4 bytes, in this order, little-endian.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Seed of dropout, low half.
    pub seed_low: u32,
    /// Seed of dropout, high half.
    pub seed_high: u32,
    /// Number of the iteration from the start of training.
    pub step: u32,
    /// What the optimizer's update reads; the words from [`Hyper::UPDATE`] on.
    pub update: UpdateNumbers,
}

impl Hyper {
    /// The first word of what the optimizer's update reads.
    pub const UPDATE: usize = 3;

    /// How many f32-sized words it takes.
    pub const WORDS: u64 = (Hyper::UPDATE + UpdateNumbers::WORDS) as u64;

    /// How many bytes.
    pub const BYTES: usize = 4 * Hyper::WORDS as usize;

    /// As it lies on the device.
    pub fn to_bytes(self) -> [u8; Hyper::BYTES] {
        let own = [self.seed_low, self.seed_high, self.step];
        let words = own.into_iter().chain(self.update.words().map(f32::to_bits));
        let mut bytes = [0; Hyper::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl Kernel {
    /// Its operands beside what the call does with them.
    pub fn specified(&self) -> impl Iterator<Item = (Operand, OperandSpec)> {
        self.operands.iter().copied().zip(self.call.operands())
    }

    /// Whether running it again on what its tensors held gives what it gave, until the update begins to change parameters: all
    /// but those that change what is resident by what is there already, as running statistics and gradients that are added to.
    /// The others overwrite resident regions (gradients, metrics) with the same values.
    pub fn repeatable(&self) -> bool {
        !self
            .specified()
            .any(|(operand, spec)| matches!(operand, Operand::Resident(_)) && spec.access == Access::Update)
    }
}

impl KernelAlternative {
    /// The alternatives of a device that has one kernel for each call, with this scratch.
    pub fn sole(workspace: Bytes) -> Vec<KernelAlternative> {
        vec![KernelAlternative { name: "kernel".to_owned(), workspace }]
    }
}

impl Region {
    /// How many f32 it holds.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Who trains a program that has these regions: each optimizer keeps states of its own.
    pub fn optimizer_of(resident: &[Region]) -> Optimizer {
        let has_moments = resident.iter().any(|region| region.role == Role::SecondMoment);
        if has_moments { Optimizer::Adamw } else { Optimizer::Sgd }
    }

    /// What it takes of the resident bytes, without the rounding to [`STORAGE_ALIGNMENT`].
    pub fn bytes(&self) -> Bytes {
        Bytes(4 * self.elements())
    }
}

impl Role {
    /// What an optimizer keeps for each parameter, in the order in which its update takes it.
    pub fn kept_by(optimizer: Optimizer) -> &'static [Role] {
        match optimizer {
            Optimizer::Sgd => &[Role::Momentum],
            Optimizer::Adamw => &[Role::FirstMoment, Role::SecondMoment],
        }
    }
}

impl Program {
    /// The one region of a role that there is one of.
    fn only(&self, role: Role) -> &Region {
        self.resident
            .iter()
            .find(|r| r.role == role)
            .expect("every program has its hyper and metrics regions")
    }

    /// Of a network that takes tokens: how many different ones the input may hold, those from 0 on.
    pub fn vocabulary(&self) -> Option<u32> {
        let tables = self.kernels.iter().filter_map(|kernel| match &kernel.call {
            Call::EmbeddingForward { shape } => Some(u32::try_from(shape.vocabulary).unwrap_or(u32::MAX)),
            _ => None,
        });
        tables.min()
    }

    /// Labels of a batch: one for each position of the logits of each sample.
    pub fn label_count(&self) -> u64 {
        let rows = self.kernels.iter().find_map(|kernel| match &kernel.call {
            Call::SoftmaxCrossEntropyForward { shape } => Some(shape.rows),
            _ => None,
        });
        rows.unwrap_or(self.trace.batch)
    }

    /// Where [`Hyper`] lies.
    pub fn hyper(&self) -> &Region {
        self.only(Role::Hyper)
    }

    /// Where the metrics lie.
    pub fn metrics(&self) -> &Region {
        self.only(Role::Metrics)
    }
}
