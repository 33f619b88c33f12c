//! `compare`: all policies on one trace, at one budget or over a sweep of budgets.
//!
//! A policy that does not fit has a row with the reason. Every row is compared with the same lower bound, the one for
//! all allowed actions, so that a policy that does not recompute is judged against one that may. Over a sweep,
//! `plimsoll` never takes longer with more budget; the papers' policies are shown unchanged.

use crate::args::CompareArgs;
use crate::output::{Format, Table, print};
use crate::verbs::plan::parse_policy;
use crate::verbs::planning::{PlanRun, carry, table, timeless};
use crate::verbs::trace::of_a_model;
use crate::{files, interrupt, progress};
use plimsoll_ir::trace::Trace;
use plimsoll_study::error::{Error, Kind};
use plimsoll_study::workload::raise_host_memory;
use plimsoll_tuner::{Limits, Outcome, Policy, Shortage, Witness};

/// Columns of the table.
const COLUMNS: [&str; 13] = [
    "budget_bytes",
    "policy",
    "makespan_seconds",
    "ratio_to_bound",
    "ratio_to_compute",
    "moved_bytes",
    "recomputed_bytes",
    "recomputed_seconds",
    "host_bytes",
    "pool_bytes",
    "bound_seconds",
    "planning_seconds",
    "why_not",
];

/// Default number of budgets.
const BUDGETS: u32 = 5;

/// Runs the verb. Results so far are printed on Ctrl-C.
pub fn run(args: &CompareArgs, format: Format) -> Result<Vec<Table>, Error> {
    let trace: Trace = files::read(&args.planning.trace)?;
    let policies = match &args.policies[..] {
        [] => plimsoll_tuner::policies::taking(&trace),
        names => names.iter().map(|name| parse_policy(name)).collect::<Result<_, _>>()?,
    };
    timeless(&trace).inspect(|words| tracing::warn!("{words}"));
    of_a_model(&trace).inspect(|words| tracing::warn!("{words}"));
    let mut tried = Vec::new();
    let mut stopped = None;
    let budgets = args.planning.budgets(&trace, BUDGETS);
    let bar = progress::bar("compare", Some((budgets.len() * policies.len()) as u64), false);
    'all: for budget in budgets {
        let limits = Limits { evaluations: None, expired: Some(&interrupt::pressed) };
        let bound = args.planning.bound(&trace, budget, &limits);
        for &policy in &policies {
            let one = args.planning.plan(&trace, policy, budget, bound, None)?;
            if interrupt::pressed() {
                stopped = Some((policy, budget));
                break 'all;
            }
            tried.push(one);
            bar.inc(1);
        }
    }
    drop(bar);
    let (ours, theirs) = tried.into_iter().partition(|one: &PlanRun| one.policy == Policy::Plimsoll);
    let mut tried: Vec<PlanRun> = carry(&trace, &args.planning, ours)?;
    tried.extend::<Vec<PlanRun>>(theirs);
    let place = |policy| policies.iter().position(|other| *other == policy);
    tried.sort_by_key(|one| (one.budget, place(one.policy)));
    let table = table("policies", &COLUMNS, &trace, &tried);
    if let Some((policy, budget)) = stopped {
        print(format, &[table])?;
        let message = format!("stopped while planning under policy {policy} at a budget of {budget}");
        return Err(Error::new(Kind::Interrupted, message));
    }
    let Some((policy, witness)) = closest(&tried) else { return Ok(vec![table]) };
    print(format, &[table])?;
    Err(no_plans(&trace, policy, witness))
}

/// Error if no policy has a plan: names the policy that needs least, and its shortfall.
fn no_plans(trace: &Trace, policy: Policy, witness: &Witness) -> Error {
    let (Trace { name, batch, .. }, needs) = (trace, witness.needs);
    let message = format!("no policy has a plan for {name} at batch {batch}");
    let message = match witness.why {
        Shortage::Floor | Shortage::Start | Shortage::Host => format!("{message}: {witness}"),
        _ => format!("{message}; `{policy}` comes closest: {witness}"),
    };
    Error::new(Kind::NoPlan, message).help(match witness.why {
        Shortage::Floor | Shortage::Start => {
            format!("raise --budget: no plan of any kind takes less than {needs}")
        }
        Shortage::Host | Shortage::HostTried => raise_host_memory(witness),
        Shortage::Policy | Shortage::Tried | Shortage::Addresses => {
            format!("raise --budget to about {needs}, or let more policies try with --policies")
        }
    })
}

/// If no policy has a plan at any budget, the one that needs least at the largest budget, and its shortfall.
fn closest(tried: &[PlanRun]) -> Option<(Policy, &Witness)> {
    let short = tried.iter().map(|one| match &one.outcome {
        Outcome::Planned(_) => None,
        Outcome::Infeasible(witness) => Some((one.policy, witness)),
    });
    short.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|(_, witness)| witness.distance())
}
