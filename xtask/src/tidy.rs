//! What every source file owes its reader: a header, a bearable length, no unfinished work, and a reason for every
//! `unsafe`.
//!
//! Clippy knows undocumented unsafe blocks too; here they are held to the folder in which they may stand, and
//! functions are held to their `# Safety` section even where they are private.

use crate::rust::{Source, line_of, words};
use crate::tree::{Finding, Tree};

/// A file longer than this asks for another cut.
const LINES_MAX: usize = 800;

/// A line wider than this does not fit beside another file. rustfmt sees to code, and to no comment or text.
const WIDTH_MAX: usize = 128;

/// A header that says less than this in its first line says nothing.
const HEADER_WORDS_MIN: usize = 4;

/// Where `unsafe` may stand.
const UNSAFE_FOLDERS: [&str; 3] = ["runtime/", "python/", "standin/"];

/// Notes of unfinished work, in comments and documents.
const UNFINISHED_NOTES: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// All faults of tidiness.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let source = Source::new(text);
        form(path, text, &mut found);
        notes(path, &source.comments, &mut found);
        unsafety(path, &source, &mut found);
    }
    for (path, text) in tree.ending(".md") {
        notes(path, text, &mut found);
    }
    for (main, text) in tree.ending("tests/main.rs") {
        unlisted(tree, main, text, &mut found);
    }
    for (main, _) in tree.ending("/main.rs") {
        unnamed(tree, main, &mut found);
    }
    found
}

/// A program of tests that its crate's manifest does not name, where Cargo looks for none by itself.
fn unnamed(tree: &Tree, main: &str, found: &mut Vec<Finding>) {
    let Some(at) = main.find("tests/").filter(|at| *at == 0 || main[..*at].ends_with('/')) else { return };
    let manifest = format!("{}Cargo.toml", &main[..at]);
    let Some(text) = tree.text(&manifest).filter(|text| text.contains("autotests = false")) else { return };
    if !text.contains(&format!("path = \"{}\"", &main[at..])) {
        let what = format!("nobody runs these tests: add a [[test]] with this path to {manifest}");
        found.push(Finding::new(main, 1, what));
    }
}

/// Files beside a program of tests that it does not name, whose tests nobody runs: Cargo looks for no others there.
fn unlisted(tree: &Tree, main: &str, text: &str, found: &mut Vec<Finding>) {
    let folder = main.trim_end_matches("main.rs");
    for (path, _) in tree.ending(".rs") {
        let module = path.strip_prefix(folder).and_then(|rest| rest.strip_suffix(".rs"));
        let module = module.map(|module| module.trim_end_matches("/mod"));
        let Some(module) = module.filter(|module| !module.contains('/') && *module != "main") else {
            continue;
        };
        if !text.contains(&format!("\nmod {module};\n")) {
            found.push(Finding::new(
                path,
                1,
                format!("nobody runs these tests: add `mod {module};` to {main}"),
            ));
        }
    }
}

/// The header and the length.
fn form(path: &str, text: &str, found: &mut Vec<Finding>) {
    let header = text.lines().next().and_then(|line| line.strip_prefix("//!"));
    if header.is_none_or(|line| line.split_whitespace().count() < HEADER_WORDS_MIN) {
        let what = "open the file with a `//!` header: what it is, why it is so, what it does not do";
        found.push(Finding::new(path, 1, what));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        found.push(Finding::new(path, lines, format!("{lines} lines; cut the file below {LINES_MAX}")));
    }
    let widths = text.lines().map(|line| line.chars().count());
    for (line, width) in (1..).zip(widths).filter(|(_, width)| *width > WIDTH_MAX) {
        found.push(Finding::new(path, line, format!("{width} columns; break the line before {WIDTH_MAX}")));
    }
}

/// Notes to oneself.
fn notes(path: &str, text: &str, found: &mut Vec<Finding>) {
    for (at, word) in words(text).filter(|(_, word)| UNFINISHED_NOTES.contains(word)) {
        found.push(Finding::new(
            path,
            line_of(text, at),
            format!("`{word}`: do it, or open an issue and drop the note"),
        ));
    }
}

/// Where `unsafe` stands, and whether it says why it is sound.
fn unsafety(path: &str, source: &Source, found: &mut Vec<Finding>) {
    let code = &source.code;
    for (at, word) in words(code).filter(|(_, word)| *word == "unsafe") {
        let line = line_of(code, at);
        if !UNSAFE_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            found.push(Finding::new(
                path,
                line,
                "`unsafe` outside runtime/: use a safe way, or move it to the runtime",
            ));
        }
        match duty(code[at + word.len()..].trim_start()) {
            Duty::Reason if !says(source, line, &["SAFETY:"]) => {
                found.push(Finding::new(
                    path,
                    line,
                    "say why this is sound in a `// SAFETY:` comment above it",
                ));
            }
            Duty::Contract if !says(source, line, &["# Safety", "SAFETY:"]) => {
                found.push(Finding::new(
                    path,
                    line,
                    "say what the caller must uphold in a `# Safety` section",
                ));
            }
            _ => {}
        }
    }
}

/// What an `unsafe` owes: nothing, a reason, or a contract for callers.
enum Duty {
    Nothing,
    Reason,
    Contract,
}

/// Tells from what follows the keyword.
fn duty(rest: &str) -> Duty {
    let head = &rest[..rest.find(['{', '(', ';']).unwrap_or(rest.len())];
    let names: Vec<&str> = words(head).map(|(_, word)| word).collect();
    match names.as_slice() {
        // A block, a block of foreign items, an implementation.
        [] if rest.starts_with('{') => Duty::Reason,
        ["extern" | "impl", ..] if !names.contains(&"fn") => Duty::Reason,
        // The type of a function pointer, or an attribute.
        [] | [.., "fn"] => Duty::Nothing,
        // A macro's pattern; what is written for it is looked at where it is used.
        _ if head.contains("fn $") => Duty::Nothing,
        _ => Duty::Contract,
    }
}

