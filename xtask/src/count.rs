//! `cargo xtask count`: how large and how entangled the house is, as a table, and where each count comes from.
//!
//! Nothing here is a rule: `docs/counts.md` keeps the counts of two commits beside each other. The code is read by
//! `syn`, but for casts, of which many stand in macro calls, and for lines.

use crate::circles;
use crate::rust::{Source, is_test_file, words};
use crate::syntax::parsed;
use crate::tree::Tree;
use std::collections::BTreeSet;
use std::fmt::Write;
use syn::Attribute;
use syn::visit::{self, Visit};

/// A function of more lines is counted, from its signature to its closing brace.
const FUNCTION_LINES: usize = 80;

/// A struct of more fields is counted.
const STRUCT_FIELDS: usize = 12;

/// A type that derives one of these is a document, whose fields are those of a file or of a command line.
const DOCUMENTS: [&str; 5] = ["Serialize", "Deserialize", "Args", "Parser", "Message"];

/// So many lines that are equal to others, one after another, are written twice.
const RUN_LINES: usize = 6;

/// The folders whose lines are counted together.
const FOLDERS: [&str; 3] = ["tuner/", "src/", "study/"];

/// What `as` casts to.
const NUMBERS: [&str; 14] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32", "f64"];

/// One count: its name, its number, and the places that it is made of.
#[derive(Debug, PartialEq, Eq)]
struct Measure {
    name: String,
    number: usize,
    places: Vec<String>,
}

/// The table of all counts, and below it their places; an error names the file that cannot be read.
pub fn table(tree: &Tree) -> Result<String, String> {
    let measures = measures(tree)?;
    let width = measures.iter().map(|measure| measure.name.chars().count()).max().unwrap_or_default();
    let mut said = String::new();
    for Measure { name, number, .. } in &measures {
        let _ = writeln!(said, "{name:width$}  {number:>6}");
    }
    for Measure { name, places, .. } in measures.iter().filter(|measure| !measure.places.is_empty()) {
        let _ = writeln!(said, "\n{name}:");
        for place in places {
            let _ = writeln!(said, "  {place}");
        }
    }
    Ok(said)
}

fn measures(tree: &Tree) -> Result<Vec<Measure>, String> {
    let files = parsed(tree)?;
    let mut shapes = Shapes::default();
    for (path, file) in &files {
        shapes.path = path;
        shapes.visit_file(file);
    }
    let circles = circles::all(tree, &files);
    let circles = circles.iter().map(|circle| format!("{}: {}", circle.len(), circle.join(" "))).collect();
    let mut measures = vec![
        listed("circles of files", circles),
        listed(&format!("functions over {FUNCTION_LINES} lines"), shapes.functions),
        listed(&format!("structs over {STRUCT_FIELDS} fields, no documents"), shapes.structs),
        counted("numeric `as` in tuner/src", casts(tree, "tuner/src/")),
        counted("lines written twice", written_twice(tree)),
    ];
    let mut sums = [0, 0];
    for folder in FOLDERS {
        let lines = lines(tree, folder);
        measures.extend(of_lines(folder, lines));
        (0..2).for_each(|at| sums[at] += lines[at]);
    }
    measures.extend(of_lines(&FOLDERS.join(" + "), sums));
    Ok(measures)
}

fn listed(name: &str, places: Vec<String>) -> Measure {
    Measure { name: name.to_owned(), number: places.len(), places }
}

fn counted(name: &str, number: usize) -> Measure {
    Measure { name: name.to_owned(), number, places: Vec::new() }
}

fn of_lines(folder: &str, [code, all]: [usize; 2]) -> [Measure; 2] {
    let without = format!("lines of {folder} without tests, comments, blanks");
    [counted(&without, code), counted(&format!("lines of {folder}, all"), all)]
}

/// The functions and structs that are large, of one file after another.
#[derive(Default)]
struct Shapes<'a> {
    path: &'a str,
    functions: Vec<String>,
    structs: Vec<String>,
}

impl Shapes<'_> {
    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (first, last) = (signature.fn_token.span.start().line, body.brace_token.span.close().end().line);
        let lines = last - first + 1;
        if lines > FUNCTION_LINES {
            self.functions.push(format!("{}:{first}: `{}`, {lines} lines", self.path, signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Shapes<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        item.default.iter().for_each(|body| self.function(&item.sig, body));
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.len();
        if fields > STRUCT_FIELDS && !is_document(&item.attrs) {
            let line = item.ident.span().start().line;
            self.structs.push(format!("{}:{line}: `{}`, {fields} fields", self.path, item.ident));
        }
    }
}

/// Whether a type derives what makes it a document.
fn is_document(attributes: &[Attribute]) -> bool {
    let mut is = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        // A derive that cannot be read is the compiler's to refuse.
        let _ = attribute.parse_nested_meta(|derived| {
            is |= derived
                .path
                .segments
                .last()
                .is_some_and(|name| DOCUMENTS.iter().any(|known| name.ident == known));
            Ok(())
        });
    }
    is
}

