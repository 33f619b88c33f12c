//! The commands of the README and of the book work, and print what is shown below them.
//!
//! Every `cargo` and `plimsoll` command in a `sh` block must be understood: a command line of ours is run with
//! `--help` added, so that an option that was renamed is found, and targets and files that a command names must exist; so is a
//! call of `plimsoll` in a code span. A block
//! under `<!-- runs -->` is run for what it does, with all such blocks of a document in one temporary folder that links to what
//! lies in the root. What stands in a block under `<!-- prints -->` after it must be its standard output, as to the
//! first two words of each line and numbers left aside; a line `...` stands for any lines. Nothing else is
//! compared: times and losses are those of the machine on which the document was written. A plan of an iteration that takes
//! no time shows nothing, and is found, too.
//!
//! What stands under `<!-- file NAME -->` is saved under that name, for commands below it. Lines under `<!-- from FILE -->`
//! must stand in that file, one after the other: a test of that file is then one of the page. A block under
//! `<!-- makes FILE -->` is run where the book is built ([`crate::book`]).

use crate::Outcome;
use crate::book;
use crate::markdown::{self, Block};
use crate::tools;
use crate::tree::{Finding, Tree};
use crate::workshop::{FROM_A_CLONE, Workshop, as_ours, asks_for_help, commands, within};
use std::path::PathBuf;

const README: &str = "README.md";

/// Tells of the past, with the commands of its time.
const HISTORY: &str = "CHANGELOG.md";

/// Flags of cargo that name a target, and the folder in which such targets lie.
const TARGETS: [(&str, &str); 3] = [("--example", "examples"), ("--bench", "benches"), ("--test", "tests")];

/// All that no longer works.
pub fn check(tree: &Tree) -> Outcome {
    let Some(text) = tree.text(README) else {
        return Ok(vec![Finding::new(README, 1, "it is missing: write it")]);
    };
    let mut found = Vec::new();
    if !markdown::parse(text).1.iter().any(|block| block.mark == Some("runs")) {
        let what = "no block is run: put `<!-- runs -->` before one that shows the way in";
        found.push(Finding::new(README, 1, what));
    }
    let workshop = Workshop::open("readme")?;
    let pages = book::chapters(tree).into_iter().map(|chapter| chapter.path);
    for path in std::iter::once(README.to_owned()).chain(pages.filter(|path| path != HISTORY)) {
        let Some(text) = tree.text(&path) else { continue };
        let (prose, blocks) = markdown::parse(text);
        let document = Document { path: &path, prose, blocks, room: None };
        document.check(tree, &workshop, &mut found)?;
    }
    Ok(found)
}

/// A document whose commands are tried.
struct Document<'a> {
    path: &'a str,
    prose: Vec<(usize, &'a str)>,
    blocks: Vec<Block<'a>>,
    /// The folder in which its commands run, from the first one on.
    room: Option<PathBuf>,
}

