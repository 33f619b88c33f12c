//! How long documents and functions may be.
//!
//! A document that nobody reads to its end goes stale, and a function longer than a screen or two hides a second one. A function
//! that is better in one piece says so right above it, `// LONG: why`; only a few may.

use crate::rust::{Function, Source};
use crate::tree::{Finding, Tree};

/// Documents that must be there, and their lines.
const DOCUMENTS: [(&str, usize); 2] = [("README.md", 150), ("ARCHITECTURE.md", 250)];

/// The lines of a function, signature and braces included.
const FUNCTION_MAX: usize = 100;

/// How many functions of the whole house may be longer.
const LONG_MAX: usize = 4;

/// What a comment above a long function begins with.
const MARK: &str = "LONG:";

/// All that is too long.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, most) in DOCUMENTS {
        match tree.text(path).map(|text| text.lines().count()) {
            None => found.push(Finding::new(path, 1, "it is missing: write it")),
            Some(lines) if lines > most => {
                found.push(Finding::new(path, lines, format!("{lines} lines; shorten it to {most}")));
            }
            Some(_) => {}
        }
    }
    let mut excused = 0;
    for (path, text) in tree.ending(".rs") {
        let source = Source::new(text);
        for function in source.functions() {
            match verdict(&function, &source) {
                Verdict::Fits => {}
                Verdict::Excused if excused < LONG_MAX => excused += 1,
                Verdict::Excused => {
                    let what =
                        format!("more than {LONG_MAX} long functions in the house; cut this one or another");
                    found.push(Finding::new(path, function.first, what));
                }
                Verdict::Faulty(what) => found.push(Finding::new(path, function.first, what)),
            }
        }
    }
    found
}

/// What is said of one function.
enum Verdict {
    Fits,
    Excused,
    Faulty(String),
}

fn verdict(function: &Function, source: &Source) -> Verdict {
    let Function { name, first, last } = function;
    let lines = last - first + 1;
    let above: Vec<&str> = source.comments.lines().take(first - 1).collect();
    let code: Vec<&str> = source.code.lines().take(first - 1).collect();
    // Comments and attributes belong to the function as far up as they reach.
    let belongs = |at: &usize| code[*at].trim().starts_with("#[") || above[*at].trim().starts_with("//");
    let reason = (0..first - 1).rev().take_while(belongs).find_map(|at| above[at].split_once(MARK));
    match reason.map(|(_, reason)| reason.trim()) {
        None if lines > FUNCTION_MAX => Verdict::Faulty(format!(
            "`{name}` has {lines} lines; cut it below {FUNCTION_MAX}, or say above it `// {MARK} why`"
        )),
        None => Verdict::Fits,
        Some("") => Verdict::Faulty(format!("say why `{name}` is better in one piece")),
        Some(_) if lines <= FUNCTION_MAX => {
            Verdict::Faulty(format!("`{name}` has {lines} lines and needs no `{MARK}` any more: delete it"))
        }
        Some(_) => Verdict::Excused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    /// The faults of a house with these documents and this function, which is `lines` long.
    fn faults(above: &str, lines: usize, count: usize) -> Vec<String> {
        let function = format!("{above}fn a() {{{}}}\n\n", "\n".repeat(lines - 1));
        said(check, &[("README.md", ""), ("ARCHITECTURE.md", ""), ("a.rs", &function.repeat(count))])
    }

    #[track_caller]
    fn assert_one(found: &[String], part: &str) {
        assert!(found.len() == 1 && found[0].contains(part), "{part:?} is not the only one of {found:?}");
    }

    #[test]
    fn documents_are_there_and_short() {
        let found = said(check, &[("README.md", &"\n".repeat(151))]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("README.md:151: 151 lines; shorten"), "{found:?}");
        assert!(found[1].starts_with("ARCHITECTURE.md:1: it is missing"), "{found:?}");
        assert!(said(check, &[("README.md", &"\n".repeat(150)), ("ARCHITECTURE.md", "")]).is_empty());
    }

    #[test]
    fn functions_are_short() {
        assert!(faults("", 100, 1).is_empty());
        assert_one(&faults("/// Does.\n", 101, 1), "a.rs:2: `a` has 101 lines");
    }

    #[test]
    fn a_long_function_gives_its_reason_and_few_may() {
        let reason = "// LONG: a table.\n#[inline]\n/// Does.\n";
        assert!(faults(reason, 101, 4).is_empty());
        assert_one(&faults(reason, 101, 5), "more than 4 long functions");
        assert_one(&faults("// LONG:\n", 101, 1), "say why `a`");
        assert_one(&faults("// LONG: a table.\n", 100, 1), "needs no `LONG:` any more");
        assert_one(&faults("// LONG: a table.\n\n", 101, 1), "`a` has 101 lines");
    }
}
