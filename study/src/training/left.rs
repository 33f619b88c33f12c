//! The state that another worker keeps where worker 0 is lost.
//!
//! Every worker has the whole state, and worker 0 saves it. Where worker 0 is a process that is lost, the first worker that is
//! left saves the state in a file of its own, and the next start takes the newest file. The file of worker 0 stays as it is:
//! worker 0 may only be stopped, and save an older state once it wakes up.
//!
//! What it deliberately does not do: bring files from other machines. The study lies in a folder that all workers have.

use crate::error::{Error, Saved, TrainError};
use crate::folder::Study;
use crate::request::TrainRequest;
use crate::watch::Watch;
use plimsoll_runtime::group::mpi::host;
use plimsoll_runtime::{Checkpoint, GroupError, RuntimeError, Trainer};

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
    let (saved, lost) = match written {
        Ok(()) => {
            let (step, host) = (Some(trainer.step()), (!is_of_first || is_elsewhere(&source)).then(host));
            (Saved { path, step, host, total, fresh }, None)
        }
        Err(error) => {
            // The newest file of worker 0 is left, where this worker can see it.
            let path = study.checkpoint();
            let step = Checkpoint::load(&path).ok().map(|state| state.progress.step);
            (Saved { path, step, host: None, total, fresh }, Some(error.to_string()))
        }
    };
    TrainError::Worker { rank, source, saved, lost }.into()
}

/// Whether the worker that is lost was on another machine than this one, which may have a folder of its own.
fn is_elsewhere(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::Group(GroupError::Silent { host: of, .. } | GroupError::Died { host: of, .. }) => {
            *of != host()
        }
        _ => false,
    }
}

/// Puts the newest state that another worker has kept in place of worker 0's file, where that one is older; not where training
/// begins anew.
pub(super) fn take_newest(request: &TrainRequest, study: &Study, watch: &Watch<'_>) -> Result<(), Error> {
    let files = study.kept_by_workers();
    if files.is_empty() || request.fresh {
        return Ok(());
    }
    let mut kept = Vec::new();
    for file in &files {
        match Checkpoint::load(file) {
            Ok(state) => kept.push(state),
            Err(error) => watch.warn(format_args!("{error}: this file is not used")),
        }
    }
    let Some(newest) = kept.into_iter().max_by_key(|state| state.progress.step) else { return Ok(()) };
    let file = study.checkpoint();
    let in_file = if file.exists() {
        Some(Checkpoint::load(&file).map_err(TrainError::Unreadable)?.progress.step)
    } else {
        None
    };
    if Some(newest.progress.step) > in_file {
        newest.save(&file).map_err(TrainError::CannotKeep)?;
        tracing::info!("a worker has kept the state of iteration {}", newest.progress.step);
    }
    Ok(study.forget(&files)?)
}
