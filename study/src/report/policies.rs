//! The papers' policies on the same trace at the same budget and link, compared with the schedule of a report.
//!
//! Each policy is planned as `compare` does. Time is limited: the report of a large trace still appears, and lists the policies
//! that were not planned.

use crate::error::{Error, Kind};
use crate::report::data::{Policies, PolicyRow};
use plimsoll_ir::Seconds;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Trace;
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
    own: (&str, &str),
    limit: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Policies, Error> {
    let begun = Instant::now();
    let expired = || begun.elapsed() >= limit || stop();
    let limits = Limits { evaluations: None, expired: Some(&expired) };
    let bound = lower_bound_within(trace, schedule.budget_bytes, &schedule.link, Allow::default(), &limits);
    let mut rows = vec![row(own, trace, schedule, &simulate(trace, schedule), None)];
    // The schedule's own row stands for its policy; if it is the planner's or unknown, the planner is not run again.
    let ours = own.0 != Policy::Accudnn { as_printed: false }.name();
    // The policy that trains for seconds comes last, in the time left.
    let all = Policy::ALL.into_iter().chain([Policy::Dqn]);
    let others = all.filter(|p| p.name() != own.0 && !(ours && *p == Policy::Plimsoll));
    for policy in others {
        let names = (policy.name(), paper(policy));
        if expired() {
            let note =
                format!("not planned: the {} for all policies were over", Seconds(limit.as_secs_f64()));
            rows.push(without(names, note, None));
            continue;
        }
        let start = Instant::now();
        let request =
            PlanRequest { limits, ..PlanRequest::new(schedule.budget_bytes, schedule.link, policy) };
        let outcome = plan(trace, &request)?;
        let planning = Some(start.elapsed().as_secs_f64());
        rows.push(match &outcome {
            Outcome::Planned(made) => {
                row(names, trace, &made.schedule, &simulate(trace, &made.schedule), planning)
            }
            Outcome::Infeasible(witness) => without(names, witness.to_string(), planning),
        });
    }
    if stop() {
        return Err(Error::new(Kind::Interrupted, "stopped while comparing policies for the report"));
    }
    // Equal results stay in the order of the policies.
    let seconds = |row: &PolicyRow| row.makespan_seconds.unwrap_or(f64::INFINITY);
    rows.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let compute_seconds = trace.fastest_seconds().0;
    Ok(Policies { bound_seconds: bound.0, compute_seconds, rows })
}

fn row(
    (policy, paper): (&str, &str),
    trace: &Trace,
    schedule: &Schedule,
    timeline: &Timeline,
    planning_seconds: Option<f64>,
) -> PolicyRow {
    let totals = timeline.totals(trace, schedule);
    PolicyRow {
        policy: policy.to_owned(),
        paper: paper.to_owned(),
        makespan_seconds: Some(timeline.makespan().0),
        offloaded_bytes: totals.offloaded.0,
        prefetched_bytes: totals.prefetched.0,
        recomputed_bytes: Some(totals.recomputed_bytes.0),
        recomputed_seconds: totals.recomputed.0,
        stalled_seconds: totals.stalled[0].0,
        device_bytes: Some((trace.resident_bytes + schedule.pool_bytes).0),
        planning_seconds,
        note: None,
    }
}

fn without((policy, paper): (&str, &str), note: String, planning_seconds: Option<f64>) -> PolicyRow {
    PolicyRow {
        policy: policy.to_owned(),
        paper: paper.to_owned(),
        makespan_seconds: None,
        offloaded_bytes: 0,
        prefetched_bytes: 0,
        recomputed_bytes: Some(0),
        recomputed_seconds: 0.0,
        stalled_seconds: 0.0,
        device_bytes: None,
        planning_seconds,
        note: Some(note),
    }
}

/// Returns the source of a policy.
pub fn paper(policy: Policy) -> &'static str {
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
            compare(&trace, &made.schedule, ("this schedule", ""), limit, stop)
        };
        let stopped = compared(TIME_LIMIT, &|| true).expect_err("it was stopped");
        assert_eq!(stopped.kind, Kind::Interrupted, "{stopped}");
        let late = compared(Duration::ZERO, &|| false).expect("time that is over is no stop");
        assert!(
            late.rows.iter().any(|row| row.note.as_deref().is_some_and(|note| note.contains("were over")))
        );
    }
}
