//! The workers of one process, each to be used by a thread of its own: a channel leads to each of them from all others.
//!
//! A worker that ends, by an error or a panic, says so to all as it drops its ends of the channels, so that nobody waits for
//! it. What it sent before still arrives. A message to it is dropped: whoever waits for its answer is told that it has ended.
//! So a worker that still sends sums when the others have ended gives their reason, not that one of them is lost.

use super::messages::Messages;
use super::rooms::Rooms;
use super::sharded::Sharded;
use super::{Group, GroupError, GroupFacts, alone};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// So many workers, by rank.
pub fn threads(workers: usize) -> Vec<Box<dyn Group>> {
    if workers == 1 {
        return vec![alone()];
    }
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
    /// By worker, this one's own among them.
    to: Vec<Sender<Sent>>,
    from: Receiver<Sent>,
    /// By worker, as far as it was heard.
    has_ended: Vec<bool>,
    /// The buffers of all workers.
    rooms: Arc<Rooms>,
}

/// Whose message it is; none where that worker ends.
type Sent = (usize, Option<Vec<u32>>);

impl Channels {
    /// What it is if it is a message.
    fn heard(&mut self, (from, message): Sent) -> Option<(usize, Vec<u32>)> {
        self.has_ended[from] |= message.is_none();
        Some((from, message?))
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        for to in &self.to {
            // Whoever has ended before hears of it no more.
            let _ = to.send((self.rank, None));
        }
    }
}

impl Messages for Channels {
    fn facts(&self) -> GroupFacts {
        GroupFacts { engine: "threads", rank: self.rank, workers: self.to.len() }
    }

    fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// Nothing waits on the way, so nothing is overtaken.
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
