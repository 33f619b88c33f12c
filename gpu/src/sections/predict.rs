//! How good is the prediction? A network is profiled, the planner plans at batch sizes that were not, within a budget that
//! keeping everything does not fit, and the plan is run beside keeping everything: time and memory predicted and measured.
//!
//! And what does swapping cost where no stall is predicted? The plan at the tightest budget without one, beside keeping
//! everything. That plan also runs without copies of the state and with its input in place, which nothing else here does.

use super::{Section, Target, numbers, worst};
use crate::bench::{
    Meter, Runner, batches, budget, cuda, in_turn, keeping, middle, peak, plan, profile, task,
};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use plimsoll::study::{Error, NetworkWorkload, Workload};
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Precision};
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::search::moved;
use serde_json::json;

/// The section.
pub const SECTION: Section = Section {
    name: "predict",
    asks: "how far off are predicted time and memory, and what do a plan without predicted stalls and copies of the \
           state cost?",
    seconds: 140,
    by_name_only: false,
    run,
    targets: &[
        Target {
            what: "a schedule without predicted stall takes at most 1 % more than keeping everything",
            verifies: false,
            judge: judge_stalls,
        },
        Target {
            what: "predicted iteration time of tuned schedules within 3 % (median) of measured",
            verifies: false,
            judge: judge_times,
        },
        Target {
            what: "peak as pool and NVML see it is the prediction and what the context takes (to 128 MiB of graphs \
                   and kernels)",
            verifies: false,
            judge: judge_memory,
        },
        Target {
            what: "what copying the state to the host and an input to the device beside every iteration adds to one",
            verifies: false,
            judge: judge_copies,
        },
    ],
};

/// What is multiplied and stored in: planning is the same in all of them.
const PRECISION: Precision = Precision::F32;

/// Network, image side, largest batch that is profiled.
type Case = (&'static str, u32, u64);

const CASES: &[Case] = &[("resnet50", 224, 64), ("vgg16", 224, 48), ("alexnet", 224, 384)];
const SMALL: &[Case] = &[("resnet20", 8, 8)];

/// Batch sizes that are not profiled, as shares of the largest in 24ths; the fractions are 3, 6, 12, 16 and 24.
const BETWEEN: [u64; 3] = [9, 14, 20];

/// How far the budget lies from the floor, below which no plan fits, towards what keeping everything takes.
const TIGHT: f64 = 0.6;

/// Budgets at which a plan without stalls is looked for, tightest first.
const ROOMY: [f64; 5] = [0.5, 0.6, 0.7, 0.8, 0.9];

/// A stall of less is none: a share of the iteration.
const NO_STALL: f64 = 1e-3;

/// Memory that graphs and kernels may take beside what the context takes when it is made.
const BESIDE: f64 = (128u64 << 20) as f64;

/// Seconds for one plan.
const PLANNING: f64 = 4.0;
const SMALL_PLANNING: f64 = 0.3;

fn run(ground: &Ground) -> Result<(), Error> {
    for (network, side, largest) in ground.pick(CASES, SMALL) {
        let (task, meter) = Meter::around(|| task(network, *side, ground.pick(1000, 10), &cuda(PRECISION)))?;
        let within = budget(&task.trace(*largest)?, TIGHT);
        let model =
            Model::fit(&profile(&task, within, batches(&task, *largest), ground)?).map_err(Error::usage)?;
        let filled = |batch: u64| -> Result<Trace, Error> {
            let mut trace = task.trace(batch)?;
            model.fill(&mut trace).map_err(Error::usage)?;
            Ok(trace)
        };
        let bench = Bench { ground, task: &task, meter: &meter, link: model.link() };
        for share in BETWEEN {
            let trace = filled(largest * share / 24)?;
            bench.compare(&trace, "tight", budget(&trace, TIGHT).min(within))?;
        }
        let trace = filled(largest / 2)?;
        for share in ROOMY {
            if bench.compare(&trace, "without stall", budget(&trace, share))? {
                break;
            }
        }
    }
    Ok(())
}

/// What a comparison stands on.
struct Bench<'a> {
    ground: &'a Ground,
    task: &'a NetworkWorkload,
    meter: &'a Meter,
    link: Link,
}

