//! Sources of the command line's values: flag over environment over `plimsoll.toml` over built-in default.
//!
//! Only the command line defines options: a value of the environment or the file becomes the default of the option
//! that it names, before the line is parsed, so that one parser judges all values and one set of types holds them. A
//! value that contradicts one of higher rank (`budget` in the file, `--sweep` on the line) gives way to it.
//!
//! Positional arguments, the inputs of a command, can be given on the line only.

use crate::args::Cli;
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind as Fault};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_study::Error;
use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::num::{IntErrorKind, ParseIntError};
use std::path::{Path, PathBuf};

/// Name of the settings file, in the current folder and in the user's configuration folder.
pub const FILE: &str = "plimsoll.toml";

/// Option that selects a different settings file; the file itself cannot set it.
const FILE_OPTION: &str = "config-file";

/// Prefix of Plimsoll's environment variables.
const PREFIX: &str = "PLIMSOLL_";

/// Source of a value, below the flags; the higher rank wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Key of the file, for every command with such an option.
    File(PathBuf),
    /// Key of the file, in the table of one command.
    Table(PathBuf, String),
    /// Environment variable of this name.
    Environment(String),
}

impl Source {
    fn rank(&self) -> u8 {
        match self {
            Source::File(_) => 0,
            Source::Table(..) => 1,
            Source::Environment(_) => 2,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Table(path, table) => write!(f, "{} [{table}]", path.display()),
            Source::Environment(variable) => f.write_str(variable),
        }
    }
}

/// Value that the environment or the file gives to an option.
#[derive(Clone, Debug)]
pub struct Given {
    /// Command, or the empty string for all commands.
    command: String,
    option: String,
    /// Name of the option on the line and in the file.
    pub name: String,
    values: Vec<String>,
    /// Source of the value.
    pub source: Source,
}

/// A parsed command line.
pub struct Settings {
    /// Typed values.
    pub cli: Cli,
    /// Name of the command.
    pub verb: String,
    /// Values of this command's options from environment and file that no flag overruled.
    pub given: Vec<Given>,
}

/// Reason why a line has no settings.
pub enum Stop {
    /// Message of the parser, including help and version.
    Line(Box<clap::Error>),
    /// Error in the file or in the environment.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(failure: Error) -> Stop {
        Stop::Error(failure)
    }
}

impl From<clap::Error> for Stop {
    fn from(error: clap::Error) -> Stop {
        Stop::Line(Box::new(error))
    }
}

/// Reads a command line, beginning with the program's name, together with environment and file.
pub fn read(line: &[OsString]) -> Result<Settings, Stop> {
    let layers = match Layers::find(line) {
        Ok(layers) => layers,
        Err(failure) => return Err(help_or(line, failure)),
    };
    let (matches, given) = layers.parse(line, false)?;
    let verb = matches.subcommand_name().unwrap_or_default().to_owned();
    Ok(Settings { cli: Cli::from_arg_matches(&matches)?, verb, given })
}

/// Answers a request for help even if the file cannot be read.
fn help_or(line: &[OsString], failure: Error) -> Stop {
    match Cli::command().try_get_matches_from(line) {
        Err(error) if matches!(error.kind(), Fault::DisplayHelp | Fault::DisplayVersion) => error.into(),
        _ => failure.into(),
    }
}

impl Settings {
    /// Adds to a failure: the source of the value, if the failure names an option that was not typed; or the command
    /// that has the option, if this one lacks it.
    pub fn explain(&self, failure: Error) -> Error {
        let of_others = of_another_command(&self.verb, &failure);
        let typed_by_none = self.given.iter().find(|given| {
            let option = format!("--{}", given.name);
            words(&failure.message).any(|word| word == option)
        });
        let from = typed_by_none.map(|given| format!("--{} is set by {}", given.name, given.source));
        let help: Vec<String> = failure.help.iter().cloned().chain(of_others).chain(from).collect();
        if help.is_empty() { failure } else { failure.help(help.join("; ")) }
    }
}

/// Splits a text into words, keeping the dashes of options.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '-'))
}

