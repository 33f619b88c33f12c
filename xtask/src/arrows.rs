//! Which crate may use which, and what no crate may reach for.
//!
//! The arrows are read from the manifests, the rest from the code outside tests. Dependencies for tests are free, but
//! may not lead back to the crate that is tested: its own tests would then see two of it.

use crate::rust::{Source, line_of, words};
use crate::tree::{Finding, Tree};

/// Every crate by its folder, with the folders that it may depend on. The root, which may use all, is "".
const ARROWS: [(&str, &[&str]); 12] = [
    ("ir", &[]),
    ("networks", &["ir"]),
    ("tuner", &["ir"]),
    ("runtime", &["ir"]),
    ("profiler", &["ir", "runtime"]),
    ("study", &["ir", "networks", "tuner", "runtime", "profiler"]),
    ("", &["ir", "networks", "tuner", "runtime", "profiler", "study"]),
    ("gpu", &["", "ir", "networks", "tuner", "runtime", "profiler", "study"]),
    ("standin", &[]),
    ("xtask", &[]),
    ("fuzz", &["ir", "networks", "tuner"]),
    ("python", &["", "ir", "runtime", "tuner", "study"]),
];

/// Modules of the standard library that the code under a folder does without, and why.
const WITHOUT: [(&str, &[&str], &str); 2] = [
    ("ir/src/", &["fs", "net", "env", "process"], "ir does no IO; take a text or a value instead"),
    ("tuner/src/", &["env"], "the tuner reads no environment; take it in the request"),
];

/// Folders whose texts name no option of the command line: only what reads it knows them, and others call the same crates.
const WITHOUT_OPTIONS: [&str; 6] =
    ["ir/src/", "networks/src/", "tuner/src/", "runtime/src/", "profiler/src/", "study/src/"];

/// Where the options are those of others: NVRTC's, and those of the tools that training is exported to.
const OPTIONS_OF_OTHERS: [&str; 2] = ["runtime/src/cuda/compile.rs", "study/src/export.rs"];

/// The binding to CUDA, and the only place that may name it.
const CUDA: (&str, &str) = ("cudarc", "runtime/src/cuda");

/// All forbidden uses.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending("Cargo.toml") {
        manifest(path, text, &mut found);
    }
    for (path, text) in tree.ending(".rs") {
        let source = Source::new(text);
        for (at, _) in words(&source.code).filter(|(_, word)| *word == CUDA.0 && !path.starts_with(CUDA.1)) {
            let what = format!("`{}` outside {}: go through the Device seam", CUDA.0, CUDA.1);
            found.push(Finding::new(path, line_of(&source.code, at), what));
        }
        for (_, modules, why) in WITHOUT.iter().filter(|(folder, ..)| path.starts_with(folder)) {
            std_modules(path, &source, modules, why, &mut found);
        }
        if !OPTIONS_OF_OTHERS.contains(&path) && WITHOUT_OPTIONS.iter().any(|folder| path.starts_with(folder))
        {
            options(path, &source, &mut found);
        }
    }
    found
}

/// Options of the command line in literals.
fn options(path: &str, source: &Source, found: &mut Vec<Finding>) {
    for (at, dashes) in source.literals.match_indices("--") {
        let before = source.literals[..at].chars().next_back();
        let name: String = source.literals[at + dashes.len()..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '-')
            .collect();
        if before != Some('-') && name.starts_with(|c: char| c.is_ascii_lowercase()) {
            let what = format!("`--{name}`: say what is wrong; the command line adds its option");
            found.push(Finding::new(path, line_of(&source.literals, at), what));
        }
    }
}

/// Uses of the standard library's `modules`, also from within `std::{...}`.
fn std_modules(path: &str, source: &Source, modules: &[&str], why: &str, found: &mut Vec<Finding>) {
    if path.ends_with("tests.rs") || path.contains("/tests/") {
        return;
    }
    let code = source.code_without_tests();
    for (at, _) in words(&code).filter(|(_, word)| *word == "std") {
        let Some(rest) = code[at + 3..].strip_prefix("::") else { continue };
        for module in heads(rest).into_iter().filter(|head| modules.contains(head)) {
            found.push(Finding::new(path, line_of(&code, at), format!("`std::{module}`: {why}")));
        }
    }
}

/// The first names of what a path goes on with: one, or those of a group in braces.
fn heads(rest: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut depth = 0;
    let mut expected = true;
    for (at, character) in rest.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => (depth, expected) = (depth - 1, false),
            ',' if depth == 1 => expected = true,
            c if expected && !c.is_whitespace() => {
                all.extend(words(&rest[at..]).next().map(|(_, word)| word));
                expected = false;
            }
            _ => {}
        }
        if depth == 0 && !expected {
            break;
        }
    }
    all
}

/// The dependencies that a manifest names, held against the arrows.
fn manifest(path: &str, text: &str, found: &mut Vec<Finding>) {
    let folder = path.trim_end_matches("Cargo.toml").trim_end_matches('/');
    let Some(allowed) = allowed(folder) else {
        let what = "a crate without a place in the house: add its arrows to xtask/src/arrows.rs";
        found.push(Finding::new(path, 1, what));
        return;
    };
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        }
        if section.starts_with("workspace.") || !section.contains("dependencies") {
            continue;
        }
        for target in line.split(|c: char| !c.is_alphanumeric() && c != '-').filter_map(folder_of) {
            let shown = |folder| if str::is_empty(folder) { "the root" } else { folder };
            let (crate_, used) = (shown(folder), shown(target));
            if !section.contains("dev-dependencies") && !allowed.contains(&target) {
                let what = format!("{crate_} may not depend on {used}: hand over a value of ir instead");
                found.push(Finding::new(path, index + 1, what));
            }
            // A crate's tests may name the crate itself, to turn on a feature of it.
            if section.contains("dev-dependencies") && target != folder && leads_to(target, folder) {
                let what = format!("{used} leads back to {crate_}: move the test to the root's tests/");
                found.push(Finding::new(path, index + 1, what));
            }
        }
    }
}

