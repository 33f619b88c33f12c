//! The computation of each op of a trace: the kernel, its shapes, and the places of its operands.
//!
//! Kernel `i` of a program is op `i` of its trace. Every device implements every [`Call`] with the same operands in the same
//! order; this file is the one definition of each call's computation. Numbers are f32, except activations and their
//! gradients, which may be bf16 ([`Program::feature_maps`]); labels are i32. An activation of a batch is
//! `[batch][height][width][channels]`; convolution weights are `[out][kernel rows][kernel columns][in / groups]`. Fully
//! connected weights are `[out][in]`, which makes a fully connected layer a convolution with a 1x1 window on a 1x1 image; on
//! a sequence, whose positions are rows of an image one column wide, it is a 1x1 convolution.
//!
//! The module deliberately does not name a device, an algorithm or an address of the pool.

mod call;
mod operands;

pub use call::{
    After, AttentionShape, Call, ConvShape, EmbeddingShape, FusedRelu, PoolShape, RotaryShape, RowShape,
};
pub use operands::{Access, OperandSpec, Operands};

use crate::ids::TensorId;
use crate::optimizer::{Optimizer, UpdateNumbers};
use crate::precision::Float;
use crate::trace::Trace;
use crate::units::Bytes;

/// Alignment of every tensor and resident region in bytes: any sum of sizes is an aligned address on every device, so
/// planners can ignore alignment.
pub const STORAGE_ALIGNMENT: u64 = 256;

/// One training iteration (or one forward pass, for evaluation), ready to be planned and run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Ops and tensors; seconds are 0 until a model fills them in.
    pub trace: Trace,
    /// Kernel of each op.
    pub kernels: Vec<Kernel>,
    /// Regions that stay on the device: the same for every batch size and for evaluation of one network.
    pub resident: Vec<Region>,
    /// Storage format of activations and their gradients.
    pub feature_maps: Float,
    /// The images: `[batch][height][width][channels]`, stored as activations are; or tokens, i32 `[batch][length]`, for
    /// networks that take them ([`Network::takes_tokens`](crate::network::Network::takes_tokens)). Written by the host before
    /// each iteration.
    pub images: TensorId,
    /// The labels: i32 `[batch][height][width]` of the logits' positions (most networks have one), -1 for a position that
    /// does not count; written by the host before each iteration.
    pub labels: TensorId,
}

/// A kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Computation.
    pub call: Call,
    /// Operands in the order of [`Call::operands`].
    pub operands: Vec<Operand>,
}

/// A device's implementation of a call: a kernel, or an algorithm of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelAlternative {
    /// Name, such as `winograd`.
    pub name: String,
    /// Required workspace.
    pub workspace: Bytes,
}

/// The place of an operand.
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
    /// Name, such as `layer1.0.conv2.weight`; unique together with the role.
    pub name: String,
    pub role: Role,
    /// Offset from the start of the resident part; a multiple of [`STORAGE_ALIGNMENT`].
    pub offset: Bytes,
    /// Lengths of its dimensions; its bytes are 4 times their product.
    pub shape: Vec<u64>,
}

/// The role of a resident region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Trained parameter, which starts with this initialisation.
    Parameter(Init),
    /// The gradient of the parameter of the same name.
    Gradient,
    /// SGD's momentum of the parameter of the same name; starts at 0.
    Momentum,
    /// AdamW's first moment of the parameter of the same name (PyTorch's `exp_avg`); starts at 0.
    FirstMoment,
    /// AdamW's second moment (PyTorch's `exp_avg_sq`); starts at 0.
    SecondMoment,
    /// State that kernels update and that is not trained (running statistics); starts at this value.
    State(f32),
    /// The one region of [`Hyper`], written by the host before each iteration.
    Hyper,
    /// The one region of f32 `[mean loss, correct, counted]` of the last iteration, read by the host after it.
    Metrics,
}

/// The initialisation of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform in (-bound, bound).
    Uniform(f32),
}

