//! The texts of the working tree, held in memory, and a fault in one of them.
//!
//! Checks see only this, so a test is a tree of two or three strings. Hidden entries and what `.gitignore` names at
//! the top are left out. Only the texts that some check reads are kept; of every other file the name is enough.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A fault: where it is and what to do about it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    /// A fault on `line`, counted from 1.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// How the names of files end whose texts are read.
const READ: [&str; 6] = [".rs", ".md", ".toml", ".py", ".pyi", ".js"];

/// Paths from the root, with `/`, each with its text.
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads what lies under `root`.
    pub fn read(root: &Path) -> std::io::Result<Tree> {
        let ignored = std::fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
        let ignored: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('/')).collect();
        let mut files = BTreeMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
                if name.starts_with('.') || ignored.iter().any(|top| top.trim_end_matches('/') == path) {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else {
                    let kept = READ.iter().any(|end| name.ends_with(end));
                    files.insert(
                        path,
                        if kept { std::fs::read_to_string(entry.path())? } else { String::new() },
                    );
                }
            }
        }
        Ok(Tree { files })
    }

    /// The tree of these texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Every path in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The files whose name ends so.
    pub fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(move |(path, _)| path.ends_with(end))
    }

    /// Whether `path` is a file or a folder; the root is one.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty() || self.paths().any(|at| at.strip_prefix(path).is_some_and(is_end_of_name))
    }

    /// Whether some path ends with `tail`, or holds it as a folder, at a border of names.
    pub fn has_tail(&self, tail: &str) -> bool {
        let tail = tail.trim_end_matches('/');
        self.paths().any(|path| {
            path.match_indices(tail).any(|(at, _)| {
                (at == 0 || path[..at].ends_with('/')) && is_end_of_name(&path[at + tail.len()..])
            })
        })
    }
}

/// Whether a name ended where this rest of a path begins.
fn is_end_of_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// What a check says about a tree, for tests: the faults as printed.
#[cfg(test)]
pub fn said(check: impl Fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    check(&Tree::of(files)).iter().map(Finding::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_there_and_parts_of_names_are_not() {
        let tree = Tree::of(&[("ir/src/check.rs", "")]);
        assert!(tree.has("ir/src/check.rs") && tree.has("ir/") && tree.has("ir/src") && tree.has(""));
        assert!(!tree.has("i") && !tree.has("src") && !tree.has("ir/src/check"));
        assert!(tree.has_tail("check.rs") && tree.has_tail("src/") && tree.has_tail("src/check.rs"));
        assert!(!tree.has_tail("heck.rs") && !tree.has_tail("sr") && !tree.has_tail("check"));
    }

    #[test]
    fn hidden_and_ignored_entries_are_not_read() -> std::io::Result<()> {
        let root = std::env::temp_dir().join(format!("plimsoll-xtask-tree-{}", std::process::id()));
        for folder in ["target/deep", ".git", "ir/src"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        for (path, text) in [
            (".gitignore", "/target\n"),
            ("target/deep/a.rs", "a"),
            (".git/b.rs", "b"),
            ("ir/src/c.rs", "c"),
            ("ir/d.bin", "d"),
            ("ir/e.py", "e"),
        ] {
            std::fs::write(root.join(path), text)?;
        }
        let tree = Tree::read(&root)?;
        std::fs::remove_dir_all(&root)?;
        assert_eq!(tree.paths().collect::<Vec<_>>(), ["ir/d.bin", "ir/e.py", "ir/src/c.rs"]);
        assert_eq!(
            ["ir/src/c.rs", "ir/d.bin", "ir/e.py"].map(|path| tree.text(path)),
            [Some("c"), Some(""), Some("e")]
        );
        Ok(())
    }
}
