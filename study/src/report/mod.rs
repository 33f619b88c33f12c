//! Reports: the results of a tuning, or the effect of a schedule, as plain data for people and for scripts.
//!
//! [`Report`] is the data. [`gather`] makes it from a trace and its schedule, [`scheduled`] from a schedule alone, [`Tuned`]
//! from a study. [`explain`] gives fewer facts in more detail: one layer, or the costliest layers. [`reasons`] explains why
//! each activation is kept, swapped or recomputed. [`policies`] plans under the other policies. This module decides nothing,
//! and measures nothing.

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
    /// Returns the report as JSON on one line, for scripts.
    pub fn json(&self) -> String {
        visible_json(&serde_json::to_string(self).expect("a report has only texts, numbers and lists"))
    }
}