/// Names the command that has the options which a failure proposes and this command lacks: `run` trains with the
/// options of `tune`. `None` if the failure itself names a command that has them.
fn of_another_command(verb: &str, failure: &Error) -> Option<String> {
    let program = Cli::command();
    let has = |command: &Command, option: &str| settable(command).any(|(_, name)| name == option);
    let text = format!("{} {}", failure.message, failure.help.as_deref().unwrap_or_default());
    let own = program.find_subcommand(verb).filter(|own| settable(own).next().is_some())?;
    let foreign = words(&text).filter_map(|word| word.strip_prefix("--"));
    let foreign = foreign.filter(|option| !has(own, option) && !has(&program, option));
    let mut said: Vec<String> = Vec::new();
    for option in foreign {
        let others = || program.get_subcommands().filter(|other| has(other, option));
        // Names of most commands are also words of ordinary sentences.
        let is_named = others().any(|other| {
            let name = other.get_name();
            text.contains(&format!("`plimsoll {name}")) || (name == "tune" && words(&text).any(|w| w == name))
        });
        let first = others().find(|other| other.get_name() == "tune").or_else(|| others().next());
        if let Some(other) = first.filter(|_| !is_named) {
            said.push(format!("`plimsoll {verb}` has no --{option}, `plimsoll {}` has", other.get_name()));
        }
    }
    said.dedup();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Value of an option before the line is parsed: the value of the first of these words, or `--name=value`.
pub fn early(line: &[OsString], name: &str) -> Option<String> {
    let flag = format!("--{name}");
    let mut words = line.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    let mut on_line = None;
    while let Some(word) = words.next() {
        on_line = match word.strip_prefix(&flag) {
            Some("") => words.next().map(std::borrow::Cow::into_owned),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned).or(on_line),
            None => on_line,
        };
    }
    on_line.or_else(|| variable(name).map(|(_, value)| value))
}

/// Name of an option's environment variable.
fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

/// Environment variable of an option, and its value; an empty value counts as unset.
fn variable(name: &str) -> Option<(String, String)> {
    let variable = variable_of(name);
    let value = std::env::var_os(&variable).filter(|value| !value.is_empty())?;
    Some((variable, value.to_string_lossy().into_owned()))
}

/// Options of a command that file and environment can set: all but positional ones and those valid on the line only.
pub fn settable(command: &Command) -> impl Iterator<Item = (&Arg, &str)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    named.filter(|(_, name)| !["help", "version", FILE_OPTION].contains(name))
}

/// Commands that have their own options.
pub fn commands(program: &Command) -> impl Iterator<Item = &Command> {
    let own = |verb: &&Command| settable(verb).any(|(arg, _)| !arg.is_global_set());
    program.get_subcommands().filter(own)
}

/// Type of an option's value in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Yes or no.
    Flag,
    /// A whole number.
    Whole,
    /// A number, without a unit.
    Number,
    /// One of these words.
    Choice(Vec<String>),
    /// Any text.
    Text,
    /// A number, with or without a unit.
    Measure,
    /// A number with its unit.
    Rate,
}

impl Kind {
    /// Type of an option.
    pub fn of(arg: &Arg) -> Kind {
        match arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => return Kind::Flag,
            ArgAction::Count => return Kind::Whole,
            _ => {}
        }
        let mut choices = arg.get_possible_values();
        choices.retain(|value| !value.is_hide_set());
        if !choices.is_empty() {
            return Kind::Choice(choices.iter().map(|value| value.get_name().to_owned()).collect());
        }
        let parsed = arg.get_value_parser().type_id();
        let is = |types: &[TypeId]| types.iter().any(|one| parsed == *one);
        if is(&[TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<u8>()]) {
            Kind::Whole
        } else if is(&[TypeId::of::<f64>(), TypeId::of::<f32>()]) {
            Kind::Number
        } else if is(&[
            TypeId::of::<Size>(),
            TypeId::of::<Bytes>(),
            TypeId::of::<Seconds>(),
            TypeId::of::<[u32; 2]>(),
        ]) {
            Kind::Measure
        } else if is(&[TypeId::of::<BytesPerSecond>()]) {
            Kind::Rate
        } else {
            Kind::Text
        }
    }

    /// Returns `true` if an option takes several values.
    pub fn several(arg: &Arg) -> bool {
        arg.get_value_delimiter().is_some()
    }

    /// Describes the expected value.
    fn wanted(&self) -> String {
        match self {
            Kind::Flag => "true or false".to_owned(),
            Kind::Whole => "a whole number".to_owned(),
            Kind::Number => "a number".to_owned(),
            Kind::Choice(names) => format!("one of \"{}\"", names.join("\", \"")),
            Kind::Text => "a text in quotes".to_owned(),
            Kind::Measure => "a text in quotes, or a number".to_owned(),
            Kind::Rate => "a number with its unit in quotes, such as \"12GB/s\"".to_owned(),
        }
    }

    /// Converts a value of the file to its form on the line.
    fn on_line(&self, value: &toml::Value) -> Option<String> {
        match (self, value) {
            (Kind::Flag, toml::Value::Boolean(yes)) => Some(yes.to_string()),
            (Kind::Whole | Kind::Number | Kind::Measure, toml::Value::Integer(number)) => {
                Some(number.to_string())
            }
            (Kind::Number | Kind::Measure, toml::Value::Float(number)) => Some(number.to_string()),
            (Kind::Choice(_) | Kind::Text | Kind::Measure | Kind::Rate, toml::Value::String(text)) => {
                Some(text.clone())
            }
            _ => None,
        }
    }
}

