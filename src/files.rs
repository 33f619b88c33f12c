//! Documents of the command line: files, or `-` for standard input and output.

use crate::output::write_stdout;
use plimsoll_ir::Document;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_study::folder::check_valid;
use plimsoll_study::words::visible_json;
use plimsoll_study::{Error, documents};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub use plimsoll_study::files::{not_the_same, write_text};

/// Path that stands for standard input or output.
pub const STANDARD: &str = "-";

/// Returns `true` if a path stands for standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new(STANDARD)
}

/// Set once standard input was read: all of it is one document.
static READ: AtomicBool = AtomicBool::new(false);

fn read_standard() -> Result<Vec<u8>, Error> {
    if READ.swap(true, Ordering::SeqCst) {
        return Err(Error::usage("`-` is named twice, and standard input holds one document")
            .help("name a file for one of the two"));
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| Error::io(Path::new("standard input"), "read", &error))?;
    Ok(bytes)
}

/// Reads a document, `-` from standard input; a study's document must match the checksum that the study keeps.
pub fn read<D: Document>(path: &Path) -> Result<D, Error> {
    if is_standard(path) {
        return documents::document(Path::new("standard input"), read_standard()?);
    }
    documents::read(path)
}

/// Reads a trace, and a schedule that is valid for it.
pub fn read_valid(trace: &Path, schedule: &Path) -> Result<(Trace, Schedule), Error> {
    let (at, trace) = (schedule, read::<Trace>(trace)?);
    let schedule: Schedule = read(at)?;
    check_valid(at, &trace, &schedule)?;
    Ok((trace, schedule))
}

/// Writes a document, `-` to standard output; a file replaces an existing one.
pub fn write<D: Document>(path: &Path, document: &D) -> Result<(), Error> {
    if is_standard(path) {
        return write_stdout(visible_json(&document.to_json()).as_bytes());
    }
    documents::write(path, document)
}

/// Checks that a file can be written at this path before the work begins: its folder is writable, and the file is not
/// one of a study's own. Nothing changes on disk.
pub fn can_be_made(path: &Path) -> Result<(), Error> {
    if is_standard(path) {
        let failure = Error::usage("`-` is standard output, which the results go to");
        return Err(failure.help("name a file, or ./- for one of that name"));
    }
    documents::can_be_made(path)
}
