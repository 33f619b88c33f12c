//! Workers that are processes, started by a launcher such as `mpirun`: messages by MPI, which is found at run time.
//!
//! A thread of each worker makes all calls of MPI (`messenger.rs`): it sends and receives whatever the trainer does meanwhile,
//! and tells the others several times a second that its process lives. So a worker that has stopped is found by the others,
//! and the one that fails tells them why before it ends.
//!
//! What it deliberately does not do: start processes, or choose a network. Launcher and library do.

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

/// How often one that waits looks whether all the others live.
const LOOK: Duration = Duration::from_millis(100);

/// A launcher ends a worker that the others have given up within this time, on a busy machine too.
const ENDING: Duration = Duration::from_secs(10);

/// That no iteration was told of yet.
const NONE_YET: u64 = u64::MAX;

/// Why workers cannot be processes here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpiError {
    /// No library can be used.
    #[error("{launcher} has started {workers} workers, and no MPI library can be used: {why}")]
    Missing {
        /// Who started this process.
        launcher: &'static str,
        /// How many it says there are.
        workers: usize,
        /// What became of each that was looked for.
        why: String,
    },
    /// Launcher and library do not belong together.
    #[error("{launcher} says {told} workers, and {library} says {found}: they do not belong together")]
    OtherWorld {
        /// Who started this process.
        launcher: &'static str,
        /// How many it says there are.
        told: usize,
        /// The library.
        library: String,
        /// How many that says there are.
        found: usize,
    },
}

/// All workers that a launcher started, as this one sees them.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

/// What the trainer's thread and the one that makes the calls share.
struct Shared {
    facts: GroupFacts,
    library: String,
    timeout: Duration,
    rooms: Rooms,
    commands: Mutex<Sender<Command>>,
    /// The iterations that this worker has done, or [`NONE_YET`].
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
        // Where the thread has ended, what it heard last says why.
        let _ = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
    }
}

impl World {
    /// Joins the others. A worker from which nothing is heard for as long as the timeout counts as stopped.
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
        // It waits for this before it hears anything.
        let _ = shared.send(Arc::clone(&world.shared));
        Ok(world)
    }

    /// Who this worker is.
    pub fn facts(&self) -> GroupFacts {
        self.shared.facts
    }

    /// The library, with its version and file.
    pub fn library(&self) -> &str {
        &self.shared.library
    }

    /// The iterations that this worker has done; none before the workers have begun to train.
    pub fn iterations(&self) -> Option<u64> {
        self.shared.iterations()
    }

    /// Whether this process was stopped for so long that the others may have taken it for lost.
    pub fn is_given_up(&self) -> bool {
        self.shared.heard().given_up
    }

    /// The workers as a trainer's group.
    pub fn group(&self) -> Box<dyn Group> {
        Box::new(Sharded::new(MpiMessages { shared: Arc::clone(&self.shared) }))
    }

    /// Tells the others why this worker ends.
    pub fn fail(&self, why: &str) {
        self.shared.command(Command::Fail(why.to_owned()));
    }

    /// Whether a worker has told why it ends; then it speaks for itself.
    pub fn has_said_why(&self, rank: usize) -> bool {
        self.shared.heard().workers[rank].failed.is_some()
    }

    /// Waits for the end of worker 0, or tells the others that this is it; then ends MPI. False where that took too long or
    /// somebody failed meanwhile.
    pub fn end(self) -> bool {
        let shared = &self.shared;
        if shared.facts.rank == 0 {
            shared.command(Command::End);
        } else {
            // Worker 0 tests and saves, which takes as long as it takes.
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
    /// where the library does as it should.
    pub fn abort(self, exit: u8) {
        launcher::what_was_said_is_read();
        self.shared.command(Command::Abort(exit));
        self.waits_for(self.shared.timeout, |heard| heard.over);
    }

    /// Waits until one of the workers before this one has saved and ends all, this one among them; where the others may have
    /// given this one up, until any of them ends all. Returns where none of them lives any longer, or nothing is heard: then
    /// this one has to end all.
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
            // A process that was stopped itself hears of the others before it takes one for silent.
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
            // Where the others may have given this one up, one of them keeps the state.
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

/// The MPI libraries that the loader finds here, each with its name for itself.
pub fn found() -> Vec<String> {
    // Each in its order of preference.
    launcher::LIBRARIES.iter().filter_map(|file| table::named(file).ok()).collect()
}
