//! The workers of one process, each to be used by a thread of its own: a channel leads from each worker to each other.
//!
//! A worker that ends, by an error or a panic, drops its ends of the channels, so that nobody waits for it. What it sent
//! before still arrives.

use super::messages::Messages;
use super::sharded::Sharded;
use super::{Group, GroupError, GroupFacts, alone};
use std::sync::mpsc::{Receiver, Sender, channel};

/// So many workers, by rank.
pub fn threads(workers: usize) -> Vec<Box<dyn Group>> {
    if workers == 1 {
        return vec![alone()];
    }
    let mut all: Vec<Channels> = (0..workers).map(|rank| Channels::new(rank, workers)).collect();
    for from in 0..workers {
        for to in (0..workers).filter(|to| *to != from) {
            let (sender, receiver) = channel();
            all[from].to[to] = Some(sender);
            all[to].from[from] = Some(receiver);
        }
    }
    all.into_iter().map(|channels| Box::new(Sharded::new(channels)) as Box<dyn Group>).collect()
}

/// A worker's ends of the channels, by the other's rank.
struct Channels {
    rank: usize,
    to: Vec<Option<Sender<Vec<u32>>>>,
    from: Vec<Option<Receiver<Vec<u32>>>>,
}

impl Channels {
    fn new(rank: usize, workers: usize) -> Channels {
        Channels { rank, to: vec![None; workers], from: (0..workers).map(|_| None).collect() }
    }
}

impl Messages for Channels {
    fn facts(&self) -> GroupFacts {
        GroupFacts { engine: "threads", rank: self.rank, workers: self.to.len() }
    }

    fn send(&mut self, to: usize, message: Vec<u32>) -> Result<(), GroupError> {
        let channel = self.to[to].as_ref().expect("no worker sends to itself");
        channel.send(message).map_err(|_| GroupError::Lost { rank: to })
    }

    fn arrived(&mut self, from: usize) -> Option<Vec<u32>> {
        self.from[from].as_ref().expect("no worker sends to itself").try_recv().ok()
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u32>, GroupError> {
        let channel = self.from[from].as_ref().expect("no worker sends to itself");
        channel.recv().map_err(|_| GroupError::Lost { rank: from })
    }
}