/// Values of environment and file, for all commands.
pub struct Layers {
    /// File that was read.
    pub file: Option<PathBuf>,
    given: Vec<Given>,
}

impl Layers {
    /// Finds and reads the file, and the environment.
    pub fn find(line: &[OsString]) -> Result<Layers, Error> {
        let program = Cli::command();
        let file = read_file(early(line, FILE_OPTION).as_ref())?;
        let mut given = Vec::new();
        check_variables(&program)?;
        if let Some((path, table)) = &file {
            check_keys(&program, path, table)?;
        }
        for verb in std::iter::once(None).chain(program.get_subcommands().map(Some)) {
            let name = verb.map_or("", Command::get_name);
            for (arg, long) in settable(verb.unwrap_or(&program)).chain(settable(&program)) {
                let mut add = |values: Vec<String>, source: Source| {
                    let (command, option) = (name.to_owned(), arg.get_id().to_string());
                    given.retain(|one: &Given| (&one.command, &one.option) != (&command, &option));
                    given.push(Given { command, option, name: long.to_owned(), values, source });
                };
                if let Some((path, table)) = &file {
                    // The name of a command stands for its table.
                    if let Some(value) = table.get(long).filter(|value| !value.is_table()) {
                        add(values(path, arg, long, value)?, Source::File(path.clone()));
                    }
                    let own = table.get(name).and_then(toml::Value::as_table);
                    if let Some(value) = own.and_then(|own| own.get(long)) {
                        let source = Source::Table(path.clone(), name.to_owned());
                        add(values(path, arg, long, value)?, source);
                    }
                }
                if let Some((variable, value)) = variable(long) {
                    let split = |delimiter| value.split(delimiter).map(str::to_owned).collect();
                    let values = arg.get_value_delimiter().map_or_else(|| vec![value.clone()], split);
                    add(values, Source::Environment(variable));
                }
            }
        }
        Ok(Layers { file: file.map(|(path, _)| path), given })
    }

    /// Parses a line. If `lenient`, missing arguments are no error. Also returns the values taken from environment and file.
    pub fn parse(&self, line: &[OsString], lenient: bool) -> Result<(ArgMatches, Vec<Given>), Stop> {
        let parse = |given: &[Given], verb: &str| {
            let program = with_defaults(Cli::command(), given, verb, line, lenient);
            program.try_get_matches_from(line).map_err(|error| attribute(error, given, line))
        };
        let mut matches = parse(&self.given, "")?;
        let Some((verb, own)) = matches.subcommand() else { return Ok((matches, Vec::new())) };
        let verb = verb.to_owned();
        let given = self.left(&verb, own)?;
        matches = parse(&given, &verb)?;
        Ok((matches, given))
    }

    /// Values for a command, without those that flags or values of higher rank overrule.
    fn left(&self, verb: &str, own: &ArgMatches) -> Result<Vec<Given>, Error> {
        let program = Cli::command();
        let command = program.find_subcommand(verb).expect("it was just parsed");
        let typed = |option: &str| own.value_source(option) == Some(ValueSource::CommandLine);
        let ours = self.given.iter().filter(|one| one.command == verb && !typed(&one.option));
        let mut left: Vec<Given> = ours.cloned().collect();
        let contradict = |a: &str, b: &str| {
            let names = |a: &str, b: &str| {
                let arg = command.get_arguments().find(|arg| arg.get_id() == a && !arg.is_global_set());
                arg.is_some_and(|arg| command.get_arg_conflicts_with(arg).iter().any(|c| c.get_id() == b))
            };
            names(a, b) || names(b, a)
        };
        let typed_ones: Vec<String> =
            own.ids().filter(|id| typed(id.as_str())).map(ToString::to_string).collect();
        left.retain(|one| !typed_ones.iter().any(|typed| contradict(typed, &one.option)));
        let all = left.clone();
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                if contradict(&one.option, &other.option) && one.source.rank() == other.source.rank() {
                    let (a, b) = (&one.name, &other.name);
                    let message =
                        format!("`{a}` and `{b}` are both set, by {} and {}", one.source, other.source);
                    return Err(Error::usage(message).help("leave one of the two out"));
                }
            }
        }
        left.retain(|one| {
            let over = |other: &&Given| {
                other.source.rank() > one.source.rank() && contradict(&one.option, &other.option)
            };
            !all.iter().any(|other| over(&other))
        });
        Ok(left)
    }
}

