//! Planning policies by name.

use super::Error;
use std::fmt;
use std::str::FromStr;

/// Planning policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Everything stays on the device.
    Keep,
    /// Every activation is swapped (AccUDNN §3.1).
    Naive,
    /// Activations are swapped, except for those that would stall the device, which are pinned (AccUDNN §3.4, §4.1; see
    /// [`crate::policies::papers::accudnn`]).
    Accudnn {
        /// `true` for Algorithms 1 and 2 to the letter; `false` for the repaired version that the paper's text describes.
        as_printed: bool,
    },
    /// The inputs of layers are offloaded (vDNN §3.3).
    Vdnn {
        /// Layers whose inputs are offloaded.
        layers: Layers,
        /// Algorithms of the ops.
        algorithms: Algorithms,
    },
    /// First of vDNN's profiling passes that fits (vDNN §3.3, "Dynamic vDNN").
    VdnnDyn,
    /// Layrub (§3): memory is reused within layers and moved between them.
    Layrub(Layrub),
    /// As many of the chain's first stages as needed are offloaded (Euro-Par'20 §4.2).
    Greedy,
    /// Stages chosen by a dynamic program over memory slots are offloaded (Euro-Par'20 §5).
    DynProg,
    /// Stages with the most forward seconds per byte, or half of them, are offloaded (Euro-Par'20 §6.1, VDNN).
    VdnnRatio,
    /// First stages are offloaded, without ever waiting for memory (Euro-Par'20 §6.1, TFLMS).
    Tflms,
    /// Stages are offloaded by a weighted average of four scores (Euro-Par'20 §6.1, AutoSwap).
    AutoSwap,
    /// Outputs of cheap layers are recomputed, the least recently used of the others are swapped (SuperNeurons).
    SuperNeurons,
    /// Outputs of some layers are kept, the others are recomputed (Memonger).
    Memonger {
        /// `true` for the fastest segments that fit, of those that Memonger's search over budgets tries; `false` for every
        /// sqrt(n)-th layer.
        searched: bool,
    },
    /// A deep Q-network, trained on the iteration itself, chooses to offload and recompute (DQN): see
    /// [`crate::policies::papers::dqn`].
    Dqn,
    /// Fastest iteration without pieces, for traces of a few ops: see [`crate::policies::optimal`].
    Optimal,
    /// Plimsoll's own planner: the shortest makespan that it finds, and among equal ones (to a millionth) the one that moves the
    /// fewest bytes.
    Plimsoll,
}

/// Layers of which vDNN offloads the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layers {
    /// Every layer.
    All,
    /// Convolution layers.
    Conv,
}

/// Algorithms with which vDNN runs ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithms {
    /// Fastest if it fits, else leanest.
    FastestThatFit,
    /// Fastest for every op, vDNN's (p).
    Fastest,
    /// Leanest for every op, vDNN's (m).
    Leanest,
}

/// Layrub's strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layrub {
    /// A gradient takes its activation's place, as far as the trace permits; nothing moves (§3.2).
    Intra,
    /// Every activation is offloaded after its last reader and loaded one layer ahead (§3.3).
    Inter,
    /// Both (§3.4).
    Hybrid,
}

const fn vdnn(layers: Layers, algorithms: Algorithms) -> Policy {
    Policy::Vdnn { layers, algorithms }
}

impl Policy {
    /// Policies that plan traces of any size in a moment by a distinct rule: all but [`Policy::Dqn`], which trains for seconds,
    /// [`Policy::Optimal`], vDNN's with one kind of algorithms and Memonger's search. None of their plans is better than that of
    /// [`Policy::Plimsoll`], which has them as candidates.
    pub const ALL: [Policy; 18] = [
        Policy::Keep,
        Policy::Naive,
        Policy::Accudnn { as_printed: false },
        Policy::Accudnn { as_printed: true },
        vdnn(Layers::All, Algorithms::FastestThatFit),
        vdnn(Layers::Conv, Algorithms::FastestThatFit),
        Policy::VdnnDyn,
        Policy::Layrub(Layrub::Intra),
        Policy::Layrub(Layrub::Inter),
        Policy::Layrub(Layrub::Hybrid),
        Policy::Greedy,
        Policy::DynProg,
        Policy::VdnnRatio,
        Policy::Tflms,
        Policy::AutoSwap,
        Policy::SuperNeurons,
        Policy::Memonger { searched: false },
        Policy::Plimsoll,
    ];

    fn every() -> impl Iterator<Item = Policy> {
        let variants = [
            vdnn(Layers::All, Algorithms::Leanest),
            vdnn(Layers::All, Algorithms::Fastest),
            vdnn(Layers::Conv, Algorithms::Leanest),
            vdnn(Layers::Conv, Algorithms::Fastest),
            Policy::Memonger { searched: true },
        ];
        Policy::ALL.into_iter().chain(variants).chain([Policy::Dqn, Policy::Optimal])
    }

    /// Returns the names of all policies, as a sentence lists them.
    pub fn names() -> String {
        let names: Vec<&str> = Policy::every().map(Policy::name).collect();
        names.join(", ")
    }

    /// Returns `true` if the policy ever moves bytes to the host.
    pub(crate) fn swaps(self) -> bool {
        !matches!(self, Policy::Keep | Policy::Layrub(Layrub::Intra) | Policy::Memonger { .. })
    }

    /// Returns the name on the command line and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Keep => "keep",
            Policy::Naive => "naive",
            Policy::Accudnn { as_printed: false } => "accudnn",
            Policy::Accudnn { as_printed: true } => "accudnn-as-printed",
            Policy::Vdnn { layers, algorithms } => match (layers, algorithms) {
                (Layers::All, Algorithms::FastestThatFit) => "vdnn-all",
                (Layers::All, Algorithms::Leanest) => "vdnn-all-m",
                (Layers::All, Algorithms::Fastest) => "vdnn-all-p",
                (Layers::Conv, Algorithms::FastestThatFit) => "vdnn-conv",
                (Layers::Conv, Algorithms::Leanest) => "vdnn-conv-m",
                (Layers::Conv, Algorithms::Fastest) => "vdnn-conv-p",
            },
            Policy::VdnnDyn => "vdnn-dyn",
            Policy::Layrub(Layrub::Intra) => "layrub-intra",
            Policy::Layrub(Layrub::Inter) => "layrub-inter",
            Policy::Layrub(Layrub::Hybrid) => "layrub-hybrid",
            Policy::Greedy => "greedy",
            Policy::DynProg => "dynprog",
            Policy::VdnnRatio => "vdnn-ratio",
            Policy::Tflms => "tflms",
            Policy::AutoSwap => "autoswap",
            Policy::SuperNeurons => "superneurons",
            Policy::Memonger { searched: false } => "memonger",
            Policy::Memonger { searched: true } => "memonger-search",
            Policy::Dqn => "dqn",
            Policy::Optimal => "optimal",
            Policy::Plimsoll => "plimsoll",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = Error;
    fn from_str(text: &str) -> Result<Policy, Error> {
        let unknown = || Error::usage(format_args!("`{text}` is no policy; there are {}", Policy::names()));
        Policy::every().find(|p| p.name() == text).ok_or_else(unknown)
    }
}
