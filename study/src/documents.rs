//! Reading and writing documents; a study keeps checksums of its files.

use crate::checksums;
use crate::error::{Doing, FileError};
use crate::files::write_text;
use plimsoll_ir::Document;
use std::fs;
use std::io;
use std::path::Path;

/// Reads a document; a study's document must match the checksum that the study keeps.
///
/// # Errors
///
/// The file cannot be read, is damaged, or is not a document of this type.
pub fn read<D: Document>(path: &Path) -> Result<D, FileError> {
    document(path, checksums::read(path)?)
}

/// Parses a file's bytes as a document.
///
/// # Errors
///
/// They are not a document of this type.
pub fn document<D: Document>(path: &Path, bytes: Vec<u8>) -> Result<D, FileError> {
    let text =
        String::from_utf8(bytes).map_err(|_| FileError::NotText { path: path.to_owned(), kind: D::KIND })?;
    D::from_json(&text).map_err(|fault| FileError::Document { path: path.to_owned(), fault: Box::new(fault) })
}

/// Writes a document, replacing any earlier file.
///
/// # Errors
///
/// The file cannot be written.
pub fn write<D: Document>(path: &Path, document: &D) -> Result<(), FileError> {
    write_text(path, &document.to_json())
}

/// Checks that a file can be written at this path, before the work that it records begins: its directory takes files, and the
/// path is not one of a study's own files. Changes nothing.
pub fn can_be_made(path: &Path) -> Result<(), FileError> {
    let failed = |error: io::Error| FileError::io(path, Doing::Write, error);
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&place) {
        Ok(there) if there.is_dir() => return Err(failed(io::ErrorKind::IsADirectory.into())),
        // A pipe or a terminal is written to directly.
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
