//! What a plan is asked for with, and what comes back.
//!
//! # The data
//!
//! A [`PlanRequest`] has the budget, the link, a [`Policy`], what the plan may do and how long it may be looked for. An
//! [`Outcome`] is either a [`Plan`] (a schedule that [`plimsoll_ir::check`] found valid, its makespan, a lower bound) or
//! a [`Witness`] for why there is none. That a plan does not fit is an outcome; a [`PlanError`] is a request that means
//! nothing, or a fault of this crate.
//!
//! The same request gives the same plan, unless a deadline cut the search short.

use crate::bound::least_hosted;
use crate::lower::LowerError;
use crate::policies;
use crate::tricks::Tricks;
use plimsoll_ir::schedule::{Link, Schedule, place_on_host};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Document, Fault, OpId, Seconds};
use std::fmt;
use std::str::FromStr;

/// What a plan is asked for with.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// What resident bytes and pool may take together.
    pub budget: Bytes,
    /// The link between device and host.
    pub link: Link,
    /// Who decides.
    pub policy: Policy,
    /// What the plan may do.
    pub allow: Allow,
    /// How long it may be looked for.
    pub limits: Limits<'a>,
    /// For the choices of a search that are left to chance.
    pub seed: u64,
    /// What the search goes without, to see what it is worth.
    pub without: Tricks,
    /// Time may be up at any moment ([`Limits::expired`]): [`Policy::Plimsoll`] makes simple plans first, whatever the time,
    /// and whole ones on its way, and gives the best of them then. A search that comes to its end takes a little longer, and
    /// gives the same plan, unless the host's memory is short ([`Allow::host`]).
    pub anytime: bool,
}

impl<'a> PlanRequest<'a> {
    /// With everything allowed, as long as it takes, with seed 1 and all tricks, for the plan at the end of the search.
    pub fn new(budget: Bytes, link: Link, policy: Policy) -> PlanRequest<'a> {
        let (allow, limits) = (Allow::default(), Limits::default());
        PlanRequest { budget, link, policy, allow, limits, seed: 1, without: Tricks::NONE, anytime: false }
    }

    /// Whether the lower bound of its plans holds for every schedule, those that run ops again too.
    pub fn bounds_all(&self) -> bool {
        let Allow { recompute, swap, .. } = self.allow;
        recompute
            && match self.policy {
                Policy::Plimsoll | Policy::Optimal | Policy::Memonger => true,
                Policy::SuperNeurons => swap,
                _ => false,
            }
    }
}

/// What a plan may do besides keeping everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    /// Run ops again. [`Policy::Plimsoll`], [`Policy::Optimal`], [`Policy::SuperNeurons`] and [`Policy::Memonger`] do;
    /// without it the last two keep everything.
    pub recompute: bool,
    /// Move tensors to the host and back. Without it every policy keeps everything but those that run ops again without
    /// swapping, which are the ones above but for [`Policy::SuperNeurons`].
    pub swap: bool,
    /// Move pieces of tensors. Only [`Policy::Plimsoll`] does.
    pub pieces: bool,
    /// What is swapped may take so much of the host's memory ([`Schedule::host_bytes`]); none for any number of bytes. A policy
    /// that decides without looking at this has no plan where what it decides takes more.
    pub host: Option<Bytes>,
}

impl Allow {
    /// Whatever there is, within any number of bytes of the host.
    pub const ALL: Allow = Allow { recompute: true, swap: true, pieces: true, host: None };

    /// Whether the host has room for this much of one tensor.
    pub(crate) fn hosts(self, bytes: u64) -> bool {
        self.host.is_none_or(|host| place_on_host(bytes) <= host.0)
    }
}

impl Default for Allow {
    fn default() -> Allow {
        Allow::ALL
    }
}

/// How long a plan may be looked for.
#[derive(Clone, Copy, Default)]
pub struct Limits<'a> {
    /// So many sets of decisions are evaluated at most for one size of the pool; none for as many as the size of the trace
    /// suggests.
    pub evaluations: Option<u64>,
    /// Says that time is up. The best plan so far is then finished; that takes some time more.
    pub expired: Option<&'a dyn Fn() -> bool>,
}

