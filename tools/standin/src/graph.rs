//! Captured work, the work that it depends on, and its launch.
//!
//! Replaying keeps the edges of the graph and no other order: the work captured on one stream has consecutive edges and runs
//! on its own thread, with that stream's delays.

use crate::stream::{Moment, Work};
use crate::{delays, status, turns};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::ThreadId;

/// One piece of captured work.
pub struct Node {
    /// `None` for the fork of a stream, which has to be joined as work has.
    work: Option<Work>,
    /// Earlier nodes that must have ended.
    after: BTreeSet<usize>,
    /// The number of the stream that captured it.
    stream: u32,
}

/// A finished capture.
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Number of captured pieces of work.
    pub fn len(&self) -> usize {
        self.nodes.iter().filter(|node| node.work.is_some()).count()
    }

    /// Runs all of it.
    pub fn run(&self) {
        if turns::on() { self.run_by_turns() } else { self.run_by_itself() }
    }

    fn run_by_turns(&self) {
        let mut open: Vec<usize> = (0..self.nodes.len()).collect();
        let mut ended = vec![false; open.len()];
        // Next node: of those that are ready, one of the most eager stream; the earliest captured if there are several.
        let next = |open: &[usize], ended: &[bool]| {
            let ready = (0..open.len()).filter(|at| self.nodes[open[*at]].after.iter().all(|n| ended[*n]));
            ready.min_by_key(|at| turns::rank(self.nodes[open[*at]].stream))
        };
        while let Some(at) = next(&open, &ended) {
            let at = open.remove(at);
            if let Some(work) = &self.nodes[at].work {
                work.run();
                turns::step();
            }
            ended[at] = true;
        }
    }

    fn run_by_itself(&self) {
        let ended: Vec<Moment> = self.nodes.iter().map(|_| Moment::default()).collect();
        let mut lanes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            lanes.entry(node.stream).or_default().push(at);
        }
        std::thread::scope(|scope| {
            for (stream, lane) in lanes {
                let ended = &ended;
                scope.spawn(move || {
                    for at in lane {
                        let Node { work, after, .. } = &self.nodes[at];
                        after.iter().for_each(|before| ended[*before].wait());
                        if let Some(work) = work.as_ref().filter(|_| status::sticky().is_ok()) {
                            delays::pause(stream);
                            work.run();
                        }
                        ended[at].happen();
                    }
                });
            }
        });
    }
}

/// A capture in progress: the streams that take part, and the nodes that each of them follows.
pub struct Capture {
    /// Handle of the stream on which it began.
    pub origin: usize,
    /// The thread that began it.
    pub thread: ThreadId,
    /// Calls that it forbids.
    pub mode: Mode,
    /// `true` if an error broke it: it can only be ended.
    pub broken: bool,
    nodes: Vec<Node>,
    /// Last nodes, by handle of the stream.
    tails: BTreeMap<usize, BTreeSet<usize>>,
}

/// Threads on which calls that a capture cannot hold are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All threads.
    Global,
    /// The thread that captures.
    ThreadLocal,
    /// No thread.
    Relaxed,
}

impl Mode {
    /// Mode with this number in the driver.
    pub fn of(number: u32) -> Option<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].into_iter().find(|mode| *mode as u32 == number)
    }
}

impl Capture {
    /// A capture that has just begun.
    pub fn new(origin: usize, mode: Mode) -> Capture {
        let thread = std::thread::current().id();
        let tails = BTreeMap::from([(origin, BTreeSet::new())]);
        Capture { origin, thread, mode, broken: false, nodes: Vec::new(), tails }
    }

    /// Returns `true` if a stream takes part.
    pub fn holds(&self, stream: usize) -> bool {
        self.tails.contains_key(&stream)
    }

    /// Nodes that a stream follows.
    pub fn tail(&self, stream: usize) -> BTreeSet<usize> {
        self.tails.get(&stream).cloned().unwrap_or_default()
    }

    /// Makes a stream also follow these nodes. A stream that takes part from now on forks here. The driver's documentation
    /// requires every fork to be joined; the stand-in enforces that, even for a stream without work.
    pub fn join(&mut self, stream: usize, number: u32, after: &BTreeSet<usize>) {
        let forks = !self.holds(stream);
        self.tails.entry(stream).or_default().extend(after);
        if forks {
            self.add(stream, number, None);
        }
    }

    /// Adds work of a stream that takes part.
    pub fn push(&mut self, stream: usize, number: u32, work: Work) {
        self.add(stream, number, Some(work));
    }

    fn add(&mut self, stream: usize, number: u32, work: Option<Work>) {
        let after = self.tails.insert(stream, BTreeSet::from([self.nodes.len()])).unwrap_or_default();
        self.nodes.push(Node { work, after, stream: number });
    }

    /// Returns `true` if the stream on which it began follows everything that was captured.
    pub fn is_joined(&self) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let mut open: Vec<usize> = self.tail(self.origin).into_iter().collect();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut reached[at], true) {
                open.extend(&self.nodes[at].after);
            }
        }
        reached.into_iter().all(|reached| reached)
    }

    /// Captured work.
    pub fn end(self) -> Arc<Graph> {
        Arc::new(Graph { nodes: self.nodes })
    }
}
