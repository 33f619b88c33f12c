//! This process among those started by a launcher such as `mpirun`: worker 0 speaks for all, and all end together.
//!
//! A worker that fails sends the reason to the others, and the first live worker reports it; if communication fails,
//! each worker reports it. The reporter ends all processes with the failure's exit code, so that none waits for a
//! stopped one.
//!
//! This file does not decide if training can go on. The job does.

use crate::args::Verb;
use crate::notes;
use plimsoll_runtime::GroupError;
use plimsoll_runtime::group::mpi::{Launched, MpiError, World, launched};
use plimsoll_study::error::{Cause, Error, Kind};
use std::sync::OnceLock;
use std::time::Duration;

static WORLD: OnceLock<World> = OnceLock::new();

/// Lost worker without which this one cannot go on.
static LOST: OnceLock<usize> = OnceLock::new();

/// Set if the MPI library no longer works; this does not tell which worker is gone.
static BROKEN: OnceLock<()> = OnceLock::new();

/// Launch information of this process, if it is one of several.
pub fn several() -> Option<Launched> {
    launched().filter(|launched| launched.workers > 1)
}

/// Time that refused processes leave worker 0 to report: launchers end all processes when the first one fails.
const SPEAKING: Duration = Duration::from_secs(1);

/// Reason not to run this command under a launcher; `None` without a launcher, or for a single process. Several
/// processes would all measure, write and print the same.
pub fn refused(verb: &Verb, name: &str) -> Option<Error> {
    // These print a page about the program itself, or support several processes.
    let is_made_for_it = matches!(verb, Verb::Run(_) | Verb::Doctor(_) | Verb::Completions(_) | Verb::Man(_));
    let Launched { launcher, workers, .. } = several().filter(|_| !is_made_for_it)?;
    Some(
        Error::usage(format_args!(
            "`plimsoll {name}` runs as one process, and {launcher} has started {workers}"
        ))
        .help(format_args!(
            "run `plimsoll {name}` once, without the launcher; what was tuned is trained by `mpirun -n {workers} plimsoll run \
             STUDY`"
        )),
    )
}

/// Returns `true` if this process reports the refusal: worker 0 reports for all.
pub fn says_refused() -> bool {
    let speaks = !is_spoken_for();
    if !speaks {
        std::thread::sleep(SPEAKING);
    }
    speaks
}

/// Joins the other processes, if any.
pub fn join(timeout: Duration) -> Result<Option<&'static World>, Error> {
    let Some(launched) = several() else { return Ok(None) };
    let world = World::join(launched, timeout).map_err(|error| {
        let failure = Error::new(Kind::Device, &error);
        match error {
            MpiError::Missing { .. } => failure.help(
                "install the launcher's own library (Debian: libopenmpi3 or libmpich12), or train with --workers in one \
                 process",
            ),
            MpiError::OtherWorld { .. } => failure.help(
                "start it by the mpirun that belongs to the library, such as mpirun.openmpi or mpirun.mpich",
            ),
        }
    })?;
    tracing::info!("{} workers by {}", launched.workers, world.library());
    Ok(Some(WORLD.get_or_init(|| world)))
}

/// Returns `true` if another process reports for this one, as long as nothing fails.
pub fn is_spoken_for() -> bool {
    several().is_some_and(|launched| launched.rank > 0)
}

/// Records which worker caused an error.
pub fn noted(error: Error) -> Error {
    let Some(Cause::Group(group)) = error.cause.as_deref() else { return error };
    let rank = match group {
        GroupError::Lost { rank }
        | GroupError::Failed { rank, .. }
        | GroupError::Silent { rank, .. }
        | GroupError::Died { rank, .. } => Some(*rank),
        // All workers know of this error.
        GroupError::Different { .. } => Some(usize::MAX),
        GroupError::OutOfStep { .. } => None,
        GroupError::Engine { .. } => {
            BROKEN.get_or_init(|| ());
            None
        }
    };
    if let Some(rank) = rank {
        LOST.get_or_init(|| rank);
    }
    error
}

/// Returns `true` if this process reports its failure. Otherwise it passes an unknown failure to the others, which report
/// it and end this process; if none of them lives any longer, this process reports it. A process stopped for so long that
/// the others may have given it up waits for them to end it.
pub fn says(failure: &Error) -> bool {
    let Some(world) = WORLD.get() else { return true };
    match (world.facts().rank, LOST.get()) {
        // The others report it, and end this process.
        _ if world.is_given_up() => {}
        (0, _) => return true,
        (1, Some(0)) if !world.has_said_why(0) => return true,
        (_, Some(_)) => {}
        (_, None) => world.fail(&failure.message),
    }
    world.wait_to_be_ended();
    true
}

/// Ends together with the other processes, if any; returns the exit code.
pub fn end(exit: u8) -> u8 {
    let Some(world) = WORLD.get() else { return exit };
    let world = world.clone();
    if exit == 0 {
        // Everything is done and saved; failing to announce the end does not change that.
        if !world.clone().end() {
            // Worker 0 ended before it had tested.
            if is_spoken_for() {
                tracing::warn!(
                    "worker 0 has ended before it had saved and tested: the same command goes on from what it has saved"
                );
            }
            world.abort(if is_spoken_for() { Kind::Device as u8 } else { exit });
        }
    } else {
        if BROKEN.get().is_none() {
            notes::forget();
        }
        world.abort(exit);
    }
    exit
}
