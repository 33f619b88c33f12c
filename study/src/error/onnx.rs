//! Why a network cannot be had from a file.

use super::{FileError, StudyError};
use plimsoll_networks::NetworkError;
use plimsoll_networks::onnx::OnnxError;
use std::path::PathBuf;
use thiserror::Error;

/// Why a network cannot be had from a file.
#[derive(Debug, Error)]
pub enum OnnxFileError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its study cannot be used.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// It is a network of the zoo, and the zoo has none such.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// It is a folder.
    #[error("{} is a folder", .0.display())]
    Folder(PathBuf),
    /// It is larger than any ONNX file.
    #[error("{} is larger than any ONNX file", .0.display())]
    TooLarge(PathBuf),
    /// It cannot be read as a network.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: OnnxError,
    },
    /// The study does not keep the architecture.
    #[error("`{network}` is from an ONNX file, and {} is not there", path.display())]
    NotKept {
        /// The network's name.
        network: String,
        /// Where its architecture should be.
        path: PathBuf,
    },
    /// The study keeps the architecture of another network than the one that it was tuned for.
    #[error("{} is another network than `{network}`", path.display())]
    Replaced {
        /// The network's name.
        network: String,
        /// The architecture.
        path: PathBuf,
    },
    /// The study keeps the architecture of another network than what is asked for.
    #[error("{} keeps another network", .0.display())]
    KeepsAnother(PathBuf),
}
