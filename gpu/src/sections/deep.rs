//! Do networks of a thousand layers train within 12 GiB? resnet1517 and vgg516 at batch 32: each op is timed at that very batch
//! (keeping everything, where the device holds it), the planner plans with that, and the plan is run.

use super::batches::{BUDGET, Ran, holding, ran};
use super::{Section, Target};
use crate::bench::{Runner, budget, cuda, keeping, link, middle, peak, plan, task, unmeasured};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use plimsoll::study::error::{Error, Kind};
use plimsoll::study::{NetworkWorkload, Watch, Workload};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{Bytes, Precision, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::MemoryLayout;
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::LinkModel;
use plimsoll_tuner::search::moved;
use serde_json::json;
use std::time::Instant;

/// The section.
pub const SECTION: Section = Section {
    name: "deep",
    asks: "do networks of a thousand layers train within 12 GiB, and how fast?",
    seconds: 560,
    by_name_only: true,
    run,
    targets: &[
        Target {
            what: "resnet1517 at batch 32 trains within 12 GiB",
            verifies: false,
            judge: |rows| {
                let row = of(rows, "resnet1517")?;
                let seconds = number(row, "iteration_seconds").map(Seconds);
                let measured =
                    seconds.map_or_else(|| words(row, "note").to_owned(), |s| format!("{s} an iteration"));
                Some(Verdict { measured, met: Some(seconds.is_some() && number(row, "loss").is_some()) })
            },
        },
        Target {
            what: "vgg516 at batch 32 trains within 12 GiB at 99 % of the throughput of keeping everything in a large budget",
            verifies: false,
            judge: |rows| {
                let row = of(rows, "vgg516")?;
                let Some(share) = number(row, "throughput_of_keeping") else {
                    return Some(Verdict { measured: words(row, "note").to_owned(), met: None });
                };
                Some(Verdict { measured: format!("{:.1} %", share * 100.0), met: Some(share >= 0.99) })
            },
        },
    ],
};

fn of<'a>(rows: &'a [Row], network: &str) -> Option<&'a Row> {
    rows.iter().find(|row| words(row, "network") == network)
}

/// What is multiplied and stored in.
const PRECISION: Precision = Precision::F32;

/// Seconds for a plan.
const PLANNING: f64 = 10.0;

/// Iterations before those that count, and those: each takes seconds.
const FEW: usize = 2;

/// Memory that is left free beside what keeps everything.
const MARGIN: Bytes = Bytes(2 << 30);

fn run(ground: &Ground) -> Result<(), Error> {
    let link = LinkModel::fit(&link(ground)?).map_err(Error::usage)?.planned();
    let cases: &[(&str, u32, u64)] =
        ground.pick(&[("resnet1517", 224, 32), ("vgg516", 224, 32)], &[("resnet32", 8, 2)]);
    for (network, side, batch) in cases {
        let task = task(network, *side, ground.pick(1000, 10), &cuda(PRECISION))?;
        if let Err(failure) = deep(ground, &task, *batch, link) {
            ground.row(&json!({
                "network": network,
                "precision": PRECISION.name(),
                "batch": batch,
                "note": failure.message,
            }));
        }
    }
    Ok(())
}

/// One network.
fn deep(ground: &Ground, task: &NetworkWorkload, batch: u64, link: Link) -> Result<(), Error> {
    let program = task.program(batch, Mode::Train)?;
    let trace = &program.trace;
    let (keeps, holds) = (peak(trace) + MARGIN, task.budget(None)?);
    let fits = keeps <= holds;
    if !fits {
        let name = &task.network.spec.name;
        println!(
            "{name} at batch {batch} keeps {keeps}, and this device holds {holds}: its plan is not compared with keeping \
             everything"
        );
    }
    // Its ops run in their usual alternatives, which are timed.
    let mut usual = trace.clone();
    usual.ops.iter_mut().for_each(|op| op.alternatives.clear());
    let within = ground.pick(BUDGET, budget(&usual, 0.5));
    holding(task, within)?;
    let first = if fits {
        keeping(&usual)?.schedule
    } else {
        task.plan(&usual, Policy::Naive, within, unmeasured(), &Watch::silent())?.schedule
    };
    // In a block of its own: what it holds is given back before the next one takes.
    let (timed, kept) = {
        let mut runner = Runner::new(task, &usual, &first)?;
        runner.iterations(FEW)?;
        let taken = middle(&runner.iterations(FEW)?).0;
        (runner.timed_trace(1)?, fits.then_some(taken))
    };
    let begun = Instant::now();
    let plan = plan(&timed, Policy::Plimsoll, within, link, PLANNING)?;
    let plan = plan.ok_or_else(|| Error::new(Kind::NoPlan, format_args!("no plan within {within}")))?;
    let planning = begun.elapsed().as_secs_f64();
    let Ran { seconds, loss, .. } = ran(task, &timed, &plan.schedule, FEW, FEW)?;
    ground.row(&json!({
        "network": task.network.spec.name,
        "precision": PRECISION.name(),
        "batch": batch,
        "ops": trace.ops.len(),
        "budget_bytes": within,
        "keeping_peak_bytes": peak(trace),
        "keeping_everything_seconds": kept,
        "predicted_iteration_seconds": plan.makespan,
        "iteration_seconds": seconds,
        "throughput_of_keeping": kept.map(|kept| kept / seconds),
        "swapped_bytes": moved(trace, &plan.schedule).offloaded,
        "host_bytes": MemoryLayout::of(&program, &plan.schedule).host,
        "planning_seconds": planning,
        "loss": loss,
        "note": if fits { "" } else { "keeping everything does not fit the device; ops were timed under naive swapping" },
    }));
    Ok(())
}
