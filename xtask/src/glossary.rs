//! One word an idea: what `docs/glossary.md` says never to say is said in no comment, message or document.
//!
//! The words stand in that document, in the column `never` of its second table, separated by commas. A phrase that runs over
//! the end of a line is not found. Words that have another sense, too, stand in the column beside it, and are for people.

use crate::rust::Source;
use crate::tree::{Finding, Tree};

/// Where the words stand.
const GLOSSARY: &str = "docs/glossary.md";

/// The heads of the table's columns.
const HEADS: [&str; 3] = ["say", "never", "nor, in this sense"];

/// What tells of the past, in the words of its time.
const HISTORY: [&str; 2] = ["CHANGELOG.md", GLOSSARY];

/// Libraries that others wrote.
const OF_OTHERS: &str = ".min.js";

/// A phrase that is not to be used, and the word for it.
struct Rule<'a> {
    say: &'a str,
    never: &'a str,
}

/// All uses of such phrases.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rules = match tree.text(GLOSSARY).map(rules) {
        Some(rules) if !rules.is_empty() => rules,
        _ => {
            let what = format!("it has no table with the heads `{}`", HEADS.join("`, `"));
            return vec![Finding::new(GLOSSARY, 1, what)];
        }
    };
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let source = Source::new(text);
        look(path, &source.comments, &rules, &mut found);
        look(path, &source.literals, &rules, &mut found);
    }
    for end in [".md", ".py", ".pyi", ".js"] {
        let own = |(path, _): &(&str, &str)| !HISTORY.contains(path) && !path.ends_with(OF_OTHERS);
        for (path, text) in tree.ending(end).filter(own) {
            look(path, text, &rules, &mut found);
        }
    }
    found
}

/// The phrases of the glossary's table.
fn rules(glossary: &str) -> Vec<Rule<'_>> {
    let rows = glossary.lines().map(cells).skip_while(|cells| *cells != HEADS).skip(2);
    let rows = rows.take_while(|cells| cells.len() == HEADS.len());
    let mut rules = Vec::new();
    for row in rows {
        let (say, phrases) = (row[0], row[1].split(", ").filter(|never| !never.is_empty()));
        rules.extend(phrases.map(|never| Rule { say, never }));
    }
    rules
}

/// The cells of a table's row.
fn cells(line: &str) -> Vec<&str> {
    let row = line.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
    row.map(|row| row.split('|').map(str::trim).collect()).unwrap_or_default()
}

/// Looks for the phrases line by line.
fn look(path: &str, text: &str, rules: &[Rule<'_>], found: &mut Vec<Finding>) {
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.to_lowercase();
        for Rule { say, never } in rules.iter().filter(|rule| has_phrase(&line, rule.never)) {
            found.push(Finding::new(path, number, format!("`{never}`: say {say}, as {GLOSSARY} does")));
        }
    }
}

/// Whether a line has a phrase as words of its own.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    line.match_indices(phrase)
        .any(|(at, _)| !line[..at].ends_with(in_word) && !line[at + phrase.len()..].starts_with(in_word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    const TABLE: &str = "| say | never | nor, in this sense |\n| --- | --- | --- |\n\
                         | recompute | made anew, redone | repeat |\n| keep | | pin |\n\nEnd.\n";

    #[test]
    fn phrases_of_the_glossary_are_found_in_comments_messages_and_documents() {
        let files = [
            (GLOSSARY, TABLE),
            ("a.rs", "// Made anew.\nfn redone() { print(\"redone\") }\n"),
            ("b.md", "It was\nmade anew.\n"),
            ("c.py", "# a rerun-if line, and unmade anew\nraise Refused(\"redone\")\n"),
            ("d.js", "const words = `made anew`;\n"),
            ("e.min.js", "made anew\n"),
            ("CHANGELOG.md", "It was made anew.\n"),
        ];
        assert_eq!(
            said(check, &files),
            [
                "a.rs:1: `made anew`: say recompute, as docs/glossary.md does",
                "a.rs:2: `redone`: say recompute, as docs/glossary.md does",
                "b.md:2: `made anew`: say recompute, as docs/glossary.md does",
                "c.py:2: `redone`: say recompute, as docs/glossary.md does",
                "d.js:1: `made anew`: say recompute, as docs/glossary.md does",
            ]
        );
    }

    #[test]
    fn a_glossary_without_the_table_is_a_fault() {
        assert_eq!(
            said(check, &[(GLOSSARY, "# Glossary\n")]),
            ["docs/glossary.md:1: it has no table with the heads `say`, `never`, `nor, in this sense`"]
        );
    }
}