/// Path and content of the file: the one named, or else the first that exists in the usual places.
fn read_file(named: Option<&String>) -> Result<Option<(PathBuf, toml::Table)>, Error> {
    let places = named.map_or_else(usual_places, |path| vec![path.into()]);
    let read = places.into_iter().map(|path| (std::fs::read(&path), path));
    let is_missing =
        |read: &std::io::Result<_>| read.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let Some((read, path)) = read.into_iter().find(|(read, _)| named.is_some() || !is_missing(read)) else {
        return Ok(None);
    };
    let bytes = read.map_err(|error| match named {
        Some(_) => Error::usage(format_args!("cannot read {}: {error}", path.display()))
            .help(format_args!("name a file that is there with --{FILE_OPTION}, or leave it out")),
        None => Error::io(&path, "read", &error),
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let table = text.parse::<toml::Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
        let place = format!("{}: line {line}", path.display());
        Error::usage(format_args!("{place}: {}", error.message()))
            .help("a setting is written `key = value`, such as `budget = \"90%\"`; `plimsoll config show --all` lists all")
    })?;
    Ok(Some((path, table)))
}

/// Current folder, and the user's configuration folder.
fn usual_places() -> Vec<PathBuf> {
    let folder = |variable| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let user = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    let user = user.map(|folder| folder.join("plimsoll").join(FILE));
    std::iter::once(PathBuf::from(FILE)).chain(user).collect()
}

/// Checks that every key names an option, or a command with a table of its options.
fn check_keys(program: &Command, path: &Path, table: &toml::Table) -> Result<(), Error> {
    let global: Vec<&str> = settable(program).map(|(_, name)| name).collect();
    let verbs: Vec<&str> = commands(program).map(Command::get_name).collect();
    let options = commands(program).flat_map(settable).map(|(_, name)| name);
    let options: Vec<&str> = options.chain(global.iter().copied()).collect();
    let place = path.display();
    for (key, value) in table {
        match value.as_table() {
            None if verbs.contains(&key.as_str()) => {
                let message = format!("{place}: `{key}` is a command, which has a table of options");
                return Err(Error::usage(message).help(format!("write [{key}], and its options below")));
            }
            None if !options.contains(&key.as_str()) => {
                let message = format!("{place}: no option is called `{key}`");
                return Err(Error::usage(message).help(did_you_mean(key, &options)));
            }
            Some(_) if !verbs.contains(&key.as_str()) => {
                let message = format!("{place}: no command with options is called `{key}`");
                return Err(Error::usage(message).help(did_you_mean(key, &verbs)));
            }
            None => {}
            Some(own) => {
                let verb = program.find_subcommand(key).expect("its name was just found");
                let names = settable(verb).map(|(_, name)| name).chain(global.iter().copied());
                let names: Vec<&str> = names.collect();
                if let Some(unknown) = own.keys().find(|name| !names.contains(&name.as_str())) {
                    let message = format!("{place} [{key}]: `{key}` has no option `{unknown}`");
                    return Err(Error::usage(message).help(did_you_mean(unknown, &names)));
                }
            }
        }
    }
    Ok(())
}

/// Variables of ours that name no option: the folder of CUDA's libraries, and the commit of a build, which cargo
/// passes to the programs that it runs.
const OTHER_VARIABLES: [&str; 2] = [plimsoll_runtime::cuda::LIBRARIES_VARIABLE, "PLIMSOLL_COMMIT"];

/// Prefix of variables that the stand-in for CUDA's libraries reads.
const OF_THE_STAND_IN: &str = "PLIMSOLL_STANDIN_";

