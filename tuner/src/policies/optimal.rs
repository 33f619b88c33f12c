//! The fastest possible iteration, for small traces: a reference for the other policies.
//!
//! # The space
//!
//! Every schedule of this kind is considered, with exact bytes and times:
//!
//! - Tensors stay, are swapped whole, or are given up and recomputed; each version leaves for the host at most once while the
//!   host's copy lives, and is prefetched any number of times.
//! - Ops are recomputed just before an op of the trace that needs their outputs, never earlier, each at most once in such a
//!   batch, in the trace's order, and only ops that make, directly or indirectly, an absent input of the op. Recomputed values
//!   may stay for later. Once parameters change, nothing is recomputed.
//! - Every run of an op is in any of its alternatives. Transfers are in any order, and start at any time.
//! - Offloaded tensors fit the host, if that is limited.
//! - At any time, the values on the device and the workspace of the running op fit the pool; a value counts from the start of
//!   the command that brings it to the end of the last that uses it there.
//!
//! Addresses cost no time here, so that the minimum makespan of the space is a bound for every schedule of the kind, and
//! Plimsoll's own planner with `pieces` off makes no other kind. A plan is proved optimal if it takes just that time. If no
//! addresses are found for it, the iteration is planned for pools that are smaller by the shortage; the fastest that fits is the
//! plan, and its proven distance from the bound is [`crate::Plan::gap`].
//!
//! # Method
//!
//! `search` goes through the orders of commands, best first: for a given order of starts, starting everything as early as
//! possible loses nothing, and all orders are considered, so that no rule for the order of transfers is needed. It begins with
//! the planner's makespan, which it must reach by itself. The tests state the same space as a mixed-integer program, which is
//! independent of the search and must give the same minimum makespan (`tests/program.rs`).
//!
//! Swapping only, 30 ops take from a millisecond to some seconds; with recomputing, 10 ops take milliseconds and 16 from
//! milliseconds to more than the allowed states. The search stops after a number of states, or when time is up; the answer then
//! is the planner's plan, with the proven bound.
//!
//! The planner needs less and pays less (`faster`): the fastest plan that a number of states leads to, complete or not. So it
//! expands states stage by stage in turn, which finds complete iterations early, and searches near its current plan. On random
//! traces of up to 20 ops this finds plans for which best first needs five times the states, and often proves them, too.
//!
//! This file deliberately does not move pieces of tensors, or take traces of more than [`MOST_OPS`] ops.

mod realise;
mod search;
mod space;
#[cfg(test)]
mod tests;

use crate::place::realise::{Case, Fitting, Realised};
use crate::request::{Allow, Error, Outcome, Plan, PlanRequest, Policy, Status, Trick};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, Seconds, TensorId};
use search::{Action, Found, Order, Timed, fastest};
use space::Space;
use std::collections::BTreeSet;

/// Maximum number of ops of a trace.
pub const MOST_OPS: usize = 32;

/// Maximum number of tensors and writes of ops, together.
pub const MOST_VALUES: usize = 128;

/// Maximum number of states if the request does not limit them: some ten seconds, some 200 MB.
const MOST_STATES: usize = 1_000_000;

/// Makespans that differ by at most this share are equal.
const HAIR: f64 = 1e-9;

/// Relative tolerance over the planner's makespan, so that sums in a different order do not hide it.
const SAME: f64 = 1e-6;

/// Share of the states, as a divisor, for the search near a plan.
const NEAR: usize = 4;

/// Number of smaller pools that are planned for, if addresses leave holes.
const POOLS: u32 = 8;

/// Minimum makespan of the space, without addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Lower bound: no schedule of the space is faster.
    pub seconds: Seconds,
    /// `true` if a schedule reaches it, apart from addresses.
    pub reached: bool,
}

/// Returns the minimum makespan of all iterations that take no longer than `within`; `None` if there is none. The request's
/// policy does not matter.
///
/// # Errors
///
/// The trace is too large.
pub fn least(trace: &Trace, request: &PlanRequest<'_>, within: Seconds) -> Result<Option<Least>, Error> {
    let pool = request.budget.saturating_sub(trace.resident_bytes).0;
    let space = space(trace, request, pool)?;
    Ok(match search(&space, request, within.0, states(request), Order::Best) {
        Found::Fastest(commands) => Some(Least { seconds: Seconds(end(&commands)), reached: true }),
        Found::Late { bound, .. } => Some(Least { seconds: Seconds(bound), reached: false }),
        Found::Nothing => None,
    })
}

/// Returns `true` if a trace is small enough.
pub(crate) fn takes(trace: &Trace) -> bool {
    let writes: usize = trace.ops.iter().map(|op| op.writes.len()).sum();
    trace.ops.len() <= MOST_OPS && trace.tensors.len() + writes <= MOST_VALUES
}

