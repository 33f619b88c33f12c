//! Decides.

pub mod model;
pub mod rate;
pub mod search;
