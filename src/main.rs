//! The program `plimsoll`: reads the command line, runs one verb, and turns a failure into a message and an exit code.

use clap::Parser;
use plimsoll::args::{Cli, Verb};
use plimsoll::failure::{Exit, Failure};
use plimsoll::{interrupt, verbs};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(cli.quiet, cli.verbose);
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    interrupt::listen().map_err(|error| Failure::new(Exit::Internal, error))?;
    let tables = match &cli.verb {
        Verb::Auto(args) => verbs::auto::run(args, cli.quiet),
        Verb::Profile(args) => verbs::profile::run(args, cli.quiet),
        Verb::Tune(args) => verbs::tune::run(args, cli.quiet),
        Verb::Plan(args) => verbs::plan::run(args, cli.format),
        Verb::Compare(args) => verbs::compare::run(args, cli.format),
        Verb::Check(args) => verbs::check::run(args),
        Verb::Simulate(args) => verbs::simulate::run(args),
        Verb::Run(args) => verbs::run::run(args, cli.quiet),
        Verb::Verify(args) => verbs::verify::run(args, cli.quiet),
        Verb::Networks(args) => verbs::networks::run(args),
        Verb::Trace(args) => verbs::trace::run(args),
        Verb::Doctor(args) => verbs::doctor::run(args),
        Verb::Completions(args) => verbs::shell::completions(args),
        Verb::Man(args) => verbs::shell::man(args),
    }?;
    plimsoll::output::print(cli.format, &tables)
}

/// `RUST_LOG` rules where it is set; else `-q` leaves errors, and each `-v` adds a level to warnings and news.
fn log_to_stderr(quiet: bool, verbose: u8) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour =
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    let writer = std::io::stderr;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(colour)
        .without_time()
        .with_target(false)
        .init();
}