/// The numbers that change from iteration to iteration without a new schedule. They lie on the device so that a captured
/// graph replays with new values. Each number is 4 bytes, in this order, little-endian.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Seed of dropout, low half.
    pub seed_low: u32,
    /// Seed of dropout, high half.
    pub seed_high: u32,
    /// Number of the iteration from the start of training.
    pub step: u32,
    /// Numbers that the optimizer's update reads; the words from [`Hyper::UPDATE`] on.
    pub update: UpdateNumbers,
}

impl Hyper {
    /// First word of the numbers that the optimizer's update reads.
    pub const UPDATE: usize = 3;

    /// Size in f32-sized words.
    pub const WORDS: u64 = (Hyper::UPDATE + UpdateNumbers::WORDS) as u64;

    /// Size in bytes.
    pub const BYTES: usize = 4 * Hyper::WORDS as usize;

    /// Returns the bytes as they lie on the device.
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
    /// Returns each operand with its specification by the call.
    pub fn specified(&self) -> impl Iterator<Item = (Operand, OperandSpec)> {
        self.operands.iter().copied().zip(self.call.operands())
    }

    /// Returns `true` if running the kernel again on the same tensors gives the same result, until the update begins to
    /// change parameters. That excludes the kernels that update resident values in place, such as running statistics and
    /// gradients that are added to. The other kernels overwrite resident regions (gradients, metrics) with the same values.
    pub fn repeatable(&self) -> bool {
        !self
            .specified()
            .any(|(operand, spec)| matches!(operand, Operand::Resident(_)) && spec.access == Access::Update)
    }
}

impl KernelAlternative {
    /// Returns the alternatives of a device that has one kernel for each call, with this workspace.
    pub fn sole(workspace: Bytes) -> Vec<KernelAlternative> {
        vec![KernelAlternative { name: "kernel".to_owned(), workspace }]
    }
}

impl Region {
    /// Returns the number of f32 elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns the optimizer of a program that has these regions: each optimizer has different states.
    pub fn optimizer_of(resident: &[Region]) -> Optimizer {
        let has_moments = resident.iter().any(|region| region.role == Role::SecondMoment);
        if has_moments { Optimizer::Adamw } else { Optimizer::Sgd }
    }

    /// Returns the bytes of the region, without the rounding to [`STORAGE_ALIGNMENT`].
    pub fn bytes(&self) -> Bytes {
        Bytes(4 * self.elements())
    }
}

impl Role {
    /// Returns the roles of the states that an optimizer keeps for each parameter, in the order in which its update takes
    /// them.
    pub fn kept_by(optimizer: Optimizer) -> &'static [Role] {
        match optimizer {
            Optimizer::Sgd => &[Role::Momentum],
            Optimizer::Adamw => &[Role::FirstMoment, Role::SecondMoment],
        }
    }
}

impl Program {
    /// Returns the region of a role that has exactly one.
    fn only(&self, role: Role) -> &Region {
        self.resident
            .iter()
            .find(|r| r.role == role)
            .expect("every program has its hyper and metrics regions")
    }

    /// Returns the number of different tokens in the input, from 0 on, of a network that takes tokens.
    pub fn vocabulary(&self) -> Option<u32> {
        let tables = self.kernels.iter().filter_map(|kernel| match &kernel.call {
            Call::EmbeddingForward { shape } => Some(u32::try_from(shape.vocabulary).unwrap_or(u32::MAX)),
            _ => None,
        });
        tables.min()
    }

    /// Returns the labels of a batch: one for each position of the logits of each sample.
    pub fn label_count(&self) -> u64 {
        let rows = self.kernels.iter().find_map(|kernel| match &kernel.call {
            Call::SoftmaxCrossEntropyForward { shape } => Some(shape.rows),
            _ => None,
        });
        rows.unwrap_or(self.trace.batch)
    }

    /// Returns the region of [`Hyper`].
    pub fn hyper(&self) -> &Region {
        self.only(Role::Hyper)
    }

    /// Returns the region of the metrics.
    pub fn metrics(&self) -> &Region {
        self.only(Role::Metrics)
    }
}
