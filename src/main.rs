//! The program `plimsoll`: reads the command line, runs one verb, and turns a failure into a message and an exit code.
//!
//! All of it runs on a thread whose stack does not depend on `ulimit -s`.

use plimsoll::args::{Cli, Verb};
use plimsoll::failure::{Exit, Failure};
use plimsoll::output::{Format, print, published_schema, write_stdout};
use plimsoll::progress::MessageFormat;
use plimsoll::runtime::limits::{Heap, fail_where_files_are_too_large};
use plimsoll::settings::{self, Stop};
use plimsoll::{interrupt, progress, verbs};
use std::ffi::OsString;
use std::process::ExitCode;
use std::thread;

/// A heap that ends in words.
#[global_allocator]
static HEAP: Heap = Heap;

/// What a main thread usually has.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    fail_where_files_are_too_large();
    match thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES).spawn(program) {
        // Its panic was shown.
        Ok(program) => program.join().unwrap_or(ExitCode::from(Exit::Internal as u8)),
        Err(error) => {
            let message = format!("the system gives this process no thread: {error}");
            let failure = Failure::new(Exit::Device, message);
            end(
                MessageFormat::Human,
                &failure.help("raise `ulimit -v` and `ulimit -u`, or end other programs"),
            )
        }
    }
}

fn program() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let settings = match settings::read(&line) {
        Ok(settings) => settings,
        Err(stop) => return refuse(&line, stop),
    };
    let cli = &settings.cli;
    progress::start(cli.message_format, cli.quiet, cli.verbose);
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(cli.message_format, &settings.explain(failure)),
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    if can_be_stopped(&cli.verb) {
        interrupt::listen().map_err(|error| Failure::new(Exit::Internal, error))?;
    }
    let schema = published_schema(cli.verb.name()).filter(|_| cli.format == Format::Schema);
    if let Some(schema) = schema.filter(|_| !matches!(cli.verb, Verb::Config(_))) {
        return write_stdout(schema.as_bytes());
    }
    let working = progress::command(cli.verb.name());
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
    print(cli.format, &tables)
}

/// Whether a command looks at Ctrl-C itself. The others are over at once, or wait for input; they end as any program does,
/// and what they write is written in one step.
fn can_be_stopped(verb: &Verb) -> bool {
    matches!(
        verb,
        Verb::Auto(_)
            | Verb::Profile(_)
            | Verb::Tune(_)
            | Verb::Plan(_)
            | Verb::Compare(_)
            | Verb::Run(_)
            | Verb::Verify(_)
            | Verb::Report(_)
    )
}

/// A line that cannot be read; or one that asks for help, which goes to stdout.
fn refuse(line: &[OsString], stop: Stop) -> ExitCode {
    let asked = settings::early(line, "message-format");
    let format = if asked.as_deref() == Some("json") { MessageFormat::Json } else { MessageFormat::Human };
    match stop {
        Stop::Failure(failure) => end(format, &failure),
        Stop::Line(error) if error.use_stderr() && format == MessageFormat::Json => {
            end(format, &settings::in_words(&error))
        }
        Stop::Line(error) => error.exit(),
    }
}

fn end(format: MessageFormat, failure: &Failure) -> ExitCode {
    progress::failure(format, failure);
    ExitCode::from(failure.exit as u8)
}
