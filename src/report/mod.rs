//! Reports: what a tuning found, or what a schedule does, as plain data for people and for scripts.
//!
//! [`Report`] is the data; [`gather`] makes it of a trace and its schedule; [`reasons`] says why each
//! feature map stays, leaves or is made again; [`policies`] asks the others. What it does not do: it decides nothing, and
//! measures nothing.

mod data;
pub mod gather;
pub mod policies;
pub mod reasons;

pub use data::*;