/// Checks that every variable of ours names an option.
fn check_variables(program: &Command) -> Result<(), Error> {
    let options = program.get_subcommands().flat_map(settable).chain(settable(program));
    let options: BTreeSet<&str> = options.map(|(_, name)| name).chain([FILE_OPTION]).collect();
    let is_known = |variable: &String| {
        OTHER_VARIABLES.contains(&variable.as_str())
            || variable.starts_with(OF_THE_STAND_IN)
            || options.iter().any(|option| variable_of(option) == *variable)
    };
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let set = set.map(|(variable, _)| variable.to_string_lossy().into_owned());
    let ours = set.filter(|variable| variable.starts_with(PREFIX));
    let Some(unknown) = ours.filter(|variable| !is_known(variable)).min() else { return Ok(()) };
    let asked = unknown[PREFIX.len()..].to_lowercase().replace('_', "-");
    let meant = plimsoll_networks::nearest(&asked, options).into_iter().next();
    let failure =
        Error::usage(format_args!("{unknown} is set in the environment, and no option is called `{asked}`"));
    if let Some(help) = instead(&asked, |now, value| format!("{}={value}", variable_of(now))) {
        return Err(failure.help(help));
    }
    Err(failure.help(match meant {
        Some(option) => format!("did you mean {}? Otherwise unset it", variable_of(&option)),
        None => "unset it; `plimsoll config show --all` lists all options".to_owned(),
    }))
}

/// Removed options, and their replacements.
const GONE: [(&str, &str); 1] = [("tf32", "precision")];

/// Advice for a removed option: its present form.
fn instead(option: &str, written: impl Fn(&str, &str) -> String) -> Option<String> {
    let (gone, now) = GONE.into_iter().find(|(gone, _)| *gone == option)?;
    Some(format!("say {} for it", written(now, gone)))
}

/// Proposes the name nearest to the given one, as a question.
pub fn nearest(asked: &str, names: &[&str]) -> Option<String> {
    let name = plimsoll_networks::nearest(asked, names.iter().copied()).into_iter().next()?;
    Some(format!("did you mean `{name}`?"))
}

/// Proposes the nearest name, or says where all names are listed.
fn did_you_mean(asked: &str, names: &[&str]) -> String {
    instead(asked, |now, value| format!("`{now} = \"{value}\"`"))
        .or_else(|| nearest(asked, names))
        .unwrap_or_else(|| "`plimsoll config show --all` lists all that there are".to_owned())
}

/// Converts a value of the file to the words of an option.
fn values(path: &Path, arg: &Arg, name: &str, value: &toml::Value) -> Result<Vec<String>, Error> {
    let kind = Kind::of(arg);
    let of = |value| kind.on_line(value);
    let words = match value {
        toml::Value::Array(values) if Kind::several(arg) => values.iter().map(of).collect(),
        value => of(value).map(|word| vec![word]),
    };
    words.ok_or_else(|| {
        let several = if Kind::several(arg) { ", or a list of such" } else { "" };
        let wanted = kind.wanted();
        Error::usage(format_args!("{}: `{name}` is {wanted}{several}, not {value}", path.display()))
    })
}

/// The program with the given values as its options' defaults. Options that all commands have take the values given for
/// command `verb`.
fn with_defaults(program: Command, given: &[Given], verb: &str, line: &[OsString], lenient: bool) -> Command {
    let set = |arg: Arg, command: &str| {
        let arg = if lenient { arg.required(false).required_unless_present(Resettable::Reset) } else { arg };
        let arg = can_be_below_zero(can_be_off(arg, line), line);
        let ours = |one: &&Given| one.command == command && arg.get_id() == one.option.as_str();
        match given.iter().find(ours) {
            Some(one) => arg.required(false).default_values(one.values.clone()),
            None => arg,
        }
    };
    let program = program.mut_args(|arg| set(arg, verb));
    program.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let is_set =
            |id: &clap::Id| given.iter().any(|one| one.command == name && *id == one.option.as_str());
        let groups = command.get_groups().filter(|group| group.is_required_set());
        let met: Vec<clap::Id> = groups
            .filter(|group| lenient || group.get_args().any(is_set))
            .map(|group| group.get_id().clone())
            .collect();
        let command = command.mut_args(|arg| set(arg, &name));
        met.into_iter().fold(command, |command, id| command.mut_group(id, |group| group.required(false)))
    })
}

/// Lets a flag take a value if the line turns it off with `--flag=false`, over the file or the environment.
fn can_be_off(arg: Arg, line: &[OsString]) -> Arg {
    let prefix = format!("--{}=", arg.get_long().unwrap_or_default());
    let is_given = || line.iter().any(|word| word.to_string_lossy().starts_with(&prefix));
    if !matches!(arg.get_action(), ArgAction::SetTrue) || !is_given() {
        return arg;
    }
    let arg = arg.action(ArgAction::Set).num_args(0..=1).require_equals(true);
    arg.value_parser(clap::value_parser!(bool)).default_missing_value("true").default_value("false")
}