impl Limits<'_> {
    /// Whether time is up.
    pub fn is_expired(&self) -> bool {
        self.expired.is_some_and(|expired| expired())
    }
}

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Everything stays on the device.
    Keep,
    /// Every feature map is swapped (AccUDNN §3.1).
    Naive,
    /// Feature maps are swapped but for those that would stall the device, which are pinned (AccUDNN §3.4, §4.1, repaired: see
    /// [`policies::accudnn`]).
    Accudnn,
    /// The same by the letter of AccUDNN's Algorithms 1 and 2.
    AccudnnAsPrinted,
    /// Every layer's inputs are offloaded (vDNN §3.3).
    VdnnAll,
    /// The inputs of convolution layers are offloaded (vDNN §3.3).
    VdnnConv,
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
    /// Outputs of cheap layers are made again, the least recently used of the rest are swapped (SuperNeurons).
    SuperNeurons,
    /// The outputs of every sqrt(n)-th layer are kept, the rest is made again (Memonger).
    Memonger,
    /// The fastest iteration there is, of a trace of a few ops, without pieces: see [`policies::optimal`].
    Optimal,
    /// The planner of this house: the shortest makespan that it finds, and of equal ones (to a millionth) the one that
    /// moves fewest bytes.
    Plimsoll,
}

impl Policy {
    /// All that take traces of any size: all but [`Policy::Optimal`].
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

    /// All that take this trace; the planner of this house is the last.
    pub fn taking(trace: &Trace) -> Vec<Policy> {
        let mut all = Policy::ALL.to_vec();
        if policies::optimal::takes(trace) {
            all.insert(all.len() - 1, Policy::Optimal);
        }
        all
    }

    fn every() -> impl Iterator<Item = Policy> {
        Policy::ALL.into_iter().chain([Policy::Optimal])
    }

    /// The names of all of them, as a sentence lists them.
    pub fn names() -> String {
        let names: Vec<&str> = Policy::every().map(Policy::name).collect();
        names.join(", ")
    }

    /// Whether it ever moves anything to the host.
    fn swaps(self) -> bool {
        !matches!(self, Policy::Keep | Policy::LayrubIntra | Policy::Memonger)
    }

    /// The name on the command line and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Keep => "keep",
            Policy::Naive => "naive",
            Policy::Accudnn => "accudnn",
            Policy::AccudnnAsPrinted => "accudnn-as-printed",
            Policy::VdnnAll => "vdnn-all",
            Policy::VdnnConv => "vdnn-conv",
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

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A plan that fits.
    Planned(Plan),
    /// There is none, or none was found.
    Infeasible(Witness),
}

impl Outcome {
    /// The plan, if there is one.
    pub fn plan(&self) -> Option<&Plan> {
        match self {
            Outcome::Planned(plan) => Some(plan),
            Outcome::Infeasible(_) => None,
        }
    }
}

/// A schedule and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Valid for the trace and the budget.
    pub schedule: Schedule,
    /// One iteration, predicted.
    pub makespan: Seconds,
    /// All bytes that cross the link, both ways together.
    pub moved: Bytes,
    /// No schedule that does only what was allowed is faster; for the policies that only offload, none that only offloads.
    pub bound: Seconds,
    /// How good it is known to be.
    pub status: Status,
}

impl Plan {
    /// Makespan over bound, less 1: 0 for a plan that none can beat which does only what [`Plan::bound`] holds for. It means
    /// nothing where the status is [`Status::Unknown`].
    pub fn gap(&self) -> f64 {
        if self.bound > Seconds::ZERO { (self.makespan / self.bound - 1.0).max(0.0) } else { 0.0 }
    }
}

