//! Dependencies permitted between crates, and uses forbidden to some of them.
//!
//! The arrows are read from the manifests, the rest from the code outside tests. Dependencies for tests are free, but must not
//! lead back to the tested crate: its own tests would then link two copies of it.

use crate::count::lines;
use crate::tree::Tree;

/// Every crate by its folder, with the folders that it may depend on. The root, which may use all, is "".
const ARROWS: [(&str, &[&str]); 13] = [
    ("ir", &[]),
    ("networks", &["ir"]),
    ("tuner", &["ir"]),
    ("runtime", &["ir"]),
    ("profiler", &["ir", "runtime"]),
    ("study", &["ir", "networks", "tuner", "runtime", "profiler"]),
    ("", &["ir", "networks", "tuner", "runtime", "profiler", "study"]),
    ("tools/gpu", &["", "ir", "networks", "tuner", "runtime", "profiler", "study"]),
    ("tools/standin", &[]),
    ("tools/testing", &["ir"]),
    ("tools/xtask", &[]),
    ("tools/fuzz", &["ir", "tools/testing", "tuner"]),
    ("python", &["", "ir", "runtime", "tuner", "study"]),
];

/// Modules of the standard library that are forbidden in `ir`, since it does no IO, and in `tuner`, which reads no environment.
const WITHOUT: [(&str, &[&str]); 2] = [
    ("ir/src/", &["std::fs", "std::net", "std::env", "std::process", "std::{"]),
    ("tuner/src/", &["std::env", "std::{"]),
];

/// Binding to CUDA, and the only place that may name it.
const CUDA: (&str, &str) = (concat!("cudarc", "::"), "runtime/src/cuda");

/// Folders whose messages name no option of the command line: `study` adds the help there.
const WITHOUT_OPTIONS: [&str; 5] =
    ["ir/src/", "networks/src/", "tuner/src/", "runtime/src/", "profiler/src/"];

/// A file with options of others: of NVRTC.
const OPTIONS_OF_OTHERS: &str = "runtime/src/cuda/compile.rs";

/// Returns all forbidden uses.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.ending("Cargo.toml") {
        manifest(path, text, &mut found);
    }
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.contains("src/")) {
        for line in lines(path, text).iter().filter(|line| !line.test) {
            let code = line.text.split("//").next().unwrap_or_default();
            let at = format!("{path}:{}", line.number);
            for (_, names) in WITHOUT.iter().filter(|(folder, _)| path.starts_with(folder)) {
                let named = names.iter().filter(|name| code.contains(*name));
                found.extend(named.map(|name| format!("{at}: `{name}`: take a text or a value")));
            }
            if code.contains(CUDA.0) && !path.starts_with(CUDA.1) {
                found.push(format!("{at}: CUDA outside {}: go through the Device seam", CUDA.1));
            }
            let applies = WITHOUT_OPTIONS.iter().any(|folder| path.starts_with(folder));
            if applies && path != OPTIONS_OF_OTHERS && names_an_option(code) {
                found.push(format!("{at}: an option: say what is wrong, and `study` adds the option"));
            }
        }
    }
    found
}

/// Returns `true` if a line has `--name`.
fn names_an_option(code: &str) -> bool {
    code.match_indices("--").any(|(at, dashes)| {
        let next = code[at + dashes.len()..].chars().next();
        !code[..at].ends_with('-') && next.is_some_and(|next| next.is_ascii_lowercase())
    })
}