impl Document<'_> {
    fn check(mut self, tree: &Tree, workshop: &Workshop, found: &mut Vec<Finding>) -> Result<(), String> {
        found.extend(targets(tree, self.path, &self.blocks));
        let mut printed: Option<String> = None;
        for block in std::mem::take(&mut self.blocks) {
            match block.mark.map(|mark| mark.split_once(' ').unwrap_or((mark, ""))) {
                Some(("runs", "")) => printed = Some(self.run_all(tree, workshop, &block, found)?),
                Some(("prints", "")) => match printed.take() {
                    Some(text) => found.extend(compare(self.path, &block, &text)),
                    None => found.push(Finding::new(
                        self.path,
                        block.line,
                        "nothing runs before it: mark what prints this",
                    )),
                },
                Some(("file", name)) => {
                    let at = self.room(tree, workshop)?.join(name);
                    let text = format!("{}\n", block.lines.join("\n"));
                    std::fs::write(&at, text)
                        .map_err(|error| format!("cannot write {}: {error}", at.display()))?;
                }
                Some(("from", file)) => {
                    // The tree holds no text of Python.
                    let text = std::fs::read_to_string(tools::root().join(file)).unwrap_or_default();
                    found.extend(differs(self.path, &block, file, &text));
                }
                _ if block.language == "sh" => {
                    for (line, command) in commands(&block) {
                        self.understand(tree, workshop, line, &command, found)?;
                    }
                }
                _ => {}
            }
        }
        for (line, prose) in std::mem::take(&mut self.prose) {
            for span in markdown::spans(prose).filter(|span| is_call(span)) {
                self.understand(tree, workshop, line, span, found)?;
            }
        }
        Ok(())
    }

    fn room(&mut self, tree: &Tree, workshop: &Workshop) -> Result<PathBuf, String> {
        if self.room.is_none() {
            self.room = Some(workshop.room(tree, self.path)?);
        }
        Ok(self.room.clone().unwrap_or_default())
    }

    /// Runs a block's commands; gives what they printed.
    fn run_all(
        &mut self,
        tree: &Tree,
        workshop: &Workshop,
        block: &Block,
        found: &mut Vec<Finding>,
    ) -> Result<String, String> {
        let room = self.room(tree, workshop)?;
        let mut printed = String::new();
        for (line, command) in commands(block) {
            let mut report = |what: String| found.push(Finding::new(self.path, line, what));
            let Some(ours) = as_ours(&command) else {
                report(format!(
                    "`{command}` cannot be run by a check; only `{FROM_A_CLONE}` and `plimsoll` can"
                ));
                continue;
            };
            let output = workshop.sh(&room, &ours)?;
            if !output.status.success() {
                report(format!("`{command}` fails, {}", tools::last_words(&output)).replace('\n', " | "));
            }
            let text = String::from_utf8_lossy(&output.stdout);
            if takes_no_time(&text) {
                report(format!(
                    "`{command}` shows an iteration that takes no time: plan a trace that has times"
                ));
            }
            printed.push_str(&text);
        }
        Ok(printed)
    }

    /// Asks a command of ours for its help.
    fn understand(
        &mut self,
        tree: &Tree,
        workshop: &Workshop,
        line: usize,
        command: &str,
        found: &mut Vec<Finding>,
    ) -> Result<(), String> {
        let Some(ours) = within(command) else { return Ok(()) };
        let output = workshop.sh(&self.room(tree, workshop)?, &asks_for_help(&ours))?;
        if !output.status.success() {
            let what = format!("`{command}` is not understood, {}", tools::last_words(&output));
            found.push(Finding::new(self.path, line, what.replace('\n', " | ")));
        }
        Ok(())
    }
}

/// Whether a code span is a call of our program; one of any command, or with a hole for the reader, is none.
fn is_call(span: &str) -> bool {
    let verb = as_ours(span).and_then(|ours| ours.split_whitespace().nth(1).map(str::to_owned));
    verb.is_some_and(|verb| verb.starts_with(|c: char| c.is_ascii_lowercase()))
        && !span.contains(['<', '[', '…'])
}

/// The first line of a block that does not stand in the file from which it is, after the line before it. The file may have all
/// of them further to the right.
fn differs(path: &str, block: &Block, file: &str, text: &str) -> Option<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let equal = |at: usize| {
        let further =
            " ".repeat(indent(lines[at]).saturating_sub(indent(block.lines.first().unwrap_or(&""))));
        let stands =
            |(ours, theirs): &(&&str, &&str)| theirs.trim_end() == format!("{further}{ours}").trim_end();
        block.lines.iter().zip(&lines[at..]).take_while(stands).count()
    };
    let best = (0..lines.len()).map(equal).max().unwrap_or(0);
    let line = block.lines.get(best)?;
    Some(Finding::new(path, block.line + 1 + best, format!("`{line}` does not follow so in {file}")))
}

