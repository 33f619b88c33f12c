//! This process among those that a launcher such as `mpirun` started: worker 0 speaks for all, and all end together.
//!
//! A worker that fails tells the others why, and the first worker that lives says so; where nothing is heard any longer, each
//! says so itself. Who speaks ends all processes with the exit code of the failure, so that nothing hangs on one that is
//! stopped.
//!
//! What it deliberately does not do: decide whether a training can go on. The job does.

use crate::args::Verb;
use crate::notes;
use plimsoll_runtime::GroupError;
use plimsoll_runtime::group::mpi::{Launched, MpiError, World, launched};
use plimsoll_study::error::{Cause, Error, Kind};
use std::sync::OnceLock;
use std::time::Duration;

static WORLD: OnceLock<World> = OnceLock::new();

/// The worker without which this one could not go on.
static LOST: OnceLock<usize> = OnceLock::new();

/// Whether the library serves no longer, which does not say who is gone.
static BROKEN: OnceLock<()> = OnceLock::new();

/// How this process was started, where it is one of several.
pub fn several() -> Option<Launched> {
    launched().filter(|launched| launched.workers > 1)
}

/// How long the other processes that are refused leave worker 0 to say so: launchers end all when the first one fails.
const SPEAKING: Duration = Duration::from_secs(1);

/// Why a launcher does not start this command; none where it is no launcher's, or is the only process. Each of several would
/// measure, write and print the same.
pub fn refused(verb: &Verb) -> Option<Error> {
    // These print a page about the program itself, or are made for it.
    let is_made_for_it = matches!(verb, Verb::Run(_) | Verb::Doctor(_) | Verb::Completions(_) | Verb::Man(_));
    let Launched { launcher, workers, .. } = several().filter(|_| !is_made_for_it)?;
    let name = verb.name();
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

/// Whether this process says that it was refused: worker 0 does, for all.
pub fn says_refused() -> bool {
    let speaks = !is_spoken_for();
    if !speaks {
        std::thread::sleep(SPEAKING);
    }
    speaks
}

/// Joins the others, where there are some.
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

/// Whether another process speaks for this one, as long as nothing fails.
pub fn is_spoken_for() -> bool {
    several().is_some_and(|launched| launched.rank > 0)
}

/// Takes note of whose failure an error is.
pub fn noted(error: Error) -> Error {
    let Some(Cause::Group(group)) = error.cause.as_deref() else { return error };
    let rank = match group {
        GroupError::Lost { rank }
        | GroupError::Failed { rank, .. }
        | GroupError::Silent { rank, .. }
        | GroupError::Died { rank, .. } => Some(*rank),
        // All workers know of it.
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

/// Whether this process says with what it fails. Else those are told who do, and end it; where none of them lives any longer,
/// it speaks itself. One that was stopped for so long that the others may have given it up waits for them
/// to end it.
pub fn says(failure: &Error) -> bool {
    let Some(world) = WORLD.get() else { return true };
    match (world.facts().rank, LOST.get()) {
        // They say so, and end it.
        _ if world.is_given_up() => {}
        (0, _) => return true,
        (1, Some(0)) if !world.has_said_why(0) => return true,
        (_, Some(_)) => {}
        (_, None) => world.fail(&failure.message),
    }
    world.wait_to_be_ended();
    true
}

/// Ends together with the others, where there are some; gives the exit code.
pub fn end(exit: u8) -> u8 {
    let Some(world) = WORLD.get() else { return exit };
    let world = world.clone();
    if exit == 0 {
        // All is done and saved; one that cannot say so does not take that back.
        if !world.clone().end() {
            // Worker 0 is gone before it had tested.
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
