//! The house's own checks: `cargo xtask ci` is all of them, `cargo xtask <name>` is one.
//!
//! Every fault is one line `path:line: what is wrong and what to do`, and all faults are listed before the exit
//! code says 1. The rules that read text ([`tidy`], [`arrows`], [`circles`], [`links`], [`decisions`], [`glossary`],
//! [`limits`], [`mod@book`]) are functions from a
//! [`tree::Tree`] of texts to faults, so that each is tested on a few small strings. [`count`] is no
//! check: it prints numbers. [`headers`] is none either: it asks NVIDIA's headers for what tests compare the code with. Nor is
//! [`pictures`], which makes those of the README.
//! Nothing here runs the tests: `cargo test` does.

mod arrows;
mod book;
mod circles;
mod count;
mod decisions;
mod glossary;
mod headers;
mod limits;
mod links;
mod markdown;
mod pictures;
mod readme;
mod rust;
mod syntax;
mod tidy;
mod tools;
mod tree;
mod workshop;

use book::build::Built;
use std::process::ExitCode;
use std::time::Instant;
use tree::{Finding, Tree};

/// What a check gives: its faults, or the reason why it could not look.
type Outcome = Result<Vec<Finding>, String>;

/// A check: its name on the command line, what it looks at, and how.
struct Check {
    name: &'static str,
    about: &'static str,
    run: fn(&Tree) -> Outcome,
}

/// What is no check: it prints numbers, for people to compare.
const COUNT: &str = "count";

/// What is no check either: it writes `runtime/src/cuda/headers.txt`.
const HEADERS: &str = "headers";

/// Nor this: it prints the line that installs mdBook, for a shell to run.
const MDBOOK: &str = "mdbook";

/// Nor this: it makes the README's pictures.
const PICTURES: &str = "pictures";

/// The check that, by itself, also builds the book.
const BOOK: &str = "book";

/// In the order in which `ci` runs them: what answers at once comes first.
const CHECKS: &[Check] = &[
    Check {
        name: "tidy",
        about: "headers, sizes, unfinished work, unsafe",
        run: |tree| Ok(tidy::check(tree)),
    },
    Check { name: "arrows", about: "which crate may use what", run: |tree| Ok(arrows::check(tree)) },
    Check { name: "circles", about: "no files that use one another", run: circles::check },
    Check { name: "links", about: "what the documents point at", run: |tree| Ok(links::check(tree)) },
    Check {
        name: "decisions",
        about: "form and index of docs/decisions",
        run: |tree| Ok(decisions::check(tree)),
    },
    Check { name: "glossary", about: "one word an idea", run: |tree| Ok(glossary::check(tree)) },
    Check { name: "limits", about: "lengths of documents", run: |tree| Ok(limits::check(tree)) },
    Check {
        name: BOOK,
        about: "every document is in the book; alone, it builds the book",
        run: |tree| Ok(book::check(tree)),
    },
    Check { name: "locks", about: "lock file of fuzz", run: tools::locks },
    Check { name: "fmt", about: "formatting", run: |_| tools::fmt() },
    Check { name: "clippy", about: "lints, without a warning", run: |_| tools::clippy() },
    Check { name: "doc", about: "links inside the code's documentation", run: |_| tools::doc() },
    Check {
        name: "readme",
        about: "commands of the README and the book, and what they print",
        run: readme::check,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == [COUNT] {
        return finish(count::table, |table| print!("{table}"));
    }
    if arguments == [MDBOOK] {
        println!("{}", book::build::installs());
        return ExitCode::SUCCESS;
    }
    if arguments == [HEADERS] {
        return finish(headers::make, |()| ());
    }
    if arguments == [PICTURES] {
        return finish(pictures::make, |folder| println!("{}", folder.display()));
    }
    let chosen: Vec<&Check> = match arguments.as_slice() {
        [name] if name == "ci" => CHECKS.iter().collect(),
        [name] => CHECKS.iter().filter(|check| check.name == name).collect(),
        _ => Vec::new(),
    };
    if chosen.is_empty() {
        eprintln!("usage: cargo xtask <check>\n\n  {:9} all of these", "ci");
        CHECKS.iter().for_each(|check| eprintln!("  {:9} {}", check.name, check.about));
        eprintln!("  {COUNT:9} circles of files, long functions, lines: a table, and no fault");
        eprintln!("  {MDBOOK:9} prints the line that installs mdBook, with which `book` builds the book");
        eprintln!("  {HEADERS:9} asks NVIDIA's headers, from PyPI, what runtime/src/cuda takes from them");
        eprintln!("  {PICTURES:9} makes the README's pictures; a test of the root holds them fresh");
        return ExitCode::from(2);
    }
    match Tree::read(&tools::root()) {
        Ok(tree) => {
            let checked = report(&tree, &chosen);
            if arguments == [BOOK] && checked == ExitCode::SUCCESS { build_book(&tree) } else { checked }
        }
        Err(error) => {
            eprintln!("xtask: cannot read the working tree: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does with the tree what is no check, and shows what came of it.
fn finish<T>(work: fn(&Tree) -> Result<T, String>, show: fn(T)) -> ExitCode {
    let tree = Tree::read(&tools::root()).map_err(|error| format!("cannot read the working tree: {error}"));
    match tree.and_then(|tree| work(&tree)) {
        Ok(value) => {
            show(value);
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("xtask: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the book, and says where it is.
fn build_book(tree: &Tree) -> ExitCode {
    let start = Instant::now();
    match book::build::build(tree) {
        Ok(Built::At(path)) => {
            eprintln!("xtask book: built ({:.1} s)", start.elapsed().as_secs_f64());
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Ok(Built::WithoutMdBook(installs)) => {
            eprintln!("xtask book: not built, since mdBook is not here; this installs it:\n  {installs}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            println!("{fault}");
            eprintln!("xtask book: cannot be built");
            ExitCode::FAILURE
        }
    }
}

/// Runs the checks, prints their faults on stdout and a line each on stderr.
fn report(tree: &Tree, chosen: &[&Check]) -> ExitCode {
    let mut clean = true;
    for check in chosen {
        let start = Instant::now();
        let verdict = match (check.run)(tree) {
            Ok(found) if found.is_empty() => "ok".to_owned(),
            Ok(mut found) => {
                clean = false;
                found.sort();
                found.dedup();
                found.iter().for_each(|finding| println!("{finding}"));
                format!("{} to mend", found.len())
            }
            Err(reason) => {
                clean = false;
                format!("could not be checked: {reason}")
            }
        };
        eprintln!("xtask {}: {verdict} ({:.1} s)", check.name, start.elapsed().as_secs_f64());
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
