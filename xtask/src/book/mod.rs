//! The documentation as a book: its table of contents is `docs/SUMMARY.md`, its pages are the house's own documents.
//!
//! A page has one source, wherever it lies: [`stage`] copies what the table names into a folder of its own and turns links, so
//! that one and the same link works in the repository and in the book. [`build`] has mdBook make HTML of that folder, and
//! [`pages`] looks for dead links in what was made. Of an entry that is a README, the pages beside it that it links to stand
//! below it in the book: lists of decisions and of tables are kept once, in those READMEs. This file holds that every document
//! below `docs` is in the book, and that every entry is there. It does not judge what a page says.

pub mod build;
mod pages;
mod stage;

use crate::markdown;
use crate::tree::{Finding, Tree};

/// The table of contents.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Where the documents lie all of which are in the book.
const FOLDER: &str = "docs/";

/// A page of the book, in the order of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Chapter {
    /// The line of the table; of a page that a README lists, the line of that README's entry.
    pub line: usize,
    /// How far its entry is indented.
    pub indent: usize,
    /// What the table calls it.
    pub title: String,
    /// Its source, from the root.
    pub path: String,
}

/// All pages; those that a README lists stand below it.
pub fn chapters(tree: &Tree) -> Vec<Chapter> {
    let mut chapters: Vec<Chapter> = Vec::new();
    for (line, text) in tree.text(SUMMARY).map(|text| markdown::parse(text).0).unwrap_or_default() {
        let Some((title, path)) = entry(text) else { continue };
        let indent = text.len() - text.trim_start().len();
        let listed = listed(tree, &path);
        chapters.push(Chapter { line, indent, title, path });
        let below = |path: String| {
            let title = tree.text(&path).and_then(heading).unwrap_or(&path).to_owned();
            Chapter { line, indent: indent + 2, title, path }
        };
        chapters.extend(listed.into_iter().map(below));
    }
    chapters
}

/// The title and the source of a line of the table; none of a line that is no entry.
fn entry(line: &str) -> Option<(String, String)> {
    let line = line.trim_start().trim_start_matches("- ");
    let (title, target) = line.strip_prefix('[')?.split_once("](")?;
    let path = markdown::resolve(SUMMARY, target.strip_suffix(')')?)?;
    Some((title.to_owned(), path))
}

/// The pages that a README links to and that lie beside it; none for another page.
fn listed(tree: &Tree, path: &str) -> Vec<String> {
    let Some(folder) = path.strip_suffix("README.md") else { return Vec::new() };
    let mut found: Vec<String> = Vec::new();
    for (_, line) in tree.text(path).map(|text| markdown::parse(text).0).unwrap_or_default() {
        let beside = |target: &&str| !target.contains('/') && target.ends_with(".md");
        for page in markdown::links(line).into_iter().filter(beside).map(|target| format!("{folder}{target}"))
        {
            if page != path && !found.contains(&page) {
                found.push(page);
            }
        }
    }
    found
}

/// A document's first heading.
fn heading(text: &str) -> Option<&str> {
    markdown::parse(text).0.into_iter().find_map(|(_, line)| line.strip_prefix("# "))
}

/// Documents that are not in the book, or twice, entries of the table that are not there, and links that the book cannot show.
pub fn check(tree: &Tree) -> Vec<Finding> {
    if tree.text(SUMMARY).is_none() {
        return vec![Finding::new(SUMMARY, 1, "it is missing: list the pages of the book in it")];
    }
    let chapters = chapters(tree);
    let mut found = Vec::new();
    for (at, Chapter { line, path, .. }) in chapters.iter().enumerate() {
        if tree.text(path).is_none() {
            found.push(Finding::new(
                SUMMARY,
                *line,
                format!("`{path}` is not there: write it, or take it out"),
            ));
        }
        if chapters[..at].iter().any(|earlier| earlier.path == *path) {
            found.push(Finding::new(SUMMARY, *line, format!("`{path}` is in the book twice: take one out")));
        }
    }
    for (path, _) in tree.ending(".md").filter(|(path, _)| path.starts_with(FOLDER) && *path != SUMMARY) {
        if !chapters.iter().any(|chapter| chapter.path == path) {
            found.push(Finding::new(path, 1, format!("it is not in the book: list it in {SUMMARY}")));
        }
    }
    found.extend(stage::stage(tree, &chapters).faults);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    const TABLE: &str = "# Summary\n\n[Start](start.md)\n\n# Use\n\n- [Python](../python/README.md)\n- [Why](why/README.md)\n";
    const WHY: &str = "# Why\n\n- [A\n  is](a.md), [b](b.md), [again](a.md), [far](../start.md)\n";

    fn house(table: &str) -> Vec<(&str, &str)> {
        vec![
            (SUMMARY, table),
            ("docs/start.md", "# Start\n"),
            ("docs/why/README.md", WHY),
            ("docs/why/a.md", "# A is so\n"),
            ("docs/why/b.md", "# B is so\n"),
            ("python/README.md", "# Python\n"),
            ("python/other.md", "# Not in the book\n"),
        ]
    }

    #[test]
    fn a_readme_brings_the_pages_that_it_lists() {
        let chapters = chapters(&Tree::of(&house(TABLE)));
        let shape: Vec<_> = chapters.iter().map(|c| (c.line, c.indent, &*c.title, &*c.path)).collect();
        let expected = [
            (3, 0, "Start", "docs/start.md"),
            (7, 0, "Python", "python/README.md"),
            (8, 0, "Why", "docs/why/README.md"),
            (8, 2, "A is so", "docs/why/a.md"),
            (8, 2, "B is so", "docs/why/b.md"),
        ];
        assert_eq!(shape, expected);
        assert_eq!(said(check, &house(TABLE)), Vec::<String>::new());
    }

    #[test]
    fn what_is_missing_on_either_side_is_named() {
        let fewer = TABLE.replace("[Start](start.md)", "");
        assert_eq!(
            said(check, &house(&fewer)),
            ["docs/start.md:1: it is not in the book: list it in docs/SUMMARY.md"]
        );
        let more = format!("{TABLE}- [Gone](gone.md)\n- [Again](start.md)\n");
        assert_eq!(
            said(check, &house(&more)),
            [
                "docs/SUMMARY.md:9: `docs/gone.md` is not there: write it, or take it out",
                "docs/SUMMARY.md:10: `docs/start.md` is in the book twice: take one out",
            ]
        );
        let mut unshown = house(TABLE);
        unshown[1].1 = "# Start\n\n[a](why) [b](../nothing)\n";
        assert!(
            said(check, &unshown)[0].starts_with("docs/start.md:3: link to `../nothing`: a book can show")
        );
        assert!(said(check, &[("docs/a.md", "")])[0].contains("docs/SUMMARY.md:1: it is missing"));
    }
}
