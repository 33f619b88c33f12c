//! The repository's own checks: `cargo xtask ci` runs all of them, `cargo xtask NAME` runs one.
//!
//! A check is a function from the texts of the repository to faults, one line `path:line: the fault` each, so that a test of it
//! is a tree of two strings. Cargo's own tools (fmt, clippy, doc, and the lock file of `fuzz`) print their faults themselves.
//! [`count`] and [`pictures`] are no checks: one prints three numbers, the other makes the README's pictures. Nothing here runs
//! the tests: `cargo test` does.

mod arrows;
mod count;
mod documented;
mod pictures;
mod readme;
mod tree;
mod workshop;

use std::process::{Command, ExitCode};
use tree::{Tree, root};

/// Faults that a check found, or the reason why it could not run.
type Faults = Result<Vec<String>, String>;

/// A check by its name.
type Check = (&'static str, fn(&Tree) -> Faults);

/// All checks, in the order in which `ci` runs them: the fastest first.
const CHECKS: &[Check] = &[
    ("arrows", |tree| Ok(arrows::check(tree))),
    ("documented", |tree| Ok(documented::check(tree))),
    ("fmt", |_| cargo(&["fmt", "--all", "--check"])),
    ("lock", |_| cargo(&["update", "--workspace", "--locked", "--manifest-path", "tools/fuzz/Cargo.toml"])),
    ("clippy", |_| {
        cargo(&["clippy", "--release", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }),
    ("doc", |_| {
        let flags = ["--release", "--locked", "--keep-going", "--no-deps", "--document-private-items"];
        cargo(&[&["doc", "--workspace"][..], &flags].concat())
    }),
    ("readme", readme::check),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.join(" ")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str) -> Result<(), String> {
    let tree = Tree::read()?;
    match name {
        "count" => print!("{}", count::table(&tree)),
        "pictures" => println!("{}", pictures::make(&tree)?.display()),
        _ => check(name, &tree)?,
    }
    Ok(())
}

/// Runs one check, or with `ci` all of them, whatever each finds.
fn check(name: &str, tree: &Tree) -> Result<(), String> {
    let chosen: Vec<_> = CHECKS.iter().filter(|(check, _)| name == "ci" || name == *check).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = CHECKS.iter().map(|(check, _)| *check).collect();
        return Err(format!("give ci, count, pictures, or one of {}", names.join(", ")));
    }
    let failed = chosen.iter().filter(|(name, check)| !passes(name, check(tree))).count();
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} checks found faults", chosen.len())) }
}

/// Prints the faults on standard output and the verdict on standard error.
fn passes(name: &str, faults: Faults) -> bool {
    let faults = faults.unwrap_or_else(|reason| vec![format!("{name} cannot be checked: {reason}")]);
    faults.iter().for_each(|fault| println!("{fault}"));
    eprintln!("xtask {name}: {}", if faults.is_empty() { "ok" } else { "faults" });
    faults.is_empty()
}

/// Runs cargo at the root, always in the release profile, which all builds and tests here use.
fn cargo(arguments: &[&str]) -> Faults {
    let mut command = Command::new(env!("CARGO"));
    let command = command.args(arguments).current_dir(root()).env("RUSTDOCFLAGS", "-D warnings");
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    let fault = format!("`cargo {}` fails", arguments.join(" "));
    Ok(if status.success() { Vec::new() } else { vec![fault] })
}
