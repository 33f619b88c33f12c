//! Environment for the documents' commands: the built command line, and temporary directories that look like the root of a
//! clone.

use crate::tree::{Tree, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The built command line and a temporary directory, which is deleted when this is dropped.
pub struct Workshop {
    folder: PathBuf,
    path: std::ffi::OsString,
}

impl Workshop {
    /// Builds the command line. `name` is part of the directory's name.
    pub fn open(name: &str) -> Result<Workshop, String> {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--release", "--locked", "--bin", "plimsoll"]).current_dir(root());
        let output = build.output().map_err(|error| format!("cannot start cargo: {error}"))?;
        if !output.status.success() {
            return Err(last_words(&output));
        }
        // The program lies next to xtask itself.
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let binaries = own.parent().map(Path::to_path_buf);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(binaries.into_iter().chain(std::env::split_paths(&path)));
        let path = path.map_err(|error| error.to_string())?;
        let folder = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        Ok(Workshop { folder, path })
    }

    /// Makes a document's directory, with links to all entries of the root: no page relies on a file that a different page
    /// made.
    pub fn room(&self, tree: &Tree, document: &str) -> Result<PathBuf, String> {
        let room = self.folder.join(document.replace('/', "-"));
        let lay_out = || -> std::io::Result<()> {
            std::fs::create_dir_all(&room)?;
            let mut tops: Vec<&str> = tree.files().filter_map(|(path, _)| path.split('/').next()).collect();
            tops.dedup();
            let mut visible = tops.iter().filter(|top| !top.starts_with('.'));
            visible.try_for_each(|top| std::os::unix::fs::symlink(root().join(top), room.join(top)))
        };
        lay_out().map_err(|error| format!("cannot prepare {}: {error}", room.display()))?;
        Ok(room)
    }

    /// Runs a shell line in a directory.
    pub fn sh(&self, room: &Path, line: &str) -> Result<Output, String> {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", line]).current_dir(room).env("PATH", &self.path);
        bash.output().map_err(|error| format!("cannot start bash: {error}"))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("xtask: {} stays: {error}", self.folder.display());
        }
    }
}

/// Returns the end of the messages of a command that failed.
pub fn last_words(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = errors.lines().collect();
    format!("{}: {}", output.status, lines[lines.len().saturating_sub(12)..].join("\n"))
}
