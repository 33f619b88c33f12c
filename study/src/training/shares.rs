//! What each worker has of a state whose momenta are sharded, as files in the study: written where training fails, and put
//! together by the next start, to the file that goes on.
//!
//! Where momenta are not sharded, every worker has the whole state, and worker 0 saves it. Where worker 0 is a process that is
//! lost, the first of the others keeps the state, as a share that needs no other one. It leaves worker 0's file alone: worker 0
//! may only be stopped, and save an older state once it wakes up.
//!
//! What it deliberately does not do: bring files from other machines. The study lies in a folder that all workers have.

use crate::error::{Error, Saved, TrainError};
use crate::folder::Study;
use crate::network_workload::NetworkWorkload;
use crate::request::TrainRequest;
use crate::watch::Watch;
use plimsoll_networks::Mode;
use plimsoll_runtime::group::mpi::host;
use plimsoll_runtime::{Checkpoint, GroupError, RuntimeError, Trainer};
use std::path::{Path, PathBuf};

/// Writes what a worker has of the state to its file, where momenta are sharded; whether it did.
pub(super) fn keep(trainer: &Trainer, file: &Path) -> Result<bool, RuntimeError> {
    let Some(share) = trainer.share_of_state() else { return Ok(false) };
    share.save(file)?;
    Ok(true)
}

/// Makes sure that a worker can keep its share of the state, where it may have to.
pub(super) fn make_sure(trainer: &Trainer, file: &Path) -> Result<(), Error> {
    let made = trainer.bytes_of_share().map_or(Ok(()), |bytes| Checkpoint::make_sure(file, bytes));
    Ok(made.map_err(TrainError::CannotKeep)?)
}

/// Keeps what one of the other workers has, where it ends with this error; gives why it could not.
pub(super) fn keep_own(error: &RuntimeError, trainer: &Trainer, file: &Path) -> Option<RuntimeError> {
    if trainer.has_whole_state() || is_of_numbers(error) {
        return None;
    }
    keep(trainer, file).err()
}

/// Whether training would fail again where it goes on from the last state.
fn is_of_numbers(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Diverged { .. } | RuntimeError::Overflowed { .. })
}

/// The error of a worker that is a process, with what it has kept where another worker has failed. Worker 0's study has
/// the same path or another one.
pub(super) fn failed(
    error: RuntimeError,
    (trainer, rank): (&mut Trainer, usize),
    (study, is_of_first): (&Study, bool),
    (total, fresh): (u64, bool),
) -> Error {
    let saved = Saved { path: study.checkpoint(), step: None, host: None, total, shares: false, fresh };
    if trainer.has_whole_state() {
        if matches!(error, RuntimeError::Group(_)) && trainer.is_first_left() {
            return keep_whole(error, (trainer, rank), (study, is_of_first), saved);
        }
        return error.into();
    }
    let lost = keep_own(&error, trainer, &study.share(rank)).map(|why| why.to_string());
    if !matches!(error, RuntimeError::Group(_)) {
        return error.into();
    }
    TrainError::Worker { rank, source: error, saved: Saved { shares: true, ..saved }, lost }.into()
}

/// Keeps the whole state in a worker's share, where worker 0 is lost; `saved` says nothing of it yet.
fn keep_whole(
    source: RuntimeError,
    (trainer, rank): (&mut Trainer, usize),
    (study, is_of_first): (&Study, bool),
    saved: Saved,
) -> Error {
    let path = study.share(rank);
    let written = trainer.checkpoint().and_then(|state| state.as_share().save(&path));
    let (saved, lost) = match written {
        Ok(()) => {
            let (step, host) = (Some(trainer.step()), (!is_of_first || is_elsewhere(&source)).then(host));
            (Saved { path, step, host, ..saved }, None)
        }
        Err(error) => {
            // What worker 0 has saved is left, where this worker can see it.
            let step = Checkpoint::load(&saved.path).ok().map(|state| state.progress.step);
            (Saved { step, ..saved }, Some(error.to_string()))
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

/// Makes the training's file of the shares that a failure has left, where these are of a newer state; not where training
/// begins anew. Says so where they are not all.
pub(super) fn put_together(
    task: &NetworkWorkload,
    batch: u64,
    request: &TrainRequest,
    study: &Study,
    watch: &Watch<'_>,
) -> Result<(), Error> {
    let files = study.shares();
    if files.is_empty() || request.fresh {
        return Ok(());
    }
    let mut shares = Vec::new();
    for file in &files {
        match Checkpoint::load(file) {
            Ok(share) => shares.push(share),
            Err(error) => watch.warn(format_args!("{error}: this share is not used")),
        }
    }
    let file = study.checkpoint();
    let in_file = if file.exists() {
        Some(Checkpoint::load(&file).map_err(TrainError::Unreadable)?.progress.step)
    } else {
        None
    };
    let program = task.program(batch, Mode::Train)?;
    match Checkpoint::put_together(&shares, &program, request.update.optimizer()) {
        Some(state) => {
            if Some(state.progress.step) > in_file {
                state.save(&file).map_err(TrainError::CannotKeep)?;
                let workers = match shares.len() {
                    1 => "a worker's share is".to_owned(),
                    several => format!("{several} workers' shares are"),
                };
                tracing::info!("{workers} of iteration {}", state.progress.step);
            }
            Ok(study.forget(&files)?)
        }
        None if shares.iter().any(|share| Some(share.progress.step) > in_file) => {
            watch.warn(not_whole(&files, in_file));
            Ok(())
        }
        // They are older than the file.
        None if shares.len() == files.len() => Ok(study.forget(&files)?),
        None => Ok(()),
    }
}

/// What to say of shares that make no state.
fn not_whole(files: &[PathBuf], in_file: Option<u64>) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let goes_on = match in_file {
        Some(step) => format!("training goes on from iteration {step}"),
        None => "training begins anew".to_owned(),
    };
    format!(
        "{} make no whole state: another worker's share is missing; to use them, copy its file to their folder; {goes_on}",
        names.join(", ")
    )
}
