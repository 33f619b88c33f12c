//! The book's pages as mdBook takes them: one folder, in which every link leads to something of the book.
//!
//! What lies below `docs` stands at the top of that folder, any other page under its own path. A link between pages becomes one
//! between their places. A link to a file that is no page (source, data) leads to a copy of the file, whose name ends in
//! `.txt` so that every browser shows it: the house has no address on the web that such links could lead to, and a book that is
//! read offline would not have it either. A link to a folder leads to its README. The README of the house is not in the book,
//! whose introduction stands for it. Text inside fences and code spans stays as it is. Nothing here reads a disk.

use super::Chapter;
use crate::markdown;
use crate::tree::{Finding, Tree};
use std::collections::BTreeMap;

/// A page that stands for another one.
const STANDS_FOR: [(&str, &str); 1] = [("README.md", "docs/introduction.md")];

/// What a browser shows as it is.
const SHOWN: [&str; 3] = [".html", ".svg", ".png"];

/// Where a page shows the report that its commands make.
pub const REPORT_IS_SHOWN: &str = "<!-- the book shows the report here -->";

/// The report that is shown, from the top of the book.
pub const REPORT: &str = "sample.html";

/// What mdBook is given.
pub struct Staged {
    /// Texts by their place in the folder, the table of contents among them.
    pub pages: BTreeMap<String, String>,
    /// Files to copy: the place in the folder, and the path from the root of the house.
    pub copies: BTreeMap<String, String>,
    /// Links that the book cannot show.
    pub faults: Vec<Finding>,
}

/// Stages the pages.
pub fn stage(tree: &Tree, chapters: &[Chapter]) -> Staged {
    let mut staged = Staged { pages: BTreeMap::new(), copies: BTreeMap::new(), faults: Vec::new() };
    for chapter in chapters {
        let text = tree.text(&chapter.path).unwrap_or_default();
        let page = page(tree, chapters, &chapter.path, text, &mut staged);
        let place = place(&chapter.path);
        let takes_it = |other: &&Chapter| other.path != chapter.path && self::place(&other.path) == place;
        if let Some(other) = chapters.iter().find(takes_it) {
            let what = format!("in the book its place is `{place}`, and so is that of {}", other.path);
            staged.faults.push(Finding::new(&chapter.path, 1, what));
        }
        staged.pages.insert(place.to_owned(), page);
    }
    staged.pages.insert("SUMMARY.md".to_owned(), summary(tree, chapters));
    staged
}

/// Where a file of the house stands in the folder.
fn place(path: &str) -> &str {
    path.strip_prefix("docs/").unwrap_or(path)
}

/// The table of contents, with the pages that READMEs list.
fn summary(tree: &Tree, chapters: &[Chapter]) -> String {
    let mut table = String::new();
    for (number, line) in (1..).zip(tree.text(super::SUMMARY).unwrap_or_default().lines()) {
        let mut entries = chapters.iter().filter(|chapter| chapter.line == number).peekable();
        if entries.peek().is_none() {
            table.push_str(&format!("{line}\n"));
        }
        for Chapter { indent, title, path, .. } in entries {
            let dash = if line.trim_start().starts_with('-') { "- " } else { "" };
            // Brackets of a title would end it.
            let title = title.replace('[', "\\[").replace(']', "\\]");
            table.push_str(&format!("{}{dash}[{title}]({})\n", " ".repeat(*indent), place(path)));
        }
    }
    table
}

/// A page with its links turned.
fn page(tree: &Tree, chapters: &[Chapter], path: &str, text: &str, staged: &mut Staged) -> String {
    let mut page = String::new();
    let prose: BTreeMap<usize, &str> = markdown::parse(text).0.into_iter().collect();
    for (number, line) in (1..).zip(text.lines()) {
        if !prose.contains_key(&number) {
            page.push_str(line);
        } else if line == REPORT_IS_SHOWN {
            page.push_str(&format!("<p><a href=\"{REPORT}\">Open it by itself.</a></p>\n\n"));
            page.push_str(&format!(
                "<iframe class=\"report\" src=\"{REPORT}\" title=\"The report\"></iframe>"
            ));
        } else {
            let turn = |target: &str| turned(tree, chapters, path, number, target, staged);
            page.push_str(&markdown::turned(line, turn));
        }
        page.push('\n');
    }
    page
}

/// What a link of a page becomes; none where it stays as it is.
fn turned(
    tree: &Tree,
    chapters: &[Chapter],
    page: &str,
    line: usize,
    target: &str,
    staged: &mut Staged,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") || target.starts_with('#') {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let mut whole = markdown::resolve(page, file)?;
    if tree.text(&whole).is_none() {
        let folder = if whole.is_empty() { String::new() } else { format!("{whole}/") };
        whole = format!("{folder}README.md");
    }
    if let Some((_, instead)) = STANDS_FOR.iter().find(|(absent, _)| *absent == whole) {
        whole = (*instead).to_owned();
    }
    let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
    if chapters.iter().any(|chapter| chapter.path == whole) {
        return Some(format!("{}{anchor}", from(place(page), place(&whole))));
    }
    if tree.text(&whole).is_none() {
        let what = format!("link to `{target}`: a book can show a file, not a folder without a README");
        staged.faults.push(Finding::new(page, line, what));
        return None;
    }
    let copy = match place(&whole) {
        shown if SHOWN.iter().any(|end| shown.ends_with(end)) => shown.to_owned(),
        // mdBook takes any link with `.md` in it for one to a page.
        other => format!("{}.txt", other.strip_suffix(".md").unwrap_or(other)),
    };
    let link = from(place(page), &copy);
    staged.copies.insert(copy, whole);
    Some(link)
}

