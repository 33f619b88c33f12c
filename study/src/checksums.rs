//! Checksums of a study's documents: `checksums.txt` in the same folder has one line per file, with its CRC-32 and its name.
//!
//! A file is replaced in three steps: its new checksum joins the list, the file is replaced, the old checksum leaves the list.
//! So wherever a run is killed, every file matches one of its checksums in the list. A reader during a write may see one of the
//! two old and the other new, and reads again.
//!
//! A file that is not in the list is accepted unverified: files of studies older than the list, and those that users make or
//! change. Journals and the training's state carry their own checksums.

use crate::error::{Cause, Error};
use crate::files;
use plimsoll_ir::checksum::Checksum;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the list.
pub const LIST: &str = "checksums.txt";

/// Parsed list of checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed {
    lines: Vec<(Checksum, String)>,
}

impl Listed {
    /// Reads a folder's list; empty if there is none.
    fn of(folder: &Path) -> Result<Listed, Error> {
        let path = folder.join(LIST);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Listed::default());
            }
            Err(error) => return Err(Error::io(&path, "read", &error)),
        };
        let lines = (1..).zip(text.lines()).map(|(line, text)| {
            let parts =
                text.split_once("  ").and_then(|(sum, name)| Some((sum.parse().ok()?, name.to_owned())));
            parts.ok_or_else(|| {
                let list = path.display();
                Error::usage(format_args!("{list}: line {line} is no checksum and name of a file"))
                    .help("delete that line; the file will then be accepted unverified")
            })
        });
        Ok(Listed { lines: lines.collect::<Result<_, _>>()? })
    }

    fn names(&self, name: &str) -> bool {
        self.lines.iter().any(|(_, listed)| listed == name)
    }

    /// Returns `true` if the list permits these bytes for a file.
    fn allows(&self, name: &str, bytes: &[u8]) -> bool {
        let line = (Checksum::of(bytes), name.to_owned());
        !self.names(name) || self.lines.contains(&line)
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        let line = (Checksum::of(bytes), name.to_owned());
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    fn forget(&mut self, name: &str) {
        self.lines.retain(|(_, listed)| listed != name);
    }

    fn write(&self, folder: &Path) -> Result<(), Error> {
        let text: String = self.lines.iter().map(|(sum, name)| format!("{sum}  {name}\n")).collect();
        files::write_text(&folder.join(LIST), &text)
    }
}

/// Splits a path into directory and file name.
fn parts(path: &Path) -> (&Path, String) {
    (files::folder_of(path), path.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Returns `true` if a study keeps the checksum of this file, and so writes the file itself.
pub fn is_listed(path: &Path) -> bool {
    let (folder, name) = parts(path);
    Listed::of(folder).is_ok_and(|listed| listed.names(&name))
}

/// Reads a file, which must match a checksum of the folder's list if the list names it.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let (folder, name) = parts(path);
    let mut before = None;
    loop {
        let bytes = fs::read(path).map_err(|error| Error::io(path, "read", &error))?;
        if Listed::of(folder)?.allows(&name, &bytes) {
            return Ok(bytes);
        }
        // The same bytes twice: no other run is just replacing the file.
        if before.as_ref() == Some(&bytes) {
            let (file, list) = (path.display(), folder.join(LIST));
            let message = format!("{file} is damaged, or was changed: it does not match its checksum");
            return Err(Error::usage(message)
                .help(format_args!(
                    "put the file back as it was, or remove its line from {} if you changed it yourself",
                    list.display()
                ))
                .because(Cause::Document { of_other_version: false }));
        }
        before = Some(bytes);
    }
}

/// Writes files of one folder, each in one step and in this order, with their checksums.
pub fn write(folder: &Path, new: &[(PathBuf, Vec<u8>)]) -> Result<(), Error> {
    let mut listed = Listed::of(folder)?;
    let named: Vec<(String, &PathBuf, &Vec<u8>)> =
        new.iter().map(|(path, bytes)| (parts(path).1, path, bytes)).collect();
    for (name, path, bytes) in &named {
        // A file outside the list is accepted unverified, until the new one is there.
        if !listed.names(name)
            && let Ok(there) = fs::read(path)
        {
            listed.add(name, &there);
        }
        listed.add(name, bytes);
    }
    listed.write(folder)?;
    named.iter().try_for_each(|(_, path, bytes)| files::write_bytes(path, bytes))?;
    for (name, _, bytes) in &named {
        listed.forget(name);
        listed.add(name, bytes);
    }
    listed.write(folder)
}

/// Removes files from a folder's list: they are deleted, or no longer belong to the study.
pub fn forget(folder: &Path, paths: &[PathBuf]) -> Result<(), Error> {
    let before = Listed::of(folder)?;
    let mut listed = before.clone();
    paths.iter().for_each(|path| listed.forget(&parts(path).1));
    if listed == before { Ok(()) } else { listed.write(folder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_bit_flips_is_found_and_what_nobody_wrote_down_is_taken_as_it_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (config, other) = (folder.path().join("config.json"), folder.path().join("by-hand.json"));
        fs::write(&other, "mine").expect("a file");
        write(folder.path(), &[(config.clone(), b"{\"rate\": 0.5}".to_vec())]).expect("it can be written");
        assert_eq!(read(&config).expect("it is whole"), b"{\"rate\": 0.5}");
        assert_eq!(read(&other).expect("nobody knows it"), b"mine");
        assert!(is_listed(&config) && !is_listed(&other));
        let whole = fs::read(&config).expect("it is there");
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&config, &damaged).expect("a file");
            let failure = read(&config).expect_err("it is damaged");
            assert!(failure.to_string().contains("config.json is damaged"), "{failure}");
            assert!(failure.help.is_some_and(|help| help.contains(LIST)));
        }
        forget(folder.path(), std::slice::from_ref(&config)).expect("it can be written");
        assert!(read(&config).is_ok(), "the user took the line out");
    }

    /// Between any two of the steps, both the old and the new file pass.
    #[test]
    fn a_run_that_is_killed_while_it_writes_leaves_sound_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("config.json");
        let state = || (fs::read(&path).ok(), fs::read(folder.path().join(LIST)).ok());
        for (old, new) in [(None, "first"), (Some("first"), "second"), (Some("second"), "third")] {
            let (old_file, old_list) = state();
            assert_eq!(old_file.as_deref(), old.map(str::as_bytes));
            write(folder.path(), &[(path.clone(), new.into())]).expect("it can be written");
            let (new_file, new_list) = state();
            let mut both = Listed::default();
            old.into_iter().chain([new]).for_each(|text| both.add("config.json", text.as_bytes()));
            both.write(folder.path()).expect("it can be written");
            let both = state().1;
            // First the list, then the file, then the list again.
            for (file, list) in
                [(&old_file, &old_list), (&old_file, &both), (&new_file, &both), (&new_file, &new_list)]
            {
                let put = |path: &Path, bytes: &Option<Vec<u8>>| match bytes {
                    Some(bytes) => fs::write(path, bytes).expect("a file"),
                    None => drop(fs::remove_file(path)),
                };
                put(&path, file);
                put(&folder.path().join(LIST), list);
                assert_eq!(file.is_some(), read(&path).is_ok(), "{file:?} with {list:?}");
            }
        }
    }

    #[test]
    fn a_list_that_is_none_is_named_with_its_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(LIST), "1c291ca3  a.json\nnonsense\n").expect("a file");
        fs::write(folder.path().join("a.json"), "{}").expect("a file");
        let failure = read(&folder.path().join("a.json")).expect_err("the list is damaged");
        assert!(failure.to_string().contains("checksums.txt: line 2"), "{failure}");
    }
}
