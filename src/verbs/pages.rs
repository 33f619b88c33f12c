//! What `report` writes, of one study or of two: JSON, or a page, where it was asked for or in a place of its own.

use crate::failure::Failure;
use crate::files;
use crate::output::{self, Table};
use plimsoll_study::Study;
use std::path::{Path, PathBuf};

/// Makes sure that the output can be written, and is none of the files that are read.
pub fn is_no_input(out: Option<&Path>, inputs: impl IntoIterator<Item = PathBuf>) -> Result<(), Failure> {
    let Some(out) = out else { return Ok(()) };
    files::can_be_made(out)?;
    inputs.into_iter().try_for_each(|input| Ok(files::not_the_same(&input, out)?))
}

/// Prints JSON, or writes it where it was asked for.
pub fn printed(json: String, out: Option<&Path>) -> Result<Vec<Table>, Failure> {
    let text = json + "\n";
    match out {
        Some(path) => files::write_text(path, &text)?,
        None => output::write_stdout(text.as_bytes())?,
    }
    Ok(Vec::new())
}

/// Writes a page where it was asked for, or to this place if nobody else's file stands there; gives where it is.
pub fn written(
    out: Option<&Path>,
    place: PathBuf,
    page: impl FnOnce() -> String,
) -> Result<PathBuf, Failure> {
    if out.is_none() {
        let other = "move it elsewhere, or name another file with --out";
        Study::of_config(&place)
            .0
            .are_ours(std::slice::from_ref(&place))
            .map_err(|error| Failure::from(error).help(other))?;
    }
    let place = out.map_or(place, Path::to_owned);
    files::write_text(&place, &page())?;
    Ok(place)
}