/// The link from one place to another.
fn from(page: &str, target: &str) -> String {
    let (mut page, mut target): (Vec<&str>, Vec<&str>) =
        (page.split('/').collect(), target.split('/').collect());
    while page.len() > 1 && target.len() > 1 && page[0] == target[0] {
        page.remove(0);
        target.remove(0);
    }
    format!("{}{}", "../".repeat(page.len() - 1), target.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::chapters;
    use super::*;

    const TABLE: &str = "# Summary\n\n[Start](introduction.md)\n\n- [Use](use/a.md)\n- [Python](../python/README.md)\n\
                         - [Why](why/README.md)\n";

    fn staged(text: &str) -> Staged {
        let tree = Tree::of(&[
            ("docs/SUMMARY.md", TABLE),
            ("docs/introduction.md", "# Start\n"),
            ("docs/use/a.md", text),
            ("docs/why/README.md", "# Why\n\n- [b](b.md)\n"),
            ("docs/why/b.md", "# B [is]\n"),
            ("python/README.md", "[a](../docs/use/a.md#one)\n"),
            ("README.md", ""),
            ("ir/src/check.rs", ""),
            ("docs/picture.svg", ""),
        ]);
        stage(&tree, &chapters(&tree))
    }

    #[track_caller]
    fn becomes(text: &str, expected: &str, copied: &[(&str, &str)]) {
        let staged = staged(text);
        assert_eq!(staged.pages["use/a.md"], format!("{expected}\n"));
        let copies: Vec<_> = staged.copies.iter().map(|(to, from)| (&**to, &**from)).collect();
        assert_eq!(copies, copied);
        assert!(staged.faults.is_empty(), "{:?}", staged.faults);
    }

    #[test]
    fn links_between_pages_lead_to_their_places() {
        becomes(
            "[a](../introduction.md) [b](../why/README.md#x) [c](#d)",
            "[a](../introduction.md) [b](../why/README.md#x) [c](#d)",
            &[],
        );
        becomes("[a](../../python/README.md)", "[a](../python/README.md)", &[]);
        becomes(
            "[a](../../python) [b](../../README.md#x) [c](https://d.e)",
            "[a](../python/README.md) [b](../introduction.md#x) [c](https://d.e)",
            &[],
        );
        assert_eq!(staged("").pages["python/README.md"], "[a](../use/a.md#one)\n");
    }

    #[test]
    fn files_that_are_no_pages_are_copied() {
        becomes(
            "[a](../../ir/src/check.rs#L3) ![b](../picture.svg)",
            "[a](../ir/src/check.rs.txt) ![b](../picture.svg)",
            &[("ir/src/check.rs.txt", "ir/src/check.rs"), ("picture.svg", "docs/picture.svg")],
        );
        becomes("[a](../SUMMARY.md)", "[a](../SUMMARY.txt)", &[("SUMMARY.txt", "docs/SUMMARY.md")]);
        becomes("```\n[a](../../ir/src/check.rs)\n```", "```\n[a](../../ir/src/check.rs)\n```", &[]);
        let faults = staged("\n[a](../../ir/src)\n").faults;
        assert_eq!(
            faults.iter().map(Finding::to_string).collect::<Vec<_>>(),
            [
                "docs/use/a.md:2: link to `../../ir/src`: a book can show a file, not a folder without a README"
            ]
        );
    }

    #[test]
    fn two_pages_have_two_places() {
        let tree = Tree::of(&[
            ("docs/SUMMARY.md", "[a](a/b.md)\n[b](../a/b.md)\n"),
            ("docs/a/b.md", ""),
            ("a/b.md", ""),
        ]);
        let faults = stage(&tree, &chapters(&tree)).faults;
        assert_eq!(faults.len(), 2);
        assert_eq!(
            faults[0].to_string(),
            "docs/a/b.md:1: in the book its place is `a/b.md`, and so is that of a/b.md"
        );
    }

    #[test]
    fn the_table_has_the_pages_of_its_readmes_and_a_report_is_framed() {
        let table = "# Summary\n\n[Start](introduction.md)\n\n- [Use](use/a.md)\n- [Python](python/README.md)\n\
                     - [Why](why/README.md)\n  - [B \\[is\\]](why/b.md)\n";
        assert_eq!(staged("").pages["SUMMARY.md"], table);
        assert!(
            staged(REPORT_IS_SHOWN).pages["use/a.md"]
                .contains("<iframe class=\"report\" src=\"sample.html\"")
        );
    }
}