/// Whether a comment on this line, or above it and no farther than the start of its statement, holds a mark.
fn says(source: &Source, line: usize, marks: &[&str]) -> bool {
    let code: Vec<&str> = source.code.lines().take(line).collect();
    let comments: Vec<&str> = source.comments.lines().take(line).collect();
    for at in (0..line).rev() {
        let text = code[at].trim();
        let blank = text.is_empty() && comments[at].trim().is_empty();
        let ends = text.ends_with([';', '{', '}']) || text.ends_with("},");
        if at + 1 < line && (blank || ends) {
            return false;
        }
        if marks.iter().any(|mark| comments[at].contains(mark)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    const HEADER: &str = "//! A file with its header.\n";

    /// The faults of one file that has its header.
    fn faults(path: &str, body: &str) -> Vec<String> {
        said(check, &[(path, &format!("{HEADER}{body}"))])
    }

    #[track_caller]
    fn assert_one(found: &[String], start: &str) {
        assert!(
            found.len() == 1 && found[0].starts_with(start),
            "{start:?} is not the only one of {found:?}"
        );
    }

    #[test]
    fn a_file_opens_with_a_header_that_says_something() {
        for text in ["", "fn a() {}", "//! .\n", "// A file with its header.\n"] {
            assert_one(&said(check, &[("a.rs", text)]), "a.rs:1: open the file with");
        }
        assert!(faults("a.rs", "fn a() {}").is_empty());
    }

    #[test]
    fn a_long_file_is_cut() {
        assert_one(&faults("a.rs", &"\n".repeat(800)), "a.rs:801: 801 lines");
        assert!(faults("a.rs", &"\n".repeat(799)).is_empty());
    }

    #[test]
    fn notes_of_unfinished_work_are_found() {
        assert_one(&faults("a.rs", "/* FIXME */"), "a.rs:2: `FIXME`");
        assert_one(&said(check, &[("a.md", "one\nXXX two")]), "a.md:2: `XXX`");
        assert!(faults("a.rs", "fn a(todo: u8) { ignore(\"FIXME\"); } // XXXL").is_empty());
    }

    #[test]
    fn a_file_of_tests_belongs_to_its_program() {
        let main = ("ir/tests/main.rs", "//! The tests of a crate.\n\nmod a;\nmod c;\n");
        let files =
            ["ir/tests/a.rs", "ir/tests/b.rs", "ir/tests/c/mod.rs", "ir/tests/c/d.rs", "networks/tests/e.rs"];
        let tree: Vec<_> = files.map(|path| (path, HEADER)).into_iter().chain([main]).collect();
        assert_one(&said(check, &tree), "ir/tests/b.rs:1: nobody runs these tests: add `mod b;`");
    }

    #[test]
    fn a_program_of_tests_is_named() {
        let manifest = "[package]\nautotests = false\n[[test]]\nname = \"a\"\npath = \"tests/a/main.rs\"\n";
        let files =
            [("ir/tests/a/main.rs", HEADER), ("ir/tests/b/main.rs", HEADER), ("ir/Cargo.toml", manifest)];
        assert_one(&said(check, &files), "ir/tests/b/main.rs:1: nobody runs these tests: add a [[test]]");
        assert!(said(check, &[("ir/tests/b/main.rs", HEADER), ("ir/Cargo.toml", "[package]")]).is_empty());
    }

    #[test]
    fn unsafe_code_stands_in_the_runtime_only() {
        let body = "// SAFETY: it is.\nfn a() { unsafe { b() } } // SAFETY: it is.";
        assert_one(&faults("ir/a.rs", body), "ir/a.rs:3: `unsafe` outside runtime/");
        assert!(faults("runtime/a.rs", body).is_empty());
        assert!(faults("ir/a.rs", "#![forbid(unsafe_code)]").is_empty());
    }

    #[test]
    fn unsafe_code_says_why() {
        let unsaid = [
            "let a = unsafe { b() };",
            "// SAFETY: of something else.\nlet a = c();\nlet b = unsafe { d() };",
            "// SAFETY: too far.\n\nunsafe impl Send for A {}",
            "unsafe extern \"C\" { fn a(); }",
        ];
        for body in unsaid {
            let found = faults("runtime/a.rs", body);
            assert!(found.len() == 1 && found[0].contains("// SAFETY:"), "{body:?} gives {found:?}");
        }
        assert_one(
            &faults("runtime/a.rs", "/// Runs.\nunsafe fn a() {}"),
            "runtime/a.rs:3: say what the caller",
        );
        let said = [
            "// SAFETY: it is.\nlet a =\n    unsafe { b() };",
            "// SAFETY: it is,\n// really.\n#[inline]\nunsafe impl Send for A {}",
            "/// Runs.\n///\n/// # Safety\n/// `a` is valid.\n#[inline]\npub unsafe fn a() {}",
            "type F = unsafe fn(u8);\ntype G = unsafe extern \"C\" fn(u8);",
            "macro_rules! m { (unsafe fn $name:ident) => { unsafe fn $name() {} } }",
            "#[unsafe(no_mangle)]\nfn a() {}",
        ];
        for body in said {
            assert_eq!(faults("runtime/a.rs", body), Vec::<String>::new(), "{body:?}");
        }
    }
}
