//! What is wrong with a study's folder.

use super::FileError;
use std::path::PathBuf;
use thiserror::Error;

/// How a study comes to a whole choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retune {
    /// The study's folder.
    pub folder: PathBuf,
    /// It holds a training, which another choice would be in the way of: tuning needs another folder.
    pub holds_training: bool,
}

/// What a study holds is of something else than what is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} holds {holds} another {what}: {kept} there, {asked} now", retune.folder.display())]
pub struct OfAnother {
    /// What it holds, such as `the choice for`.
    pub holds: String,
    /// The first thing in which the two differ.
    pub what: String,
    /// What it is there.
    pub kept: String,
    /// What is asked for.
    pub asked: String,
    /// Its folder, and whether it holds a training.
    pub retune: Retune,
}

/// What is wrong with a study's folder.
#[derive(Debug, Error)]
pub enum StudyError {
    /// One of its files is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no such folder.
    #[error("there is no folder {}", .0.display())]
    Missing(PathBuf),
    /// A file stands where the study would write, and Plimsoll did not write it.
    #[error("{} was not written by Plimsoll, and would be lost", .0.display())]
    Foreign(PathBuf),
    /// It holds no choice.
    #[error("{} holds no choice: {missing} is missing", retune.folder.display())]
    NotTuned {
        /// The file that is missing.
        missing: String,
        /// Whether it was measured.
        measured: bool,
        /// How it comes to a choice.
        retune: Retune,
    },
    /// It holds half of a tuning.
    #[error("{} was not tuned to the end, or by an older version: {missing} is missing", retune.folder.display())]
    Incomplete {
        /// The file that is missing.
        missing: String,
        /// How it comes to a whole choice.
        retune: Retune,
    },
    /// One of the documents of its tuning cannot be used.
    #[error("{source}")]
    Document {
        /// What is wrong with it.
        source: FileError,
        /// How the study comes to a whole choice.
        retune: Retune,
    },
    /// Its files are not of one tuning.
    #[error("{}: {file} is of another schedule", retune.folder.display())]
    Mixed {
        /// The file that does not belong to the others.
        file: String,
        /// How it comes to a whole choice.
        retune: Retune,
    },
    /// What it holds is of something else than what is asked for.
    #[error(transparent)]
    OfAnother(Box<OfAnother>),
    /// It holds a training, made with the choice that is about to be replaced.
    #[error("{} holds a training made with the choice there", .0.display())]
    HoldsTraining(PathBuf),
    /// Another run works in it.
    #[error("another run measures, tunes or trains in {}", .0.display())]
    InUse(PathBuf),
}
