//! The README's commands work, and print what it shows.
//!
//! Every `cargo` and `plimsoll` command in a `sh` block must be understood: a command line of ours is run with
//! `--help` added, so that an option that was renamed is found, and targets that cargo is to run must exist. A block
//! under `<!-- runs -->` is run for what it does, with all such blocks in one temporary folder that links to what
//! lies in the root. What stands in a block under `<!-- prints -->` after it must be its standard output, as to the
//! first two words of each line and numbers left aside; a line `...` stands for any lines. Nothing else is
//! compared: times and losses are those of the machine on which the README was written. A plan of an iteration that takes no
//! time shows nothing, and is found, too.

use crate::Outcome;
use crate::markdown::{self, Block};
use crate::tools;
use crate::tree::{Finding, Tree};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const README: &str = "README.md";

/// How the README runs our command line from a clone.
const FROM_A_CLONE: &str = "cargo run --release -- ";

/// Flags of cargo that name a target, and the folder in which such targets lie.
const TARGETS: [(&str, &str); 3] = [("--example", "examples"), ("--bench", "benches"), ("--test", "tests")];

/// All that no longer works.
pub fn check(tree: &Tree) -> Outcome {
    let Some(text) = tree.text(README) else {
        return Ok(vec![Finding::new(README, 1, "it is missing: write it")]);
    };
    let (_, blocks) = markdown::parse(text);
    let mut found = targets(tree, &blocks);
    if !blocks.iter().any(|block| block.mark == Some("runs")) {
        let what = "no block is run: put `<!-- runs -->` before one that shows the way in";
        found.push(Finding::new(README, 1, what));
    }
    let workshop = Workshop::open(tree)?;
    let mut printed: Option<String> = None;
    for block in &blocks {
        match block.mark {
            Some("runs") => printed = Some(run_all(&workshop, block, &mut found)?),
            Some("prints") => match printed.take() {
                Some(text) => found.extend(compare(block, &text)),
                None => found.push(Finding::new(
                    README,
                    block.line,
                    "nothing runs before it: mark what prints this",
                )),
            },
            _ => understand_all(&workshop, block, &mut found)?,
        }
    }
    Ok(found)
}

