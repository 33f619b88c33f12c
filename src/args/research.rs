//! The command line as it is parsed: the definitions of `args.rs`, with `--help-all` for every command that has switches for
//! research.
//!
//! Such a switch shows what a part of the planner is worth, or how a paper does it; nobody needs it to train. It is an option
//! like any other, in `plimsoll.toml`, completions and manual pages, too, and is hidden from `--help` alone.

use super::Cli;
use clap::{Arg, ArgAction, Command, CommandFactory};
use std::ffi::OsString;

/// The option that prints help with the switches for research.
pub const HELP_ALL: &str = "help-all";

/// The program's definitions.
pub fn program() -> Command {
    Cli::command().mut_subcommands(|command| {
        if !command.get_arguments().any(Arg::is_hide_long_help_set) {
            return command;
        }
        let more =
            format!("`plimsoll {} --{HELP_ALL}` shows switches for research, too.", command.get_name());
        let after = command.get_after_help().map(|example| format!("{example}\n{more}")).unwrap_or(more);
        let help = Arg::new(HELP_ALL).long(HELP_ALL).action(ArgAction::HelpLong);
        command.after_help(after).arg(help.help("Print help with the switches for research"))
    })
}

/// The definitions for a line that may ask for all help: then nothing is hidden.
pub fn with_research(program: Command, line: &[OsString]) -> Command {
    if !line.iter().any(|word| word.to_str().and_then(|word| word.strip_prefix("--")) == Some(HELP_ALL)) {
        return program;
    }
    program
        .mut_subcommands(|command| command.mut_args(|arg| arg.hide_short_help(false).hide_long_help(false)))
}
