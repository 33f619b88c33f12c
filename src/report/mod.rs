//! Reports: what a tuning found, or what a schedule does, as plain data for people and for scripts.
//!
//! [`Report`] is the data. What it does not do: it decides nothing, and measures nothing.

mod data;

pub use data::*;
