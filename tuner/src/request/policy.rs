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
    /// Feature maps are swapped but for those that would stall the device, which are pinned (AccUDNN §3.4, §4.1, repaired: see
    /// [`crate::policies::papers::accudnn`]).
    Accudnn,
    /// The same by the letter of AccUDNN's Algorithms 1 and 2.
    AccudnnAsPrinted,
    /// Every layer's inputs are offloaded (vDNN §3.3): [`Policy::VdnnAllFastest`] where that fits, else
    /// [`Policy::VdnnAllLeanest`].
    VdnnAll,
    /// The same with the leanest algorithm of every op alone, vDNN's (m).
    VdnnAllLeanest,
    /// The same with the fastest algorithm of every op alone, vDNN's (p).
    VdnnAllFastest,
    /// The inputs of convolution layers are offloaded (vDNN §3.3): [`Policy::VdnnConvFastest`] where that fits, else
    /// [`Policy::VdnnConvLeanest`].
    VdnnConv,
    /// The same with the leanest algorithms alone.
    VdnnConvLeanest,
    /// The same with the fastest algorithms alone.
    VdnnConvFastest,
    /// The first of vDNN's profiling passes that fits (vDNN §3.3, "Dynamic vDNN").
    VdnnDyn,
    /// A gradient takes its activation's place, as far as the trace lets it; nothing moves (Layrub §3.2).
    LayrubIntra,
    /// Every activation is offloaded when its last reader has run and loaded one layer ahead (Layrub §3.3).
    LayrubInter,
    /// Both (Layrub §3.4).
    LayrubHybrid,
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
    /// The outputs of every sqrt(n)-th layer are kept, the rest is recomputed (Memonger).
    Memonger,
    /// The same with the fastest segments that fit, of those that Memonger's search over budgets tries.
    MemongerSearch,
    /// What a deep Q-network chooses that is trained on the iteration itself, offloading and recomputing (DQN): see
    /// [`crate::policies::papers::dqn`].
    Dqn,
    /// The fastest iteration there is, of a trace of a few ops, without pieces: see [`crate::policies::optimal`].
    Optimal,
    /// The planner of this house: the shortest makespan that it finds, and of equal ones (to a millionth) the one that
    /// moves fewest bytes.
    Plimsoll,
}

impl Policy {
    /// All that take traces of any size, plan them in a moment and have a rule of their own: all but [`Policy::Dqn`], which
    /// trains for seconds, [`Policy::Optimal`], vDNN's with one kind of algorithms and [`Policy::MemongerSearch`]. None of
    /// their plans is better than that of [`Policy::Plimsoll`], whose candidates they are.
    pub const ALL: [Policy; 18] = [
        Policy::Keep,
        Policy::Naive,
        Policy::Accudnn,
        Policy::AccudnnAsPrinted,
        Policy::VdnnAll,
        Policy::VdnnConv,
        Policy::VdnnDyn,
        Policy::LayrubIntra,
        Policy::LayrubInter,
        Policy::LayrubHybrid,
        Policy::Greedy,
        Policy::DynProg,
        Policy::VdnnRatio,
        Policy::Tflms,
        Policy::AutoSwap,
        Policy::SuperNeurons,
        Policy::Memonger,
        Policy::Plimsoll,
    ];

    fn every() -> impl Iterator<Item = Policy> {
        let variants = [
            Policy::VdnnAllLeanest,
            Policy::VdnnAllFastest,
            Policy::VdnnConvLeanest,
            Policy::VdnnConvFastest,
            Policy::MemongerSearch,
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
        !matches!(self, Policy::Keep | Policy::LayrubIntra | Policy::Memonger | Policy::MemongerSearch)
    }

    /// The name on the command line and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Keep => "keep",
            Policy::Naive => "naive",
            Policy::Accudnn => "accudnn",
            Policy::AccudnnAsPrinted => "accudnn-as-printed",
            Policy::VdnnAll => "vdnn-all",
            Policy::VdnnAllLeanest => "vdnn-all-m",
            Policy::VdnnAllFastest => "vdnn-all-p",
            Policy::VdnnConv => "vdnn-conv",
            Policy::VdnnConvLeanest => "vdnn-conv-m",
            Policy::VdnnConvFastest => "vdnn-conv-p",
            Policy::VdnnDyn => "vdnn-dyn",
            Policy::LayrubIntra => "layrub-intra",
            Policy::LayrubInter => "layrub-inter",
            Policy::LayrubHybrid => "layrub-hybrid",
            Policy::Greedy => "greedy",
            Policy::DynProg => "dynprog",
            Policy::VdnnRatio => "vdnn-ratio",
            Policy::Tflms => "tflms",
            Policy::AutoSwap => "autoswap",
            Policy::SuperNeurons => "superneurons",
            Policy::Memonger => "memonger",
            Policy::MemongerSearch => "memonger-search",
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
