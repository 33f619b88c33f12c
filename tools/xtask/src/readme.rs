//! Checks that the commands in the documents run, and that their documented output is correct.
//!
//! | before a block | effect |
//! | --- | --- |
//! | `<!-- runs -->` | its commands run, in a separate directory for the document |
//! | `<!-- prints -->` | must be what the block before it printed, numbers aside; a line `...` stands for any lines |
//! | `<!-- file NAME -->` | is saved as NAME, for commands below it |
//! | `<!-- from FILE -->` | must stand in FILE, line after line: a test of that file is then one of the page |
//!
//! In any other shell block, and in code spans, each call of `plimsoll` is parsed with all of its options: `--help` is added.

use crate::Faults;
use crate::tree::{Tree, root};
use crate::workshop::{Workshop, last_words};
use std::path::PathBuf;

/// Returns all commands that fail, and all outputs that differ.
pub fn check(tree: &Tree) -> Faults {
    let workshop = Workshop::open("readme")?;
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        let (prose, blocks) = parse(text);
        let room = workshop.room(tree, path)?;
        let mut document = Document { path, workshop: &workshop, room, printed: String::new() };
        for block in &blocks {
            found.extend(document.block(block)?);
        }
        for (line, prose) in prose {
            for span in prose.split('`').skip(1).step_by(2).filter(|span| is_call(span)) {
                found.extend(document.understands(line, span)?);
            }
        }
    }
    Ok(found)
}

/// A fenced block.
struct Block<'a> {
    /// Line of its opening fence, from 1.
    line: usize,
    language: &'a str,
    /// Words of the comment before it: `runs` of `<!-- runs -->`.
    mark: &'a str,
    lines: Vec<&'a str>,
}

/// Returns a document's lines of prose with their numbers, and its blocks.
fn parse(text: &str) -> (Vec<(usize, &str)>, Vec<Block<'_>>) {
    let (mut prose, mut blocks) = (Vec::new(), Vec::<Block>::new());
    let (mut inside, mut mark) = (false, "");
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = !inside;
            if inside {
                blocks.push(Block { line: number, language: language.trim(), mark, lines: Vec::new() });
            }
            mark = "";
        } else if inside {
            blocks.last_mut().expect("a block is open").lines.push(line);
        } else {
            prose.push((number, line));
            let comment = line.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
            if !line.trim().is_empty() {
                mark = comment.unwrap_or_default().trim();
            }
        }
    }
    (prose, blocks)
}

/// Returns a block's commands with their lines; a backslash at the end of a line continues it, a prompt is dropped.
fn commands(block: &Block) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let mut continued = false;
    for (number, line) in (block.line + 1..).zip(&block.lines) {
        let part = line.trim().trim_start_matches("$ ");
        let (part, continues) = part.strip_suffix('\\').map_or((part, false), |part| (part.trim_end(), true));
        match commands.last_mut() {
            Some((_, command)) if continued => *command = format!("{command} {part}"),
            _ if part.is_empty() || part.starts_with('#') => {}
            _ => commands.push((number, part.to_owned())),
        }
        continued = continues;
    }
    commands
}

/// Converts a call of Plimsoll, from a clone or not, to a call of the installed program.
fn as_ours(command: &str) -> Option<String> {
    let arguments = command.strip_prefix("cargo run --release -- ").or(command.strip_prefix("plimsoll "));
    arguments.map(|arguments| format!("plimsoll {arguments}"))
}

/// Returns `true` if a code span is a call of Plimsoll; a span without a verb, or with a placeholder for the reader, is none.
fn is_call(span: &str) -> bool {
    let verb = as_ours(span).and_then(|ours| ours.split_whitespace().nth(1).map(str::to_owned));
    verb.is_some_and(|verb| verb.starts_with(|c: char| c.is_ascii_lowercase()))
        && !span.contains(['<', '[', '…'])
}

