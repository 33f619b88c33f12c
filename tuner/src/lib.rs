//! Decides.

pub mod rate;
pub mod search;
