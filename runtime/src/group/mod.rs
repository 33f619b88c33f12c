//! The interface between the workers of one training.
//!
//! A group sums numbers over all workers in the order of one fixed tree (`tree.rs`), piece by piece, each piece at the
//! worker that owns it: a sharded parameter server, whose servers are the workers themselves. [`alone()`] has one worker,
//! [`threads()`] the workers of one process, and [`mpi`] those of several. All workers make the same calls in the same
//! order.
//!
//! Deliberately does not know devices, gradients or iterations, or assign virtual workers.

mod measure;
mod messages;
pub mod mpi;
mod rooms;
mod sharded;
mod threads;
mod tree;

pub use measure::{Measured, measure};
pub use threads::{alone, threads};
pub use tree::{Node, TreeSum};

use std::ops::Range;
use std::time::Duration;

/// Identity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// Engine by which workers exchange numbers: `alone`, `threads` or `mpi`.
    pub engine: &'static str,
    /// This worker's number, from 0.
    pub rank: usize,
    /// Number of workers.
    pub workers: usize,
}

/// A piece of the numbers that are summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the piece within a sum.
    pub number: u32,
    /// The worker that sums it.
    pub owner: usize,
    /// Its place in the order in which sums are needed: its messages may overtake those of pieces needed later.
    pub needed: u32,
    /// Range of the numbers, half-open.
    pub elements: Range<usize>,
}

/// Failure of the workers to continue together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A worker has ended.
    #[error("worker {rank} has ended")]
    Lost {
        /// The worker's number.
        rank: usize,
    },
    /// A worker has failed, and gave the reason.
    #[error("worker {rank} on {host}, after {iterations} iterations: {why}")]
    Failed {
        /// The worker's number.
        rank: usize,
        /// Its machine.
        host: String,
        /// Iterations that it has done.
        iterations: u64,
        /// Its reason.
        why: String,
    },
    /// A worker is silent: it is stopped, or its machine is gone.
    #[error(
        "worker {rank} on {host} has shown no sign of life for {} s, after {iterations} iterations",
        silent.as_secs_f64()
    )]
    Silent {
        /// The worker's number.
        rank: usize,
        /// Its machine.
        host: String,
        /// Iterations that it has done.
        iterations: u64,
        /// Duration of the silence.
        silent: Duration,
    },
    /// A worker's process has died, but the library keeps the others alive.
    #[error("worker {rank} on {host} has died, after {iterations} iterations ({why})")]
    Died {
        /// The worker's number.
        rank: usize,
        /// Its machine.
        host: String,
        /// Iterations that it has done.
        iterations: u64,
        /// Message of the library.
        why: String,
    },
    /// The message engine no longer works.
    #[error("worker {me} cannot reach the others any more: {why}")]
    Engine {
        /// The worker that reports it.
        me: usize,
        /// Message of the engine.
        why: String,
    },
    /// A worker is at a different point of the training.
    #[error("worker {rank} is at {there}, where worker {me} is at {here}")]
    OutOfStep {
        /// The worker's number.
        rank: usize,
        /// The worker that reports it.
        me: usize,
        /// Message that the worker sent.
        there: String,
        /// Message that was expected.
        here: String,
    },
    /// A worker trains something different.
    #[error("worker {rank} has another {what} than worker 0: {there}, not {first}")]
    Different {
        /// The worker's number.
        rank: usize,
        /// Property that differs.
        what: String,
        /// Value at that worker.
        there: String,
        /// Value at worker 0.
        first: String,
    },
}

/// The workers of a training, as seen by one of them.
pub trait Group: Send {
    /// Identity of this worker.
    fn facts(&self) -> GroupFacts;

    /// Starts to sum a piece over all workers; `mine` holds this worker's numbers.
    fn start(&mut self, piece: &Piece, mine: &TreeSum) -> Result<(), GroupError>;

    /// Waits for the sum of a piece that was started, and returns it. Pieces may be finished in any order, but all of them
    /// before a piece with the same number is started again.
    fn finish(&mut self, piece: &Piece, sum: &mut [f32]) -> Result<(), GroupError>;