/// How good a plan is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No schedule of any kind is faster, whatever it offloads or recomputes: the makespan is the lower bound, and that holds
    /// for all of them; or it is the sum of the ops' fastest seconds. See [`crate::bound::unbeatable`]. Of
    /// [`Policy::Optimal`]: no schedule of whole tensors is faster (see [`policies::optimal`] for what else it assumes).
    Optimal,
    /// The policy's own. Nothing is proved of it but what [`Plan::gap`] says.
    Feasible,
    /// The best when time was up.
    OutOfTime,
    /// The trace's ops take no time, as those that were never measured: how good it is cannot be known.
    Unknown,
}

impl Status {
    /// What of this can be said of a plan for a trace.
    pub(crate) fn of(self, trace: &Trace) -> Status {
        match self {
            Status::Optimal | Status::Feasible if trace.fastest_seconds() == Seconds::ZERO => Status::Unknown,
            known => known,
        }
    }
}

/// Why there is no plan: what needs more memory than the budget, or than the host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The op that needs most.
    pub op: OpId,
    /// Its name.
    pub name: String,
    /// What it needs, resident bytes included; where the host is short, what is needed of its memory.
    pub needs: Bytes,
    /// By how much that exceeds the budget, or the host's memory.
    pub short_by: Bytes,
    /// What the need is.
    pub why: Shortage,
}

/// What kind of need a budget does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// What the op itself touches: no plan of any kind fits.
    Floor,
    /// What is on the device at the start of the iteration: no plan of any kind fits.
    Start,
    /// What this policy leaves on the device while the op runs: another policy may fit.
    Policy,
    /// What the leanest decisions that were tried leave on the device while the op runs. It is not proved that others need as
    /// much.
    Tried,
    /// The bytes fit, but no addresses were found that do: `needs` is the smallest pool that was found, with the resident
    /// bytes. It is not proved that there is no smaller one.
    Addresses,
    /// What the op leaves no room for on the device, and cannot be recomputed, is more than the host has memory for: no plan of
    /// any kind fits.
    Host,
    /// What was decided fits the device, and swaps more than the host has memory for. It is not proved that others need as much.
    HostTried,
}

impl Shortage {
    /// Whether no plan of any kind fits.
    pub fn is_proved(self) -> bool {
        matches!(self, Shortage::Floor | Shortage::Start | Shortage::Host)
    }

    /// Whether it is the host's memory that is short.
    pub fn is_of_host(self) -> bool {
        matches!(self, Shortage::Host | Shortage::HostTried)
    }
}

impl Witness {
    /// In the order of this the nearest to a plan is first: what only the host has no memory for, then what needs least.
    pub fn distance(&self) -> (bool, Bytes) {
        (self.why != Shortage::HostTried, self.needs)
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Witness { op, name, needs, short_by, why } = self;
        let over = format!("{needs}, {short_by} more than the budget");
        match why {
            Shortage::Floor => write!(f, "`{name}` ({op}) touches {over}"),
            Shortage::Start => {
                write!(f, "`{name}` ({op}) comes after a start with, in tensors on the device, {over}")
            }
            Shortage::Policy => write!(f, "`{name}` ({op}) needs, under this policy, {over}"),
            Shortage::Tried => write!(f, "`{name}` ({op}) needs, in the leanest plan that was tried, {over}"),
            Shortage::Addresses => {
                write!(f, "the tensors fit, but the tightest addresses that were found for them take {over}")
            }
            Shortage::Host => write!(
                f,
                "`{name}` ({op}) leaves no room for {needs} that only the host could hold, {short_by} more than its memory"
            ),
            Shortage::HostTried => write!(
                f,
                "the nearest plan that was found swaps {needs}, {short_by} more than the host's memory"
            ),
        }
    }
}

