//! `report` of two studies: which of them trains faster, in which settings they differ, and what each chose; as a page, with
//! the answer on the terminal, or as JSON.

use crate::failure::Failure;
use crate::output::{Cell, Format, Table};
use crate::verbs::pages::{is_no_input, printed, written};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_study::Study;
use plimsoll_study::report::Tuned;
use plimsoll_study::report::comparison::{Choice, Compared, Comparison};
use std::path::{Path, PathBuf};

/// Where the page goes by default.
const PAGE: &str = "comparison.html";

/// Compares two studies.
pub fn run(folders: [&Path; 2], out: Option<&Path>, format: Format) -> Result<Vec<Table>, Failure> {
    let [first, second] = [Study::existing(folders[0])?, Study::existing(folders[1])?];
    let names = names([&first, &second])?;
    is_no_input(out, [first.files(), second.files()].concat())?;
    let tuned = [Tuned::read(&first)?, Tuned::read(&second)?];
    let comparison = Comparison::of([(&names[0], &tuned[0]), (&names[1], &tuned[1])]);
    if format == Format::Json {
        return printed(comparison.json(), out);
    }
    let page = written(out, PathBuf::from(PAGE), || comparison.html())?;
    Ok(vec![answer(&comparison, &page), settings(&comparison), choices(&comparison)])
}

/// What the two are called: by their folders' names, or by their paths where those are the same.
fn names(studies: [&Study; 2]) -> Result<[String; 2], Failure> {
    let places = studies.map(|study| study.folder().canonicalize().unwrap_or(study.folder().to_owned()));
    let paths = studies.map(|study| study.folder().display().to_string());
    if places[0] == places[1] {
        let message = if paths[0] == paths[1] {
            format!("{} is named twice: a study is compared with another", paths[0])
        } else {
            format!("{} and {} are the same study", paths[0], paths[1])
        };
        return Err(Failure::usage(message).help("name two studies to compare, or one for its report"));
    }
    let own =
        places.each_ref().map(|place| place.file_name().map(|name| name.to_string_lossy().into_owned()));
    Ok(match own {
        [Some(first), Some(second)] if first != second => [first, second],
        _ => paths,
    })
}

fn answer(comparison: &Comparison, page: &Path) -> Table {
    let verdict = &comparison.verdict;
    Table::facts(
        "comparison",
        vec![
            ("answer", "answer", verdict.headline.clone().into()),
            ("why", "how sure", verdict.why.clone().into()),
            ("less", "difference", Cell::Share(verdict.less)),
            ("equal", "counts as equal", Cell::Share(verdict.equal)),
            ("report", "report, for a browser", page.display().to_string().into()),
        ],
    )
}

/// A table with a column for each study.
fn of_both(key: &'static str, comparison: &Comparison, first: (&'static str, &'static str)) -> Table {
    let names = comparison.studies.each_ref().map(|study| study.name.as_str());
    Table::new(key, &[first, ("first", "first"), ("second", "second")]).named(&names)
}

/// The settings in which they differ.
fn settings(comparison: &Comparison) -> Table {
    let mut table = of_both("settings", comparison, ("setting", "setting that differs"));
    for difference in &comparison.settings {
        let [first, second] = difference.values.clone();
        table.rows.push(vec![difference.setting.clone().into(), first.into(), second.into()]);
    }
    table
}

/// What each chose; what neither has is left out.
fn choices(comparison: &Comparison) -> Table {
    let mut table = of_both("choices", comparison, ("quantity", "choice"));
    for (quantity, value) in QUANTITIES {
        let [first, second] = comparison.studies.each_ref().map(value);
        if first != Cell::None || second != Cell::None {
            table.rows.push(vec![quantity.into(), first, second]);
        }
    }
    table
}

/// A quantity of a study.
type Quantity = (&'static str, fn(&Compared) -> Cell);

const QUANTITIES: [Quantity; 21] = [
    ("batch", |study| study.choice.batch.into()),
    ("global batch", |study| {
        let Choice { batch, global_batch, .. } = study.choice;
        (global_batch != batch).then_some(global_batch).into()
    }),
    ("policy", |study| study.choice.policy.clone().into()),
    ("learning rate", |study| Cell::learning_rate(study.choice.learning_rate)),
    ("warm-up iterations", |study| study.choice.warmup_iterations.into()),
    ("iteration, predicted", |study| Seconds(study.choice.predicted_iteration_seconds).into()),
    ("stated error", |study| Cell::Share(study.choice.predicted_error)),
    ("iteration, measured", |study| study.choice.iteration_seconds.map(Seconds).into()),
    ("spread", |study| study.choice.relative_error.map_or(Cell::None, Cell::Share)),
    ("samples/s", |study| Cell::Number(study.choice.samples_per_second, 0)),
    ("goodput, samples/s", |study| study.choice.goodput.map_or(Cell::None, |rate| Cell::Number(rate, 0))),
    ("epoch", |study| Seconds(study.choice.epoch_seconds).into()),
    ("swapped", |study| Bytes(study.choice.offloaded_bytes).into()),
    ("swapping", |study| Seconds(study.choice.swapping_seconds).into()),
    ("recomputed", |study| Bytes(study.choice.recomputed_bytes).into()),
    ("recomputing", |study| Seconds(study.choice.recomputing_seconds).into()),
    ("ops recomputed", |study| study.choice.recomputed_ops.into()),
    ("compute waits", |study| Seconds(study.choice.stalled_seconds).into()),
    ("peak", |study| Bytes(study.choice.peak_bytes).into()),
    ("feature maps at peak", |study| Bytes(study.choice.at_peak_bytes).into()),
    ("host memory", |study| Bytes(study.choice.host_bytes).into()),
];
