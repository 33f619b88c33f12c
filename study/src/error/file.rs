//! What is wrong with a file.

use plimsoll_ir::Fault;
use std::io;
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
        fault: Box<Fault>,
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
