//! Reading and writing the documents: the only place of the command line that touches files of its own.
//!
//! A document is written to a temporary file beside its place and renamed, so that a run that is cut off leaves the old
//! one or the new one, never half of one.

use crate::checksums;
use crate::failure::Failure;
use crate::output::{visible_json, write_stdout};
use plimsoll_ir::Document;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The path that stands for standard input or output.
pub const STANDARD: &str = "-";

/// Whether a path stands for standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new(STANDARD)
}

/// Whether standard input was read: all of it is one document.
static READ: AtomicBool = AtomicBool::new(false);

fn read_standard() -> Result<Vec<u8>, Failure> {
    if READ.swap(true, Ordering::SeqCst) {
        return Err(Failure::usage("`-` is named twice, and standard input holds one document")
            .help("name a file for one of the two"));
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| Failure::file(Path::new("standard input"), "read", &error))?;
    Ok(bytes)
}

/// Reads a document, `-` from standard input; one of a study has the checksum that the study keeps of it.
pub fn read<D: Document>(path: &Path) -> Result<D, Failure> {
    let bytes = if is_standard(path) { read_standard()? } else { checksums::read(path)? };
    let path = if is_standard(path) { Path::new("standard input") } else { path };
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format_args!("{}: not a text file; expected a {} document", path.display(), D::KIND))
    })?;
    D::from_json(&text).map_err(|fault| Failure::document(path, &fault))
}

/// Writes a document, `-` to standard output, else replacing the one that was there.
pub fn write<D: Document>(path: &Path, document: &D) -> Result<(), Failure> {
    let text = document.to_json();
    if is_standard(path) { write_stdout(visible_json(&text).as_bytes()) } else { write_text(path, &text) }
}

/// Writes a text as [`write_bytes`] does.
pub fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    write_bytes(path, text.as_bytes())
}

/// Writes in one step, replacing the file that was there. A link is followed; what is no regular file (a pipe, a
/// terminal) is written to as it is.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::file(path, "write", &error);
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
pub fn not_the_same(input: &Path, output: &Path) -> Result<(), Failure> {
    match (place(input), place(output)) {
        (Some(input), Some(there)) if input == there => Err(Failure::usage(format_args!(
            "{} would be overwritten; name another output",
            output.display()
        ))),
        _ => Ok(()),
    }
}

/// Makes sure that two outputs are two files.
pub fn not_each_other(one: Option<&Path>, other: Option<&Path>) -> Result<(), Failure> {
    match (one, other) {
        (Some(one), Some(other)) => not_the_same(one, other),
        _ => Ok(()),
    }
}

/// Makes sure that a file can be written there, before the work of which it tells is begun: its folder takes files, and it is none
/// of a study's own. Nothing changes.
pub fn can_be_made(path: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::file(path, "write", &error);
    if is_standard(path) {
        let failure = Failure::usage("`-` is standard output, which the results go to");
        return Err(failure.help("name a file, or ./- for one of that name"));
    }
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&place) {
        Ok(there) if there.is_dir() => return Err(failed(std::io::ErrorKind::IsADirectory.into())),
        // A pipe or a terminal, which is written to as it is.
        Ok(there) if !there.is_file() => return Ok(()),
        _ => {}
    }
    if checksums::is_listed(&place) {
        let message = format!("{} would be overwritten, which its study wrote", path.display());
        return Err(Failure::usage(message).help("name another output"));
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
