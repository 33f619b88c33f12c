//! Reports: what a tuning found, or what a schedule does, as plain data for people and for scripts.
//!
//! [`Report`] is the data; [`gather`] makes it of a trace and its schedule, [`scheduled`] of a schedule by itself,
//! [`Tuned`] of a study; [`explain`] tells less of more: one layer, or what costs most; [`reasons`] says why each feature
//! map stays, leaves or is recomputed; [`policies`] asks the others. What it does not do: it decides nothing, and measures
//! nothing.

mod data;
pub mod explain;
pub mod gather;
pub mod limits;
mod page;
pub mod policies;
pub mod reasons;
pub mod scheduled;
mod tuned;
pub mod workers;

pub use data::*;
pub use tuned::{Tuned, placement_in_words, rule_in_words};

use crate::words::visible_json;

impl Report {
    /// The report as JSON on one line, for scripts.
    pub fn json(&self) -> String {
        visible_json(&serde_json::to_string(self).expect("a report has only texts, numbers and lists"))
    }
}
