//! The seam between the workers of one training: what a trainer knows of the others.
//!
//! A group sums numbers over all workers in the order of one fixed tree (`tree.rs`), piece by piece, each piece at the worker
//! that owns it: a sharded parameter server, whose servers are the workers themselves. [`alone()`] has one worker,
//! [`threads()`] the workers of one process, and [`mpi`] those of several. All workers make the same calls in the same order.
//!
//! What it deliberately does not do: know of devices, gradients or iterations, or decide who has which virtual workers.

mod alone;
mod measure;
mod messages;
pub mod mpi;
mod rooms;
mod sharded;
mod threads;
mod tree;

pub use alone::alone;
pub use measure::{Measured, measure};
pub use threads::threads;
pub use tree::{Node, TreeSum};

use std::ops::Range;
use std::time::Duration;

/// Who a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// What the workers exchange numbers by: `alone`, `threads` or `mpi`.
    pub engine: &'static str,
    /// This worker's number, from 0.
    pub rank: usize,
    /// How many workers there are.
    pub workers: usize,
}

/// A piece of the numbers that are summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Tells the pieces of one sum apart.
    pub number: u32,
    /// The worker that sums it.
    pub owner: usize,
    /// Its place in the order in which sums are needed: what is sent of it may overtake what is sent of those behind it.
    pub needed: u32,
    /// Which of the numbers, half-open.
    pub elements: Range<usize>,
}

/// Why workers cannot go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A worker has ended.
    #[error("worker {rank} has ended")]
    Lost {
        /// Which.
        rank: usize,
    },
    /// A worker has failed, and said why.
    #[error("worker {rank} on {host}, after {iterations} iterations: {why}")]
    Failed {
        /// Which.
        rank: usize,
        /// Its machine.
        host: String,
        /// The iterations that it has done.
        iterations: u64,
        /// What it said.
        why: String,
    },
    /// Nothing is heard of a worker: it is stopped, or its machine is gone.
    #[error(
        "worker {rank} on {host} has shown no sign of life for {} s, after {iterations} iterations",
        silent.as_secs_f64()
    )]
    Silent {
        /// Which.
        rank: usize,
        /// Its machine.
        host: String,
        /// The iterations that it has done.
        iterations: u64,
        /// For how long.
        silent: Duration,
    },
    /// A worker's process has died, and the library lets the others live.
    #[error("worker {rank} on {host} has died, after {iterations} iterations ({why})")]
    Died {
        /// Which.
        rank: usize,
        /// Its machine.
        host: String,
        /// The iterations that it has done.
        iterations: u64,
        /// What the library says.
        why: String,
    },
    /// What carries the messages does so no longer.
    #[error("worker {me} cannot reach the others any more: {why}")]
    Engine {
        /// Who says so.
        me: usize,
        /// What it says.
        why: String,
    },
    /// A worker is somewhere else in the training.
    #[error("worker {rank} is at {there}, where worker {me} is at {here}")]
    OutOfStep {
        /// Which.
        rank: usize,
        /// Who says so.
        me: usize,
        /// What that worker sent.
        there: String,
        /// What should have come.
        here: String,
    },
    /// A worker trains something else.
    #[error("worker {rank} has another {what} than worker 0: {there}, not {first}")]
    Different {
        /// Which.
        rank: usize,
        /// What differs.
        what: String,
        /// Its own.
        there: String,
        /// Worker 0's.
        first: String,
    },
}

/// The workers of a training, as one of them sees them.
pub trait Group: Send {
    /// Who this worker is.
    fn facts(&self) -> GroupFacts;

    /// Starts to sum a piece of what all workers have in `mine`.
    fn start(&mut self, piece: &Piece, mine: &TreeSum) -> Result<(), GroupError>;

    /// Waits for the sum of a piece that was started, and gives it. Pieces are finished in any order, and all of them before
    /// one of the same number is started again.
    fn finish(&mut self, piece: &Piece, sum: &mut [f32]) -> Result<(), GroupError>;

    /// Sums what has arrived of the pieces that were started, and waits for nobody.
    fn advance(&mut self) -> Result<(), GroupError>;

    /// Makes sure that the others work, as far as is heard, and sums as [`Group::advance`] does. Where one has ended, what it
    /// sent before may still arrive.
    fn look(&mut self) -> Result<(), GroupError>;

    /// Forgets the pieces that were started and not finished, where an iteration comes to no end.
    fn forget(&mut self);

    /// Gives what every worker says, by rank.
    fn agree(&mut self, mine: &[u32]) -> Result<Vec<Vec<u32>>, GroupError>;

    /// Whether this worker is the first that is left: all before it are lost. Waits until that is known of each of them.
    fn is_first_left(&mut self) -> bool {
        self.facts().rank == 0
    }

    /// Says how many iterations this worker has done, for those who tell of it where it fails.
    fn at(&mut self, _iterations: u64) {}

    /// Gives every worker what worker 0 has.
    fn broadcast(&mut self, words: &mut Vec<u32>) -> Result<(), GroupError>;
}

/// The virtual workers of a worker: a range of them, the ranges of all workers in order and as equal as can be.
pub fn share(facts: GroupFacts, virtual_workers: u64) -> Range<u64> {
    let begin = |rank: usize| {
        let place = rank as u128 * u128::from(virtual_workers) / facts.workers as u128;
        u64::try_from(place).expect("it is at most the number of virtual workers")
    };
    begin(facts.rank)..begin(facts.rank + 1)
}

/// Passes that differ by less take as long as one another: a measurement scatters by so much.
const AS_LONG: f64 = 1.05;

/// The virtual workers of each worker, of which a pass takes so many seconds: more for the faster ones, so that the last is
/// done as early as it can be, and at least one each. As equal as can be where passes take about as long.
pub fn shares_by_pace(facts: GroupFacts, seconds: &[f64], virtual_workers: u64) -> Vec<Range<u64>> {
    let [least, most] = [f64::min, f64::max].map(|pick| seconds.iter().copied().reduce(pick).unwrap_or(0.0));
    if most <= AS_LONG * least {
        return (0..facts.workers).map(|rank| share(GroupFacts { rank, ..facts }, virtual_workers)).collect();
    }
    let mut counts = vec![1u64; facts.workers];
    for _ in facts.workers as u64..virtual_workers {
        // Whoever is done first with one more has it.
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

/// So many numbers in a piece for each worker, as equal as can be, all needed at this place of the order.
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
        // No other split has its last worker done earlier.
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

    /// What each of some workers has of the sum of pieces, with each engine.
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
                // Each worker in an order of its own.
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
            // The second stays where it is, so that only the third has ended.
            let second = scope.spawn(move || {
                let mut second = second;
                (second.agree(&[1]), second)
            });
            assert_eq!(first.agree(&[1]), Err(GroupError::Lost { rank: 2 }));
            assert_eq!(second.join().expect("no panic").0, Err(GroupError::Lost { rank: 2 }));
        });
    }

    /// One thread has both workers here, so whoever waited for the other would wait for ever.
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
        // Of an iteration that comes to no end nothing is left, also of what arrives before the next.
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

    /// All have agreed to end, say, and one is faster than the other, who sums for it meanwhile.
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
            // It ends with this, and the second waits no longer.
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