/// A request that means nothing, or a fault of this crate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The trace contradicts itself.
    #[error("the trace cannot be planned: {0}")]
    Trace(#[from] Fault),
    /// A rate that is not above zero or so low that times run to infinity, or a latency below zero or beyond all measure.
    #[error(
        "the link's {what} is {value}; a rate is a number from {RATE_MIN:e} bytes per second on, a latency one from 0 to \
         {LATENCY_MAX:e} seconds"
    )]
    Link {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: f64,
    },
    /// The policy is for smaller traces.
    #[error(
        "the trace is too large for policy {policy}, which looks at every schedule there is: it has {ops} ops, where at most \
         {most_ops} are taken, with at most {most_values} tensors and writes together; policy plimsoll takes traces of any size"
    )]
    TooLarge {
        /// Which.
        policy: Policy,
        /// The trace's ops.
        ops: usize,
        /// How many there may be.
        most_ops: usize,
        /// And how many tensors and writes of ops together.
        most_values: usize,
    },
    /// A budget too large to count with.
    #[error("a budget of {0} is more than 2^62 bytes")]
    Budget(Bytes),
    /// A policy decided something that cannot be lowered. Report it, with the trace.
    #[error("internal error of policy {policy}: {fault}")]
    Lowering {
        /// Whose.
        policy: Policy,
        /// What.
        fault: LowerError,
    },
    /// A schedule that is not valid was made. Report it, with the trace.
    #[error("internal error: policy {policy} made a schedule that is not valid: {violation}")]
    Invalid {
        /// Whose.
        policy: Policy,
        /// What [`plimsoll_ir::check`] says.
        violation: String,
    },
}

/// With a lower rate than this the times of transfers could not be counted with.
const RATE_MIN: f64 = BytesPerSecond::LEAST.0;

/// Nor with a higher latency.
const LATENCY_MAX: f64 = 1e20;

fn check_request(trace: &Trace, request: &PlanRequest<'_>) -> Result<(), PlanError> {
    trace.validate()?;
    let link = &request.link;
    let rates = [
        ("offload rate", link.offload_bytes_per_second.0, RATE_MIN..=f64::MAX),
        ("prefetch rate", link.prefetch_bytes_per_second.0, RATE_MIN..=f64::MAX),
        ("latency", link.latency_seconds.0, 0.0..=LATENCY_MAX),
    ];
    for (what, value, sense) in rates {
        if !sense.contains(&value) {
            return Err(PlanError::Link { what, value });
        }
    }
    if request.budget.0 > 1 << 62 {
        return Err(PlanError::Budget(request.budget));
    }
    Ok(())
}

/// Why no plan of any kind can fit, if so.
fn hopeless(trace: &Trace, request: &PlanRequest<'_>) -> Option<Witness> {
    let PlanRequest { budget, policy, allow, .. } = *request;
    let (op, floor) = trace.memory().floor()?;
    let lives = trace.lives();
    let at_start = trace.tensors.iter().zip(lives).filter(|(_, life)| life.is_some_and(|l| l.born.is_none()));
    let start: Bytes = trace.resident_bytes + at_start.map(|(t, _)| t.bytes).sum();
    let witness = |op: OpId, needs: Bytes, most: Bytes, why| {
        let name = trace.ops[op.index()].name.clone();
        Some(Witness { op, name, needs, short_by: needs - most, why })
    };
    if floor > budget {
        return witness(op, floor, budget, Shortage::Floor);
    } else if start > budget {
        return witness(OpId(0), start, budget, Shortage::Start);
    }
    let host = allow.host.filter(|_| allow.swap && policy.swaps())?;
    let (op, needs) = least_hosted(trace, budget, allow)?;
    if needs > host { witness(op, needs, host, Shortage::Host) } else { None }
}

/// Plans one iteration of a trace.
///
/// # Errors
///
/// [`PlanError`] for a trace or link that means nothing, and for faults of this crate; a budget that nothing fits is no
/// error but [`Outcome::Infeasible`].
pub fn plan(trace: &Trace, request: &PlanRequest<'_>) -> Result<Outcome, PlanError> {
    check_request(trace, request)?;
    if let Some(witness) = hopeless(trace, request) {
        return Ok(Outcome::Infeasible(witness));
    }
    let mut outcome = policies::decide(trace, request)?;
    if let Outcome::Planned(plan) = &mut outcome {
        plan.status = plan.status.of(trace);
    }
    Ok(outcome)
}
