//! `export`: what was tuned, as lines for other tools.

use crate::args::ExportArgs;
use crate::failure::Failure;
use crate::output::{self, Cell, Format, Table};
use plimsoll_study::Study;
use plimsoll_study::export::{Export, Tool};

/// Runs the verb. As a table of people's it is the lines themselves; else the numbers, too.
pub fn run(args: &ExportArgs, format: Format) -> Result<Vec<Table>, Failure> {
    let (_, path, config, schedule) = Study::choice_of(&args.config)?;
    let mut export = Export::new(&config, &schedule, &args.wanted())?;
    export.tell(&config, &schedule, &path.display().to_string());
    let tool = args.to.into();
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
