//! A stream: a thread with a queue, that does one piece of work after the other, each after a delay.
//!
//! Work is checked again when it is its turn, against what is alive then. What fails is kept ([`status::fail`]) and
//! everything after it is left out, except that events still happen, so that nobody waits for ever.

use crate::kernels::Launch;
use crate::memory::{self, Host};
use crate::status::{self, Outcome};
use crate::{delays, link, lock, turns};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// What a stream, or a node of a graph, does.
pub enum Work {
    /// From host to device or the other way.
    Copy(Copy),
    /// Sets bytes of device memory.
    Fill {
        /// Where.
        address: u64,
        /// To what.
        byte: u8,
        /// How many.
        bytes: u64,
    },
    /// Runs a kernel.
    Launch(Launch),
    /// Runs what a library computes, or all nodes of a graph.
    Compute(Box<dyn Fn() -> Result<(), String> + Send + Sync>),
    /// An event happens.
    Record(Arc<Moment>),
    /// Waits until it has.
    Wait(Arc<Moment>),
}

/// A copy, by what it says it does.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub direction: Direction,
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
}

/// Between which memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

impl Copy {
    /// Makes sure that the addresses are what the way says; tells whether the host's side, if there is one, is page-locked.
    pub fn check(&self) -> Outcome<Host> {
        match self.direction {
            Direction::HostToDevice => {
                memory::device(self.to, self.bytes).and(memory::host(self.from, self.bytes))
            }
            Direction::DeviceToHost => {
                memory::device(self.from, self.bytes).and(memory::host(self.to, self.bytes))
            }
            Direction::DeviceToDevice => {
                memory::device(self.to, self.bytes)?;
                memory::device(self.from, self.bytes).map(|_| Host::PageLocked)
            }
        }
    }

    /// Copies.
    pub fn run(&self) -> Outcome {
        self.check()?;
        let (to, from) = match self.direction {
            Direction::HostToDevice => (memory::device(self.to, self.bytes)?, self.from as *mut u8),
            Direction::DeviceToHost => (self.to as *mut u8, memory::device(self.from, self.bytes)?),
            Direction::DeviceToDevice => {
                (memory::device(self.to, self.bytes)?, memory::device(self.from, self.bytes)?)
            }
        };
        // SAFETY: both ranges were just found whole: on the device in one live allocation, on the host in page-locked
        // memory, or in memory that the caller of the driver promises and waits for. Within the device they may overlap.
        let copy = || unsafe { std::ptr::copy(from, to, self.bytes as usize) };
        if self.direction == Direction::DeviceToDevice {
            copy();
        } else {
            link::carry(self.bytes, copy);
        }
        Ok(())
    }
}

impl Work {
    /// Does it.
    pub fn run(&self) {
        let outcome = match self {
            Work::Record(moment) => return moment.happen(),
            Work::Wait(moment) => return moment.wait(),
            _ if status::sticky().is_err() => return,
            Work::Copy(copy) => copy.run().map_err(|_| format!("nothing is there any more for {copy:?}")),
            Work::Fill { address, byte, bytes } => fill(*address, *byte, *bytes)
                .map_err(|_| format!("nothing is there any more to fill at {address:#x}")),
            Work::Launch(launch) => launch.run(),
            Work::Compute(run) => run(),
        };
        if let Err(why) = outcome {
            status::fail(status::ILLEGAL_ADDRESS, &why);
        }
    }
}

/// Sets bytes of device memory.
pub fn fill(address: u64, byte: u8, bytes: u64) -> Outcome {
    let storage = memory::device(address, bytes)?;
    // SAFETY: the range was just found whole in one live allocation.
    unsafe { std::ptr::write_bytes(storage, byte, bytes as usize) };
    Ok(())
}

/// One recording of an event: a moment that will come.
#[derive(Default)]
pub struct Moment {
    at: Mutex<Option<Instant>>,
    came: Condvar,
}

impl Moment {
    /// When it was, if it was.
    pub fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    /// Now.
    pub fn happen(&self) {
        *lock(&self.at) = Some(Instant::now());
        self.came.notify_all();
    }

    /// Until it has happened.
    pub fn wait(&self) {
        let mut at = lock(&self.at);
        while at.is_none() {
            at = self.came.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A stream.
pub struct Stream {
    /// In the order in which streams were made, from 0; the default stream is `u32::MAX`.
    pub number: u32,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    works: VecDeque<Work>,
    busy: bool,
    closed: bool,
}

impl Stream {
    /// Starts its thread.
    pub fn start(number: u32) -> Arc<Stream> {
        let stream = Arc::new(Stream { number, queue: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&stream);
        std::thread::spawn(move || own.work());
        stream
    }

    fn work(&self) {
        loop {
            let work = {
                let mut queue = lock(&self.queue);
                queue.busy = false;
                self.changed.notify_all();
                loop {
                    if let Some(work) = (!turns::on()).then(|| queue.works.pop_front()).flatten() {
                        queue.busy = true;
                        break work;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            delays::pause(self.number);
            if let Work::Record(moment) = work {
                // Whoever sees that it happened sees an idle stream, too, if nothing follows.
                let mut queue = lock(&self.queue);
                queue.busy = false;
                moment.happen();
            } else {
                work.run();
            }
        }
    }

    /// Has its thread look again.
    pub fn wake(&self) {
        let _queue = lock(&self.queue);
        self.changed.notify_all();
    }

    /// Takes out the next work, if it can be done at once; for whoever does it in the stream's place.
    pub fn take_ready(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        match queue.works.front() {
            Some(Work::Wait(moment)) if moment.at().is_none() => None,
            _ => queue.works.pop_front(),
        }
    }

    /// Enqueues.
    pub fn push(&self, work: Work) {
        lock(&self.queue).works.push_back(work);
        self.changed.notify_all();
    }

    /// Whether it has done everything.
    pub fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.works.is_empty() && !queue.busy
    }

    /// Until it has done everything.
    pub fn wait_until_idle(&self) {
        let mut queue = lock(&self.queue);
        while !queue.works.is_empty() || queue.busy {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends its thread once it has done everything.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}
