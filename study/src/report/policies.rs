//! The papers' policies on the same trace at the same budget and link, compared with the schedule of a report.
//!
//! Each policy is planned as `compare` does. Time is limited: the report of a large trace still appears, and lists the policies
//! that were not planned.

use crate::error::{Error, Kind};
use crate::report::data::{Policies, PolicyRow};
use plimsoll_ir::Seconds;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::{Comparison, PolicyRun};
use plimsoll_tuner::bound::lower_bound_within;
use plimsoll_tuner::{Allow, Limits, Outcome, PlanRequest, Policy, plan};
use std::time::{Duration, Instant};

/// Time limit of all policies but the schedule's own; the bound is found within it, too.
pub const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Plans under every policy but the schedule's own, and sorts the rows. `own` is the name of the schedule's row. No new policy
/// is begun after `limit`. Fails once `stop` returns `true`: an interrupted comparison is worthless.
pub fn compare(
    trace: &Trace,
    schedule: &Schedule,
    own: &str,
    limit: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Comparison, Error> {
    let begun = Instant::now();
    let expired = || begun.elapsed() >= limit || stop();
    let limits = Limits { evaluations: None, expired: Some(&expired) };
    let bound = lower_bound_within(trace, schedule.budget_bytes, &schedule.link, Allow::default(), &limits);
    let mut rows = vec![row(own, trace, Ok(schedule), None)];
    // The schedule's own row stands for its policy; if it is the planner's or unknown, the planner is not run again.
    let ours = own != Policy::Accudnn { as_printed: false }.name();
    // The policy that trains for seconds comes last, in the time left.
    let all = Policy::ALL.into_iter().chain([Policy::Dqn]);
    let others = all.filter(|p| p.name() != own && !(ours && *p == Policy::Plimsoll));
    for policy in others {
        if expired() {
            let note =
                format!("not planned: the {} for all policies were over", Seconds(limit.as_secs_f64()));
            rows.push(row(policy.name(), trace, Err(note), None));
            continue;
        }
        let start = Instant::now();
        let request =
            PlanRequest { limits, ..PlanRequest::new(schedule.budget_bytes, schedule.link, policy) };
        let outcome = plan(trace, &request)?;
        let planning = Some(Seconds(start.elapsed().as_secs_f64()));
        let made = match &outcome {
            Outcome::Planned(made) => Ok(&made.schedule),
            Outcome::Infeasible(witness) => Err(witness.to_string()),
        };
        rows.push(row(policy.name(), trace, made, planning));
    }
    if stop() {
        return Err(Error::new(Kind::Interrupted, "stopped while comparing policies for the report"));
    }
    // Equal results stay in the order of the policies.
    let seconds = |row: &PolicyRun| row.makespan_seconds.map_or(f64::INFINITY, |s| s.0);
    rows.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    Ok(Comparison { bound_seconds: bound, compute_seconds: trace.fastest_seconds(), rows })
}

/// Returns a policy's row, from its schedule or from the reason why it has none.
fn row(
    policy: &str,
    trace: &Trace,
    made: Result<&Schedule, String>,
    planning_seconds: Option<Seconds>,
) -> PolicyRun {
    let schedule = made.as_ref().ok();
    let timeline = schedule.map(|schedule| simulate(trace, schedule));
    let totals = schedule.zip(timeline.as_ref()).map(|(schedule, timeline)| timeline.totals(trace, schedule));
    let totals = totals.unwrap_or_default();
    PolicyRun {
        policy: policy.to_owned(),
        makespan_seconds: timeline.map(|timeline| timeline.makespan()),
        offloaded_bytes: totals.offloaded,
        prefetched_bytes: totals.prefetched,
        recomputed_bytes: Some(totals.recomputed_bytes),
        recomputed_seconds: totals.recomputed,
        stalled_seconds: totals.stalled[0],
        device_bytes: schedule.map(|schedule| trace.resident_bytes + schedule.pool_bytes),
        planning_seconds,
        note: made.err(),
    }
}

impl From<&Comparison> for Policies {
    fn from(all: &Comparison) -> Policies {
        let row = |row: &PolicyRun| PolicyRow {
            policy: row.policy.clone(),
            paper: row.policy.parse().map_or("", paper).to_owned(),
            makespan_seconds: row.makespan_seconds.map(|s| s.0),
            offloaded_bytes: row.offloaded_bytes.0,
            prefetched_bytes: row.prefetched_bytes.0,
            recomputed_bytes: row.recomputed_bytes.map(|b| b.0),
            recomputed_seconds: row.recomputed_seconds.0,
            stalled_seconds: row.stalled_seconds.0,
            device_bytes: row.device_bytes.map(|b| b.0),
            planning_seconds: row.planning_seconds.map(|s| s.0),
            note: row.note.clone(),
        };
        Policies {
            bound_seconds: all.bound_seconds.0,
            compute_seconds: all.compute_seconds.0,
            rows: all.rows.iter().map(row).collect(),
        }
    }
}

/// Returns the source of a policy.
fn paper(policy: Policy) -> &'static str {
    match policy {
        Policy::Keep => "",
        Policy::Naive | Policy::Accudnn { as_printed: false } => "AccUDNN",
        Policy::Accudnn { as_printed: true } => "AccUDNN, by its listings",
        Policy::Vdnn { .. } | Policy::VdnnDyn => "vDNN",
        Policy::Layrub(_) => "Layrub",
        Policy::Greedy | Policy::DynProg => "Euro-Par'20",
        Policy::VdnnRatio => "Euro-Par'20, after vDNN",
        Policy::Tflms => "Euro-Par'20, after TFLMS",
        Policy::AutoSwap => "Euro-Par'20, after AutoSwap",
        Policy::SuperNeurons => "SuperNeurons",
        Policy::Memonger { .. } => "Memonger",
        Policy::Dqn => "DQN",
        Policy::Optimal | Policy::Plimsoll => "Plimsoll",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::network::NetworkSpec;
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::{Bytes, BytesPerSecond};
    use plimsoll_networks::{LowerOptions, build, lower};

    #[test]
    fn a_comparison_that_is_stopped_is_no_comparison() {
        let spec = NetworkSpec { name: "mlp".into(), image: [8, 8], channels: 1, classes: 10 };
        let network = build(&spec).expect("a network of the zoo");
        let trace = lower(&network, 4, &LowerOptions::default()).expect("a batch of 4").trace;
        let request = PlanRequest::new(Bytes(1 << 30), Link::symmetric(BytesPerSecond(1e9)), Policy::Keep);
        let Ok(Outcome::Planned(made)) = plan(&trace, &request) else { panic!("everything fits") };
        let compared = |limit: Duration, stop: &dyn Fn() -> bool| {
            compare(&trace, &made.schedule, "this schedule", limit, stop)
        };
        let stopped = compared(TIME_LIMIT, &|| true).expect_err("it was stopped");
        assert_eq!(stopped.kind, Kind::Interrupted, "{stopped}");
        let late = compared(Duration::ZERO, &|| false).expect("time that is over is no stop");
        assert!(
            late.rows.iter().any(|row| row.note.as_deref().is_some_and(|note| note.contains("were over")))
        );
    }
}
