//! Outcomes of planning: a plan, or the reason why there is none.

use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, Seconds};
use std::fmt;

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A plan that fits.
    Planned(Plan),
    /// There is no plan, or none was found.
    Infeasible(Witness),
}

impl Outcome {
    /// Returns the plan, if there is one.
    pub fn plan(&self) -> Option<&Plan> {
        match self {
            Outcome::Planned(plan) => Some(plan),
            Outcome::Infeasible(_) => None,
        }
    }
}

/// Schedule with its makespan, traffic and bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Valid for the trace and the budget.
    pub schedule: Schedule,
    /// Predicted seconds of one iteration.
    pub makespan: Seconds,
    /// Bytes that cross the link, both directions together.
    pub moved: Bytes,
    /// Lower bound on the makespan of every schedule that uses only the allowed means; for the policies that only offload, of
    /// every schedule that only offloads.
    pub bound: Seconds,
    /// Proven quality of the plan.
    pub status: Status,
}

impl Plan {
    /// Returns makespan over bound, less 1: 0 for a plan that no schedule within the scope of [`Plan::bound`] can beat.
    /// Meaningless if the status is [`Status::Unknown`].
    pub fn gap(&self) -> f64 {
        if self.bound > Seconds::ZERO { (self.makespan / self.bound - 1.0).max(0.0) } else { 0.0 }
    }
}

/// Proven quality of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No schedule of any kind is faster: the makespan equals the lower bound, and the bound holds for all schedules; or it
    /// equals the sum of the ops' fastest seconds. See [`crate::bound::unbeatable`]. For [`Policy::Optimal`](crate::Policy::Optimal): no schedule of
    /// whole tensors is faster (see [`crate::policies::optimal`] for its other assumptions).
    Optimal,
    /// Plan of the policy. Nothing is proved of it but [`Plan::gap`].
    Feasible,
    /// Best plan when time was up.
    OutOfTime,
    /// The trace's ops take no time, because they were never measured: the quality of the plan is unknown.
    Unknown,
}

impl Status {
    /// Returns this status, or [`Status::Unknown`] if the trace's ops take no time.
    pub(crate) fn of(self, trace: &Trace) -> Status {
        match self {
            Status::Optimal | Status::Feasible if trace.fastest_seconds() == Seconds::ZERO => Status::Unknown,
            known => known,
        }
    }
}

/// Reason why there is no plan: an op that needs more memory than the budget, or than the host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Op that needs most.
    pub op: OpId,
    /// Name of that op.
    pub name: String,
    /// Bytes that the op needs, resident bytes included; if the host is short, bytes of host memory.
    pub needs: Bytes,
    /// Bytes by which the need exceeds the budget, or the host's memory.
    pub short_by: Bytes,
    /// Kind of the need.
    pub why: Shortage,
}

/// Kind of need that the budget does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The op's own operands: no plan of any kind fits.
    Floor,
    /// Tensors on the device at the start of the iteration: no plan of any kind fits.
    Start,
    /// Tensors that this policy leaves on the device while the op runs: a different policy may fit.
    Policy,
    /// Tensors that the leanest tried decisions leave on the device while the op runs. It is not proved that other decisions need
    /// as much.
    Tried,
    /// The bytes fit, but no addresses were found: `needs` is the smallest pool that was found, with the resident bytes. It is
    /// not proved that there is no smaller one.
    Addresses,
    /// The host's memory is too small for the tensors that do not fit the device next to the op and cannot be recomputed: no plan
    /// of any kind fits.
    Host,
    /// The decisions fit the device, but swap more than the host's memory holds. It is not proved that other decisions swap as
    /// much.
    HostTried,
}

impl Shortage {
    /// Returns `true` if no plan of any kind fits.
    pub fn is_proved(self) -> bool {
        matches!(self, Shortage::Floor | Shortage::Start | Shortage::Host)
    }

    /// Returns `true` if host memory is short.
    pub fn is_of_host(self) -> bool {
        matches!(self, Shortage::Host | Shortage::HostTried)
    }
}

impl Witness {
    /// Returns a sort key by which the witness nearest to a plan comes first: first those for which only host memory is short,
    /// then the smallest need.
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