    /// Sums data that have arrived for the started pieces, without waiting.
    fn advance(&mut self) -> Result<(), GroupError>;

    /// Checks that the other workers are alive, as far as known, and sums as [`Group::advance`] does. Messages that a worker
    /// sent before it ended may still arrive.
    fn look(&mut self) -> Result<(), GroupError>;

    /// Forgets the pieces that were started and not finished, when an iteration is abandoned.
    fn forget(&mut self);

    /// Returns the words of every worker, by rank.
    fn agree(&mut self, mine: &[u32]) -> Result<Vec<Vec<u32>>, GroupError>;

    /// Returns `true` if this worker is the first that is left: all before it are lost. Waits until that is known of each of
    /// them.
    fn is_first_left(&mut self) -> bool {
        self.facts().rank == 0
    }

    /// Sets the number of iterations that this worker has done; the others report it if this worker fails.
    fn at(&mut self, _iterations: u64) {}

    /// Replaces every worker's words by those of worker 0.
    fn broadcast(&mut self, words: &mut Vec<u32>) -> Result<(), GroupError>;
}

/// Virtual workers of a worker: a range; the ranges of all workers are in order and as equal as possible.
pub fn share(facts: GroupFacts, virtual_workers: u64) -> Range<u64> {
    let begin = |rank: usize| {
        let place = rank as u128 * u128::from(virtual_workers) / facts.workers as u128;
        u64::try_from(place).expect("it is at most the number of virtual workers")
    };
    begin(facts.rank)..begin(facts.rank + 1)
}

/// Ratio up to which durations of passes count as equal, given the scatter of measurements.
const AS_LONG: f64 = 1.05;

/// Virtual workers of each worker, given the duration of its passes: faster workers have more, so that the last is done as
/// early as possible, and each has at least one. As equal as possible if passes take about as long.
pub fn shares_by_pace(facts: GroupFacts, seconds: &[f64], virtual_workers: u64) -> Vec<Range<u64>> {
    let [least, most] = [f64::min, f64::max].map(|pick| seconds.iter().copied().reduce(pick).unwrap_or(0.0));
    if most <= AS_LONG * least {
        return (0..facts.workers).map(|rank| share(GroupFacts { rank, ..facts }, virtual_workers)).collect();
    }
    let mut counts = vec![1u64; facts.workers];
    for _ in facts.workers as u64..virtual_workers {
        // The worker that would be done first with one more gets it.
        let done = |rank: &usize| (counts[*rank] + 1) as f64 * seconds[*rank];
        let next = (0..facts.workers).min_by(|a, b| done(a).total_cmp(&done(b))).expect("there are workers");
        counts[next] += 1;
    }
    let mut end = 0;
    let range = |count: u64| {
        end += count;
        end - count..end
    };
    counts.into_iter().map(range).collect()
}