fn allowed(folder: &str) -> Option<&'static [&'static str]> {
    ARROWS.iter().find(|(of, _)| *of == folder).map(|(_, to)| *to)
}

/// The folder of a crate of the house, from its package name.
fn folder_of(package: &str) -> Option<&str> {
    if package == "plimsoll" { Some("") } else { package.strip_prefix("plimsoll-") }
}

/// Whether the arrows lead from one folder to the other, or are at it already.
fn leads_to(from: &str, to: &str) -> bool {
    from == to || allowed(from).is_some_and(|next| next.iter().any(|next| leads_to(next, to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    #[track_caller]
    fn expect(path: &str, text: &str, starts: &[&str]) {
        let found = said(check, &[(path, text)]);
        let fits = found.len() == starts.len() && found.iter().zip(starts).all(|(f, s)| f.contains(s));
        assert!(fits, "{path}: {text:?} gives {found:?}, not {starts:?}");
    }

    #[test]
    fn dependencies_follow_the_arrows() {
        let on = |package: &str| format!("[dependencies]\n{package}.workspace = true\n");
        expect("tuner/Cargo.toml", &on("plimsoll-ir"), &[]);
        expect("profiler/Cargo.toml", &on("plimsoll-runtime"), &[]);
        expect("Cargo.toml", &on("plimsoll-tuner"), &[]);
        expect("tuner/Cargo.toml", &on("plimsoll-runtime"), &[":2: tuner may not depend on runtime"]);
        expect("ir/Cargo.toml", &on("plimsoll"), &[":2: ir may not depend on the root"]);
        let renamed = "[target.'cfg(unix)'.dependencies]\nwords = { package = \"plimsoll-networks\" }\n";
        expect("runtime/Cargo.toml", renamed, &[":2: runtime may not depend on networks"]);
        expect("runtime/Cargo.toml", "[build-dependencies.plimsoll-tuner]\n", &[":1: runtime may not"]);
        expect("Cargo.toml", "[workspace.dependencies]\nplimsoll = { path = \".\" }\n", &[]);
        expect("attic/Cargo.toml", "", &[":1: a crate without a place"]);
    }

    #[test]
    fn dependencies_of_tests_are_free_but_do_not_lead_back() {
        let on = |package: &str| format!("[dev-dependencies]\n{package}.workspace = true\n");
        expect("tuner/Cargo.toml", &on("plimsoll-networks"), &[]);
        expect("runtime/Cargo.toml", &on("plimsoll-tuner"), &[]);
        expect("ir/Cargo.toml", &on("plimsoll-ir"), &[]);
        expect("ir/Cargo.toml", &on("plimsoll-networks"), &[":2: networks leads back to ir"]);
        expect("runtime/Cargo.toml", &on("plimsoll"), &[":2: the root leads back to runtime"]);
    }

    #[test]
    fn ir_does_no_io() {
        expect("ir/src/a.rs", "\nuse std::fs::File;", &["ir/src/a.rs:2: `std::fs`"]);
        expect(
            "ir/src/a.rs",
            "use std::{\n  fmt,\n  net::{Ip, env},\n process as p};",
            &["`std::net`", "`std::process`"],
        );
        expect("ir/src/a.rs", "fn a() { std::env::var(b) }", &["`std::env`"]);
        expect(
            "ir/src/a.rs",
            "use std::fmt; // std::fs\n#[cfg(test)]\nmod tests {\n  use std::fs;\n}\n",
            &[],
        );
        expect("ir/src/a/tests.rs", "use std::fs;", &[]);
        expect("tuner/src/a.rs", "use std::{env, fs};", &["`std::env`"]);
        expect("runtime/src/a.rs", "use std::{env, fs};", &[]);
    }

    #[test]
    fn options_are_named_by_the_command_line() {
        let text = "fn a() {\n  say(\"lower --budget\"); // as --budget does\n}\n";
        expect("runtime/src/a.rs", text, &["runtime/src/a.rs:2: `--budget`"]);
        expect(
            "profiler/src/a.rs",
            "const A: &str = \"--no-swap or --x\";",
            &[":1: `--no-swap`", ":1: `--x`"],
        );
        expect("tuner/src/a.rs", "const A: &str = \"a -- b, ---, --- a, 1--2, <!-- c\";", &[]);
        expect("src/a.rs", text, &[]);
        expect(OPTIONS_OF_OTHERS[0], text, &[]);
    }

    #[test]
    fn cuda_is_named_in_one_place() {
        expect(
            "runtime/src/executor.rs",
            "\nuse cudarc::driver;",
            &["runtime/src/executor.rs:2: `cudarc` outside"],
        );
        expect("runtime/src/cuda/streams.rs", "use cudarc::driver;", &[]);
        expect("runtime/src/executor.rs", "// cudarc is elsewhere", &[]);
    }
}
