//! The state that a different worker keeps if worker 0 is lost.
//!
//! Every worker has the whole state, and worker 0 saves it. If worker 0 is a process that is lost, the first remaining worker
//! saves the state in a separate file, and the next start takes the newest file. Worker 0's file stays unchanged: worker 0 may
//! only be stopped, and save an older state once it wakes up.
//!
//! This file deliberately transfers no files from other machines. The study lies in a folder that all workers can access.

use crate::error::Error;
use crate::folder::Study;
use crate::training::saving::{Saved, cannot_keep};
use crate::training::workers::of_worker;
use crate::watch::Watch;
use plimsoll_runtime::group::mpi::host;
use plimsoll_runtime::{Checkpoint, Error as RuntimeError, GroupError, Kind as Fault, Trainer};
use std::path::PathBuf;

/// Returns the error of a worker process, with the state that it has kept if worker 0 is lost. `is_of_first` is `true` if
/// worker 0's study has the same path.
pub(super) fn failed(
    source: RuntimeError,
    (trainer, rank): (&mut Trainer, usize),
    (study, is_of_first): (&Study, bool),
    (total, fresh): (u64, bool),
) -> Error {
    if !matches!(source.kind, Fault::Group(_)) || !trainer.is_first_left() {
        return source.into();
    }
    let path = study.kept_by(rank);
    let written = trainer.checkpoint().and_then(|state| state.save(&path));
    let (saved, lost): (Saved, Option<RuntimeError>) = match written {
        Ok(()) => {
            let (step, host) = (Some(trainer.step()), (!is_of_first || is_elsewhere(&source)).then(host));
            (Saved { path, step, host, total, fresh }, None)
        }
        Err(error) => {
            // Worker 0's newest file remains, if this worker can see it.
            let path = study.checkpoint();
            let step = Checkpoint::load(&path).ok().map(|state| state.progress.step);
            (Saved { path, step, host: None, total, fresh }, Some(error))
        }
    };
    of_worker(rank, source).help(saved.with(lost.as_ref()))
}

/// Returns `true` if the lost worker ran on a different machine, which may have a separate folder.
fn is_elsewhere(error: &RuntimeError) -> bool {
    match &error.kind {
        Fault::Group(GroupError::Silent { host: of, .. } | GroupError::Died { host: of, .. }) => {
            *of != host()
        }
        _ => false,
    }
}

/// Newest state of a study's training, the file that it was read from, and the files of other workers that were read with it.
pub(super) struct Newest {
    pub state: Checkpoint,
    pub path: PathBuf,
    kept: Vec<PathBuf>,
}

impl Newest {
    /// Returns the state of worker 0's file, or a newer one that a different worker has kept. Warns of a file that cannot be
    /// read, and leaves it in place.
    pub fn of(own: Option<Checkpoint>, study: &Study, watch: &Watch<'_>) -> Option<Newest> {
        let mut newest = own.map(|state| (state, study.checkpoint()));
        let mut kept = Vec::new();
        for path in study.kept_by_workers() {
            match Checkpoint::load(&path) {
                Ok(state) => {
                    kept.push(path.clone());
                    if newest.as_ref().is_none_or(|(own, _)| state.progress.step > own.progress.step) {
                        newest = Some((state, path));
                    }
                }
                Err(error) => watch.warn(format_args!("{error}: this file is not used")),
            }
        }
        newest.map(|(state, path)| Newest { state, path, kept })
    }

    /// Puts the state in place of worker 0's file, and removes the other files that were read. Call this only after the
    /// training has taken the state: until then every file stays.
    pub fn settle(&self, study: &Study) -> Result<(), Error> {
        if self.kept.contains(&self.path) {
            self.state.save(&study.checkpoint()).map_err(cannot_keep)?;
            tracing::info!("a worker has kept the state of iteration {}", self.state.progress.step);
        }
        study.forget(&self.kept)
    }
}
