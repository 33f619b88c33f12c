//! The workers of one process, one for each thread: a channel leads to each of them from all others.
//!
//! A worker that ends, by an error or a panic, notifies all as it drops its ends of the channels, so that none waits for it.
//! Its earlier messages still arrive. A message to it is dropped: a worker that waits for its answer learns that it has
//! ended. So a worker that still sends sums when the others have ended reports their reason, not that one of them is lost.

use super::messages::Messages;
use super::rooms::Rooms;
use super::sharded::Sharded;
use super::{Group, GroupError, GroupFacts};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Group of one worker: nothing is exchanged. An update of several virtual workers on it is accumulation.
pub fn alone() -> Box<dyn Group> {
    threads(1).pop().expect("there is one")
}

/// Creates this many workers, by rank.
pub fn threads(workers: usize) -> Vec<Box<dyn Group>> {
    let (to, from): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel()).unzip();
    let rooms = Arc::default();
    let channels = from.into_iter().enumerate().map(|(rank, from)| Channels {
        rank,
        to: to.clone(),
        from,
        has_ended: vec![false; workers],
        rooms: Arc::clone(&rooms),
    });
    channels.map(|channels| Box::new(Sharded::new(channels)) as Box<dyn Group>).collect()
}

/// A worker's ends of the channels.
struct Channels {
    rank: usize,
    /// By worker, including this one.
    to: Vec<Sender<Sent>>,
    from: Receiver<Sent>,
    /// By worker, as far as heard.
    has_ended: Vec<bool>,
    /// Buffers of all workers.
    rooms: Arc<Rooms>,
}

/// Sender and message; `None` if the sender ends.
type Sent = (usize, Option<Vec<u32>>);

impl Channels {
    /// Returns a message; notes the end of a worker.
    fn heard(&mut self, (from, message): Sent) -> Option<(usize, Vec<u32>)> {
        self.has_ended[from] |= message.is_none();
        Some((from, message?))
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        for to in &self.to {
            // A worker that has already ended no longer receives this.
            let _ = to.send((self.rank, None));
        }
    }
}

impl Messages for Channels {
    fn facts(&self) -> GroupFacts {
        let engine = if self.to.len() == 1 { "alone" } else { "threads" };
        GroupFacts { engine, rank: self.rank, workers: self.to.len() }
    }

    fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// No message waits on the way, so none is overtaken.
    fn send(&mut self, to: usize, _: u32, message: Vec<u32>) -> Result<(), GroupError> {
        let _ = self.to[to].send((self.rank, Some(message)));
        Ok(())
    }

    fn arrived(&mut self) -> Option<(usize, Vec<u32>)> {
        while let Ok(sent) = self.from.try_recv() {
            if let Some(message) = self.heard(sent) {
                return Some(message);
            }
        }
        None
    }

    fn lost(&mut self) -> Option<GroupError> {
        self.has_ended.iter().position(|has_ended| *has_ended).map(|rank| GroupError::Lost { rank })
    }

    fn receive(&mut self, awaited: usize) -> Result<(usize, Vec<u32>), GroupError> {
        while !self.has_ended[awaited] {
            let sent = self.from.recv().expect("it holds a sender of its own");
            if let Some(message) = self.heard(sent) {
                return Ok(message);
            }
        }
        Err(GroupError::Lost { rank: awaited })
    }
}
