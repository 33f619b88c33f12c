//! Reading and writing files: the only place of the job that touches them by name.
//!
//! A document is written to a temporary file beside its place and renamed, so that a run that is cut off leaves the old
//! one or the new one, never half of one.

use crate::checksums;
use plimsoll_ir::{Document, Fault};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What was to be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Reading it.
    Read,
    /// Writing it.
    Write,
    /// Writing to what is no file, such as standard output.
    WriteTo,
    /// Creating a folder.
    Create,
    /// Creating a study's folder.
    CreateStudy,
    /// Writing to a study's folder.
    WriteToStudy,
    /// Removing it.
    Remove,
    /// Keeping a profile in a folder, for other studies.
    KeepProfile,
}

impl Doing {
    fn words(self) -> &'static str {
        match self {
            Doing::Read => "read",
            Doing::Write => "write",
            Doing::WriteTo => "write to",
            Doing::Create => "create",
            Doing::CreateStudy => "create the study's folder",
            Doing::WriteToStudy => "write to the study's folder",
            Doing::Remove => "remove",
            Doing::KeepProfile => "keep a profile in",
        }
    }
}

/// What is wrong with a file.
#[derive(Debug, Error)]
pub enum FileError {
    /// The system refuses.
    #[error("cannot {} {}: {source}", doing.words(), path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was to be done.
        doing: Doing,
        /// Why that cannot be.
        source: io::Error,
    },
    /// It is not the document that it should be.
    #[error("{}: {fault}", path.display())]
    Document {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
    },
    /// It is no text.
    #[error("{}: not a text file; expected a {kind} document", path.display())]
    NotText {
        /// Which file.
        path: PathBuf,
        /// The document that it should be.
        kind: &'static str,
    },
    /// It does not match its checksum.
    #[error("{} is damaged, or was changed: it does not match its checksum", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// The list of checksums.
        list: PathBuf,
    },
    /// A list of checksums has a line that is none.
    #[error("{}: line {line} is no checksum and name of a file", list.display())]
    List {
        /// The list of checksums.
        list: PathBuf,
        /// The line's number, from 1.
        line: usize,
    },
    /// An output is the very file that is read, or another output.
    #[error("{} would be overwritten; name another output", .0.display())]
    Input(PathBuf),
    /// An output is a file that a study wrote.
    #[error("{} would be overwritten, which its study wrote", .0.display())]
    OfStudy(PathBuf),
}

impl FileError {
    /// The system refused to do this with a file.
    pub fn io(path: &Path, doing: Doing, source: io::Error) -> FileError {
        FileError::Io { path: path.to_owned(), doing, source }
    }
}

/// Reads a document; one of a study has the checksum that the study keeps of it.
///
/// # Errors
///
/// The file cannot be read, is damaged, or is no such document.
pub fn read<D: Document>(path: &Path) -> Result<D, FileError> {
    document(path, checksums::read(path)?)
}

/// The document that these bytes of a file are.
///
/// # Errors
///
/// They are no such document.
pub fn document<D: Document>(path: &Path, bytes: Vec<u8>) -> Result<D, FileError> {
    let text =
        String::from_utf8(bytes).map_err(|_| FileError::NotText { path: path.to_owned(), kind: D::KIND })?;
    D::from_json(&text).map_err(|fault| FileError::Document { path: path.to_owned(), fault })
}

/// Writes a document, replacing the one that was there.
///
/// # Errors
///
/// The file cannot be written.
pub fn write<D: Document>(path: &Path, document: &D) -> Result<(), FileError> {
    write_text(path, &document.to_json())
}

/// Writes a text as [`write_bytes`] does.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    write_bytes(path, text.as_bytes())
}

/// Writes in one step, replacing the file that was there. A link is followed; what is no regular file (a pipe, a
/// terminal) is written to as it is.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |error: io::Error| FileError::io(path, Doing::Write, error);
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&place).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        let file = fs::OpenOptions::new().write(true).open(&place);
        return file.and_then(|mut file| file.write_all(bytes)).map_err(failed);
    }
    let folder = place.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Said of the folder itself, and not of a temporary file that nobody asked for.
    fs::metadata(folder).map_err(failed)?;
    let mut builder = tempfile::Builder::new();
    // As any new file has it; the umask takes its part.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(&place).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Makes sure that an output is not the very file that the command reads, or will write itself.
pub fn not_the_same(input: &Path, output: &Path) -> Result<(), FileError> {
    match (place(input), place(output)) {
        (Some(input), Some(there)) if input == there => Err(FileError::Input(output.to_owned())),
        _ => Ok(()),
    }
}

/// Makes sure that two outputs are two files.
pub fn not_each_other(one: Option<&Path>, other: Option<&Path>) -> Result<(), FileError> {
    match (one, other) {
        (Some(one), Some(other)) => not_the_same(one, other),
        _ => Ok(()),
    }
}

/// Makes sure that a file can be written there, before the work of which it tells is begun: its folder takes files, and it is none
/// of a study's own. Nothing changes.
pub fn can_be_made(path: &Path) -> Result<(), FileError> {
    let failed = |error: io::Error| FileError::io(path, Doing::Write, error);
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&place) {
        Ok(there) if there.is_dir() => return Err(failed(io::ErrorKind::IsADirectory.into())),
        // A pipe or a terminal, which is written to as it is.
        Ok(there) if !there.is_file() => return Ok(()),
        _ => {}
    }
    if checksums::is_listed(&place) {
        return Err(FileError::OfStudy(path.to_owned()));
    }
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::metadata(folder).map_err(failed)?;
    tempfile::NamedTempFile::new_in(folder).map(drop).map_err(failed)
}

/// The one path of a file, which need not be there; none where its folder is not.
fn place(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok().or_else(|| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
    })
}