/// Lets an option for a quantity take a following negative number as its value, so that the error describes the
/// expected value instead of an unknown option.
fn can_be_below_zero(arg: Arg, line: &[OsString]) -> Arg {
    let flag = format!("--{}", arg.get_long().unwrap_or_default());
    let is_below_zero = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    let is_given = || line.windows(2).any(|two| *two[0] == *flag && is_below_zero(&two[1]));
    let is_quantity = matches!(Kind::of(&arg), Kind::Whole | Kind::Number | Kind::Measure | Kind::Rate);
    if is_quantity && arg.get_action().takes_values() && is_given() {
        arg.allow_hyphen_values(true)
    } else {
        arg
    }
}

/// Adds the source to the parser's error about a value that was not typed.
fn attribute(error: clap::Error, given: &[Given], line: &[OsString]) -> Stop {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (option, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    let gone = option.filter(|_| error.kind() == Fault::UnknownArgument);
    let gone = gone.and_then(|option| Some((option, option.strip_prefix("--")?)));
    if let Some((option, name)) = gone
        && let Some(help) = instead(name, |now, value| format!("--{now} {value}"))
    {
        return Error::usage(format_args!("there is no {option} any more")).help(help).into();
    }
    let (Some(option), Some(value)) = (option, value) else { return error.into() };
    let is_no_number = is_no_number(&error);
    let name = option.trim_start_matches('-').split([' ', '=', '[']).next().unwrap_or_default();
    let blamed = |one: &&Given| one.name == name && one.values.iter().any(|word| word == value);
    let is_run = |one: &&Given| line.iter().any(|word| *word == *one.command);
    let Some(one) = given.iter().filter(blamed).max_by_key(is_run) else {
        return if is_no_number { in_words(&error).into() } else { error.into() };
    };
    let ours = in_words(&error);
    let message = match &one.source {
        Source::Environment(variable) => format!("{variable}: {}", ours.message),
        place => format!("{place}: `{name}`: {}", ours.message),
    };
    Error { message, ..ours }.into()
}

/// Returns `true` if the error is about a value that is not a whole number.
fn is_no_number(error: &clap::Error) -> bool {
    let of_value = std::error::Error::source(error).and_then(|source| source.downcast_ref::<ParseIntError>());
    of_value.is_some_and(|of_value| *of_value.kind() == IntErrorKind::InvalidDigit)
}

/// Converts the parser's error: its first paragraph, and its proposals.
pub fn in_words(error: &clap::Error) -> Error {
    let said = error.to_string();
    let mut parts = said.trim().split("\n\n");
    let first = parts.next().unwrap_or_default().trim_start_matches("error: ");
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let tips: Vec<String> =
        parts.filter_map(|part| part.trim().strip_prefix("tip: ").map(one_line)).collect();
    let mut message = one_line(first);
    if let Some(of_value) = std::error::Error::source(error).filter(|_| is_no_number(error)) {
        message = message.replace(&of_value.to_string(), "that is no whole number from 0");
    }
    let failure = Error::usage(message);
    if tips.is_empty() { failure } else { failure.help(tips.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_says_which_command_has_an_option_that_this_one_lacks() {
        let check = |verb: &str, message: &str, help: &str, expected: Option<&str>| {
            let failure = Error::usage(message).help(help);
            assert_eq!(of_another_command(verb, &failure).as_deref(), expected, "{verb}: {message}; {help}");
        };
        let fits = "--budget 512MiB fits now";
        check("run", "5 GiB are needed", fits, Some("`plimsoll run` has no --budget, `plimsoll tune` has"));
        check(
            "run",
            "no plan fits: raise --budget",
            "-",
            Some("`plimsoll run` has no --budget, `plimsoll tune` has"),
        );
        check("tune", "5 GiB are needed", fits, None);
        check("run", "no batch fits", "tune again with --host-memory 8GiB", None);
        check("run", "a GPU is slow", "`plimsoll profile --fresh` measures anew", None);
        check(
            "tune",
            "it does not fit",
            "raise --timeout",
            Some("`plimsoll tune` has no --timeout, `plimsoll run` has"),
        );
        check("run", "what no command has", "--no-such-option of a driver", None);
        check("run", "what every command has", "say --quiet or --config-file FILE", None);
    }
}
