//! Who decides: the policies by name.

use std::fmt;
use std::str::FromStr;

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Everything stays on the device.
    Keep,
    /// Every feature map is swapped (AccUDNN §3.1).
    Naive,
    /// Feature maps are swapped but for those that would stall the device, which are pinned (AccUDNN §3.4, §4.1; see
    /// [`crate::policies::papers::accudnn`]).
    Accudnn {
        /// By the letter of Algorithms 1 and 2; else repaired, as the paper's text says.
        as_printed: bool,
    },
    /// The inputs of layers are offloaded (vDNN §3.3).
    Vdnn {
        /// Of which layers.
        layers: Layers,
        /// With which algorithms of the ops.
        algorithms: Algorithms,
    },
    /// The first of vDNN's profiling passes that fits (vDNN §3.3, "Dynamic vDNN").
    VdnnDyn,
    /// Layrub (§3): memory is reused within layers and moved between them.
    Layrub(Layrub),
    /// The first stages of the chain, as many as are needed (Euro-Par'20 §4.2).
    Greedy,
    /// The stages that a dynamic program over memory slots chooses (Euro-Par'20 §5).
    DynProg,
    /// The stages with the most forward seconds for their bytes, or half of them (Euro-Par'20 §6.1, VDNN).
    VdnnRatio,
    /// The first stages, without ever waiting for memory (Euro-Par'20 §6.1, TFLMS).
    Tflms,
    /// Stages by a weighted average of four scores (Euro-Par'20 §6.1, AutoSwap).
    AutoSwap,
    /// Outputs of cheap layers are recomputed, the least recently used of the rest are swapped (SuperNeurons).
    SuperNeurons,
    /// The outputs of some layers are kept, the rest is recomputed (Memonger).
    Memonger {
        /// The fastest segments that fit, of those that Memonger's search over budgets tries; else every sqrt(n)-th layer.
        searched: bool,
    },
    /// What a deep Q-network chooses that is trained on the iteration itself, offloading and recomputing (DQN): see
    /// [`crate::policies::papers::dqn`].
    Dqn,
    /// The fastest iteration there is, of a trace of a few ops, without pieces: see [`crate::policies::optimal`].
    Optimal,
    /// The planner of this house: the shortest makespan that it finds, and of equal ones (to a millionth) the one that
    /// moves fewest bytes.
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
    /// The fastest where that fits, else the leanest.
    FastestThatFit,
    /// The fastest of every op alone, vDNN's (p).
    Fastest,
    /// The leanest of every op alone, vDNN's (m).
    Leanest,
}

/// Layrub's strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layrub {
    /// A gradient takes its activation's place, as far as the trace lets it; nothing moves (§3.2).
    Intra,
    /// Every activation is offloaded when its last reader has run and loaded one layer ahead (§3.3).
    Inter,
    /// Both (§3.4).
    Hybrid,
}

const fn vdnn(layers: Layers, algorithms: Algorithms) -> Policy {
    Policy::Vdnn { layers, algorithms }
}

impl Policy {
    /// All that take traces of any size, plan them in a moment and have a rule of their own: all but [`Policy::Dqn`], which
    /// trains for seconds, [`Policy::Optimal`], vDNN's with one kind of algorithms and Memonger's search. None of their plans
    /// is better than that of [`Policy::Plimsoll`], whose candidates they are.
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

    /// The names of all of them, as a sentence lists them.
    pub fn names() -> String {
        let names: Vec<&str> = Policy::every().map(Policy::name).collect();
        names.join(", ")
    }

    /// Whether it ever moves anything to the host.
    pub(crate) fn swaps(self) -> bool {
        !matches!(self, Policy::Keep | Policy::Layrub(Layrub::Intra) | Policy::Memonger { .. })
    }

    /// The name on the command line and in documents.
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

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy; there are {names}", names = Policy::names())]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        Policy::every().find(|p| p.name() == text).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
