//! Workers that are processes, started by a launcher such as `mpirun`: messages by MPI, which is found at run time.
//!
//! A thread of each worker makes all MPI calls (`messenger.rs`): it sends and receives independently of the trainer, and
//! sends signs of life several times a second. So the others find a worker that has stopped, and a failing worker gives its
//! reason before it ends.
//!
//! Deliberately does not start processes, or choose a network. Launcher and library do.

mod flow;
mod launcher;
mod messenger;
mod table;

pub use launcher::{Launched, launched};
pub use messenger::host;

use super::messages::Messages;
use super::rooms::Rooms;
use super::sharded::Sharded;
use super::{Group, GroupError, GroupFacts};
use messenger::{Command, Heard, Lost, OfWorker};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a waiting worker checks that all others live.
const LOOK: Duration = Duration::from_millis(100);

/// Time in which a launcher ends a worker that the others have given up, even on a busy machine.
const ENDING: Duration = Duration::from_secs(10);

/// Value of `done` before the first iteration.
const NONE_YET: u64 = u64::MAX;

/// Failure to run workers as processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpiError {
    /// No library can be used.
    #[error("{launcher} has started {workers} workers, and no MPI library can be used: {why}")]
    Missing {
        /// Name of the launcher.
        launcher: &'static str,
        /// Number of workers according to the launcher.
        workers: usize,
        /// Result for each library that was looked for.
        why: String,
    },
    /// Launcher and library do not match.
    #[error("{launcher} says {told} workers, and {library} says {found}: they do not belong together")]
    OtherWorld {
        /// Name of the launcher.
        launcher: &'static str,
        /// Number of workers according to the launcher.
        told: usize,
        /// Name of the library.
        library: String,
        /// Number of workers according to the library.
        found: usize,
    },
}

/// All workers that a launcher started, as seen by this one.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

/// State shared by the trainer's thread and the MPI thread.
struct Shared {
    facts: GroupFacts,
    library: String,
    timeout: Duration,
    rooms: Rooms,
    commands: Mutex<Sender<Command>>,
    /// Iterations that this worker has done, or [`NONE_YET`].
    done: AtomicU64,
    heard: Mutex<Heard>,
    changed: Condvar,
}

impl Shared {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn iterations(&self) -> Option<u64> {
        Some(self.done.load(Ordering::Relaxed)).filter(|done| *done != NONE_YET)
    }

    fn command(&self, command: Command) {
        // If the thread has ended, the last state that it heard holds the reason.
        let _ = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
    }
}

impl World {
    /// Joins the other workers. A worker that is silent for as long as the timeout counts as stopped.
    pub fn join(launched: Launched, timeout: Duration) -> Result<World, MpiError> {
        let (sender, commands) = channel();
        let (ready, begun) = channel();
        let Launched { launcher, workers, .. } = launched;
        let missing = |why: String| MpiError::Missing { launcher, workers, why };
        let files = launched.libraries();
        let (shared, given) = channel();
        let thread = std::thread::Builder::new().name("mpi".to_owned());
        let thread = thread.spawn(move || messenger::run(files, &ready, &given, &commands));
        thread.map_err(|error| missing(error.to_string()))?;
        let begun = begun.recv().unwrap_or_else(|_| Err("its thread ended".to_owned()));
        let messenger::Begun { library, rank, workers: found } = begun.map_err(missing)?;
        if found != workers {
            return Err(MpiError::OtherWorld { launcher, told: workers, library, found });
        }
        let world = World {
            shared: Arc::new(Shared {
                facts: GroupFacts { engine: "mpi", rank, workers },
                library,
                timeout,
                rooms: Rooms::default(),
                commands: Mutex::new(sender),
                done: AtomicU64::new(NONE_YET),
                heard: Mutex::new(Heard::of(workers)),
                changed: Condvar::new(),
            }),
        };
        // The thread waits for this before it receives anything.
        let _ = shared.send(Arc::clone(&world.shared));
        Ok(world)
    }

    /// Identity of this worker.
    pub fn facts(&self) -> GroupFacts {
        self.shared.facts
    }

    /// Name of the library, with its version and file.
    pub fn library(&self) -> &str {
        &self.shared.library
    }

    /// Iterations that this worker has done; `None` before the workers begin to train.
    pub fn iterations(&self) -> Option<u64> {
        self.shared.iterations()
    }

    /// Returns `true` if this process was stopped for so long that the others may have taken it for lost.
    pub fn is_given_up(&self) -> bool {
        self.shared.heard().given_up
    }

    /// The workers as a group for a trainer.
    pub fn group(&self) -> Box<dyn Group> {
        Box::new(Sharded::new(MpiMessages { shared: Arc::clone(&self.shared) }))
    }

    /// Sends the others the reason why this worker ends.
    pub fn fail(&self, why: &str) {
        self.shared.command(Command::Fail(why.to_owned()));
    }

