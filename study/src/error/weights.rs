//! What is wrong with a file of weights.

use super::FileError;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// What is wrong with a file of weights.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// It cannot be read, or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is no safetensors file.
    #[error("{} is not a safetensors file, or is truncated ({why})", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Its tensors are not those of the network.
    #[error("the tensors of {} are not those of the network: {differ}", path.display())]
    Other {
        /// Which.
        path: PathBuf,
        /// In what they differ.
        differ: OtherTensors,
    },
    /// It holds a NaN or an infinity.
    #[error("{} holds a number in `{name}` that is not finite", path.display())]
    NotFinite {
        /// Which.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// The state that was to be written to it is of another network.
    #[error("the training's state has no `{name}` of the network's size, so nothing is written to {}", path.display())]
    OtherNetwork {
        /// Which.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
}

/// In what the tensors of a file differ from those of a network: the names of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherTensors {
    /// Those that the file lacks.
    pub missing: Vec<String>,
    /// Those that the network has not.
    pub superfluous: Vec<String>,
    /// Those of another shape, with both.
    pub shapes: Vec<String>,
    /// Those of another type than f32, with it.
    pub types: Vec<String>,
}

/// No more names of a kind are told.
const TOLD: usize = 6;

impl fmt::Display for OtherTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("missing", &self.missing),
            ("superfluous", &self.superfluous),
            ("of another shape", &self.shapes),
            ("not in f32", &self.types),
        ];
        let mut between = "";
        for (kind, names) in kinds.into_iter().filter(|(_, names)| !names.is_empty()) {
            let told = names[..names.len().min(TOLD)].join(", ");
            write!(f, "{between}{} {kind}: {told}", names.len())?;
            if names.len() > TOLD {
                f.write_str(", ...")?;
            }
            between = "; ";
        }
        Ok(())
    }
}
