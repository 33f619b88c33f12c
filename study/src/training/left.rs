//! The state that another worker keeps where worker 0 is lost.
//!
//! Every worker has the whole state, and worker 0 saves it. Where worker 0 is a process that is lost, the first worker that is
//! left saves the state in a file of its own, and the next start takes the newest file. The file of worker 0 stays as it is:
//! worker 0 may only be stopped, and save an older state once it wakes up.
//!
//! What it deliberately does not do: bring files from other machines. The study lies in a folder that all workers have.

use crate::error::Error;
use crate::folder::Study;
use crate::training::saving::{Saved, cannot_keep};
use crate::training::workers::of_worker;
use crate::watch::Watch;
use plimsoll_runtime::group::mpi::host;
use plimsoll_runtime::{Checkpoint, GroupError, RuntimeError, Trainer};
use std::path::PathBuf;

/// The error of a worker that is a process, with the state that it has kept where worker 0 is lost. Worker 0's study has the
/// same path or another one.
pub(super) fn failed(
    source: RuntimeError,
    (trainer, rank): (&mut Trainer, usize),
    (study, is_of_first): (&Study, bool),
    (total, fresh): (u64, bool),
) -> Error {
    if !matches!(source, RuntimeError::Group(_)) || !trainer.is_first_left() {
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
            // The newest file of worker 0 is left, where this worker can see it.
            let path = study.checkpoint();
            let step = Checkpoint::load(&path).ok().map(|state| state.progress.step);
            (Saved { path, step, host: None, total, fresh }, Some(error))
        }
    };
    of_worker(rank, source).help(saved.with(lost.as_ref()))
}

/// Tells whether the lost worker ran on a different machine, which may have a folder of its own.
fn is_elsewhere(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::Group(GroupError::Silent { host: of, .. } | GroupError::Died { host: of, .. }) => {
            *of != host()
        }
        _ => false,
    }
}

/// The newest state of a study's training, where it was read, and the files of other workers that were read with it.
pub(super) struct Newest {
    pub state: Checkpoint,
    pub path: PathBuf,
    kept: Vec<PathBuf>,
}

impl Newest {
    /// The state of worker 0's file, or a newer one that another worker has kept. A file that cannot be read is named, and
    /// stays.
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

    /// Puts the state in place of worker 0's file, and removes the other files that were read. To be called once the training
    /// has taken the state: until then every file stays.
    pub fn settle(&self, study: &Study) -> Result<(), Error> {
        if self.kept.contains(&self.path) {
            self.state.save(&study.checkpoint()).map_err(cannot_keep)?;
            tracing::info!("a worker has kept the state of iteration {}", self.state.progress.step);
        }
        study.forget(&self.kept)
    }
}