    /// Returns `true` if a worker has given the reason why it ends; it then reports it itself.
    pub fn has_said_why(&self, rank: usize) -> bool {
        self.shared.heard().workers[rank].failed.is_some()
    }

    /// Waits for the end of worker 0, or, on worker 0, announces it; then ends MPI. Returns `false` if that took too long or
    /// a worker failed meanwhile.
    pub fn end(self) -> bool {
        let shared = &self.shared;
        if shared.facts.rank == 0 {
            shared.command(Command::End);
        } else {
            // Worker 0 tests and saves, which may take any time.
            let mut heard = shared.heard();
            while !heard.workers[0].ended {
                let is_lost =
                    heard.workers[0].died.is_some() || heard.workers[0].last.elapsed() > shared.timeout;
                if heard.broken.is_some() || is_lost {
                    return false;
                }
                heard = shared.changed.wait_timeout(heard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(heard);
            shared.command(Command::End);
        }
        self.waits_for(self.shared.timeout, |heard| heard.over)
    }

    /// Ends all workers with this exit code, once the launcher has read this process's stderr. This process ends with them
    /// if the library works as it should.
    pub fn abort(self, exit: u8) {
        launcher::what_was_said_is_read();
        self.shared.command(Command::Abort(exit));
        self.waits_for(self.shared.timeout, |heard| heard.over);
    }

    /// Waits until one of the workers before this one has saved and ends all, including this one; if the others may have
    /// given this one up, until any of them ends all. Returns if none of them lives any longer, or the wait takes too long:
    /// then this worker has to end all.
    pub fn wait_to_be_ended(&self) {
        let lives = |worker: &OfWorker| worker.died.is_none() && worker.last.elapsed() < self.shared.timeout;
        let begun = Instant::now();
        let mut heard = self.shared.heard();
        while !heard.over
            && heard.broken.is_none()
            && (heard.workers[..self.shared.facts.rank].iter().any(lives)
                || heard.given_up && begun.elapsed() < ENDING)
        {
            heard = self.shared.changed.wait_timeout(heard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn waits_for(&self, at_most: Duration, done: impl Fn(&Heard) -> bool) -> bool {
        let until = Instant::now() + at_most;
        let mut heard = self.shared.heard();
        while !done(&heard) && heard.broken.is_none() && Instant::now() < until {
            heard = self.shared.changed.wait_timeout(heard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        done(&heard)
    }
}

struct MpiMessages {
    shared: Arc<Shared>,
}

impl Messages for MpiMessages {
    fn facts(&self) -> GroupFacts {
        self.shared.facts
    }

    fn rooms(&self) -> &Rooms {
        &self.shared.rooms
    }

    fn send(&mut self, to: usize, needed: u32, message: Vec<u32>) -> Result<(), GroupError> {
        self.shared.command(Command::Send { to, needed, message });
        Ok(())
    }

    fn arrived(&mut self) -> Option<(usize, Vec<u32>)> {
        self.shared.heard().messages.pop_front()
    }

    fn lost(&mut self) -> Option<GroupError> {
        let (rank, timeout) = (self.shared.facts.rank, self.shared.timeout);
        let heard = self.shared.heard();
        let ended = || heard.workers.iter().position(|worker| worker.ended);
        heard.lost(rank, timeout).or_else(|| Some(GroupError::Lost { rank: ended()? }))
    }

    fn receive(&mut self, awaited: usize) -> Result<(usize, Vec<u32>), GroupError> {
        let mut heard = self.shared.heard();
        let mut was_lost = false;
        loop {
            if let Some(message) = heard.messages.pop_front() {
                return Ok(message);
            }
            // A process that was itself stopped listens to the others before it takes one for silent.
            if let Some(error) = heard.lost(self.shared.facts.rank, self.shared.timeout) {
                if std::mem::replace(&mut was_lost, true) {
                    return Err(error);
                }
            } else {
                was_lost = false;
            }
            if heard.workers[awaited].ended {
                return Err(GroupError::Lost { rank: awaited });
            }
            let waited = self.shared.changed.wait_timeout(heard, LOOK);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_first_left(&mut self) -> bool {
        let (rank, timeout, asked) = (self.shared.facts.rank, self.shared.timeout, Instant::now());
        let mut heard = self.shared.heard();
        loop {
            // If the others may have given this one up, one of them keeps the state.
            if heard.given_up || heard.broken.is_some() {
                return false;
            }
            match heard.workers[..rank].iter().map(|worker| worker.is_lost(asked, timeout)).min() {
                Some(Lost::No) => return false,
                None | Some(Lost::Yes) => return true,
                Some(Lost::NotKnown) => {}
            }
            heard = self.shared.changed.wait_timeout(heard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn at(&mut self, iteration: u64) {
        self.shared.done.store(iteration, Ordering::Relaxed);
    }
}

/// MPI libraries that the loader finds here, each with its own name.
pub fn found() -> Vec<String> {
    // In the order of preference.
    launcher::LIBRARIES.iter().filter_map(|file| table::named(file).ok()).collect()
}
