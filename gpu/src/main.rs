//! `accept`: what Plimsoll must reach on a GPU, asked there. One program that needs no Rust, no source and no network.
//!
//! `run` goes through the sections ([`sections::SECTIONS`]), each in a process of its own with a time limit, so that one
//! that fails or hangs is a row of the result and not its end; PyTorch's side runs beside ours, by `pytorch.py`. What came of
//! it is written after every section. `gpu/README.md` says how to use it.
//!
//! What it deliberately does not do: decide whether a number is good. It holds numbers against the targets that stand with
//! the sections, and says which were met.
#![deny(unsafe_code)]

mod bench;
mod bodies;
mod ground;
mod plan;
mod results;
mod row;
mod run;
mod sections;
mod torch;

use clap::{Args, Parser, Subcommand};
use ground::Ground;
use plimsoll::study::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tests and measurements of the device `cuda`, against what it must reach.
#[derive(Debug, Parser)]
#[command(name = "accept", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the usual sections, or those named, and write the results
    Run {
        /// Sections, in this order; without any, all but those that run by name only
        sections: Vec<String>,
        /// The folder that the results are written to
        #[arg(long, value_name = "DIR", default_value = "gpu/results")]
        results: PathBuf,
        /// So many seconds in all; what is not reached is said to be cut
        #[arg(long, value_name = "N", default_value_t = run::SECONDS)]
        seconds: u64,
        #[command(flatten)]
        options: Options,
    },
    /// Print the table of what was reached, from a folder of results
    Table {
        /// The folder
        #[arg(default_value = "gpu/results")]
        results: PathBuf,
    },
    /// List the sections
    Sections,
    /// Print the commands to run in so much time, of this program and of python/accept.py, what matters most first
    Plan {
        /// Minutes that there are for all of them
        #[arg(long, value_name = "N", default_value_t = 25)]
        minutes: u64,
        /// A folder of results: what a section took there is what it takes, with a tenth to spare
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
    },
    /// Run the tests as `cargo test` would; what follows goes to the harness
    Test {
        /// A filter, --list, --test-threads N and the like
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run one section in this process and print its rows as JSON
    #[command(hide = true)]
    Section {
        /// Which
        name: String,
        /// Seconds that it has
        #[arg(long)]
        seconds: u64,
        #[command(flatten)]
        options: Options,
    },
}

/// Where and how.
#[derive(Clone, Debug, Args)]
struct Options {
    /// Tiny sizes, to see that everything runs
    #[arg(long)]
    small: bool,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// PyTorch's side
    #[arg(long, value_name = "FILE", default_value = "gpu/pytorch.py")]
    pytorch: PathBuf,
    /// Run PyTorch's side on the CPU, to see that it runs
    #[arg(long)]
    pytorch_cpu: bool,
}

/// The results of a folder that has some.
fn measured(folder: &Path) -> Result<Vec<results::Results>, Error> {
    let all = results::every(folder)?;
    if all.is_empty() {
        return Err(Error::usage(format_args!("{} has no results", folder.display()))
            .help("name a folder that `accept run` has written to, or leave out --from"));
    }
    Ok(all)
}

fn main() -> ExitCode {
    // What fails says so itself; a warning tells of a library's algorithm that is left out, or of memory.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    let outcome = match Cli::parse().verb {
        Verb::Run { sections, results, seconds, options } => run::run(&sections, &results, seconds, &options),
        Verb::Table { results } => results::folder(&results).map(|all| print!("{}", results::targets(&all))),
        Verb::Sections => {
            print!("{}", results::sections());
            Ok(())
        }
        Verb::Plan { minutes, from } => from
            .as_deref()
            .map_or(Ok(Vec::new()), measured)
            .map(|all| print!("{}", plan::plan(minutes, &all))),
        Verb::Test { arguments } => return bodies::harness(arguments),
        Verb::Section { name, seconds, options } => {
            sections::find(&name).and_then(|section| (section.run)(&Ground::new(seconds, options)))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure:#}");
            ExitCode::from(failure.kind as u8)
        }
    }
}
