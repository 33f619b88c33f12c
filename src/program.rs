//! The program: reads a command line, runs one verb, and turns a failure into a message and an exit code.
//!
//! `main` and the Python package run the same program, on a thread whose stack does not depend on `ulimit -s`. It
//! does not run Python: it returns the script that a line asks for ([`script`]), and the caller with an interpreter
//! runs it.

use crate::args::{self, Cli, Verb};
use crate::output::print;
use crate::progress::{self, MessageFormat};
use crate::settings::{self, Stop};
use crate::{interrupt, processes, verbs};
use plimsoll_study::error::{Error, Kind};
use std::ffi::OsString;
use std::thread;

pub use crate::verbs::script::Script;

/// Usual stack size of a main thread.
const STACK_BYTES: usize = 8 << 20;

/// Runs a command line, beginning with the program's name, and returns the exit code. Call it once per process: it
/// listens for Ctrl-C, and sets up progress and logs.
pub fn run(line: Vec<OsString>) -> u8 {
    let line = args::begin(line);
    match thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES).spawn(|| execute(line)) {
        // The panic has already been shown.
        Ok(program) => program.join().unwrap_or(Kind::Internal as u8),
        Err(error) => {
            let message = format!("the system gives this process no thread: {error}");
            let failure = Error::new(Kind::Device, message);
            end(
                MessageFormat::Human,
                &failure.help("raise `ulimit -v` and `ulimit -u`, or end other programs"),
            )
        }
    }
}

/// Python script that a line asks for; `None` if it asks for something else, or is invalid, which [`run`] reports.
pub fn script(line: &[OsString]) -> Option<Script> {
    match settings::read(line).ok()?.cli {
        cli if processes::refused(&cli.verb, "").is_some() => None,
        Cli { verb: Verb::Auto(args), format, quiet, .. } => {
            Script::asked(&args, format, quiet).ok().flatten()
        }
        _ => None,
    }
}

fn execute(line: &[OsString]) -> u8 {
    let settings = match settings::read(line) {
        Ok(settings) => settings,
        Err(stop) => return refuse(line, stop),
    };
    let cli = &settings.cli;
    if let Some(failure) = processes::refused(&cli.verb, &settings.verb) {
        return if processes::says_refused() {
            end(cli.message_format, &failure)
        } else {
            failure.kind as u8
        };
    }
    let spoken_for = is_spoken_for(&cli.verb);
    progress::start(cli.message_format, cli.quiet || spoken_for, cli.verbose);
    let exit = match verb(cli, &settings.verb) {
        Ok(()) => 0,
        Err(failure) if processes::says(&failure) => end(cli.message_format, &settings.explain(failure)),
        Err(failure) => failure.kind as u8,
    };
    processes::end(exit)
}

fn verb(cli: &Cli, name: &str) -> Result<(), Error> {
    if can_be_stopped(&cli.verb) {
        interrupt::listen().map_err(|error| Error::new(Kind::Internal, error))?;
    }
    let working = progress::command(name);
    let tables = match &cli.verb {
        Verb::Auto(args) => verbs::auto::run(args, cli.format, cli.quiet),
        Verb::Demo(args) => verbs::demo::run(args, cli.format, cli.quiet),
        Verb::Profile(args) => verbs::profile::run(args, cli.quiet),
        Verb::Tune(args) => verbs::tune::run(args, cli.quiet),
        Verb::Plan(args) => verbs::plan::run(args, cli.format),
        Verb::Compare(args) => verbs::compare::run(args, cli.format),
        Verb::Check(args) => verbs::check::run(args),
        Verb::Simulate(args) => verbs::simulate::run(args),
        Verb::Run(args) => verbs::run::run(args, cli.quiet),
        Verb::Verify(args) => verbs::verify::run(args, cli.quiet),
        Verb::Report(args) => verbs::report::run(args, cli.format),
        Verb::Explain(args) => verbs::explain::run(args),
        Verb::Networks(args) => verbs::networks::run(args),
        Verb::Trace(args) => verbs::trace::run(args),
        Verb::Doctor(args) => verbs::doctor::run(args),
        Verb::Export(args) => verbs::export::run(args, cli.format),
        Verb::Config(args) => verbs::config::run(args, cli.format),
        Verb::Completions(args) => verbs::shell::completions(args),
        Verb::Man(args) => verbs::shell::man(args),
    }?;
    drop(working);
    if is_spoken_for(&cli.verb) {
        return Ok(());
    }
    print(cli.format, &tables)
}

/// Returns `true` if another process reports for this one. Other commands do not run in several processes.
fn is_spoken_for(verb: &Verb) -> bool {
    matches!(verb, Verb::Run(_) | Verb::Doctor(_)) && processes::is_spoken_for()
}

/// Returns `true` if a command handles Ctrl-C itself. The others finish at once, or wait for input; Ctrl-C ends them
/// as usual, and they write their output in one step.
fn can_be_stopped(verb: &Verb) -> bool {
    matches!(
        verb,
        Verb::Auto(_)
            | Verb::Demo(_)
            | Verb::Profile(_)
            | Verb::Tune(_)
            | Verb::Plan(_)
            | Verb::Compare(_)
            | Verb::Run(_)
            | Verb::Verify(_)
            | Verb::Report(_)
    )
}

/// Refuses an invalid line; or prints help, which goes to stdout.
fn refuse(line: &[OsString], stop: Stop) -> u8 {
    let asked = settings::early(line, "message-format");
    let format = if asked.as_deref() == Some("json") { MessageFormat::Json } else { MessageFormat::Human };
    match stop {
        Stop::Error(failure) => end(format, &failure),
        Stop::Line(error) if error.use_stderr() && format == MessageFormat::Json => {
            end(format, &settings::in_words(&error))
        }
        Stop::Line(error) => {
            // As the parser does when it ends a process: a closed stream is ignored.
            let _ = error.print();
            error.exit_code() as u8
        }
    }
}

fn end(format: MessageFormat, failure: &Error) -> u8 {
    progress::failure(format, failure);
    failure.kind as u8
}
