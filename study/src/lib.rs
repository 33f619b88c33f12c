//! The job: measure a network and a machine, tune, train and report, with a study's folder that keeps all results.
//!
//! Everything here is a plain value or a call. A request describes the job ([`request`]). A job
//! reports progress through a [`Watch`], keeps its results in a [`Study`], and fails with an [`Error`]. This crate prints
//! nothing, reads no command line and never exits, so a command line, a Python package and a worker can all use it.
#![forbid(unsafe_code)]

pub mod checksums;
pub mod data;
pub mod device;
pub mod documents;
pub mod error;
pub mod export;
pub mod files;
pub mod folder;
pub mod job;
pub mod measure;
pub mod naming;
pub mod network_workload;
pub mod profile_cache;
pub mod report;
pub mod request;
#[cfg(test)]
mod testing;
pub mod trace_events;
pub mod training;
pub mod tuning;
pub mod values;
pub mod watch;
pub mod weights;
pub mod words;
pub mod workload;

pub use device::Setup;
pub use error::Error;
pub use folder::Study;
pub use job::{Chosen, MeasureRequest};
pub use network_workload::NetworkWorkload;
pub use watch::Watch;
pub use workload::Workload;

/// Commit of this build, if the build knew it; measurements name it.
pub const COMMIT: Option<&str> = option_env!("PLIMSOLL_COMMIT");

/// Returns the version, with the commit if known.
pub fn version() -> String {
    match COMMIT {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}