/// Returns the command that shows help for the options of this one, up to its first operator, comment, or `:` of a launcher.
/// Each option is parsed before help is shown. Options after `--` belong to a script. `config` has no help, and only shows
/// settings.
fn asks_for_help(command: &str) -> String {
    let operators = ["|", ">", ">>", "2>", "&&", "||", ";", "&", "<", ":", "--"];
    let words = command.split_whitespace();
    let words: Vec<&str> =
        words.take_while(|word| !operators.contains(word) && !word.starts_with('#')).collect();
    let help = if words.get(1) == Some(&"config") { "" } else { " --help" };
    words.join(" ") + help
}

/// A document whose commands are run.
struct Document<'a> {
    path: &'a str,
    workshop: &'a Workshop,
    /// Directory in which its commands run.
    room: PathBuf,
    /// Output of the last block that ran.
    printed: String,
}

impl Document<'_> {
    fn fault(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {}", self.path, what.replace('\n', " | "))
    }

    fn block(&mut self, block: &Block) -> Faults {
        let differs = |found: Option<(usize, String)>| -> Vec<String> {
            found.into_iter().map(|(at, what)| self.fault(block.line + 1 + at, &what)).collect()
        };
        match block.mark.split_once(' ').unwrap_or((block.mark, "")) {
            ("runs", "") => self.run_all(block),
            ("prints", "") => Ok(differs(shows(&block.lines, &self.printed))),
            ("from", file) => {
                let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
                Ok(differs(stands_in(&block.lines, file, &text)))
            }
            ("file", name) => {
                let written = std::fs::write(self.room.join(name), block.lines.join("\n") + "\n");
                written.map(|()| Vec::new()).map_err(|error| format!("cannot write {name}: {error}"))
            }
            _ if block.language == "sh" => {
                let mut found = Vec::new();
                for (line, command) in commands(block) {
                    found.extend(self.understands(line, &command)?);
                }
                Ok(found)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Runs the commands of a block, and keeps their output.
    fn run_all(&mut self, block: &Block) -> Faults {
        let (mut found, mut printed) = (Vec::new(), String::new());
        for (line, command) in commands(block) {
            let Some(ours) = as_ours(&command) else {
                found.push(self.fault(line, &format!("`{command}` is no command of ours: it cannot be run")));
                continue;
            };
            let output = self.workshop.sh(&self.room, &ours)?;
            if !output.status.success() {
                found.push(self.fault(line, &format!("`{command}` fails, {}", last_words(&output))));
            }
            printed.push_str(&String::from_utf8_lossy(&output.stdout));
        }
        self.printed = printed;
        Ok(found)
    }

    /// Runs a call of Plimsoll with `--help`, also if a launcher starts it: `mpirun ... plimsoll ...`.
    fn understands(&self, line: usize, command: &str) -> Faults {
        let started = command.split_once(" plimsoll ").map(|(_, arguments)| format!("plimsoll {arguments}"));
        let Some(ours) = as_ours(command).or(started) else { return Ok(Vec::new()) };
        let output = self.workshop.sh(&self.room, &asks_for_help(&ours))?;
        let what = format!("`{command}` is not understood, {}", last_words(&output));
        Ok(if output.status.success() { Vec::new() } else { vec![self.fault(line, &what)] })
    }
}

/// Returns the first line of a block that is missing in a file after the previous line, with its position. The file may indent
/// all of them further.
fn stands_in(block: &[&str], file: &str, text: &str) -> Option<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let first = block.first().map_or(0, |line| indent(line));
    let equal = |at: usize| {
        let further = " ".repeat(indent(lines[at]).saturating_sub(first));
        let same =
            |(ours, theirs): &(&&str, &&str)| theirs.trim_end() == format!("{further}{ours}").trim_end();
        block.iter().zip(&lines[at..]).take_while(same).count()
    };
    let best = (0..lines.len()).map(equal).max().unwrap_or(0);
    block.get(best).map(|line| (best, format!("`{line}` does not follow so in {file}")))
}

/// Returns the first line of a block that was not printed, with its position.
fn shows(block: &[&str], printed: &str) -> Option<(usize, String)> {
    let mut rest = printed.lines().map(opening).filter(|opening| !opening.is_empty());
    let mut skips = false;
    for (at, line) in block.iter().enumerate() {
        let expected = opening(line);
        if matches!(line.trim(), "..." | "…") {
            skips = true;
        } else if !expected.is_empty() {
            let next = if skips { rest.find(|printed| *printed == expected) } else { rest.next() };
            if next.as_ref() != Some(&expected) {
                return Some((at, format!("the command prints {next:?} where `{expected}` is shown")));
            }
            skips = false;
        }
    }
    let left = rest.next().filter(|_| !skips)?;
    Some((block.len(), format!("the command goes on with `{left}`: show it, or end with `...`")))
}

/// Returns the first two words of a line, with each number replaced by `#`; rules and borders are no words.
fn opening(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
    let without_numbers = |word: &str| {
        let mut shape = String::new();
        for character in word.chars() {
            match character {
                '0'..='9' | '.' | ',' if shape.ends_with('#') => {}
                '0'..='9' => shape.push('#'),
                other => shape.push(other),
            }
        }
        shape
    };
    words.take(2).map(without_numbers).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_carry_the_mark_right_before_them() {
        let text =
            "# A\n<!-- runs -->\n\n```sh\n# first\n$ plimsoll plan \\\n  a.json\n```\n```text\nb\n```\nc\n";
        let (prose, blocks) = parse(text);
        assert_eq!(prose, [(1, "# A"), (2, "<!-- runs -->"), (3, ""), (12, "c")]);
        let shapes: Vec<_> = blocks.iter().map(|block| (block.line, block.language, block.mark)).collect();
        assert_eq!(shapes, [(4, "sh", "runs"), (9, "text", "")]);
        assert_eq!(commands(&blocks[0]), [(6, "plimsoll plan a.json".to_owned())]);
    }

    #[test]
    fn calls_are_told_from_others_and_asked_for_help() {
        assert!(is_call("plimsoll plan a.json --sweep 8") && is_call("cargo run --release -- auto"));
        for other in ["plimsoll", "plimsoll COMMAND --help", "plimsoll <command> --help", "plan a"] {
            assert!(!is_call(other), "{other}");
        }
        let command = "plimsoll auto a.py --budget 60% -- --epochs 3";
        assert_eq!(asks_for_help(command), "plimsoll auto a.py --budget 60% --help");
        assert_eq!(asks_for_help("plimsoll trace vgg16 > a.json"), "plimsoll trace vgg16 --help");
        assert_eq!(asks_for_help("plimsoll config show tune"), "plimsoll config show tune");
    }

    #[test]
    fn differences_are_named_by_their_line() {
        let lines = |block: &'static str| block.lines().collect::<Vec<_>>();
        let file = |block, text| stands_in(&lines(block), "a.py", text).map(|fault| fault.0);
        assert_eq!(file("b\n  c\n\nd", "a\n    b\n      c\n\n    d\n"), None);
        assert_eq!(file("b\nd", "a\nb\nc\nd\n"), Some(1));
        assert_eq!(file("b\nc", "    b\n      c\n"), Some(1));
        let printed = "network resnet18\n\n+---+\n| batch | 1,024 |\n| time | 3.25ms | now\nloss 0.1\n";
        let output = |block| shows(&lines(block), printed).map(|fault| fault.0);
        assert_eq!(output("network resnet50\n| batch | 16 |\n| time | 12ms | then\nloss 2"), None);
        assert_eq!(output("network resnet50\n...\nloss 2"), None);
        assert_eq!(output("network resnet50\n| size | 16 |\n..."), Some(1));
        assert_eq!(output("network resnet50"), Some(1));
        assert_eq!(output("...\ngain 1"), Some(1));
    }
}
