//! `compare`: all policies on one trace, at one budget or over a sweep of budgets.
//!
//! What does not fit is a row as well, and says why. Every row is judged by the same lower bound: the one that holds for
//! whatever is allowed here, so that recomputing counts against a policy that does not.

use crate::args::CompareArgs;
use crate::failure::{Exit, Failure};
use crate::output::{Cell, Format, Table, print};
use crate::{files, interrupt};
use plimsoll_ir::schedule::{Command, Link, Schedule, way_of};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_tuner::bound::lower_bound;
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, plan};
use std::time::{Duration, Instant};

const COLUMNS: [(&str, &str); 11] = [
    ("budget_bytes", "budget"),
    ("policy", "policy"),
    ("makespan_seconds", "makespan"),
    ("ratio_to_bound", "/ bound"),
    ("ratio_to_compute", "/ compute"),
    ("moved_bytes", "moved"),
    ("recomputed_seconds", "recomputed"),
    ("pool_bytes", "pool"),
    ("bound_seconds", "bound"),
    ("planning_seconds", "planning"),
    ("why_not", "why not"),
];

/// Runs the verb. What is there when Ctrl-C is pressed is printed before it ends.
pub fn run(args: &CompareArgs, format: Format) -> Result<Vec<Table>, Failure> {
    let trace: Trace = files::read(&args.trace)?;
    let policies = match &args.policies[..] {
        [] => Policy::ALL.to_vec(),
        names => names.iter().map(|name| super::plan::parse_policy(name)).collect::<Result<_, _>>()?,
    };
    let mut table = Table::new("policies", &COLUMNS);
    for budget in budgets(&trace, args) {
        let link =
            Link { latency_seconds: args.latency, duplex: args.duplex.into(), ..Link::symmetric(args.link) };
        let allow = Allow { recompute: !args.no_recompute, swap: true, pieces: !args.no_pieces };
        let bound = lower_bound(&trace, budget, &link, allow);
        for &policy in &policies {
            let start = Instant::now();
            let deadline =
                args.time_limit.map(|limit| Duration::try_from_secs_f64(limit.0).unwrap_or(Duration::MAX));
            let expired = || interrupt::pressed() || deadline.is_some_and(|limit| start.elapsed() >= limit);
            let limits = Limits { evaluations: None, expired: Some(&expired) };
            let request = PlanRequest { budget, link, policy, allow, limits, seed: args.seed };
            let outcome = plan(&trace, &request)?;
            let planning = Seconds(start.elapsed().as_secs_f64());
            if interrupt::pressed() {
                print(format, &[table])?;
                return Err(Failure::new(Exit::Interrupted, "stopped before all policies were compared"));
            }
            table.rows.push(row(&trace, budget, policy, &outcome, bound, planning));
        }
    }
    Ok(vec![table])
}

/// The one budget, or those of the sweep: equal steps from the floor, which is not among them, to the peak.
fn budgets(trace: &Trace, args: &CompareArgs) -> Vec<Bytes> {
    let memory = trace.memory();
    let of = |most: Option<(plimsoll_ir::OpId, Bytes)>| most.map_or(Bytes::ZERO, |(_, bytes)| bytes);
    let (floor, peak) = (of(memory.floor()), of(memory.peak()));
    let step = |k: u32, count: u32| {
        let share = f64::from(k) / f64::from(count);
        floor + Bytes((peak.saturating_sub(floor).0 as f64 * share) as u64)
    };
    match (args.budget, args.sweep) {
        (Some(budget), _) => vec![budget.of(peak)],
        (None, count) => {
            let count = count.unwrap_or(5);
            (1..=count).map(|k| step(k, count)).collect()
        }
    }
}

fn row(
    trace: &Trace,
    budget: Bytes,
    policy: Policy,
    outcome: &Outcome,
    bound: Seconds,
    planning: Seconds,
) -> Vec<Cell> {
    let head = [budget.into(), policy.name().into()];
    let (made, why_not) = match outcome {
        Outcome::Planned(made) => (measures(trace, made, bound), Cell::None),
        Outcome::Infeasible(witness) => (vec![Cell::None; 6], witness.to_string().into()),
    };
    head.into_iter().chain(made).chain([bound.into(), planning.into(), why_not]).collect()
}

/// The columns that only a plan has.
fn measures(trace: &Trace, made: &Plan, bound: Seconds) -> Vec<Cell> {
    let ratio = |of: Seconds| if of.0 > 0.0 { Cell::Number(made.makespan / of, 4) } else { Cell::None };
    vec![
        made.makespan.into(),
        ratio(bound),
        ratio(trace.compute_seconds()),
        made.moved.into(),
        recomputed(trace, &made.schedule).into(),
        made.schedule.pool_bytes.into(),
    ]
}

/// The compute time that is spent on running ops again.
fn recomputed(trace: &Trace, schedule: &Schedule) -> Seconds {
    let again = |command: &Command| match *command {
        Command::Compute { op, again: true, alternative, .. } => {
            way_of(&trace.ops[op.index()], alternative).map(|(seconds, _)| seconds)
        }
        _ => None,
    };
    schedule.commands.iter().filter_map(again).sum()
}
