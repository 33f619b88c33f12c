//! The program as a user runs it, apart from the user's settings and caches, and checks of its output.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_plimsoll");

/// Returns a command line of the program, to be run in a folder.
pub(crate) fn command(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace()).current_dir(folder);
    command.env("XDG_CACHE_HOME", folder.join("cache")).env("XDG_CONFIG_HOME", folder.join("user"));
    command
}

pub(crate) fn output(folder: &Path, line: &str) -> Output {
    command(folder, line).output().expect("the program starts")
}

/// Runs the program until the machine, which tests share, is calm enough for it to measure.
pub(crate) fn patiently(run: impl Fn() -> Output) -> Output {
    let mut runs = (0..24).map(|_| run());
    runs.find(|output| output.status.code() != Some(5)).expect("the machine is calm at times")
}

/// Checks the exit code, and that stderr contains all these texts and no panic. Returns stderr.
#[track_caller]
pub(crate) fn checked(what: &str, output: &Output, code: i32, says: &[&str]) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{what}\n{said}");
    assert!(!said.contains("panicked"), "{what}\n{said}");
    for words in says {
        assert!(said.contains(words), "`{what}` does not say `{words}`:\n{said}");
    }
    said
}

#[track_caller]
pub(crate) fn check(folder: &Path, line: &str, code: i32, says: &[&str]) -> String {
    checked(line, &output(folder, line), code, says)
}

/// Returns standard output of a command that succeeds.
#[track_caller]
pub(crate) fn printed(folder: &Path, line: &str) -> String {
    let output = patiently(|| output(folder, line));
    checked(line, &output, 0, &[]);
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the JSON output of a command that succeeds.
#[track_caller]
pub(crate) fn json(folder: &Path, line: &str) -> Value {
    serde_json::from_str(&printed(folder, &format!("{line} --format json"))).expect("JSON on stdout")
}

#[track_caller]
pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it was written")).expect("JSON")
}

/// Changes a JSON file.
pub(crate) fn change(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut document = read_json(path);
    change(&mut document);
    fs::write(path, document.to_string()).expect("a file");
}

/// Returns a list of a JSON document.
#[track_caller]
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, not {value}"))
}

/// Returns a number of a JSON object.
#[track_caller]
pub(crate) fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} in {object}"))
}

/// Writes a trace to `t.json`, with a millisecond for each op.
pub(crate) fn timed(folder: &Path, line: &str) {
    check(folder, &format!("trace {line} -o t.json"), 0, &[]);
    let path = folder.join("t.json");
    let text = fs::read_to_string(&path).expect("a trace").replace("\"seconds\":0.0", "\"seconds\":0.001");
    fs::write(&path, text).expect("a file");
}

/// Copies the files of a folder into an existing one.
pub(crate) fn copied(from: &Path, to: &Path) {
    for file in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("a copy");
    }
}
