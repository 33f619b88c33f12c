//! Reading and writing documents; a study keeps checksums of its files.

use crate::checksums;
use crate::error::{Cause, Error};
use crate::files::{folder_of, write_text};
use plimsoll_ir::{Document, Fault};
use std::fs;
use std::io;
use std::path::Path;

/// Reads a document; a study's document must match the checksum that the study keeps.
///
/// # Errors
///
/// The file cannot be read, is damaged, or is no such document.
pub fn read<D: Document>(path: &Path) -> Result<D, Error> {
    document(path, checksums::read(path)?)
}

/// Parses a file's bytes as a document.
///
/// # Errors
///
/// They are no such document.
pub fn document<D: Document>(path: &Path, bytes: Vec<u8>) -> Result<D, Error> {
    let file = path.display();
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::usage(format_args!("{file}: not a text file; expected a {} document", D::KIND))
            .because(Cause::Document { of_other_version: false })
    })?;
    D::from_json(&text).map_err(|fault| {
        let of_other_version = matches!(fault, Fault::OtherKind { .. });
        Error::usage(format_args!("{file}: {fault}")).because(Cause::Document { of_other_version })
    })
}

/// Writes a document, replacing any earlier file.
///
/// # Errors
///
/// The file cannot be written.
pub fn write<D: Document>(path: &Path, document: &D) -> Result<(), Error> {
    write_text(path, &document.to_json())
}

/// Checks that a file can be written at this path before the work begins: its folder is writable, and the file is not
/// one of a study's own. Nothing changes on disk.
pub fn can_be_made(path: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| Error::io(path, "write", &error);
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&place) {
        Ok(there) if there.is_dir() => return Err(failed(io::ErrorKind::IsADirectory.into())),
        // A pipe or a terminal is written to directly.
        Ok(there) if !there.is_file() => return Ok(()),
        _ => {}
    }
    if checksums::is_listed(&place) {
        let message = format!("{} would be overwritten, which its study wrote", path.display());
        return Err(Error::usage(message).help("name another output"));
    }
    let folder = folder_of(&place);
    fs::metadata(folder).map_err(failed)?;
    tempfile::NamedTempFile::new_in(folder).map(drop).map_err(failed)
}
