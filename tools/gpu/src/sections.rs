//! The sections: the link, iterations at some budgets, and the largest batch.

use crate::bench::{Case, Row, Runner, WARM_UP, budget, centre_of, plan, profile, unmeasured};
use plimsoll::study::Workload;
use plimsoll::study::error::{Error, Kind};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::{Bytes, Precision};
use plimsoll_networks::Mode;
use plimsoll_runtime::MemoryLayout;
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::{LinkModel, Model};
use plimsoll_tuner::search::moved;
use serde_json::json;

/// Measures a case, in tiny sizes if `true`, and prints rows.
pub type Measure = fn(&Case, bool, &Row<'_>) -> Result<(), Error>;

/// Measures the link, on a network that is small compared with the transfers.
pub fn link(small: bool, row: &Row<'_>) -> Result<(), Error> {
    let image = if small { 8 } else { 32 };
    let case = Case { network: "mlp", image, classes: 10, batch: 8, precision: Precision::F32 };
    let samples = profile(&case.open()?, case.batch, small)?.link;
    let rates = LinkModel::fit(&samples).map_err(Error::usage)?;
    let [out, back] = rates.pageable.map_or([None; 2], |ways| ways.map(Some));
    for (way, memory, fitted) in [
        ("offload alone", "pinned", Some(rates.offload_alone)),
        ("prefetch alone", "pinned", Some(rates.prefetch_alone)),
        ("offload, prefetch running", "pinned", Some(rates.offload_together)),
        ("prefetch, offload running", "pinned", Some(rates.prefetch_together)),
        ("offload alone", "pageable", out),
        ("prefetch alone", "pageable", back),
    ] {
        row(json!({
            "way": way,
            "memory": memory,
            "bytes_per_second": fitted.map(|fitted| fitted.rate.bytes_per_second),
            "latency_seconds": fitted.map(|fitted| fitted.rate.latency_seconds),
            "off_share": fitted.map(|fitted| fitted.relative_error),
        }));
    }
    // Slowdown by transfers of an op that is bound by the device's memory.
    row(json!({ "op_slowdown_by_transfers": rates.slowdown }));
    Ok(())
}

/// Budgets as shares of the distance from the floor, below which no plan fits, to keeping everything; the first is
/// unlimited.
const SHARES: [Option<f64>; 4] = [None, Some(0.75), Some(0.5), Some(0.25)];

/// Measures iterations at several budgets, by the planner's plan from measured times.
pub fn step(case: &Case, small: bool, row: &Row<'_>) -> Result<(), Error> {
    let task = case.open()?;
    let mut trace = task.trace(case.batch)?;
    let model = Model::fit(&profile(&task, case.batch, small)?).map_err(Error::usage)?;
    model.fill(&mut trace).map_err(Error::usage)?;
    let (planning, count) = if small { (0.3, 1) } else { (4.0, 20) };
    for share in SHARES {
        let within = budget(&trace, share);
        let Some(plan) = plan(&trace, Policy::Plimsoll, within, model.link(), planning)? else {
            row(json!({ "budget_share": share, "budget_bytes": within, "note": "no plan fits" }));
            continue;
        };
        let free = || {
            let health = task.setup.device()?.health();
            Ok::<_, Error>(health.and_then(|health| health.memory_bytes.now))
        };
        let before = free()?;
        let mut runner = Runner::new(&task, &trace, &plan.schedule)?;
        runner.iterations(WARM_UP)?;
        let (median, spread) = centre_of(&runner.iterations(count)?);
        row(json!({
            "budget_share": share,
            "budget_bytes": within,
            "predicted_seconds": plan.makespan,
            "seconds": median,
            "spread_seconds": spread,
            "predicted_bytes": trace.resident_bytes + plan.schedule.pool_bytes,
            "allocated_bytes": runner.layout().device(),
            // Includes graphs and kernels, but not the context.
            "device_bytes": Option::zip(before, free()?).map(|(before, now)| before.saturating_sub(now)),
            "swapped_bytes": moved(&trace, &plan.schedule).offloaded,
            "loss": runner.loss()?,
        }));
    }
    Ok(())
}

/// Most pinned host memory of a schedule; it is pinned anew for every schedule, which takes time.
const HOST: Bytes = Bytes(12 << 30);

/// Finds the largest batch within a budget, by plans that need no measurement, and measures its iteration.
pub fn batch(case: &Case, small: bool, row: &Row<'_>) -> Result<(), Error> {
    if case.precision != Precision::Bf16 {
        return Ok(());
    }
    // In tiny sizes resnet20 keeps everything at a few samples, and still trains with some more.
    let (within, limit) = if small { (Bytes(3_800_000), 16) } else { (Bytes(12 << 30), 8192) };
    let task = case.open()?;
    for policy in [Policy::Keep, Policy::Naive] {
        let fitting = |batch: u64| -> Result<Option<(Program, Schedule)>, Error> {
            let program = task.program(batch, Mode::Train)?;
            let plan = plan(&program.trace, policy, within, unmeasured(), 0.0)?;
            let host = |schedule: &Schedule| MemoryLayout::of(&program, schedule).host;
            let schedule = plan.map(|plan| plan.schedule).filter(|schedule| host(schedule) <= HOST);
            Ok(schedule.map(|schedule| (program, schedule)))
        };
        let (mut batch, mut above) = (task.smallest_batch(), limit + 1);
        let nothing = || Error::new(Kind::NoPlan, format_args!("no batch trains within {within}"));
        let mut best = fitting(batch)?.ok_or_else(nothing)?;
        // Doubles, then halves the interval, until it is a 64th.
        while above - batch > 1 + batch / 64 {
            let next = if above > limit { (2 * batch).min(limit) } else { (batch + above) / 2 };
            match fitting(next)? {
                Some(fits) => (batch, best) = (next, fits),
                None => above = next,
            }
        }
        let (program, schedule) = best;
        let mut runner = Runner::new(&task, &program.trace, &schedule)?;
        runner.iterations(WARM_UP)?;
        let (median, spread) = centre_of(&runner.iterations(if small { 1 } else { 5 })?);
        row(json!({
            "policy": policy.name(),
            "budget_bytes": within,
            "batch": batch,
            "seconds": median,
            "spread_seconds": spread,
            "allocated_bytes": runner.layout().device(),
            "host_bytes": runner.layout().host,
            "loss": runner.loss()?,
        }));
    }
    Ok(())
}
