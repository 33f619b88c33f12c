//! Typed positions: an op's id cannot be used where a tensor's is meant.
//!
//! Every id is the position of its object in its own document's array, from 0, as `formats` says; it is written in
//! JSON as that bare integer.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! define_id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of position `index`. Panics above 2^32 - 1 positions, which no document that was read has.
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("a document has fewer than 2^32 entries"))
            }
            /// The position, for indexing.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

define_id!(
    /// An op of a trace; the op's kernel has the same position in the program.
    OpId, "op");
define_id!(
    /// A tensor (one storage) of a trace.
    TensorId, "tensor");
define_id!(
    /// A command of a schedule.
    CommandId, "command");
define_id!(
    /// A buffer of a schedule.
    BufferId, "buffer");
define_id!(
    /// A layer of a network.
    LayerId, "layer");
