//! `profile`: measures a network's ops and the link on this machine, at fractions of the largest trainable batch.

use crate::args::ProfileArgs;
use crate::interrupt;
use crate::output::{Cell, Table};
use crate::progress::watched;
use plimsoll_ir::Seconds;
use plimsoll_ir::health::Health;
use plimsoll_ir::profile::{Profile, undisturbed};
use plimsoll_study::device::is_cpu;
use plimsoll_study::measure::may_be_off;
use plimsoll_study::request::{TuneOptions, defaults};
use plimsoll_study::{Error, MeasureRequest, Study, Workload};
use plimsoll_tuner::model::{LinkModel, Model, Slowdown};

/// Default minimum batch of `tune` and `auto`: the default budget must train it here too, so that they can continue
/// from these measurements.
const LEAST: u64 = 32;

/// Runs the verb.
pub fn run(args: &ProfileArgs, quiet: bool) -> Result<Vec<Table>, Error> {
    let (profile, study) = watched(quiet, |watch| {
        let task = args.task.open(interrupt::hurry(), watch)?;
        let max_batch = task.most(args.max_batch)?;
        // The study is that of a tuning with the same options, which continues from these measurements.
        let mut tune = TuneOptions { task: args.task.clone(), ..defaults() };
        (tune.search.budget, tune.search.max_batch) = (args.budget, args.max_batch);
        let study = tune.study(&task, &args.study, &defaults())?;
        let (least, fresh) = (LEAST.min(max_batch).max(task.smallest_batch()), args.study.fresh);
        let budget = task.budget_in(&study, fresh, args.budget, least, watch)?;
        let profile = study.measure(&task, &MeasureRequest { budget, max_batch, fresh }, watch)?;
        Ok::<_, Error>((profile, study))
    })?;
    tables(&profile, &study)
}

/// Measurements, and the fit of the model.
fn tables(profile: &Profile, study: &Study) -> Result<Vec<Table>, Error> {
    let model = Model::fit(profile)?;
    let mut batches = Table::new(
        "batches",
        &[
            ("batch", "batch"),
            ("iterations", "iterations"),
            ("iteration_seconds", "iteration"),
            ("held_out_error", "off when held out"),
            ("op_error", "median op error"),
        ],
    );
    // The fit of a model to curves is no property of a device.
    let tried = |share: f64| if profile.machine.modelled { Cell::None } else { Cell::Share(share) };
    for (samples, held_out) in profile.batches.iter().zip(model.held_out()) {
        let mut seconds: Vec<Seconds> = samples.alone_seconds().collect();
        if seconds.is_empty() {
            seconds.clone_from(&samples.iteration_seconds);
        }
        batches.rows.push(vec![
            samples.batch.into(),
            (seconds.len() as u64).into(),
            undisturbed(seconds).into(),
            tried(held_out.off()),
            tried(held_out.op_relative_error),
        ]);
    }
    let health = profile.machine.health.clone().unwrap_or_default();
    let doubts: Vec<String> = health.warnings(&Health::default()).iter().map(ToString::to_string).collect();
    let doubts = Some(doubts.join("; ")).filter(|doubts| !doubts.is_empty());
    let on_cpu = is_cpu(&profile.machine.device);
    let overview = Table::facts(
        "profile",
        vec![
            ("network", "network", profile.network.in_words().into()),
            ("device", "device", profile.machine.device.clone().into()),
            ("times", "times", how_known(profile.machine.modelled, profile.machine.modelled_error).into()),
            (
                "threads",
                if on_cpu { "compute threads" } else { "multiprocessors" },
                u64::from(profile.machine.threads).into(),
            ),
            ("system", "system", profile.machine.system.clone().into()),
            (
                "precision",
                "precision",
                profile.machine.precision.map(|precision| precision.to_string()).into(),
            ),
            ("plimsoll", "plimsoll", profile.machine.plimsoll.clone().into()),
            ("doubts", "doubtful", doubts.into()),
            ("budget_bytes", "budget", profile.budget_bytes.into()),
            ("overhead_seconds", "timing one op costs", profile.overhead_seconds.into()),
            ("file", "written to", study.profile().display().to_string().into()),
        ],
    );
    let mut tables = vec![overview, batches, link(model.rates(), profile.machine.modelled)];
    tables.extend(model.rates().slowdown.map(|slowdown| beside(&slowdown)));
    Ok(tables)
}

/// Origin of times, for a table.
pub fn how_known(modelled: bool, error: Option<f64>) -> String {
    if !modelled {
        return "measured".to_owned();
    }
    format!("modelled from the device's data sheet, not measured; {}", may_be_off(error))
}

/// Rates of the link; if the device uses page-locked host memory, those of plain memory too.
fn link(rates: &LinkModel, modelled: bool) -> Table {
    let mut table = Table::new(
        "link",
        &[
            ("way", "way"),
            ("rate", "rate"),
            ("latency_seconds", "latency"),
            ("error", "median error"),
            ("of_alone", "of the rate alone"),
        ],
    );
    let (out, back) = (&rates.offload_alone, &rates.prefetch_alone);
    let mut rows = vec![
        ("offload alone", out, out),
        ("prefetch alone", back, back),
        ("offload, prefetch running", &rates.offload_together, out),
        ("prefetch, offload running", &rates.prefetch_together, back),
    ];
    if let Some([pageable_out, pageable_back]) = &rates.pageable {
        rows.push(("offload to pageable memory", pageable_out, out));
        rows.push(("prefetch from pageable memory", pageable_back, back));
    }
    for (direction, rate, alone) in rows {
        // A line that fits a modelled link tells nothing about a real one.
        let error = if modelled { Cell::None } else { Cell::Share(rate.relative_error) };
        let fitted = rate.rate;
        let of_alone = fitted.bytes_per_second.0 / alone.rate.bytes_per_second.0;
        table.rows.push(vec![
            direction.into(),
            fitted.bytes_per_second.into(),
            fitted.latency_seconds.into(),
            error,
            Cell::Share(of_alone),
        ]);
    }
    table
}

/// Effect of transfers on an op that is bound by the device's memory.
fn beside(slowdown: &Slowdown) -> Table {
    let mut table =
        Table::new("beside", &[("while", "a memory-bound op"), ("times_as_long", "times as long as alone")]);
    for (while_, ratio) in [
        ("while offloads run", slowdown.offloading),
        ("while prefetches run", slowdown.prefetching),
        ("while both run", slowdown.both),
    ] {
        table.rows.push(vec![while_.into(), ratio.map_or(Cell::None, |ratio| Cell::Number(ratio, 3))]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;
    use plimsoll_ir::Bytes;

    #[test]
    fn the_least_batch_is_that_of_tune() {
        let Verb::Tune(tune) = Cli::parse_from(["plimsoll", "tune"]).verb else { panic!("another verb") };
        let request = tune.tune.request(Bytes::ZERO, String::new()).expect("a request");
        assert_eq!(request.min_batch, LEAST);
    }
}
