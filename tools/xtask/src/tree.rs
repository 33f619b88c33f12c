//! The texts of the repository, held in memory: all files that git does not ignore.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Paths from the root, with `/`, each with its text. A binary file is empty here.
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the working tree.
    pub fn read() -> Result<Tree, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root());
        let output = git.output().map_err(|error| format!("cannot start git: {error}"))?;
        if !output.status.success() {
            return Err(format!("git lists no files: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        let there = listed.split('\0').filter(|path| root().join(path).is_file());
        let text = |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_default();
        Ok(Tree { files: there.map(|path| (path.to_owned(), text(path))).collect() })
    }

    /// Returns the tree of these texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    /// Returns all files in the order of their paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the files whose path has this ending.
    pub fn ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(end))
    }
}