/// Whether a command's facts say that an iteration takes no time, as that of a trace without seconds does.
fn takes_no_time(printed: &str) -> bool {
    printed.lines().any(|line| line.split_whitespace().eq(["makespan", "0", "s"]))
}

/// Targets that cargo is asked to run and files of the house that commands name, where they are not there.
fn targets(tree: &Tree, path: &str, blocks: &[Block]) -> Vec<Finding> {
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
                found.push(Finding::new(path, line, what));
            }
        }
        let under_the_root =
            |word: &&str| word.split_once('/').is_some_and(|(top, _)| !top.is_empty() && tree.has(top));
        let gone = |word: &&str| !word.contains('*') && !tree.has(word);
        for word in words.iter().map(|word| word.trim_start_matches("./")).filter(under_the_root).filter(gone)
        {
            found.push(Finding::new(path, line, format!("`{command}`: there is no {word}")));
        }
    }
    found
}

/// The first line of a shown output that was not printed.
fn compare(path: &str, block: &Block, printed: &str) -> Option<Finding> {
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
                return Some(Finding::new(path, block.line + 1 + index, what));
            }
            skips = false;
        }
    }
    let left = rest.next().filter(|_| !skips)?;
    let what = format!("the command goes on with `{left}`: show it, or end with `...`");
    Some(Finding::new(path, block.line + 1 + block.lines.len(), what))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Block<'_> {
        Block { line: 1, language: "sh", mark: None, lines: text.lines().collect() }
    }

    #[test]
    fn targets_must_be_there() {
        let tree = Tree::of(&[("examples/1_first.rs", ""), ("tuner/benches/plan.rs", "")]);
        let say =
            |text| targets(&tree, README, &[block(text)]).iter().map(Finding::to_string).collect::<Vec<_>>();
        assert!(say("cargo run --release --example 1_first\ncargo bench --bench plan").is_empty());
        assert_eq!(
            say("cargo bench --bench gone"),
            ["README.md:2: `cargo bench --bench gone`: there is no benches/gone.rs"]
        );
        assert!(
            say("python examples/1_first.rs\npip install ./tuner\ncp tuner/dist/*.whl /tmp/a").is_empty()
        );
        assert_eq!(
            say("sh examples/gone.sh"),
            ["README.md:2: `sh examples/gone.sh`: there is no examples/gone.sh"]
        );
    }

    #[test]
    fn lines_of_a_file_are_shown_as_they_stand_in_it() {
        let say = |text, file| differs(README, &block(text), "a.py", file).map(|finding| finding.to_string());
        assert_eq!(say("b\nc", "a\nb\nc\nd\n"), None);
        assert_eq!(
            say("b\nd", "a\nb\nc\nd\n").as_deref(),
            Some("README.md:3: `d` does not follow so in a.py")
        );
        assert_eq!(say("b\n  c\n\nd", "a\n    b\n      c\n\n    d\n"), None);
        assert!(say("b\nc", "    b\n      c\n").is_some());
        assert_eq!(say("b", "").as_deref(), Some("README.md:2: `b` does not follow so in a.py"));
    }

    #[track_caller]
    fn shown(text: &str, printed: &str, expected: Option<&str>) {
        let found = compare(README, &block(text), printed).map(|finding| finding.to_string());
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
    fn calls_are_told_from_other_spans() {
        assert!(is_call("plimsoll plan a.json --sweep 8") && is_call("plimsoll report STUDY"));
        assert!(is_call("cargo run --release -- auto"));
        for other in [
            "plimsoll",
            "plimsoll COMMAND --help",
            "plimsoll <command> --help",
            "plimsoll --version",
            "plan a",
        ] {
            assert!(!is_call(other), "{other}");
        }
    }

    #[test]
    fn numbers_are_left_aside() {
        assert_eq!(opening("│ peak │ 22.5MiB of 1,024 │"), "peak #MiB");
        assert_eq!(opening("├──┼──┤"), "");
        assert_eq!(opening("resnet18: planned"), "resnet#: planned");
    }
}
