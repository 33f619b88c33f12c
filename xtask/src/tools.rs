//! The checks that cargo's own tools make, their answers turned into faults of one line each.
//!
//! Everything is built in the release profile. The house builds and tests only that, so clippy and rustdoc find
//! build scripts and procedural macros ready in the shared target folder. Clippy after the tests took 31 s of
//! processor time so, and 47 s in the development profile, which compiles 31 crates a second time (2026-11-20).
//! A tool that fails without naming a place is no pass: the check says so and shows the tool's last words.

use crate::Outcome;
use crate::tree::{Finding, Tree};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the house.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Formatting, by `cargo fmt`.
pub fn fmt() -> Outcome {
    let output = cargo(&["fmt", "--all", "--check"])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let places = said.lines().filter_map(|line| place(line.strip_prefix("Diff in ")?));
    all(
        &output,
        places
            .map(|(path, line, _)| Finding::new(path, line, "not formatted: run `cargo fmt --all`"))
            .collect(),
    )
}

/// The lock file of `fuzz`, a workspace that no build of the house looks at.
pub fn locks(tree: &Tree) -> Outcome {
    let mut found = Vec::new();
    for lock in tree.paths().filter(|path| path.ends_with("/Cargo.lock")) {
        let manifest = lock.replace(".lock", ".toml");
        let output = cargo(&["update", "--workspace", "--locked", "--manifest-path", &manifest])?;
        if String::from_utf8_lossy(&output.stderr).contains("cannot update the lock file") {
            let what = format!("out of date: run `cargo update --workspace --manifest-path {manifest}`");
            found.push(Finding::new(lock, 1, what));
        } else if !output.status.success() {
            return Err(last_words(&output));
        }
    }
    Ok(found)
}

/// Lints on everything that is compiled, by clippy; a warning is a fault.
pub fn clippy() -> Outcome {
    let scope =
        ["clippy", "--release", "--locked", "--workspace", "--all-targets", "--message-format", "short"];
    let output = cargo(&[&scope[..], &["--", "-D", "warnings"]].concat())?;
    all(&output, short_messages(&String::from_utf8_lossy(&output.stderr)))
}

/// Links between documented items, by rustdoc; a warning is a fault.
pub fn doc() -> Outcome {
    let scope = [
        "doc",
        "--release",
        "--locked",
        "--keep-going",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    let scope = [&scope[..], &["--message-format", "short"]].concat();
    let output = run(Command::new(env!("CARGO")).args(scope).env("RUSTDOCFLAGS", "-D warnings"))?;
    all(&output, short_messages(&String::from_utf8_lossy(&output.stderr)))
}

/// Builds the command line and gives the folder in which it lies, beside xtask itself.
pub fn build_command_line() -> Result<PathBuf, String> {
    let output = cargo(&["build", "--release", "--locked", "--bin", "plimsoll"])?;
    if !output.status.success() {
        return Err(last_words(&output));
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot tell where xtask lies: {error}"))?;
    own.parent().map(Path::to_path_buf).ok_or_else(|| "xtask lies in no folder".to_owned())
}

/// Cargo's target folder, in which xtask itself lies: cargo keeps there what it knows of the compiler. A `CACHEDIR.TAG`
/// is there only where cargo made the folder.
pub fn target() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors().find(|folder| folder.join(".rustc_info.json").is_file()).map(Path::to_path_buf)
}

fn cargo(arguments: &[&str]) -> Result<Output, String> {
    run(Command::new(env!("CARGO")).args(arguments))
}

fn run(command: &mut Command) -> Result<Output, String> {
    let command = command.current_dir(root()).env("CARGO_TERM_COLOR", "never");
    command
        .output()
        .map_err(|error| format!("cannot start {}: {error}", command.get_program().to_string_lossy()))
}

/// The faults, unless the tool failed without naming one.
fn all(output: &Output, found: Vec<Finding>) -> Outcome {
    if output.status.success() || !found.is_empty() { Ok(found) } else { Err(last_words(output)) }
}

/// The end of what a tool said before it failed.
pub fn last_words(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    format!("{}: {}", output.status, lines[lines.len().saturating_sub(12)..].join("\n"))
}

/// The compiler's short messages, `path:line:column: level: what`.
fn short_messages(said: &str) -> Vec<Finding> {
    let message = |line| {
        let (path, line, rest) = place(line)?;
        let (_, what) = rest.split_once(": ")?;
        Some(Finding::new(path, line, what))
    };
    said.lines().filter_map(message).collect()
}

/// Takes `path:line:rest` apart, the path seen from the root.
fn place(text: &str) -> Option<(&str, usize, &str)> {
    let (path, rest) = text.split_once(':')?;
    let (line, rest) = rest.split_once(':')?;
    let root = root();
    let path = path.strip_prefix(root.to_str()?).map_or(path, |path| path.trim_start_matches('/'));
    Some((path, line.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_compiler_become_faults() {
        let said =
            "    Checking plimsoll-ir v0.1.0\nir/src/a.rs:3:9: error: unused variable: `x`\nerror: could not";
        let found: Vec<String> = short_messages(said).iter().map(Finding::to_string).collect();
        assert_eq!(found, ["ir/src/a.rs:3: error: unused variable: `x`"]);
    }

    #[test]
    fn places_are_seen_from_the_root() {
        let whole = format!("{}/ir/src/a.rs:12:", root().display());
        assert_eq!(place(&whole), Some(("ir/src/a.rs", 12, "")));
        assert_eq!(place("error: could not compile"), None);
    }
}