/// Compares the dependencies that a manifest names with the arrows.
fn manifest(path: &str, text: &str, found: &mut Vec<String>) {
    let folder = path.trim_end_matches("Cargo.toml").trim_end_matches('/');
    let Some(allowed) = allowed(folder) else {
        found.push(format!("{path}:1: a crate without a place: add its arrows to tools/xtask/src/arrows.rs"));
        return;
    };
    let mut section = "";
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        }
        if section.starts_with("workspace.") || !section.contains("dependencies") {
            continue;
        }
        for target in line.split(|c: char| !c.is_alphanumeric() && c != '-').filter_map(folder_of) {
            let shown = |folder| if str::is_empty(folder) { "the root" } else { folder };
            let (package, used) = (shown(folder), shown(target));
            if !section.contains("dev-dependencies") && !allowed.contains(&target) {
                found.push(format!("{path}:{number}: {package} may not depend on {used}"));
            }
            // A crate's tests may name the crate itself, to turn on one of its features, and those of `ir` that are outside
            // it (`ir/tests`) may use random traces.
            let free = target == folder || target == "tools/testing";
            if section.contains("dev-dependencies") && !free && leads_to(target, folder) {
                found.push(format!(
                    "{path}:{number}: {used} leads back to {package}: move the test to tests/"
                ));
            }
        }
    }
}

fn allowed(folder: &str) -> Option<&'static [&'static str]> {
    ARROWS.iter().find(|(of, _)| *of == folder).map(|(_, to)| *to)
}

/// Returns the folder of a workspace crate, given its package name.
fn folder_of(package: &str) -> Option<&'static str> {
    let name = if package == "plimsoll" { "" } else { package.strip_prefix("plimsoll-")? };
    ARROWS.iter().map(|(folder, _)| *folder).find(|folder| folder.rsplit('/').next() == Some(name))
}

/// Returns `true` if the arrows lead from one folder to the other, or if they are the same.
fn leads_to(from: &str, to: &str) -> bool {
    from == to || allowed(from).is_some_and(|next| next.iter().any(|next| leads_to(next, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(path: &str, text: &str, starts: &[&str]) {
        let found = check(&Tree::of(&[(path, text)]));
        let fits = found.len() == starts.len() && found.iter().zip(starts).all(|(f, s)| f.contains(s));
        assert!(fits, "{path}: {text:?} gives {found:?}, not {starts:?}");
    }

    #[test]
    fn dependencies_follow_the_arrows() {
        let on = |package: &str| format!("[dependencies]\n{package}.workspace = true\n");
        expect("profiler/Cargo.toml", &on("plimsoll-runtime"), &[]);
        expect("Cargo.toml", &on("plimsoll-tuner"), &[]);
        expect("tuner/Cargo.toml", &on("plimsoll-runtime"), &[":2: tuner may not depend on runtime"]);
        expect("ir/Cargo.toml", &on("plimsoll"), &[":2: ir may not depend on the root"]);
        expect("runtime/Cargo.toml", "[build-dependencies.plimsoll-tuner]\n", &[":1: runtime may not"]);
        expect("Cargo.toml", "[workspace.dependencies]\nplimsoll = { path = \".\" }\n", &[]);
        expect("attic/Cargo.toml", "", &[":1: a crate without a place"]);
        let tests_on = |package: &str| format!("[dev-dependencies]\n{package}.workspace = true\n");
        expect("tuner/Cargo.toml", &tests_on("plimsoll-networks"), &[]);
        expect("ir/Cargo.toml", &tests_on("plimsoll-ir"), &[]);
        expect("ir/Cargo.toml", &tests_on("plimsoll-networks"), &[":2: networks leads back to ir"]);
    }

    #[test]
    fn code_does_without_some_names() {
        expect("ir/src/a.rs", "\nuse std::fs::File; // std::net", &["ir/src/a.rs:2: `std::fs`"]);
        expect("ir/src/a.rs", "// std::fs\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n", &[]);
        expect("tuner/src/a.rs", "use std::fs;\nlet a = std::env::var(b);", &[":2: `std::env`"]);
        expect("runtime/src/a.rs", "use std::env;\nuse cudarc::driver;", &[":2: CUDA outside"]);
        expect("runtime/src/cuda/a.rs", "use cudarc::driver;", &[]);
        expect(
            "runtime/src/a.rs",
            "\nsay(\"lower --budget\"); // as --x",
            &["runtime/src/a.rs:2: an option"],
        );
        expect("tuner/src/a.rs", "const A: &str = \"a -- b, ---, --- a, 1--2, <!-- c\";", &[]);
        expect("src/a.rs", "say(\"lower --budget\");", &[]);
    }
}
