//! `config`: effective settings with their sources.

use crate::args::{self, Cli, ConfigArgs, ConfigShowArgs, ConfigVerb};
use crate::output::{self, Cell, Format, Table};
use crate::settings::{Given, Layers, Source, Stop, commands, in_words, settable};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};
use plimsoll_study::Error;
use std::ffi::OsString;

/// Index of the column with a value's source, and its text for a default.
const SOURCE: usize = 3;
const DEFAULT: &str = "default";

/// Runs the verb.
pub fn run(args: &ConfigArgs, format: Format) -> Result<Vec<Table>, Error> {
    let ConfigVerb::Show(args) = &args.what;
    show(args, format)
}

/// Settings of one command, with any of its options, or of all commands. Defaults are counted, or listed with
/// `--all`, which may stand before the command or after it.
fn show(args: &ConfigShowArgs, format: Format) -> Result<Vec<Table>, Error> {
    let program = Cli::command();
    let (asked, command): (Vec<OsString>, Vec<OsString>) =
        args.command.iter().cloned().partition(|word| word == "--all");
    let all = args.all || !asked.is_empty();
    let mut table = Table::new(
        "settings",
        &[
            ("command", "command"),
            ("option", "option"),
            ("value", "value"),
            ("source", "from"),
            ("place", "which"),
        ],
    );
    let layers = Layers::find(args::line())?;
    let line = |words: &[OsString]| [&[OsString::from("plimsoll")], words].concat();
    let mut format = format;
    if command.is_empty() {
        let mut first = true;
        for verb in commands(&program) {
            let (matches, given) = parse(&layers, &line(&[verb.get_name().into()]))?;
            let own = matches.subcommand().map_or(&matches, |(_, own)| own);
            if std::mem::take(&mut first) {
                settable(&program).for_each(|option| table.rows.push(row("(all)", option, own, &given)));
            }
            settable(verb).for_each(|option| table.rows.push(row(verb.get_name(), option, own, &given)));
        }
    } else {
        let (matches, given) = parse(&layers, &line(&command))?;
        let (name, own) = matches.subcommand().ok_or_else(|| {
            Error::usage("there is no command on the line to show the settings of")
                .help("name one, such as `plimsoll config show tune`; without anything all are shown")
        })?;
        let verb = program.find_subcommand(name).expect("it was just parsed");
        for option in settable(&program).chain(settable(verb)) {
            table.rows.push(row(name, option, own, &given));
        }
        if own.value_source("format") == Some(ValueSource::CommandLine) {
            format = own.get_one("format").copied().unwrap_or(format);
        }
    }
    let file = layers.file.map(|path| path.display().to_string());
    let options = table.rows.len();
    table.rows.retain(|row| all || row[SOURCE] != DEFAULT.into());
    let left_out = (options - table.rows.len()) as u64;
    let facts = vec![
        ("path", "plimsoll.toml", file.into()),
        ("left_out", "options that have their defaults, shown by --all", left_out.into()),
    ];
    output::print(format, &[Table::facts("file", facts), table])?;
    Ok(Vec::new())
}

fn parse(layers: &Layers, line: &[OsString]) -> Result<(ArgMatches, Vec<Given>), Error> {
    layers.parse(line, true).map_err(|stop| match stop {
        Stop::Error(failure) => failure,
        Stop::Line(error) if error.use_stderr() => in_words(&error),
        Stop::Line(_) => Error::usage("help has no settings").help("leave --help and --version out"),
    })
}

/// Row of an option: its value and source.
fn row(command: &str, (arg, name): (&Arg, &str), matches: &ArgMatches, given: &[Given]) -> Vec<Cell> {
    let id = arg.get_id().as_str();
    let words = matches.get_raw(id).map(|values| {
        let words: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        words.join(",")
    });
    let (source, place) = match (matches.value_source(id), given.iter().find(|one| one.name == name)) {
        (Some(ValueSource::CommandLine), _) => ("flag", Cell::None),
        (_, Some(one)) => {
            let source = if matches!(one.source, Source::Environment(_)) { "environment" } else { "file" };
            (source, one.source.to_string().into())
        }
        (_, None) => (DEFAULT, Cell::None),
    };
    vec![command.into(), name.into(), words.into(), source.into(), place]
}
