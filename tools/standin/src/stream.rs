//! A stream: a thread with a queue that does one piece of work after the other, each after a delay.
//!
//! Work is checked again in its turn, against what is alive then. A failure is kept ([`status::fail`]) and everything after
//! it is skipped, except that events still happen, so that no thread waits for ever.

use crate::kernels::Launch;
use crate::memory::{self, Host};
use crate::status::{self, Outcome};
use crate::{delays, link, lock, turns};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Work of a stream, or of a node of a graph.
pub enum Work {
    /// Copies from host to device, the other way, or within the device.
    Copy(Copy),
    /// Sets bytes of device memory.
    Fill {
        /// First address.
        address: u64,
        /// Value of the bytes.
        byte: u8,
        /// Number of bytes.
        bytes: u64,
    },
    /// Runs a kernel.
    Launch(Launch),
    /// Runs a library's computation, or all nodes of a graph.
    Compute(Box<dyn Fn() -> Result<(), String> + Send + Sync>),
    /// Makes an event happen.
    Record(Arc<Moment>),
    /// Waits until an event has happened.
    Wait(Arc<Moment>),
}

/// A copy, with its declared direction.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub direction: Direction,
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
}

/// Memories of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

impl Copy {
    /// Checks the addresses against the direction; returns the kind of the host's side, page-locked if there is none.
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

    /// Runs the copy.
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
    /// Runs the work.
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

/// One recording of an event: a moment in the future.
#[derive(Default)]
pub struct Moment {
    at: Mutex<Option<Instant>>,
    came: Condvar,
}

impl Moment {
    /// Time of the moment, if it has happened.
    pub fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    /// Makes it happen now.
    pub fn happen(&self) {
        *lock(&self.at) = Some(Instant::now());
        self.came.notify_all();
    }

    /// Waits until it has happened.
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
                // A thread that sees the moment also sees an idle stream, if nothing follows.
                let mut queue = lock(&self.queue);
                queue.busy = false;
                moment.happen();
            } else {
                work.run();
            }
        }
    }

    /// Makes its thread check the queue again.
    pub fn wake(&self) {
        let _queue = lock(&self.queue);
        self.changed.notify_all();
    }

    /// Takes out the next work, if it can be done at once, for a thread that does it in the stream's place.
    pub fn take_ready(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        match queue.works.front() {
            Some(Work::Wait(moment)) if moment.at().is_none() => None,
            _ => queue.works.pop_front(),
        }
    }

    /// Enqueues work.
    pub fn push(&self, work: Work) {
        lock(&self.queue).works.push_back(work);
        self.changed.notify_all();
    }

    /// Returns `true` if no work is left.
    pub fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.works.is_empty() && !queue.busy
    }

    /// Waits until no work is left.
    pub fn wait_until_idle(&self) {
        let mut queue = lock(&self.queue);
        while !queue.works.is_empty() || queue.busy {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends its thread once no work is left.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}