fn space(trace: &Trace, request: &PlanRequest<'_>, pool: u64) -> Result<Space, Error> {
    if takes(trace) {
        return Ok(Space::new(trace, pool, &request.link, request.allow));
    }
    let ops = trace.ops.len();
    Err(Error::usage(format_args!(
        "the trace is too large for policy {}, which looks at every schedule there is: it has {ops} ops, where at most \
         {MOST_OPS} are taken, with at most {MOST_VALUES} tensors and writes together; policy plimsoll takes traces of any size",
        Policy::Optimal
    )))
}

/// Returns the maximum number of states.
fn states(request: &PlanRequest<'_>) -> usize {
    request.limits.evaluations.map_or(MOST_STATES, |most| most as usize)
}

fn search(space: &Space, request: &PlanRequest<'_>, within: f64, states: usize, order: Order) -> Found {
    fastest(space, within, states, order, &|| request.limits.is_expired(), request.without).0
}

fn end(commands: &[Timed]) -> f64 {
    commands.iter().map(|command| command.end).fold(0.0, f64::max)
}

/// Result of a search for the planner.
pub(crate) struct Faster {
    /// Fastest plan that has addresses, if it is faster than the known one.
    pub fitting: Option<Fitting>,
    /// `true` if nothing faster is left in the space.
    pub complete: bool,
    /// `true` if the fastest plan of the space has no addresses.
    pub unplaced: bool,
}

/// Returns a plan of the space that is faster than the case's `within`: the fastest, or the fastest found with this many states.
/// `None` if the trace is too large.
///
/// First searches near `known`, with a part of the states: no further op is recomputed, and no further tensor offloaded. A faster
/// plan there leaves less to search in the whole space. If that is not complete, the neighbourhood of the fastest plan so far is
/// searched once more, with one of the two left open.
pub(crate) fn faster(
    case: &Case<'_>,
    known: Option<&Schedule>,
    states: usize,
) -> Result<Option<Faster>, Error> {
    if !takes(case.trace) {
        return Ok(None);
    }
    let whole = space(case.trace, case.request, case.pool)?;
    let mut finder = Finder { case, within: case.within.0 * (1.0 - SAME), found: None };
    let mut means = known.map(Means::of_schedule);
    if let Some(means) = &means {
        finder.search(&means.space(case, true, true), states / NEAR);
    }
    let complete = finder.search(&whole, states);
    if !complete {
        means = finder.found.as_ref().map(|(space, commands)| Means::of_commands(space, commands)).or(means);
        for (again, offloaded) in [(true, true), (true, false), (false, true)] {
            if let Some(means) = &means {
                finder.search(&means.space(case, again, offloaded), states / NEAR);
            }
        }
    }
    let fitting = match &finder.found {
        Some((space, commands)) => {
            with_addresses(case, space, commands, case.within.0 * (1.0 - SAME), states, Order::Turns)?
        }
        None => None,
    };
    let placed = |(_, commands): &(Space, Vec<Timed>)| {
        fitting.as_ref().is_some_and(|fitting| fitting.makespan.0 <= end(commands) * (1.0 + SAME))
    };
    let unplaced = !finder.found.as_ref().is_none_or(placed);
    Ok(Some(Faster { fitting, complete, unplaced }))
}

/// Results so far.
struct Finder<'a> {
    case: &'a Case<'a>,
    /// Time limit in seconds: nothing slower is searched for.
    within: f64,
    found: Option<(Space, Vec<Timed>)>,
}

impl Finder<'_> {
    /// Searches a space. Returns `true` if nothing faster is left in it.
    fn search(&mut self, space: &Space, states: usize) -> bool {
        let (commands, complete) = match search(space, self.case.request, self.within, states, Order::Turns) {
            Found::Fastest(commands) => (Some(commands), true),
            Found::Nothing => (None, true),
            Found::Late { best, .. } => (best, false),
        };
        if let Some(commands) = commands {
            self.within = end(&commands) * (1.0 - SAME);
            self.found = Some((space.clone(), commands));
        }
        complete
    }
}

/// Recomputed ops and offloaded tensors of a plan.
struct Means {
    again: BTreeSet<OpId>,
    offloaded: BTreeSet<TensorId>,
}

impl Means {
    fn of_schedule(schedule: &Schedule) -> Means {
        let mut means = Means { again: BTreeSet::new(), offloaded: BTreeSet::new() };
        for command in &schedule.commands {
            match command {
                Command::Compute { op, again: true, .. } => drop(means.again.insert(*op)),
                Command::Offload { tensor, .. } => drop(means.offloaded.insert(*tensor)),
                _ => {}
            }
        }
        means
    }

