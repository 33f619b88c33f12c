//! `report`: results of a tuning, or effects of a schedule, as one HTML file or as JSON.

use crate::args::{ReportArgs, ReportedArgs, command_line};
use crate::files::{self, read_valid};
use crate::interrupt;
use crate::output::{self, Format, Table};
use crate::verbs::planning::timeless;
use crate::verbs::trace::of_a_model;
use plimsoll_study::report::policies::TIME_LIMIT;
use plimsoll_study::report::scheduled::{self, Known};
use plimsoll_study::report::{Report, Tuned};
use plimsoll_study::training::Trained;
use plimsoll_study::{Error, Study};
use std::path::{Path, PathBuf};

/// Runs the verb.
pub fn run(args: &ReportArgs, format: Format) -> Result<Vec<Table>, Error> {
    let (report, place) = match &args.reported {
        ReportedArgs { trace: Some(trace), schedule: Some(schedule), .. } => {
            (of_schedule(trace, schedule)?, PathBuf::from("report.html"))
        }
        ReportedArgs { study: Some(folder), .. } => {
            let study = Study::existing(folder)?;
            (Tuned::read(&study)?.report()?, study.report())
        }
        _ => return Err(Error::usage("a report is of a study, or of a trace and its schedule")),
    };
    let inputs = [&args.reported.trace, &args.reported.schedule].into_iter().flatten().cloned();
    let study = args.reported.study.as_deref().map(|folder| Study::of_config(folder).0);
    let kept =
        study.iter().flat_map(|study| study.files().into_iter().filter(|file| *file != study.report()));
    let out = args.out.as_deref();
    if let Some(out) = out {
        files::can_be_made(out)?;
        inputs.chain(kept).try_for_each(|input| files::not_the_same(&input, out))?;
    }
    if format == Format::Json {
        return printed(report.json(), out);
    }
    if out.is_none() {
        let (study, _) = Study::of_config(&place);
        let other = "move it elsewhere, or name another file with --out";
        study.are_ours(std::slice::from_ref(&place)).map_err(|error| error.help(other))?;
    }
    Ok(vec![write(&report, out.unwrap_or(&place))?])
}

/// Prints JSON, or writes it to the given path.
fn printed(json: String, out: Option<&Path>) -> Result<Vec<Table>, Error> {
    let text = json + "\n";
    match out {
        Some(path) => files::write_text(path, &text)?,
        None => output::write_stdout(text.as_bytes())?,
    }
    Ok(Vec::new())
}

/// Writes a report as a page; returns a table with its path.
pub fn write(report: &Report, place: &Path) -> Result<Table, Error> {
    files::write_text(place, &report.html())?;
    let place = place.display().to_string();
    Ok(Table::facts("report", vec![("report", "report, for a browser", place.into())]))
}

/// Adds a training to its study and makes the study's report; `None` for a study tuned before reports existed.
pub fn after_training(study: &Study, trained: &Trained) -> Result<Option<Table>, Error> {
    if !study.tuning().exists() {
        let folder = study.folder().display();
        tracing::warn!(
            "{folder} was tuned by an older version, which kept too little for a report; --fresh makes one"
        );
        return Ok(None);
    }
    let mut tuned = Tuned::read(study)?;
    tuned.add_training(study, trained)?;
    write(&tuned.report()?, &study.report()).map(Some)
}

/// Keeps a training of a study's choice for the study's next report. A folder without a tuning is left unchanged.
pub fn keep_training(study: &Study, trained: &Trained) {
    if !study.tuning().exists() {
        return;
    }
    let kept = Tuned::read(study).and_then(|mut tuned| tuned.add_training(study, trained));
    if let Err(error) = kept {
        tracing::warn!("the study's report will not show this training: {error}");
    }
}

/// Report of a schedule, compared with other policies.
pub fn of_schedule(trace: &Path, schedule: &Path) -> Result<Report, Error> {
    let (trace, schedule) = read_valid(trace, schedule)?;
    let timeless = timeless(&trace).map(|words| format!("A{}.", &words[1..]));
    let of_model = of_a_model(&trace).map(|words| format!("T{}.", &words[1..]));
    let known = Known {
        modelled: of_model.is_some(),
        command: Some(command_line()),
        warnings: timeless.into_iter().chain(of_model).collect(),
        ..Known::default()
    };
    scheduled::of_schedule(&trace, &schedule, known, TIME_LIMIT, &interrupt::pressed)
}
