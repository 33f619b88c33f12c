//! Writing files: to a temporary file in the same directory, which is then renamed, so that an interrupted run leaves the old
//! file or the new one, never half of one.

use crate::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a text as [`write_bytes`] does.
pub fn write_text(path: &Path, text: &str) -> Result<(), Error> {
    write_bytes(path, text.as_bytes())
}

/// Writes in one step, replacing an earlier file. Links are followed; a pipe, a terminal or any other special file is
/// written to directly.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |error: io::Error| Error::io(path, "write", &error);
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&place).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        let file = fs::OpenOptions::new().write(true).open(&place);
        return file.and_then(|mut file| file.write_all(bytes)).map_err(failed);
    }
    let folder = folder_of(&place);
    // The error then names the directory itself, not the temporary file.
    fs::metadata(folder).map_err(failed)?;
    let mut builder = tempfile::Builder::new();
    // The mode of any new file; the umask applies.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(&place).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Returns the directory of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that an output is not the file that the command reads, or will write itself.
pub fn not_the_same(input: &Path, output: &Path) -> Result<(), Error> {
    match (place(input), place(output)) {
        (Some(input), Some(there)) if input == there => {
            Err(Error::usage(format_args!("{} would be overwritten; name another output", output.display())))
        }
        _ => Ok(()),
    }
}

/// Returns the canonical path of a file, which need not exist; `None` if its directory does not exist.
fn place(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path)
        .ok()
        .or_else(|| Some(fs::canonicalize(folder_of(path)).ok()?.join(path.file_name()?)))
}
