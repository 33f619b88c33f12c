//! Why an ONNX file cannot be trained, by what the caller can do about it.

use crate::error::NetworkError;
use std::fmt;

/// Why an ONNX file cannot be trained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    /// The bytes are no ONNX file, or not all of one: give the file as the exporter wrote it.
    #[error("this is no whole ONNX file: {why}; export it again, or copy it again")]
    NotOnnx {
        /// What is wrong with the bytes.
        why: String,
    },
    /// No real network is so large.
    #[error("{what}; a network of this size cannot be read")]
    TooLarge {
        /// What is too large, with the limit.
        what: String,
    },
    /// The file contradicts itself: export it again.
    #[error("{place}: {why}")]
    Broken {
        /// The node, initialiser, input or output.
        place: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The file holds what Plimsoll has no layer for; all of it is named at once.
    #[error("{}", list(.0))]
    Unsupported(Vec<Trouble>),
    /// The layers make no sense together.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// What cannot be read, of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// An operator, or one of its attributes, and why it cannot be read.
    pub what: String,
    /// The first node that has it.
    pub node: String,
    /// How many nodes have it.
    pub count: usize,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trouble { what, node, count } = self;
        match count {
            1 => write!(f, "{what} (node `{node}`)"),
            _ => write!(f, "{what} ({count} nodes, the first `{node}`)"),
        }
    }
}

/// All that cannot be read.
fn list(troubles: &[Trouble]) -> String {
    let lines: Vec<String> = troubles.iter().map(|trouble| format!("\n  {trouble}")).collect();
    let what = if troubles.len() == 1 { "one thing" } else { "things" };
    format!("the network has {what} that Plimsoll cannot train:{}", lines.concat())
}

/// A fault of the file at one place.
pub fn broken<T>(place: impl fmt::Display, why: impl fmt::Display) -> Result<T, OnnxError> {
    Err(OnnxError::Broken { place: place.to_string(), why: why.to_string() })
}

/// A name of the file as it is shown: of bearable length, and without what would move a terminal's cursor.
pub fn shown(name: &str) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    let mut short: String = name.chars().take(80).map(clean).collect();
    if name.chars().nth(80).is_some() {
        short.push_str("...");
    }
    short
}
