//! Builds the book with mdBook, where mdBook is there, and looks at what it made.
//!
//! mdBook is a program, pinned here and nowhere else; nothing of the house links it. The report that a page shows is made by
//! that page's own commands while the book is built, so it is never older than the program. A warning of mdBook's, and a dead
//! link in its pages, are errors.

use super::stage::{self, REPORT, REPORT_IS_SHOWN, Staged};
use super::{Chapter, chapters, pages};
use crate::markdown;
use crate::tools;
use crate::tree::Tree;
use crate::workshop::{Workshop, as_ours, commands};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of mdBook.
const VERSION: &str = "0.5.4";

/// The page that mdBook writes for a web server, whose links start at the server's top.
const NOT_FOUND: &str = "404.html";

/// What came of a build.
pub enum Built {
    /// The first page of the book.
    At(PathBuf),
    /// mdBook is not here; the line that installs it.
    WithoutMdBook(String),
}

/// Builds the book into `target/book`.
pub fn build(tree: &Tree) -> Result<Built, String> {
    let target = tools::target().ok_or("cannot tell where the target folder is")?;
    let Some(mdbook) = find(&target) else { return Ok(Built::WithoutMdBook(installs())) };
    let chapters = chapters(tree);
    let staged = stage::stage(tree, &chapters);
    let (source, book) = (target.join("book-pages"), target.join("book"));
    write(&source, &staged).map_err(|error| format!("cannot write {}: {error}", source.display()))?;
    make_report(tree, &chapters, &source)?;
    run(&mdbook, &source, &book)?;
    // `hash-files` and the search index are mdBook's; what it made is read as a whole.
    let (made, others) = read(&book).map_err(|error| format!("cannot read {}: {error}", book.display()))?;
    let dead = pages::dead(&made, &others);
    if dead.is_empty() { Ok(Built::At(book.join("index.html"))) } else { Err(dead.join("\n")) }
}

/// The line that installs mdBook. It is not optimised, which would take 136 s of processor time for 50.
pub fn installs() -> String {
    format!(
        "CARGO_PROFILE_RELEASE_OPT_LEVEL=0 cargo install --locked --root target/tools \
         --no-default-features --features search mdbook@{VERSION}"
    )
}

/// mdBook of this version: where the line above puts it, or on the path.
fn find(target: &Path) -> Option<PathBuf> {
    let is_it = |program: &PathBuf| {
        let output = Command::new(program).arg("--version").output().ok();
        output.is_some_and(|output| {
            String::from_utf8_lossy(&output.stdout).trim().ends_with(&format!("v{VERSION}"))
        })
    };
    let installed = [target, &tools::root().join("target")].map(|folder| folder.join("tools/bin/mdbook"));
    installed.into_iter().chain([PathBuf::from("mdbook")]).find(is_it)
}

/// Writes the staged pages, files and mdBook's settings into an empty folder.
fn write(folder: &Path, staged: &Staged) -> std::io::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let docs = tools::root().join("docs");
    let settings = ["book.toml", "book.css"].map(|name| (folder.join(name), docs.join(name)));
    let copies = staged.copies.iter().map(|(place, path)| (folder.join(place), tools::root().join(path)));
    for (place, text) in &staged.pages {
        let place = folder.join(place);
        place.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(place, text)?;
    }
    for (place, path) in copies.chain(settings) {
        place.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::copy(path, place)?;
    }
    Ok(())
}

/// Runs the commands of the page that shows a report, and takes the report over.
fn make_report(tree: &Tree, chapters: &[Chapter], folder: &Path) -> Result<(), String> {
    let shows = |text: &&str| text.lines().any(|line| line == REPORT_IS_SHOWN);
    let page = chapters.iter().find(|chapter| tree.text(&chapter.path).as_ref().is_some_and(shows));
    let Some(Chapter { path, .. }) = page else { return Ok(()) };
    let workshop = Workshop::open("book")?;
    let room = workshop.room(tree, path)?;
    let (_, blocks) = markdown::parse(tree.text(path).unwrap_or_default());
    for block in blocks.iter().filter(|block| block.mark == Some(&format!("makes {REPORT}"))) {
        for (line, command) in commands(block) {
            let ours =
                as_ours(&command).ok_or_else(|| format!("{path}:{line}: `{command}` is not ours to run"))?;
            let output = workshop.sh(&room, &ours)?;
            if !output.status.success() {
                return Err(format!("{path}:{line}: `{command}` fails, {}", tools::last_words(&output)));
            }
        }
    }
    let copied = std::fs::copy(room.join(REPORT), folder.join(REPORT));
    copied.map(drop).map_err(|error| format!("{path}: no command makes {REPORT}: {error}"))
}

/// Runs mdBook. What it warns of is an error.
fn run(mdbook: &Path, source: &Path, book: &Path) -> Result<(), String> {
    let mut command = Command::new(mdbook);
    command.arg("build").arg("--dest-dir").arg(book).arg(source).env_remove("RUST_LOG");
    let output = command.output().map_err(|error| format!("cannot start {}: {error}", mdbook.display()))?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let warns = warnings(&said);
    if output.status.success() && warns.is_empty() {
        return Ok(());
    }
    Err(if warns.is_empty() { said } else { warns.join("\n") })
}

/// The lines in which mdBook warns.
fn warnings(said: &str) -> Vec<&str> {
    let is_warning = |line: &&str| {
        line.split_whitespace().any(|word| ["WARN", "ERROR", "[WARN]", "[ERROR]"].contains(&word))
    };
    said.lines().filter(is_warning).collect()
}

/// The pages of a built book and its other files, by their path from its top.
fn read(book: &Path) -> std::io::Result<(BTreeMap<String, String>, BTreeSet<String>)> {
    let (mut pages, mut others) = (BTreeMap::new(), BTreeSet::new());
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(book.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.ends_with(".html") && ![NOT_FOUND, REPORT].contains(&&*path) {
                pages.insert(path, std::fs::read_to_string(entry.path())?);
            } else {
                others.insert(path);
            }
        }
    }
    Ok((pages, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_from_other_lines() {
        let said = " INFO Book building has started\n WARN an empty link\n2026 [ERROR] (mdbook): no\nWARNING signs\n";
        assert_eq!(warnings(said), [" WARN an empty link", "2026 [ERROR] (mdbook): no"]);
    }

    #[test]
    fn the_line_that_installs_names_the_version() {
        assert!(installs().ends_with(&format!("mdbook@{VERSION}")));
    }
}
