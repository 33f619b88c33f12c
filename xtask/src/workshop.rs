//! Where commands of documents run: the built command line, and temporary folders that look like a clone's root.
//!
//! Also what a document's shell block is made of: its commands, and which of them are ours. Each document has a room of its
//! own, so that no page relies on a file that another one made.

use crate::markdown::Block;
use crate::tools;
use crate::tree::Tree;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How documents run our command line from a clone.
pub const FROM_A_CLONE: &str = "cargo run --release -- ";

/// A block's commands with their lines; a backslash at a line's end continues it, a prompt is dropped.
pub fn commands(block: &Block) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let mut continued = false;
    for (index, line) in block.lines.iter().enumerate() {
        let part = line.trim().trim_start_matches("$ ");
        let (part, continues) = part.strip_suffix('\\').map_or((part, false), |part| (part.trim_end(), true));
        match commands.last_mut() {
            Some((_, command)) if continued => *command = format!("{command} {part}"),
            _ if part.is_empty() || part.starts_with('#') => {}
            _ => commands.push((block.line + 1 + index, part.to_owned())),
        }
        continued = continues;
    }
    commands
}

/// A command of ours as it is called when it is installed.
pub fn as_ours(command: &str) -> Option<String> {
    let from_a_clone = command.strip_prefix(FROM_A_CLONE).map(|arguments| format!("plimsoll {arguments}"));
    from_a_clone.or_else(|| command.starts_with("plimsoll ").then(|| command.to_owned()))
}

/// The call of our program that a command comes to, whoever starts it: `mpirun ... plimsoll ...`.
pub fn within(command: &str) -> Option<String> {
    let started = command.split_once(" plimsoll ").map(|(_, arguments)| format!("plimsoll {arguments}"));
    as_ours(command).or(started)
}

/// A shell line up to its first operator or comment, or to the `:` behind which a launcher's next program begins.
fn simple_part(command: &str) -> String {
    let is_operator = |word: &str| ["|", ">", ">>", "2>", "&&", "||", ";", "&", "<", ":"].contains(&word);
    let words = command.split_whitespace().take_while(|word| !is_operator(word) && !word.starts_with('#'));
    words.collect::<Vec<_>>().join(" ")
}

/// The command that asks for help with the options of this one: each of them is parsed before help is shown, so that an option
/// that is not there, or a value that it does not take, is an error. What follows `--` is another program's. `config` takes the
/// options of other commands, and no help; it only shows what is set.
pub fn asks_for_help(command: &str) -> String {
    let command = simple_part(command);
    if command.starts_with("plimsoll config ") {
        return command;
    }
    format!("{} --help", command.split_once(" -- ").map_or(&*command, |(ours, _)| ours))
}

/// The built command line and a temporary folder; the folder is gone when this is dropped.
pub struct Workshop {
    folder: PathBuf,
    path: std::ffi::OsString,
}

impl Workshop {
    /// Builds the command line. `name` tells its folder from those of others.
    pub fn open(name: &str) -> Result<Workshop, String> {
        let binaries = tools::build_command_line()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(binaries).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(paths).map_err(|error| error.to_string())?;
        let folder = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        Ok(Workshop { folder, path })
    }

    /// The room of a document, with links to all that lies in the root.
    pub fn room(&self, tree: &Tree, document: &str) -> Result<PathBuf, String> {
        let room = self.folder.join(document.replace('/', "-"));
        let lay_out = || -> std::io::Result<()> {
            std::fs::create_dir_all(&room)?;
            let mut tops: Vec<&str> = tree.paths().filter_map(|path| path.split('/').next()).collect();
            tops.dedup();
            tops.iter().try_for_each(|top| link(&tools::root().join(top), &room.join(top)))
        };
        lay_out().map_err(|error| format!("cannot prepare {}: {error}", room.display()))?;
        Ok(room)
    }

    /// Runs a shell line in a room.
    pub fn sh(&self, room: &Path, line: &str) -> Result<Output, String> {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", line]).current_dir(room).env("PATH", &self.path);
        bash.output().map_err(|error| format!("cannot start bash: {error}"))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("xtask: {} stays behind: {error}", self.folder.display());
        }
    }
}

/// A link, so that a command finds the house's files under their names.
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(to, at);
    #[cfg(windows)]
    return if to.is_dir() {
        std::os::windows::fs::symlink_dir(to, at)
    } else {
        std::os::windows::fs::symlink_file(to, at)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_out_of_a_block() {
        let text = "# first\n$ plimsoll plan \\\n  a.json\n\ncargo run --release -- auto";
        let block = Block { line: 1, language: "sh", mark: None, lines: text.lines().collect() };
        let expected =
            [(3, "plimsoll plan a.json".to_owned()), (6, "cargo run --release -- auto".to_owned())];
        assert_eq!(commands(&block), expected);
    }

    #[test]
    fn our_commands_are_told_from_others() {
        assert_eq!(as_ours("cargo run --release -- auto -q").as_deref(), Some("plimsoll auto -q"));
        assert_eq!(as_ours("cargo test --release"), None);
        assert_eq!(as_ours("mpirun -n 2 plimsoll run a"), None);
        assert_eq!(within("mpirun -n 2 plimsoll run a").as_deref(), Some("plimsoll run a"));
        assert_eq!(within("plimsoll doctor").as_deref(), Some("plimsoll doctor"));
        assert_eq!(within("pip install ./python"), None);
    }

    #[test]
    fn help_is_asked_with_every_option_of_ours() {
        assert_eq!(asks_for_help("plimsoll trace vgg16 > a.json"), "plimsoll trace vgg16 --help");
        assert_eq!(
            asks_for_help("plimsoll auto a.py --budget 60% -- --epochs 3"),
            "plimsoll auto a.py --budget 60% --help"
        );
        assert_eq!(asks_for_help("plimsoll config show tune"), "plimsoll config show tune");
        assert_eq!(asks_for_help("plimsoll doctor # of this machine"), "plimsoll doctor --help");
        assert_eq!(asks_for_help("plimsoll run a : -n 1 plimsoll run b"), "plimsoll run a --help");
    }
}