/// Pieces of this many numbers, one for each worker, as equal as possible, all with the same place in the order.
pub fn equal_pieces(facts: GroupFacts, needed: u32, elements: usize) -> Vec<Piece> {
    let each = elements.div_ceil(facts.workers);
    let piece = |(number, owner): (u32, usize)| Piece {
        number,
        owner,
        needed,
        elements: (owner * each).min(elements)..((owner + 1) * each).min(elements),
    };
    (0..).zip(0..facts.workers).map(piece).filter(|piece| !piece.elements.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rank: usize, workers: usize) -> GroupFacts {
        GroupFacts { engine: "threads", rank, workers }
    }

    #[test]
    fn every_virtual_worker_and_every_number_has_one_worker() {
        for workers in 1..9usize {
            for count in workers as u64..30 {
                let mut next = 0;
                for rank in 0..workers {
                    let share = share(facts(rank, workers), count);
                    assert_eq!(share.start, next, "{count} for {workers}");
                    assert!((share.end - share.start).abs_diff(count / workers as u64) <= 1);
                    next = share.end;
                }
                assert_eq!(next, count);
                let pieces = equal_pieces(facts(0, workers), 0, count as usize);
                let all: Vec<usize> = pieces.iter().flat_map(|piece| piece.elements.clone()).collect();
                assert_eq!(all, (0..count as usize).collect::<Vec<_>>(), "{count} for {workers}");
            }
        }
    }

    #[test]
    fn faster_workers_have_more_so_that_the_last_is_done_early() {
        let shares = |seconds: &[f64], count| {
            let shares = shares_by_pace(facts(0, seconds.len()), seconds, count);
            assert_eq!((shares[0].start, shares.last().map(|last| last.end)), (0, Some(count)));
            assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
            assert!(shares.windows(2).all(|two| two[0].end == two[1].start), "{shares:?}");
            shares.iter().map(|share| share.end - share.start).collect::<Vec<_>>()
        };
        assert_eq!(shares(&[1.0, 2.0], 6), [4, 2]);
        assert_eq!(shares(&[3.0, 1.0, 1.0], 7), [1, 3, 3]);
        assert_eq!(shares(&[9.0, 1.0], 2), [1, 1], "each has one");
        assert_eq!(shares(&[1.0, 1.04], 5), [2, 3], "as measurements scatter");
        // No other split lets the last worker finish earlier.
        for (seconds, count) in [([1.0, 1.7, 2.9], 11), ([5.0, 1.0, 3.3], 13), ([1.0, 1.0, 1.1], 8)] {
            let last = |counts: &[u64]| {
                counts.iter().zip(&seconds).map(|(count, pass)| *count as f64 * pass).fold(0.0, f64::max)
            };
            let found = last(&shares(&seconds, count));
            for first in 1..count - 1 {
                for second in 1..count - first {
                    let other = [first, second, count - first - second];
                    assert!(found <= last(&other) + 1e-9, "{seconds:?}: {other:?}");
                }
            }
        }
    }

    /// Numbers of each worker for the sum of pieces, with each engine.
    #[test]
    fn pieces_are_summed_in_the_order_of_the_tree_and_everybody_hears_of_all() {
        let number = |leaf: u64, element: usize| {
            let word = (leaf * 31 + element as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (word >> 40) as f32 * 10f32.powi((word % 7) as i32 - 3)
        };
        let numbers = |leaf: u64| (0..10).map(|element| number(leaf, element)).collect::<Vec<f32>>();
        let work = move |mut group: Box<dyn Group>, leaves: u64| {
            let facts = group.facts();
            let mut mine = TreeSum::over(leaves);
            share(facts, leaves).for_each(|leaf| mine.push(Node::leaf(leaf), numbers(leaf)));
            let pieces = equal_pieces(facts, 0, 10);
            let mut sum = vec![0.0; 10];
            for _ in 0..3 {
                pieces.iter().try_for_each(|piece| group.start(piece, &mine)).expect("all work");
                // Each worker in a different order.
                let (before, behind) = pieces.split_at(facts.rank % pieces.len());
                for piece in behind.iter().chain(before) {
                    group.finish(piece, &mut sum[piece.elements.clone()]).expect("all work");
                }
                let said = group.agree(&[facts.rank as u32, 7]).expect("all work");
                let expected: Vec<Vec<u32>> = (0..facts.workers as u32).map(|rank| vec![rank, 7]).collect();
                assert_eq!(said, expected);
                let mut words = vec![facts.rank as u32; facts.rank + 2];
                group.broadcast(&mut words).expect("all work");
                assert_eq!(words, [0, 0]);
            }
            sum.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        for leaves in [1u64, 4, 6, 7] {
            let expected = work(alone(), leaves);
            for workers in 1..=leaves.min(5) as usize {
                std::thread::scope(|scope| {
                    let all: Vec<_> = threads(workers)
                        .into_iter()
                        .map(|group| scope.spawn(move || work(group, leaves)))
                        .collect();
                    for worker in all {
                        assert_eq!(worker.join().expect("it works"), expected, "{leaves} on {workers}");
                    }
                });
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_ended() {
        let mut all = threads(3);
        let (last, second) = (all.pop().expect("three"), all.pop().expect("three"));
        let mut first = all.pop().expect("three");
        std::thread::scope(|scope| {
            scope.spawn(move || drop(last));
            // The second stays alive, so that only the third has ended.
            let second = scope.spawn(move || {
                let mut second = second;
                (second.agree(&[1]), second)
            });
            assert_eq!(first.agree(&[1]), Err(GroupError::Lost { rank: 2 }));
            assert_eq!(second.join().expect("no panic").0, Err(GroupError::Lost { rank: 2 }));
        });
    }

    /// One thread has both workers here, so a worker that waited for the other would wait for ever.
    #[test]
    fn pieces_are_summed_while_a_worker_does_something_else() {
        let mut all = threads(2);
        let (mut second, mut first) = (all.pop().expect("two"), all.pop().expect("two"));
        let piece = |number, owner| Piece {
            number,
            owner,
            needed: 0,
            elements: number as usize..number as usize + 1,
        };
        let numbers = |leaf: u64| {
            let mut mine = TreeSum::over(2);
            mine.push(Node::leaf(leaf), [1.0, 2.0, 3.0].map(|number| number * (leaf + 1) as f32).to_vec());
            mine
        };
        let mut sum = [0.0];
        // An abandoned iteration leaves nothing, not even of messages that arrive before the next.
        second.start(&piece(0, 0), &numbers(1)).expect("it waits for nobody");
        first.start(&piece(1, 0), &numbers(0)).expect("it waits for nobody");
        first.advance().expect("the other is at another piece");
        [&mut first, &mut second].into_iter().for_each(|worker| worker.forget());
        for (number, owner) in [(0, 0), (2, 1), (1, 0)] {
            second.start(&piece(number, owner), &numbers(1)).expect("it waits for nobody");
        }
        first.advance().expect("nothing is started");
        for (number, owner) in [(0, 0), (2, 1), (1, 0)] {
            first.start(&piece(number, owner), &numbers(0)).expect("it waits for nobody");
        }
        first.advance().expect("both are there");
        second.advance().expect("both are there");
        for worker in [&mut second, &mut first] {
            for (number, owner, expected) in [(0, 0, 3.0), (2, 1, 9.0), (1, 0, 6.0)] {
                worker.finish(&piece(number, owner), &mut sum).expect("it is summed");
                assert_eq!(sum, [expected], "piece {number}");
            }
        }
    }

    /// For example, all have agreed to end, and one is faster than the other, which sums for it meanwhile.
    #[test]
    fn a_sum_for_a_worker_that_has_ended_is_no_failure() {
        let mut all = threads(2);
        let (mut second, mut first) = (all.pop().expect("two"), all.pop().expect("two"));
        let piece = Piece { number: 0, owner: 0, needed: 0, elements: 0..1 };
        let [mut left, mut right] = [TreeSum::over(2), TreeSum::over(2)];
        left.push(Node::leaf(0), vec![1.0]);
        right.push(Node::leaf(1), vec![2.0]);
        second.start(&piece, &right).expect("it waits for nobody");
        drop(second);
        first.start(&piece, &left).expect("it waits for nobody");
        first.advance().expect("nobody is waited for");
        let mut sum = [0.0];
        first.finish(&piece, &mut sum).expect("the numbers of the other have come");
        assert_eq!(sum, [3.0]);
        assert_eq!(first.agree(&[1]), Err(GroupError::Lost { rank: 1 }));
    }

    #[test]
    fn a_worker_that_makes_another_call_is_named() {
        let mut all = threads(2);
        let (mut second, first) = (all.pop().expect("two"), all.pop().expect("two"));
        std::thread::scope(|scope| {
            let second = scope.spawn(move || second.agree(&[1]));
            // It ends here, and the second no longer waits.
            let mut first = first;
            let piece = Piece { number: 5, owner: 0, needed: 0, elements: 0..1 };
            let mut mine = TreeSum::over(2);
            mine.push(Node::leaf(0), vec![1.0]);
            first.start(&piece, &mine).expect("it waits for nobody");
            let error = first.finish(&piece, &mut [0.0]).expect_err("the other is elsewhere");
            let words = error.to_string();
            assert_eq!(words, "worker 1 is at an agreement, where worker 0 is at the nodes of piece 5");
            drop(first);
            assert_eq!(second.join().expect("no panic"), Err(GroupError::Lost { rank: 0 }));
        });
    }
}
