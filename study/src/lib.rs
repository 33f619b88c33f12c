//! The job: measure a network and a machine, tune, train and report, with a study's folder that keeps all of it.
//!
//! Everything here is a plain value and a call. A job is asked by a request ([`request`], [`tuning::TuneRequest`]), tells what
//! it does through a [`Watch`], keeps what it did in a [`Study`], and fails with an [`Error`]. It prints nothing, reads no
//! command line, and exits nothing: a command line, a Python package and a worker stand on it alike.
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
pub mod memory_snapshot;
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

/// The commit that this was built from, where the build knew; measurements name it.
pub const COMMIT: Option<&str> = option_env!("PLIMSOLL_COMMIT");

/// The version, with the commit where that is known.
pub fn version() -> String {
    match COMMIT {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}
