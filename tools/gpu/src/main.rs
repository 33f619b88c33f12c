//! `accept`: measures the device `cuda` on a machine without Rust, source or network. `tools/gpu/accept.sh` runs it on a
//! GPU, one section per process, next to the tests; see `tools/gpu/README.md`.
//!
//! A row is one line of JSON on stdout, written as soon as it is measured: device, driver and precision, the case, and
//! seconds (median and spread) and bytes, predicted and measured. A failed case is a row with its error; the others still
//! run, and the exit code then shows the failure.
//!
//! Deliberately does not judge a number, limit its own time, or test; other programs do.
#![forbid(unsafe_code)]

mod bench;
mod sections;

use clap::{Parser, ValueEnum};
use plimsoll::study::error::{Error, Kind};
use plimsoll_runtime::cuda::survey;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Measures the device `cuda`, and prints a line of JSON for each result
#[derive(Debug, Parser)]
#[command(name = "accept", max_term_width = 100)]
struct Cli {
    section: Section,
    /// Tiny sizes, to see that everything runs
    #[arg(long)]
    small: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Section {
    /// Rates of the link to the host, each way, alone and together, page-locked and not
    Link,
    /// Training iterations of some networks at some budgets: time and memory, predicted and measured
    Step,
    /// Largest batch within 12 GiB, keeping everything and swapping
    Batch,
    /// Cases of `step`, for pytorch.py
    Cases,
}

/// The device and its software, for every row. Fails if the driver has no device.
fn machine(small: bool) -> Result<Value, Error> {
    let survey = survey()?;
    let Some((gpu, _)) = survey.devices.first() else {
        return Err(Error::new(Kind::Device, "the driver sees no device")
            .help("`nvidia-smi` lists the devices; CUDA_VISIBLE_DEVICES may hide them"));
    };
    let cudnn = survey.cudnn.map(|(_, (major, minor, patch))| format!("{major}.{minor}.{patch}"));
    Ok(json!({
        "plimsoll": plimsoll::study::version(),
        "device": gpu.name,
        "driver": survey.driver_version.unwrap_or_else(|error| error.to_string()),
        "cudnn": cudnn.unwrap_or_else(|error| error.to_string()),
        "small": small,
    }))
}

fn run(Cli { section, small }: Cli) -> Result<(), Error> {
    let machine = machine(small)?;
    let cases = if small { &bench::SMALL_CASES[..] } else { &bench::CASES };
    let each = |measure: sections::Measure| {
        let mut outcome = Ok(());
        for case in cases {
            let row = |of: Value| bench::print(&[&machine, &case.facts(), &of]);
            if let Err(failure) = measure(case, small, &row) {
                row(json!({ "error": failure.message }));
                outcome = Err(failure);
            }
        }
        outcome
    };
    match section {
        Section::Link => sections::link(small, &|of| bench::print(&[&machine, &of])),
        Section::Step => each(sections::step),
        Section::Batch => each(sections::batch),
        Section::Cases => each(|case, _, row| {
            row(json!({ "parameters": case.parameters()? }));
            Ok(())
        }),
    }
}

fn main() -> ExitCode {
    // Warnings report memory, and algorithms of a library that are left out.
    let warnings = tracing_subscriber::filter::LevelFilter::WARN;
    tracing_subscriber::fmt().with_max_level(warnings).with_writer(std::io::stderr).init();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure:#}");
            ExitCode::from(failure.kind as u8)
        }
    }
}