/// Runs a block's commands; gives what they printed.
fn run_all(workshop: &Workshop, block: &Block, found: &mut Vec<Finding>) -> Result<String, String> {
    let mut printed = String::new();
    for (line, command) in commands(block) {
        let Some(ours) = as_ours(&command) else {
            let what =
                format!("`{command}` cannot be run by a check; only `{FROM_A_CLONE}` and `plimsoll` can");
            found.push(Finding::new(README, line, what));
            continue;
        };
        let output = workshop.sh(&ours)?;
        if !output.status.success() {
            let what = format!("`{command}` fails, {}", tools::last_words(&output));
            found.push(Finding::new(README, line, what.replace('\n', " | ")));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        if takes_no_time(&text) {
            let what =
                format!("`{command}` shows an iteration that takes no time: plan a trace that has times");
            found.push(Finding::new(README, line, what));
        }
        printed.push_str(&text);
    }
    Ok(printed)
}

/// Whether a command's facts say that an iteration takes no time, as that of a trace without seconds does.
fn takes_no_time(printed: &str) -> bool {
    printed.lines().any(|line| line.split_whitespace().eq(["makespan", "0", "s"]))
}

/// Asks for the help of every command of ours in a shell block.
fn understand_all(workshop: &Workshop, block: &Block, found: &mut Vec<Finding>) -> Result<(), String> {
    for (line, command) in commands(block) {
        let Some(ours) = as_ours(&command).filter(|_| block.language == "sh") else { continue };
        let output = workshop.sh(&format!("{} --help", simple_part(&ours)))?;
        if !output.status.success() {
            let what = format!("`{command}` is not understood, {}", tools::last_words(&output));
            found.push(Finding::new(README, line, what.replace('\n', " | ")));
        }
    }
    Ok(())
}

/// Targets that cargo is asked to run and that are not there.
fn targets(tree: &Tree, blocks: &[Block]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (line, command) in blocks.iter().filter(|block| block.language == "sh").flat_map(commands) {
        let words: Vec<&str> = command.split_whitespace().collect();
        for pair in words.windows(2).take_while(|_| words[0] == "cargo") {
            let [flag, name] = pair else { continue };
            let Some((_, folder)) = TARGETS.iter().find(|(known, _)| known == flag) else { continue };
            let there =
                tree.has_tail(&format!("{folder}/{name}.rs")) || tree.has_tail(&format!("{folder}/{name}"));
            if !there {
                let what = format!("`{command}`: there is no {folder}/{name}.rs");
                found.push(Finding::new(README, line, what));
            }
        }
    }
    found
}

/// A block's commands with their lines; a backslash at a line's end continues it, a prompt is dropped.
fn commands(block: &Block) -> Vec<(usize, String)> {
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
fn as_ours(command: &str) -> Option<String> {
    let from_a_clone = command.strip_prefix(FROM_A_CLONE).map(|arguments| format!("plimsoll {arguments}"));
    from_a_clone.or_else(|| command.starts_with("plimsoll ").then(|| command.to_owned()))
}

/// A shell line up to its first operator or comment.
fn simple_part(command: &str) -> String {
    let is_operator = |word: &str| ["|", ">", ">>", "2>", "&&", "||", ";", "&", "<"].contains(&word);
    let words = command.split_whitespace().take_while(|word| !is_operator(word) && !word.starts_with('#'));
    words.collect::<Vec<_>>().join(" ")
}

/// The first line of a shown output that was not printed.
fn compare(block: &Block, printed: &str) -> Option<Finding> {
    let mut rest = printed.lines().map(opening).filter(|opening| !opening.is_empty());
    let mut skips = false;
    for (index, line) in block.lines.iter().enumerate() {
        let expected = opening(line);
        if matches!(line.trim(), "..." | "…") {
            skips = true;
        } else if !expected.is_empty() {
            let next = if skips { rest.find(|printed| *printed == expected) } else { rest.next() };
            if next.as_ref() != Some(&expected) {
                let instead = next.map_or("nothing more".to_owned(), |next| format!("`{next}`"));
                let what =
                    format!("the command prints {instead} where `{expected}` is shown: show what it prints");
                return Some(Finding::new(README, block.line + 1 + index, what));
            }
            skips = false;
        }
    }
    let left = rest.next().filter(|_| !skips)?;
    let what = format!("the command goes on with `{left}`: show it, or end with `...`");
    Some(Finding::new(README, block.line + 1 + block.lines.len(), what))
}

/// A line's first two words, every number in them written `#`; rules and borders are no words.
fn opening(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
    let without_numbers = |word: &str| {
        let mut shape = String::new();
        for character in word.chars() {
            match character {
                '0'..='9' if shape.ends_with('#') => {}
                '0'..='9' => shape.push('#'),
                // A separator within a number.
                '.' | ',' if shape.ends_with('#') => {}
                other => shape.push(other),
            }
        }
        shape
    };
    words.take(2).map(without_numbers).collect::<Vec<_>>().join(" ")
}

/// A temporary folder in which commands run; it is gone when this is dropped.
struct Workshop {
    folder: PathBuf,
    path: std::ffi::OsString,
}

impl Workshop {
    /// Builds the command line and lays out a folder that looks like a clone's root.
    fn open(tree: &Tree) -> Result<Workshop, String> {
        let binaries = tools::build_command_line()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(binaries).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(paths).map_err(|error| error.to_string())?;
        let folder = std::env::temp_dir().join(format!("plimsoll-readme-{}", std::process::id()));
        let workshop = Workshop { folder, path };
        let laid_out = workshop.lay_out(tree);
        laid_out.map_err(|error| format!("cannot prepare {}: {error}", workshop.folder.display()))?;
        Ok(workshop)
    }

    fn lay_out(&self, tree: &Tree) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut tops: Vec<&str> = tree.paths().filter_map(|path| path.split('/').next()).collect();
        tops.dedup();
        tops.iter().try_for_each(|top| link(&tools::root().join(top), &self.folder.join(top)))
    }

    fn sh(&self, line: &str) -> Result<Output, String> {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", line]).current_dir(&self.folder).env("PATH", &self.path);
        bash.output().map_err(|error| format!("cannot start bash: {error}"))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("xtask readme: {} stays behind: {error}", self.folder.display());
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

    fn block(text: &str) -> Block<'_> {
        Block { line: 1, language: "sh", mark: None, lines: text.lines().collect() }
    }

    #[test]
    fn commands_are_taken_out_of_a_block() {
        let text = "# first\n$ plimsoll plan \\\n  a.json\n\ncargo run --release -- auto";
        let expected =
            [(3, "plimsoll plan a.json".to_owned()), (6, "cargo run --release -- auto".to_owned())];
        assert_eq!(commands(&block(text)), expected);
        assert_eq!(as_ours("cargo run --release -- auto -q").as_deref(), Some("plimsoll auto -q"));
        assert_eq!(as_ours("cargo test --release"), None);
        assert_eq!(simple_part("plimsoll trace vgg16 > a.json"), "plimsoll trace vgg16");
    }

    #[test]
    fn targets_must_be_there() {
        let tree = Tree::of(&[("examples/1_first.rs", ""), ("tuner/benches/plan.rs", "")]);
        let say = |text| targets(&tree, &[block(text)]).iter().map(Finding::to_string).collect::<Vec<_>>();
        assert!(say("cargo run --release --example 1_first\ncargo bench --bench plan").is_empty());
        assert_eq!(
            say("cargo bench --bench gone"),
            ["README.md:2: `cargo bench --bench gone`: there is no benches/gone.rs"]
        );
    }

    #[track_caller]
    fn shown(text: &str, printed: &str, expected: Option<&str>) {
        let found = compare(&block(text), printed).map(|finding| finding.to_string());
        let fits = found.is_some() == expected.is_some()
            && found.iter().zip(expected).all(|(found, expected)| found.contains(expected));
        assert!(fits, "{text:?} beside {printed:?} gives {found:?}, not {expected:?}");
    }

    #[test]
    fn shown_output_is_what_is_printed() {
        let printed =
            "network resnet18\n\n+-----+----+\n| batch | 1,024 |\n| time | 3.25ms | now\nloss 0.1\n";
        shown("network resnet50\n| batch | 16 |\n| time | 12ms | then\nloss 2", printed, None);
        shown("network resnet50\n...\nloss 2", printed, None);
        shown("network resnet50\n...", printed, None);
        shown(
            "network resnet50\n| size | 16 |\n...",
            printed,
            Some("README.md:3: the command prints `batch #` where"),
        );
        shown(
            "network resnet50\n...\nloss 2\nend 1",
            printed,
            Some("README.md:5: the command prints nothing more"),
        );
        shown("network resnet50", printed, Some("README.md:3: the command goes on with `batch #`"));
        shown("...\ngain 1", printed, Some("prints nothing more where `gain #` is shown"));
    }

    #[test]
    fn numbers_are_left_aside() {
        assert_eq!(opening("│ peak │ 22.5MiB of 1,024 │"), "peak #MiB");
        assert_eq!(opening("├──┼──┤"), "");
        assert_eq!(opening("resnet18: planned"), "resnet#: planned");
    }
}
