//! `completions` and `man`: shell completions and manual pages, generated from the same definitions as `--help`.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::output::{self, Table};
use clap::CommandFactory;
use clap_mangen::Man;
use plimsoll_study::Error;

/// Prints the completions; returns no tables.
pub fn completions(args: &CompletionsArgs) -> Result<Vec<Table>, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    output::write_stdout(&script)?;
    Ok(Vec::new())
}

/// Prints a manual page in roff; returns no tables.
pub fn man(args: &ManArgs) -> Result<Vec<Table>, Error> {
    let mut program = Cli::command();
    // Names pages as `man` expects for subcommands: plimsoll-plan.
    program.build();
    let command = match &args.command {
        None => program,
        Some(name) => {
            let Some(verb) = program.find_subcommand(name) else {
                let all: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
                let message = format!("there is no command `{name}`");
                return Err(Error::usage(message).help(format!("there are {}", all.join(", "))));
            };
            verb.clone()
        }
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page).expect("a page is made in memory");
    output::write_stdout(&page)?;
    Ok(Vec::new())
}
