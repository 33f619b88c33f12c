//! Policies of the papers, section by section, and their common parts.

pub mod accudnn;
pub(crate) mod baselines;
mod chain;
pub mod dqn;
pub(crate) mod dynprog;
pub(crate) mod greedy;
pub(crate) mod keep;
pub(crate) mod layrub;
pub(crate) mod memonger;
pub(crate) mod naive;
mod recomputing;
mod stages;
pub(crate) mod superneurons;
pub(crate) mod vdnn;
