//! `cargo xtask documented`: public functions and types have a doc comment.
//!
//! The compiler's lint `missing_docs` asks it of every field and variant too, where a comment often only repeats the name.

use crate::count::lines;
use crate::tree::Tree;

/// Returns the public functions and types without a doc comment. Items that macros make are left out.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.contains("src/")) {
        let all: Vec<&str> = text.lines().map(str::trim).collect();
        for line in lines(path, text).iter().filter(|line| !line.test && is_public(line.text)) {
            if !before_attributes(&all[..line.number - 1]).is_some_and(|line| line.starts_with("///")) {
                found.push(format!("{path}:{}: `{}` has no doc comment", line.number, line.text.trim()));
            }
        }
    }
    found
}

fn is_public(line: &str) -> bool {
    let Some(item) = line.trim_start().strip_prefix("pub ") else { return false };
    let kinds = [
        "fn ", "const ", "unsafe ", "async ", "extern ", "struct ", "enum ", "trait ", "type ", "union ",
        "static ",
    ];
    kinds.iter().any(|kind| item.starts_with(kind)) && !item.contains('$')
}

/// Returns the last line before the attributes at the end of these lines.
fn before_attributes<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let mut within = false;
    let mut upwards = lines.iter().rev().skip_while(|line| {
        let starts = line.starts_with("#[");
        within = !starts && (within || line.ends_with(")]"));
        starts || within
    });
    upwards.next().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_public_is_documented() {
        let file = "/// A.\n#[derive(Debug)]\n#[expect(\n    b,\n    c\n)]\npub struct A {\n    pub b: C,\n}\n\n#[inline]\npub const fn d() {}\n\
                    fn e() {}\n#[cfg(test)]\nmod tests {\n    pub fn f() {}\n}\n";
        let found = check(&Tree::of(&[("a/src/lib.rs", file), ("a/tests/g.rs", "pub fn h() {}\n")]));
        assert_eq!(found, ["a/src/lib.rs:12: `pub const fn d() {}` has no doc comment"]);
    }
}
