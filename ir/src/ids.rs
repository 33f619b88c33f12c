//! Typed positions: an op's id cannot be used in place of a tensor's.
//!
//! Every id is the position of its object in the array of its own document, from 0, as `formats` specifies. JSON stores it as
//! that bare integer.

use serde::{Deserialize, Serialize};

/// Defines a typed position, counted from 0: `define_id!(/// An op of a trace. OpId, "op")`. Its `Display` uses the word.
///
/// Vectors with typed positions require the conversions from and to `usize`.
#[macro_export]
macro_rules! define_id {
    ($(#[$attribute:meta])* $name:ident, $word:literal) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the id of position `index`. Panics above 2^32 - 1 positions, which no document reaches.
            #[inline]
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("a document has fewer than 2^32 entries"))
            }
            /// Returns the position, for indexing.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
            /// Returns the position after this one.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
            /// Returns the ids of a range, in order.
            #[inline]
            pub fn each(range: std::ops::Range<Self>) -> impl DoubleEndedIterator<Item = Self> + Clone {
                (range.start.0..range.end.0).map(Self)
            }
            /// Returns the position before this one; `None` for the first.
            #[inline]
            pub fn previous(self) -> Option<Self> {
                self.0.checked_sub(1).map(Self)
            }
        }

        impl From<usize> for $name {
            #[inline]
            fn from(index: usize) -> Self {
                Self::new(index)
            }
        }

        impl From<$name> for usize {
            #[inline]
            fn from(id: $name) -> usize {
                id.index()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

define_id!(
    /// An op of a trace; the op's kernel has the same position in the program.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    OpId, "op");
define_id!(
    /// A tensor (one storage) of a trace.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    TensorId, "tensor");
define_id!(
    /// A command of a schedule.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    CommandId, "command");
define_id!(
    /// A buffer of a schedule.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    BufferId, "buffer");
define_id!(
    /// A layer of a network.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    LayerId, "layer");
