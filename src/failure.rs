//! x
pub use plimsoll_study::error::{Error as Failure, Kind as Exit};