impl Bench<'_> {
    /// Plans within a budget and runs the plan beside keeping everything. Of those that are to be without a stall, nothing is
    /// run that has one; false says so.
    fn compare(&self, trace: &Trace, what: &str, within: Bytes) -> Result<bool, Error> {
        let planning = self.ground.pick(PLANNING, SMALL_PLANNING);
        let Some(plan) = plan(trace, Policy::Plimsoll, within, self.link, planning)? else {
            return Ok(false);
        };
        let stall = (plan.makespan.0 - trace.compute_seconds().0) / plan.makespan.0;
        if what == "without stall" && stall > NO_STALL {
            return Ok(false);
        }
        let keep = keeping(trace)?.schedule;
        let (rounds, count) = self.ground.pick((3, 4), (1, 1));
        let batch = trace.batch;
        // Alone on the device first, for its memory.
        let mut runners = vec![Runner::new(self.task, trace, &plan.schedule)?];
        runners[0].iterations(crate::bench::WARM_UP)?;
        let managed = self.meter.held();
        let allocated = runners[0].layout().device();
        runners.push(Runner::new(self.task, trace, &keep)?);
        let seconds = in_turn(&mut runners, rounds, count)?;
        let [(median, spread), (keeping, _)] = [0, 1].map(|n| middle(&seconds[n]));
        self.ground.row(&json!({
            "network": self.task.network.spec.name,
            "precision": PRECISION.name(),
            "batch": batch,
            "plan": what,
            "budget_bytes": within,
            "keeping_peak_bytes": peak(trace),
            "swapped_bytes": moved(trace, &plan.schedule).offloaded,
            "stall_predicted_share": stall,
            "predicted_iteration_seconds": plan.makespan,
            "measured_iteration_seconds": median,
            "spread_share": spread,
            "off_share": plan.makespan / median - 1.0,
            "keeping_everything_seconds": keeping,
            "over_keeping_share": median / keeping - 1.0,
            "predicted_peak_bytes": predicted(trace, &plan.schedule),
            "allocated_bytes": allocated,
            "nvml_bytes": managed,
            "context_bytes": self.meter.context,
        }));
        if what == "without stall" {
            runners.truncate(1);
            self.copies(trace, &plan.schedule, runners)?;
        }
        Ok(true)
    }

    /// Runs a plan in turn with the same plan without copies of the state and with its input in place.
    fn copies(&self, trace: &Trace, schedule: &Schedule, mut runners: Vec<Runner>) -> Result<(), Error> {
        let (rounds, count) = self.ground.pick((3, 4), (1, 1));
        runners.push(Runner::bare(self.task, trace.batch, schedule)?);
        let seconds = in_turn(&mut runners, rounds, count)?;
        let [(copying, spread), (without, _)] = [0, 1].map(|n| middle(&seconds[n]));
        self.ground.row(&json!({
            "network": self.task.network.spec.name,
            "precision": PRECISION.name(),
            "batch": trace.batch,
            "plan": "with copies of the state",
            "state_bytes": Bytes(runners[0].layout().state.0 / 2),
            "without_copies_seconds": without,
            "measured_iteration_seconds": copying,
            "spread_share": spread,
            "state_copied_share": copying / without - 1.0,
        }));
        Ok(())
    }
}

/// The peak that a schedule states.
fn predicted(trace: &Trace, schedule: &Schedule) -> Bytes {
    trace.resident_bytes + schedule.pool_bytes
}

/// The rows of one kind of plan.
fn of<'a>(rows: &'a [Row], what: &'a str) -> Vec<Row> {
    rows.iter().filter(|row| words(row, "plan") == what).cloned().collect()
}

fn judge_stalls(rows: &[Row]) -> Option<Verdict> {
    let over = numbers(&of(rows, "without stall"), "over_keeping_share");
    let most = worst(&over)?;
    let measured = format!("{:+.2} % at worst of {} networks", most * 100.0, over.len());
    Some(Verdict { measured, met: Some(most <= 0.01) })
}

fn judge_times(rows: &[Row]) -> Option<Verdict> {
    let mut off: Vec<f64> = numbers(&of(rows, "tight"), "off_share").iter().map(|off| off.abs()).collect();
    off.sort_by(f64::total_cmp);
    let (median, most) = (*off.get(off.len() / 2)?, worst(&off)?);
    let measured = format!("median {:.1} %, worst {:.1} %, of {}", median * 100.0, most * 100.0, off.len());
    Some(Verdict { measured, met: Some(median <= 0.03) })
}

fn judge_copies(rows: &[Row]) -> Option<Verdict> {
    let mut added = numbers(rows, "state_copied_share");
    added.sort_by(f64::total_cmp);
    let (median, most) = (*added.get(added.len() / 2)?, worst(&added)?);
    let measured =
        format!("median {:+.1} %, worst {:+.1} %, of {}", median * 100.0, most * 100.0, added.len());
    Some(Verdict { measured, met: None })
}

fn judge_memory(rows: &[Row]) -> Option<Verdict> {
    let exact = rows.iter().all(|row| number(row, "allocated_bytes") == number(row, "predicted_peak_bytes"));
    let beside = |row: &Row| {
        let get = |name| number(row, name);
        Some(get("nvml_bytes")? - get("context_bytes")? - get("predicted_peak_bytes")?)
    };
    let beside: Vec<f64> = rows.iter().filter_map(beside).collect();
    let first = rows.first()?;
    let pool = if exact { "the pool is exact" } else { "the pool is another" };
    let Some(most) = worst(&beside.iter().map(|bytes| bytes.abs()).collect::<Vec<_>>()) else {
        return Some(Verdict {
            measured: format!("{pool}; NVML says nothing"),
            met: if exact { None } else { Some(false) },
        });
    };
    let context = number(first, "context_bytes").unwrap_or_default();
    let measured = format!(
        "{pool}; beside it and the context's {} NVML sees {} at most",
        Bytes(context as u64),
        Bytes(most as u64)
    );
    Some(Verdict { measured, met: Some(exact && most <= BESIDE) })
}
