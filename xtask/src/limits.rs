//! How long documents may be. A document that nobody reads to its end goes stale.
//!
//! Functions are held short by clippy (`too_many_lines`, whose limit is in `clippy.toml`), files by [`crate::tidy`].

use crate::tree::{Finding, Tree};

/// Documents that must be there, what is counted of them, and the most that there may be of it.
const DOCUMENTS: [(&str, Unit, usize); 3] = [
    ("README.md", Unit::Lines, 150),
    ("ARCHITECTURE.md", Unit::Bytes, 12_000),
    ("python/README.md", Unit::Lines, 150),
];

/// What is counted of a document.
#[derive(Clone, Copy)]
enum Unit {
    Lines,
    Bytes,
}

/// All that is missing or too long.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, unit, most) in DOCUMENTS {
        let Some(text) = tree.text(path) else {
            found.push(Finding::new(path, 1, "it is missing: write it"));
            continue;
        };
        let lines = text.lines().count();
        let (length, name) = match unit {
            Unit::Lines => (lines, "lines"),
            Unit::Bytes => (text.len(), "bytes"),
        };
        if length > most {
            found.push(Finding::new(path, lines, format!("{length} {name}; shorten it to {most}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::said;

    #[test]
    fn documents_are_there() {
        let found = said(check, &[("README.md", ""), ("python/README.md", "")]);
        assert_eq!(found, ["ARCHITECTURE.md:1: it is missing: write it"]);
    }

    #[test]
    fn documents_are_short() {
        let faults = |lines: usize, bytes: usize| {
            let texts = [("README.md", "\n".repeat(lines)), ("ARCHITECTURE.md", "a".repeat(bytes))];
            said(check, &[(texts[0].0, &texts[0].1), (texts[1].0, &texts[1].1), ("python/README.md", "")])
        };
        assert!(faults(150, 12_000).is_empty());
        assert_eq!(faults(151, 12_000), ["README.md:151: 151 lines; shorten it to 150"]);
        assert_eq!(faults(150, 12_001), ["ARCHITECTURE.md:1: 12001 bytes; shorten it to 12000"]);
    }
}
