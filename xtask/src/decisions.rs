//! The decisions under `docs/decisions`: each file has its date, its title and its headings, and the index names it.
//!
//! Links in them are for [`crate::links`]; whether a decision still holds is for people.

use crate::markdown;
use crate::tree::{Finding, Tree};

/// Where the decisions lie.
const FOLDER: &str = "docs/decisions/";

/// The list of all, in that folder.
const INDEX: &str = "README.md";

/// The headings of a decision, in their order; only the last one may be missing.
const HEADINGS: [&str; 3] = ["## Decision", "## Why", "## Rejected"];

/// Decisions without form, and those that the index does not name as they are.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let index_path = format!("{FOLDER}{INDEX}");
    let Some(index) = tree.text(&index_path) else {
        return vec![Finding::new(&index_path, 1, "it is missing: list the decisions in it")];
    };
    // An entry may run over the end of a line.
    let index: String = index.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md").filter(|(path, _)| path.starts_with(FOLDER) && *path != index_path)
    {
        let file = &path[FOLDER.len()..];
        let Some(date) = date(file) else {
            found.push(Finding::new(path, 1, "name the file YYYY-MM-DD-words-in-small-letters.md"));
            continue;
        };
        let headings: Vec<&str> = markdown::parse(text)
            .0
            .into_iter()
            .map(|(_, line)| line)
            .filter(|line| line.starts_with('#'))
            .collect();
        let title =
            headings.first().and_then(|line| line.strip_prefix("# ")).filter(|_| text.starts_with("# "));
        let Some(title) = title else {
            found.push(Finding::new(path, 1, "open the file with `# ` and the decision as a sentence"));
            continue;
        };
        if headings[1..] != HEADINGS && headings[1..] != HEADINGS[..2] {
            let what = "its headings are `## Decision`, `## Why` and, where there is one, `## Rejected`";
            found.push(Finding::new(path, 1, what));
        }
        let entry = format!("[{title}]({file}), {date}: ");
        if index.matches(&entry).count() != 1 || index.matches(&format!("({file})")).count() != 1 {
            found.push(Finding::new(path, 1, format!("list it once in {index_path}: `- {entry}why`")));
        }
    }
    found
}

/// The date at the head of a decision's file name; none where the name has not the form of one.
fn date(file: &str) -> Option<&str> {
    let stem = file.strip_suffix(".md")?;
    let (date, slug) = (stem.get(..10)?, stem.get(10..)?.strip_prefix('-')?);
    let digit = |(at, c): (usize, char)| if [4, 7].contains(&at) { c == '-' } else { c.is_ascii_digit() };
    let of_words = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (date.chars().enumerate().all(digit) && !slug.is_empty() && slug.chars().all(of_words)).then_some(date)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    const FILE: &str = "docs/decisions/2026-11-20-a.md";
    const TEXT: &str = "# A is so\n\n## Decision\n\nA.\n\n## Why\n\nB.\n";
    const LISTED: &str = "# All\n\n- [A is\n  so](2026-11-20-a.md), 2026-11-20: b.\n";

    #[track_caller]
    fn expect(file: &str, text: &str, index: &str, parts: &[&str]) {
        let found = said(check, &[("docs/decisions/README.md", index), (file, text)]);
        let fits = found.len() == parts.len() && found.iter().zip(parts).all(|(f, p)| f.contains(p));
        assert!(fits, "{text:?} listed as {index:?} gives {found:?}, not {parts:?}");
    }

    #[test]
    fn a_decision_has_its_headings_and_its_entry() {
        expect(FILE, TEXT, LISTED, &[]);
        expect(FILE, &format!("{TEXT}\n## Rejected\n\nC.\n"), LISTED, &[]);
    }

    #[test]
    fn what_is_missing_is_named() {
        expect(FILE, &TEXT.replace("## Why", "## Reason"), LISTED, &["its headings are"]);
        expect(FILE, &TEXT.replace("# A is so", "A is so"), LISTED, &["open the file with"]);
        expect("docs/decisions/a.md", TEXT, LISTED, &["name the file YYYY-MM-DD"]);
        expect("docs/decisions/2026-11-2x-a.md", TEXT, LISTED, &["name the file YYYY-MM-DD"]);
        for index in
            [String::new(), LISTED.replace("so]", "not so]"), LISTED.replace("20:", "21:"), LISTED.repeat(2)]
        {
            expect(FILE, TEXT, &index, &["2026-11-20-a.md:1: list it once in docs/decisions/README.md"]);
        }
        assert_eq!(said(check, &[(FILE, TEXT)]).len(), 1);
    }
}
