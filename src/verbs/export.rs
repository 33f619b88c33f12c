//! `export`: tuned settings as lines for other tools; trained weights as a file.

use crate::args::ExportArgs;
use crate::output::{self, Cell, Format, Table};
use plimsoll_networks::{build, file_tensors};
use plimsoll_runtime::Checkpoint;
use plimsoll_study::export::{Export, Tool};
use plimsoll_study::{Error, Study};

/// Runs the verb. Format `table` prints the lines alone; other formats include the numbers.
pub fn run(args: &ExportArgs, format: Format) -> Result<Vec<Table>, Error> {
    if args.output.is_some() && args.to != Tool::Safetensors {
        return Err(Error::usage("--output is for --to safetensors; lines for a tool go to standard output")
            .help("leave it out, and send standard output to a file"));
    }
    if args.to == Tool::Safetensors { weights(args) } else { settings(args, format) }
}

/// Exports the trained weights to a file.
fn weights(args: &ExportArgs) -> Result<Vec<Table>, Error> {
    if let Some(option) = args.wanted.given() {
        return Err(Error::usage(format_args!(
            "{option} says how to train, and safetensors holds what was trained"
        ))
        .help(format_args!("leave {option} out, or export the settings of a training with another --to")));
    }
    let (study, _, config, _) = Study::choice_of(&args.config)?;
    let output = args.output.as_ref().expect("the parser asks for it");
    study.is_not(output)?;
    let state = study.checkpoint();
    if !state.exists() {
        let folder = study.folder().display();
        return Err(Error::usage(format_args!("{folder} holds no training"))
            .help(format_args!("train it first: `plimsoll run {folder}`")));
    }
    let tensors = file_tensors(&build(&config.network)?);
    let state = Checkpoint::load(&state)?;
    plimsoll_study::weights::write(output, &tensors, &state)?;
    Ok(vec![Table::facts(
        "weights",
        vec![
            ("network", "network", config.network.in_words().into()),
            ("iterations", "iterations trained", state.progress.step.into()),
            ("tensors", "tensors", (tensors.len() as u64).into()),
            ("file", "written to", output.display().to_string().into()),
        ],
    )])
}

/// Exports the settings of a training in another tool.
fn settings(args: &ExportArgs, format: Format) -> Result<Vec<Table>, Error> {
    let (_, path, config, schedule) = Study::choice_of(&args.config)?;
    let mut export = Export::new(&config, &schedule, &args.wanted)?;
    export.tell(&config, &schedule, &path.display().to_string());
    let lines = export.lines(args.to)?;
    if format == Format::Table {
        if args.to == Tool::Deepspeed {
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
