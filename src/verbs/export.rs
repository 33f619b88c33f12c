//! `export`: what was tuned, as lines for other tools.

use crate::args::{ExportArgs, Exported};
use crate::failure::Failure;
use crate::output::{self, Cell, Format, Table};
use plimsoll_ir::trace::Trace;
use plimsoll_study::Study;
use plimsoll_study::export::modules::{Modules, Wrapper};
use plimsoll_study::export::{Export, Tool};
use plimsoll_study::folder::check_valid;

/// Runs the verb. As a table of people's it is the lines themselves; else the numbers, too.
pub fn run(args: &ExportArgs, format: Format) -> Result<Vec<Table>, Failure> {
    match args.to.into() {
        Exported::Settings(tool) => settings(args, tool, format),
        Exported::Modules(wrapper) => modules(args, wrapper, format),
    }
}

/// How a training elsewhere is to go.
fn settings(args: &ExportArgs, tool: Tool, format: Format) -> Result<Vec<Table>, Failure> {
    let (_, path, config, schedule) = Study::choice_of(&args.config)?;
    let mut export = Export::new(&config, &schedule, &args.wanted())?;
    export.tell(&config, &schedule, &path.display().to_string());
    let lines = export.lines(tool)?;
    if format == Format::Table {
        if tool == Tool::Deepspeed {
            export.notes.iter().for_each(|note| tracing::info!("{note}"));
        }
        output::write_stdout(lines.as_bytes())?;
        return Ok(Vec::new());
    }
    Ok(vec![Table::facts(
        "export",
        vec![
            ("batch", "batch of each worker", export.batch.into()),
            ("workers", "workers", export.workers.into()),
            ("accumulation", "batches of each in an update", export.accumulation.into()),
            ("global_batch", "samples in an update", export.global().into()),
            ("learning_rate", "learning rate", Cell::Number(export.rate, 6)),
            ("warmup_updates", "updates of warm-up", export.warmup.into()),
            ("updates", "updates in all", export.updates.into()),
            ("notes", "notes", export.notes.join(" ").into()),
            ("lines", "lines", lines.into()),
        ],
    )])
}

/// Which modules to wrap so that the tuned batch fits.
fn modules(args: &ExportArgs, wrapper: Wrapper, format: Format) -> Result<Vec<Table>, Failure> {
    if let Some(option) = args.setting() {
        return Err(Failure::usage(format_args!(
            "{option} says how to train, and torch-checkpoint and torch-offload only name modules"
        ))
        .help(format_args!("leave {option} out, or export the settings of a training with another --to")));
    }
    let (study, path, config, schedule) = Study::choice_of(&args.config)?;
    study.holds(&study.trace())?;
    let trace: Trace = study.document(&study.trace())?;
    check_valid(&study.folder().join(&config.schedule), &trace, &schedule)?;
    let mut modules = Modules::new(&config, &trace, &schedule, wrapper)?;
    modules.tell(&config, &path.display().to_string());
    let lines = modules.lines();
    if format == Format::Table {
        output::write_stdout(lines.as_bytes())?;
        return Ok(Vec::new());
    }
    let Modules { kept, wrapped, planned, .. } = modules;
    Ok(vec![Table::facts(
        "modules",
        vec![
            ("batch", "batch", modules.batch.into()),
            ("modules", "modules to wrap", modules.names.join(" ").into()),
            ("budget_bytes", "budget", config.budget_bytes.into()),
            ("kept_peak_bytes", "peak with everything kept", kept.peak.into()),
            ("kept_seconds", "iteration with everything kept", kept.seconds.into()),
            ("peak_bytes", "peak with them wrapped", wrapped.peak.into()),
            ("seconds", "iteration with them wrapped", wrapped.seconds.into()),
            ("plan_peak_bytes", "peak of the plan", planned.peak.into()),
            ("plan_seconds", "iteration of the plan", planned.seconds.into()),
            ("notes", "notes", modules.notes.join(" ").into()),
            ("lines", "lines", lines.into()),
        ],
    )])
}
