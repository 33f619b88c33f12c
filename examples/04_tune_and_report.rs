//! A study by library calls alone: batch size, placement and learning rate for an absent GPU, and the report.

use plimsoll::ir::config::LearningRateRule;
use plimsoll::study::data::DataSource;
use plimsoll::study::report::Tuned;
use plimsoll::study::request::{NetworkRequest, Objective, RateRequest, Searcher, TuneRequest};
use plimsoll::study::watch::{Event, Watch};
use plimsoll::study::{NetworkWorkload, Setup, Study, Workload};
use plimsoll::tuner::model::devices;

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The device is modelled from its data sheet; `Setup::Cpu` and `Setup::cuda` measure and run.
    let sheet = devices::sheet("k40").ok_or("there is a data sheet of it")?;
    let network = NetworkRequest::zoo("mlp");
    let task = NetworkWorkload::new(&network, &DataSource::Digits, Setup::modelled(sheet, None)?)?;
    let rate = RateRequest { base_batch: 32, base_rate: 0.05, rule: LearningRateRule::Linear };
    let request = TuneRequest {
        budget: task.budget(None)?,
        search: Searcher::Plimsoll,
        objective: Objective::Frugal,
        min_batch: 32,
        max_batch: Some(128),
        cluster: None,
        rate,
        epochs: 20,
        command: "examples/04_tune_and_report.rs".to_owned(),
        fresh: false,
    };

    // Receives all events: progress, warnings, and other notices to the user.
    let tell = |event: Event<'_>| {
        if let Event::Notice { words, .. } = event {
            println!("{words}");
        }
    };
    let watch = Watch { stop: &|| false, tell: &tell };
    let folder = tempfile::tempdir()?;
    let study = Study::at(folder.path());
    let tuned = study.tune(&task, &request, &watch)?;
    println!(
        "{} samples to train on: batch {}, learning rate {:.3}, because of: {}",
        task.samples(),
        tuned.config.batch,
        tuned.config.learning_rate.rate,
        tuned.tuning.why
    );

    // The complete study can be opened again later.
    let report = Tuned::read(&Study::existing(folder.path())?)?.report()?;
    println!("the page has {} KB", report.html().len() / 1000);
    Ok(())
}
