//! The policies of the papers, section by section, and what several of them need.

pub mod accudnn;
pub mod baselines;
mod chain;
pub mod dynprog;
pub mod greedy;
pub(crate) mod keep;
pub mod layrub;
pub mod memonger;
pub mod naive;
mod recomputing;
mod stages;
pub mod superneurons;
pub mod vdnn;
