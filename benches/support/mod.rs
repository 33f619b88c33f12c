//! Shared support of the benches: a size that fits `cargo test`, a task on synthetic data, schedules run in turn, medians.

pub mod report;
pub mod subject;
pub use report::{in_full, machine, middle};
pub use subject::{task, trainer};

use plimsoll::ir::profile::alone;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::runtime::Trainer;
use plimsoll::study::{NetworkWorkload, Workload};

/// Returns `true` if a network is requested; without names on the command line, every network is.
pub fn wanted(network: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).peekable();
    named.peek().is_none() || named.any(|name| name == network)
}

/// Runs iterations of several trainers in turn, `rounds` of each after a warm-up. Returns the seconds of each, without the
/// processor time that other processes took. Alternating spreads a drift of the machine over all trainers alike.
pub fn in_turn(task: &NetworkWorkload, trainers: &mut [Trainer], rounds: u64) -> Vec<Vec<Seconds>> {
    let mut seconds = vec![Vec::new(); trainers.len()];
    for round in 1..=rounds + 2 {
        for (trainer, seconds) in trainers.iter_mut().zip(&mut seconds) {
            let mut observe = |seen: &plimsoll::runtime::Observation| {
                if round > 2 {
                    seconds.push(alone(seen.seconds, seen.waited));
                }
            };
            trainer.train(&*task.data.train, round, &mut observe, &|| false).expect("training runs");
        }
    }
    seconds
}

/// Returns the memory that keeps everything.
pub fn peak(task: &NetworkWorkload, batch: u64) -> Bytes {
    task.trace(batch).expect("the network lowers").memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

/// Returns a budget between the floor (0), below which no plan fits, and the memory that keeps everything (1).
pub fn budget(task: &NetworkWorkload, batch: u64, share: f64) -> Bytes {
    let memory = task.trace(batch).expect("the network lowers").memory();
    let (_, floor) = memory.floor().expect("there are ops");
    floor + Bytes(((peak(task, batch) - floor).0 as f64 * share) as u64)
}