/// The casts to a number in the code below a folder, without tests.
fn casts(tree: &Tree, folder: &str) -> usize {
    let mut count = 0;
    for (_, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(folder) && !is_test_file(path)) {
        let code = Source::new(text).code_without_tests();
        let names: Vec<&str> = words(&code).map(|(_, word)| word).collect();
        count += names.windows(2).filter(|pair| pair[0] == "as" && NUMBERS.contains(&pair[1])).count();
    }
    count
}

/// The lines of Rust below a folder: those of code outside tests, and all.
fn lines(tree: &Tree, folder: &str) -> [usize; 2] {
    let mut lines = [0, 0];
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(folder)) {
        lines[1] += text.lines().count();
        if !is_test_file(path) {
            lines[0] += Source::new(text).lines_of_code().len();
        }
    }
    lines
}

/// The lines of code outside tests, of the whole house, that stand in a run of equal lines which was there before.
fn written_twice(tree: &Tree) -> usize {
    let mut seen = BTreeSet::new();
    let mut count = 0;
    for (_, text) in tree.ending(".rs").filter(|(path, _)| !is_test_file(path)) {
        let all: Vec<&str> = text.lines().map(str::trim).collect();
        let code: Vec<&str> = Source::new(text).lines_of_code().into_iter().map(|line| all[line]).collect();
        let mut counted = 0;
        for (at, run) in code.windows(RUN_LINES).enumerate() {
            if !seen.insert(run.to_vec()) {
                // Runs overlap; each line counts once.
                count += at + RUN_LINES - counted.max(at);
                counted = at + RUN_LINES;
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measure that begins so, of these files.
    #[track_caller]
    fn of(name: &str, files: &[(&str, &str)]) -> Measure {
        let mut measures = measures(&Tree::of(files)).unwrap();
        let at = measures.iter().position(|measure| measure.name.starts_with(name)).unwrap();
        measures.swap_remove(at)
    }

    #[test]
    fn long_functions_are_found_wherever_they_stand() {
        let body = |lines: usize| format!("fn a() {{{}}}", "\n".repeat(lines - 1));
        for (before, after) in [("\n", ""), ("\nimpl B { ", "}"), ("\ntrait B { ", "}"), ("\nmod b { ", "}")]
        {
            let text = |lines| format!("{before}{}{after}", body(lines));
            assert_eq!(of("functions", &[("a.rs", &text(80))]).number, 0);
            assert_eq!(of("functions", &[("a.rs", &text(81))]).places, ["a.rs:2: `a`, 81 lines"]);
        }
    }

    #[test]
    fn wide_structs_are_found_but_for_documents() {
        let of_fields = |derived: &str, count: usize| format!("{derived}struct A({});", "u8,".repeat(count));
        let number = |derived, count| of("structs", &[("a.rs", &of_fields(derived, count))]).number;
        assert_eq!((number("", 12), number("", 13)), (0, 1));
        assert_eq!(
            (number("#[derive(Debug)] ", 13), number("#[derive(Debug, serde::Serialize)] ", 13)),
            (1, 0)
        );
        assert_eq!(
            (number("#[derive(Args)] ", 13), number("#[derive(Clone)] #[derive(Parser)] ", 13)),
            (0, 0)
        );
    }

    #[test]
    fn casts_are_those_to_numbers_in_the_code_of_the_tuner() {
        let text = "use a as b;\nfn c() { d!(e as f64, f as usize as u8); g as H; } // h as u8\n\
                    #[cfg(test)]\nmod tests { fn i() { j as u8 } }\n";
        assert_eq!(
            of("numeric", &[("tuner/src/a.rs", text), ("tuner/src/a/tests.rs", "fn k() { l as u8; }")])
                .number,
            3
        );
        assert_eq!(of("numeric", &[("ir/src/a.rs", text)]).number, 0);
    }

    #[test]
    fn lines_are_counted_with_and_without_tests_and_comments() {
        let text =
            "//! Is.\n\nfn a() {\n    \"b\n    c\n\n    d\" // e\n}\n// f\n#[cfg(test)]\nmod tests {}\n";
        let files = [("src/a.rs", text), ("src/a/tests.rs", "fn g() {}\n"), ("ir/src/a.rs", text)];
        assert_eq!(of("lines of src/ without", &files).number, 5);
        assert_eq!(of("lines of src/, all", &files).number, 12);
        assert_eq!(of("lines of tuner/ + src/ + study/ without", &files).number, 5);
    }

    #[test]
    fn lines_written_twice_stand_in_runs_of_six() {
        let run = |lines: usize| (0..lines).map(|line| format!("// c\n  a({line});\n")).collect::<String>();
        let twice = |lines: usize| {
            of(
                "lines written",
                &[
                    ("a.rs", &format!("fn f() {{\n{}}}", run(lines))),
                    ("b.rs", &format!("fn g() {{\n{}g();}}", run(lines))),
                ],
            )
        };
        assert_eq!([5, 6, 8].map(|lines| twice(lines).number), [0, 6, 8]);
    }
}
