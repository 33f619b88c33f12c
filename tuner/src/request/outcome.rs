//! The answer: a plan, or why there is none; and errors.

use super::policy::Policy;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Fault, OpId, Seconds};
use std::fmt;

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
    /// [`Policy::Optimal`]: no schedule of whole tensors is faster (see [`crate::policies::optimal`] for what else it assumes).
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
    /// What was decided fits the device, and swaps more than the host has memory for. It is not proved that others need as
    /// much.
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
    /// The schedule that a plan was to be made from is not valid for its trace.
    #[error("the earlier schedule is not valid for its trace, `{trace}` at batch {batch}: {violation}")]
    Earlier {
        /// The trace's name.
        trace: String,
        /// Its batch size.
        batch: u64,
        /// What [`plimsoll_ir::check`] says.
        violation: String,
    },
    /// The trace shares nothing with that of the schedule that its plan was to be made from.
    #[error(
        "the earlier schedule is of `{earlier}`, which has no tensor of `{trace}`, so that nothing of it can be taken over"
    )]
    Unrelated {
        /// The name of the schedule's trace.
        earlier: String,
        /// The name of the trace that was to be planned.
        trace: String,
    },
    /// A policy decided something that cannot be lowered. Report it, with the trace.
    #[error("internal error of policy {policy}: {fault}")]
    Lowering {
        /// Whose.
        policy: Policy,
        /// What.
        fault: String,
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
pub(crate) const RATE_MIN: f64 = BytesPerSecond::LEAST.0;

/// Nor with a higher latency.
pub(crate) const LATENCY_MAX: f64 = 1e20;