    fn of_commands(space: &Space, commands: &[Timed]) -> Means {
        let mut means = Means { again: BTreeSet::new(), offloaded: BTreeSet::new() };
        for command in commands {
            match command.action {
                Action::Run { op, again: true, .. } => drop(means.again.insert(op)),
                Action::Offload { value } => drop(means.offloaded.insert(space.values[value].tensor)),
                _ => {}
            }
        }
        means
    }

    /// Returns the space without further recomputed ops, without further offloaded tensors, or without either.
    fn space(&self, case: &Case<'_>, again: bool, offloaded: bool) -> Space {
        let mut trace = case.trace.clone();
        if again {
            let ops = trace.ops.iter_mut().enumerate();
            ops.for_each(|(at, op)| op.recomputable &= self.again.contains(&OpId::new(at)));
        }
        let mut space = Space::new(&trace, case.pool, &case.request.link, case.request.allow);
        if offloaded {
            space.offload_only(&|tensor| self.offloaded.contains(&tensor));
        }
        space
    }
}

pub(crate) fn decide(case: &Case<'_>) -> Result<(Outcome, SearchLog), Error> {
    let Case { trace, request, pool, .. } = *case;
    let space = space(trace, request, pool)?;
    let allow = Allow { pieces: false, ..request.allow };
    // Nothing is recomputed early in the space.
    let without = request.without.with(Trick::Early);
    let plimsoll = PlanRequest { policy: Policy::Plimsoll, allow, without, ..*request };
    let (known, log) = super::decide(trace, &plimsoll)?;
    Ok((decide_from(case, &space, &known)?, log))
}

/// Returns the outcome of a complete search for a plan faster than a known one.
fn decide_from(case: &Case<'_>, space: &Space, known: &Outcome) -> Result<Outcome, Error> {
    let Case { request, bound, .. } = *case;
    let so_far = known.plan().map_or(f64::INFINITY, |plan| plan.makespan.0);
    let judged = |status: Status, bound: Seconds| match known.clone() {
        Outcome::Planned(plan) => Outcome::Planned(Plan { status, bound, ..plan }),
        short => short,
    };
    if so_far <= bound.0 * (1.0 + HAIR) {
        return Ok(judged(Status::Optimal, bound));
    }
    let commands = match search(space, request, so_far * (1.0 + SAME), states(request), Order::Best) {
        Found::Fastest(commands) => commands,
        Found::Late { bound: late, .. } => {
            return Ok(judged(Status::OutOfTime, bound.max(Seconds(late.min(so_far)))));
        }
        // The planner's schedule is not in the space.
        Found::Nothing => return Ok(judged(Status::Feasible, bound)),
    };
    let least = bound.max(Seconds(end(&commands)));
    if so_far <= least.0 * (1.0 + HAIR) {
        return Ok(judged(Status::Optimal, least));
    }
    let Some(Fitting { schedule, makespan, moved, .. }) =
        with_addresses(case, space, &commands, so_far, states(request), Order::Best)?
    else {
        return Ok(judged(Status::Feasible, least));
    };
    let status = if makespan.0 <= least.0 * (1.0 + HAIR) { Status::Optimal } else { Status::Feasible };
    let moved = Bytes(moved);
    Ok(Outcome::Planned(Plan { schedule: *schedule, makespan, moved, bound: least.min(makespan), status }))
}

/// Returns the fastest schedule that has addresses: that of these commands, or of those for smaller pools, if it takes less than
/// `within`. Each smaller pool has a part of this many states.
fn with_addresses(
    case: &Case<'_>,
    space: &Space,
    commands: &[Timed],
    within: f64,
    states: usize,
    order: Order,
) -> Result<Option<Fitting>, Error> {
    let (mut pool, mut step) = (case.pool, case.pool / 256);
    let (mut space, mut commands) = (space.clone(), commands.to_vec());
    for _ in 0..POOLS {
        let over = match realise::realise(case, &space, &commands)? {
            Realised::Fits(fitting) => return Ok((fitting.makespan.0 < within).then_some(fitting)),
            Realised::Short(short) => short.short_by.0,
            Realised::Slow => unreachable!("nothing is slow where any makespan will do"),
        };
        step = over.max(step + step / 2);
        pool = pool.saturating_sub(step);
        space = self::space(case.trace, case.request, pool)?;
        let states = states / (2 * POOLS as usize);
        commands = match search(&space, case.request, within * (1.0 - HAIR), states, order) {
            Found::Fastest(commands) | Found::Late { best: Some(commands), .. } => commands,
            Found::Late { best: None, .. } | Found::Nothing => break,
        };
    }
    Ok(None)
}
