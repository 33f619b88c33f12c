//! `plan`: one trace, one budget, one link; writes a schedule. Exit 3 where none fits.

use crate::args::{DuplexArg, PlanArgs};
use crate::failure::{Exit, Failure};
use crate::output::{Cell, Table};
use crate::{files, interrupt};
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_tuner::bound::lower_bound;
use plimsoll_tuner::search::moved;
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, Status, Witness, plan};
use std::time::{Duration, Instant};

/// Runs the verb.
pub fn run(args: &PlanArgs) -> Result<Vec<Table>, Failure> {
    let trace: Trace = files::read(&args.trace)?;
    files::not_the_same(&args.trace, &args.output)?;
    let peak = trace.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
    let budget = args.budget.of(peak);
    let policy = parse_policy(&args.policy)?;
    let start = Instant::now();
    let deadline = args.time_limit.map(|limit| Duration::try_from_secs_f64(limit.0).unwrap_or(Duration::MAX));
    let expired = || interrupt::pressed() || deadline.is_some_and(|limit| start.elapsed() >= limit);
    let request = PlanRequest {
        budget,
        link: Link {
            latency_seconds: args.latency,
            duplex: args.duplex.into(),
            ..Link::symmetric(args.link)
        },
        policy,
        allow: Allow { recompute: !args.no_recompute, swap: !args.no_swap, pieces: !args.no_pieces },
        limits: Limits { evaluations: None, expired: Some(&expired) },
        seed: args.seed,
    };
    let made = match plan(&trace, &request)? {
        Outcome::Planned(made) => made,
        Outcome::Infeasible(_) if interrupt::pressed() => {
            return Err(Failure::new(
                Exit::Interrupted,
                "stopped before a plan was found; nothing was written",
            ));
        }
        Outcome::Infeasible(witness) => return Err(no_plan(&trace, budget, &witness)),
    };
    let seconds = Seconds(start.elapsed().as_secs_f64());
    files::write(&args.output, &made.schedule)?;
    if interrupt::pressed() {
        let saved =
            format!("stopped; the best plan so far ({}) is in {}", made.makespan, args.output.display());
        return Err(Failure::new(Exit::Interrupted, saved));
    }
    let bound = lower_bound(&trace, budget, &request.link, request.allow);
    Ok(vec![table(&trace, &made, policy, bound, seconds)])
}

/// The policy of this name.
pub fn parse_policy(name: &str) -> Result<Policy, Failure> {
    name.parse().map_err(Failure::usage)
}

/// The failure that says which op needs how much, and which batch would fit. A trace knows only its own batch; what is not
/// resident is taken to be proportional to it.
pub fn no_plan(trace: &Trace, budget: Bytes, witness: &Witness) -> Failure {
    let Trace { name, batch, resident_bytes, .. } = trace;
    let message = format!("no plan for {name} at batch {batch} fits a budget of {budget}: {witness}");
    let room = budget.saturating_sub(*resident_bytes).0 as f64;
    let needs = witness.needs.saturating_sub(*resident_bytes).0 as f64;
    let fits = (*batch as f64 * room / needs) as u64;
    Failure::new(Exit::NoPlan, message).help(if budget <= *resident_bytes {
        format!("raise --budget: {resident_bytes} stay on the device at any batch")
    } else if fits == 0 {
        "raise --budget: not even one sample fits".to_owned()
    } else {
        format!("raise --budget, or lower the batch to about {fits}")
    })
}

fn table(trace: &Trace, made: &Plan, policy: Policy, bound: Seconds, planning: Seconds) -> Table {
    let compute = trace.compute_seconds();
    let schedule = &made.schedule;
    let moves = moved(trace, schedule);
    let status = match made.status {
        Status::Optimal => "optimal",
        Status::Feasible => "feasible",
        Status::OutOfTime => "feasible, out of time",
    };
    let ratio = |of: Seconds| if of.0 > 0.0 { Cell::Number(made.makespan / of, 4) } else { Cell::None };
    Table::facts(
        "plan",
        vec![
            ("trace", "trace", trace.name.clone().into()),
            ("batch", "batch", trace.batch.into()),
            ("policy", "policy", policy.to_string().into()),
            ("status", "status", status.into()),
            ("makespan_seconds", "makespan", made.makespan.into()),
            ("bound_seconds", "lower bound", bound.into()),
            ("ratio_to_bound", "makespan / bound", ratio(bound)),
            ("ratio_to_compute", "makespan / compute", ratio(compute)),
            ("offloaded_bytes", "offloaded", moves.offloaded.into()),
            ("kept_bytes", "feature maps kept", moves.kept.into()),
            ("pool_bytes", "pool", schedule.pool_bytes.into()),
            ("peak_bytes", "resident + pool", (trace.resident_bytes + schedule.pool_bytes).into()),
            ("budget_bytes", "budget", schedule.budget_bytes.into()),
            ("planning_seconds", "planning time", planning.into()),
        ],
    )
}

impl From<DuplexArg> for Duplex {
    fn from(arg: DuplexArg) -> Duplex {
        match arg {
            DuplexArg::Full => Duplex::Full,
            DuplexArg::Half => Duplex::Half,
        }
    }
}
