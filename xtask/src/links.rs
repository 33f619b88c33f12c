//! What the documents point at exists: links, their anchors, and paths in backticks.
//!
//! A span in backticks is taken for a path when it ends like a source file of the house or begins with one of its folders; it
//! may leave out leading folders (`check.rs`). Links to the web are not followed: a check that needs a network fails for
//! reasons that are not ours. Names of Rust items are left to `cargo doc`.

use crate::markdown;
use crate::tree::{Finding, Tree};

/// A span that ends so is meant as a file of this house, wherever it begins; other endings may be files of the user's.
const SOURCE_ENDINGS: [&str; 2] = [".rs", "Cargo.toml"];

/// All dead ends.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (line, prose) in markdown::parse(text).0 {
            let mut report = |what: String| found.push(Finding::new(path, line, what));
            for target in markdown::links(prose) {
                if let Some(fault) = dead_link(tree, path, target) {
                    report(format!("link to `{target}`: {fault}"));
                }
            }
            for span in markdown::spans(prose).filter(|span| is_path(tree, span)) {
                if markdown::resolve(path, span).is_none_or(|whole| !tree.has(&whole)) && !tree.has_tail(span)
                {
                    report(format!("`{span}` is not in the house: name what took its place"));
                }
            }
        }
    }
    found
}

/// Why a link in the document at `path` leads nowhere.
fn dead_link(tree: &Tree, path: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let Some(whole) = (if file.is_empty() { Some(path.to_owned()) } else { markdown::resolve(path, file) })
    else {
        return Some("it leaves the repository; link to what a clone holds".to_owned());
    };
    if !tree.has(&whole) {
        return Some("it is not there; link to what took its place".to_owned());
    }
    let anchors = tree.text(&whole).map(markdown::anchors).unwrap_or_default();
    let dead = !anchor.is_empty() && whole.ends_with(".md") && !anchors.iter().any(|known| known == anchor);
    dead.then(|| format!("no such heading; there are {}", anchors.join(", ")))
}

/// Whether a code span means a file or folder of the house.
fn is_path(tree: &Tree, span: &str) -> bool {
    let plain = span.chars().all(|c| c.is_alphanumeric() || "._-/".contains(c));
    let under_the_root = span.split_once('/').is_some_and(|(top, _)| !top.is_empty() && tree.has(top));
    let named = SOURCE_ENDINGS.iter().any(|end| span != *end && span.ends_with(end));
    plain && !span.starts_with(['/', '.']) && (under_the_root || named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    #[track_caller]
    fn expect(document: &str, text: &str, starts: &[&str]) {
        let house = [("ir/src/check.rs", ""), ("docs/a.md", "# One two\n"), (document, text)];
        let found = said(check, &house);
        let fits = found.len() == starts.len() && found.iter().zip(starts).all(|(f, s)| f.contains(s));
        assert!(fits, "{text:?} gives {found:?}, not {starts:?}");
    }

    #[test]
    fn links_lead_somewhere() {
        expect("README.md", "[a](docs/a.md) [b](ir) [c](https://d.e/f) [g](docs/a.md#one-two)", &[]);
        expect("README.md", "\n[a](docs/b.md)", &["README.md:2: link to `docs/b.md`: it is not there"]);
        expect("README.md", "[a](docs/a.md#three)", &["no such heading; there are one-two"]);
        expect(
            "README.md",
            "# Top\n[a](#top) [b](#bottom)",
            &["README.md:2: link to `#bottom`: no such heading"],
        );
        expect("README.md", "[a](../design.md)", &["it leaves the repository"]);
        expect(
            "ir/README.md",
            "[a](src/check.rs) [b](../docs/a.md) [c](check.rs)",
            &["`check.rs`: it is not"],
        );
    }

    #[test]
    fn paths_in_backticks_exist() {
        expect("ARCHITECTURE.md", "`ir/src/check.rs`, `check.rs`, `ir/src`, `ir/`", &[]);
        expect(
            "ARCHITECTURE.md",
            "`trace/1`, `my.schedule.json`, `study.toml`, `.rs`, `ir::check`, `cargo run x.rs`, `12GB/s`",
            &[],
        );
        expect("ARCHITECTURE.md", "`ir/src/chuck.rs`", &[":1: `ir/src/chuck.rs` is not in the house"]);
        expect("ARCHITECTURE.md", "`ir/srg` and `gone.rs`", &["`ir/srg`", "`gone.rs`"]);
        expect("CHANGELOG.md", "```sh\n[a](b) `gone.rs`\n```", &[]);
    }
}
