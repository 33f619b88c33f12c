//! `demo`: shows on this machine's CPU, in less than a minute, the gain of a plan.
//!
//! It is `auto` with suitable options: a text model whose batch does not fit the budget, and a paced link, so that
//! neither swapping nor recomputing alone is as fast as both together. The network is an LSTM, which reads all its
//! weights at every step of the text: a small batch computes little per read. Small batches waste a GPU in the same
//! way. A smaller batch, accumulated gradients and recomputing alone are measured in the same run.

use crate::args::{Cli, DemoArgs, Verb};
use crate::output::{Cell, Format, Table};
use crate::verbs::auto;
use clap::Parser;
use plimsoll_study::report::Tuned;
use plimsoll_study::tuning::{ACCUMULATED, RECOMPUTED};
use plimsoll_study::{Error, Study};
use std::ffi::OsString;
use std::path::Path;

/// Options of `auto` that the demo uses.
pub const OPTIONS: &str = "--network lstm --data text --image 32x1 --max-batch 32 --budget 20MiB \
                           --link 500MB/s --threads 1 --epochs 1";

/// Default folder of the study.
const FOLDER: &str = "studies/demo";

/// Runs the verb.
pub fn run(args: &DemoArgs, format: Format, quiet: bool) -> Result<Vec<Table>, Error> {
    let folder = args.study.as_deref().unwrap_or(Path::new(FOLDER));
    let mut line: Vec<OsString> =
        ["plimsoll", "auto"].into_iter().chain(OPTIONS.split(' ')).map(OsString::from).collect();
    line.extend(["--study".into(), folder.into()]);
    if args.fresh {
        line.push("--fresh".into());
    }
    let Ok(Cli { verb: Verb::Auto(asked), .. }) = Cli::try_parse_from(line) else {
        unreachable!("these are options of `auto`")
    };
    let trained = auto::run(&asked, format, quiet)?;
    let study = Study::at(folder);
    let tuned = Tuned::read(&study)?;
    let mut tables = vec![ways(&tuned)];
    tables.extend(trained.into_iter().filter(|table| ["training", "report"].contains(&table.key)));
    tables.push(Table::facts(
        "command",
        vec![("command", "the same by", format!("plimsoll auto {OPTIONS}").into())],
    ));
    Ok(tables)
}

/// Ways to train the batch, the plan last.
fn ways(tuned: &Tuned) -> Table {
    let mut table = Table::new(
        "ways",
        &[
            ("what", "way to train"),
            ("batch", "batch"),
            ("samples_per_second", "samples/s"),
            ("epoch_seconds", "epoch"),
            ("peak_bytes", "memory"),
            ("times_as_long", "times the plan's"),
        ],
    );
    let whole = tuned.trace.memory().peak().map(|(_, bytes)| bytes);
    table.rows.push(vec![
        format!("everything kept: does not fit {}", tuned.config.budget_bytes).into(),
        tuned.config.batch.into(),
        Cell::None,
        Cell::None,
        whole.into(),
        Cell::None,
    ]);
    let figures = |what: &str| {
        let run = tuned.tuning.runs.iter().find(|run| run.what == what)?;
        Some((run.batch, run.measured.or(run.predicted)?))
    };
    let plan = figures("chosen").map(|(_, figures)| figures.epoch_seconds);
    let rows = [
        ("keeping everything", "a smaller batch"),
        (ACCUMULATED, "smaller passes, gradients accumulated"),
        (RECOMPUTED, "recomputing alone, as checkpoints do"),
        ("chosen", "Plimsoll: swapping and recomputing"),
    ];
    for (what, way) in rows {
        let Some((batch, figures)) = figures(what) else { continue };
        let epoch = figures.epoch_seconds;
        let samples = tuned.tuning.asked.samples as f64;
        table.rows.push(vec![
            way.into(),
            batch.into(),
            Cell::Number(samples / epoch.0, 0),
            epoch.into(),
            figures.peak_bytes.into(),
            plan.map_or(Cell::None, |plan| Cell::Number(epoch / plan, 2)),
        ]);
    }
    // The plan is last.
    let plan = table.rows.len() - 1;
    table.chosen(Some(plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_study::{Watch, Workload};

    /// The options are those of `auto`, and their budget does not hold the batch with everything kept.
    #[test]
    fn its_options_are_a_line_of_auto_whose_batch_does_not_fit() {
        let line = ["plimsoll", "auto"].into_iter().chain(OPTIONS.split(' '));
        let Verb::Auto(args) = Cli::parse_from(line).verb else { panic!("another verb") };
        let task = args.tune.task.open(crate::interrupt::hurry(), &Watch::silent()).expect("a task");
        let budget = task.budget(args.tune.search.budget).expect("a budget");
        let peak = |batch| task.trace(batch).expect("a trace").memory().peak().expect("there are ops").1;
        assert!(peak(args.tune.rate.base_batch) > budget && peak(1) < budget);
    }
}
