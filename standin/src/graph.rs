//! What was captured: work with the work that it depends on, and how it is launched.
//!
//! Replaying keeps the edges of the graph and no other order: what one stream captured has edges one after the other
//! and runs on a thread of its own, as late as that stream is.

use crate::stream::{Moment, Work};
use crate::{delays, status, turns};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::ThreadId;

/// One piece of captured work.
pub struct Node {
    /// None for the fork of a stream, which has to be joined as work has.
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
    /// How many pieces of work were captured.
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
        // Of the nodes that can go on, that of the most eager stream; captured first, where there are several.
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

/// A capture that goes on: which streams take part, and after which nodes each of them is.
pub struct Capture {
    /// The handle of the stream that it began on.
    pub origin: usize,
    /// The thread that began it.
    pub thread: ThreadId,
    /// Which calls it forbids.
    pub mode: Mode,
    /// An error broke it: it can only be ended.
    pub broken: bool,
    nodes: Vec<Node>,
    /// By the handle of the stream.
    tails: BTreeMap<usize, BTreeSet<usize>>,
}

/// Where calls that a capture cannot hold are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On every thread.
    Global,
    /// On the thread that captures.
    ThreadLocal,
    /// Nowhere.
    Relaxed,
}

impl Mode {
    /// By the driver's number of it.
    pub fn of(number: u32) -> Option<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].into_iter().find(|mode| *mode as u32 == number)
    }
}

impl Capture {
    /// One that has just begun.
    pub fn new(origin: usize, mode: Mode) -> Capture {
        let thread = std::thread::current().id();
        let tails = BTreeMap::from([(origin, BTreeSet::new())]);
        Capture { origin, thread, mode, broken: false, nodes: Vec::new(), tails }
    }

    /// Whether a stream takes part.
    pub fn holds(&self, stream: usize) -> bool {
        self.tails.contains_key(&stream)
    }

    /// The nodes that a stream is after.
    pub fn tail(&self, stream: usize) -> BTreeSet<usize> {
        self.tails.get(&stream).cloned().unwrap_or_default()
    }

    /// A stream goes on after these nodes too. One that takes part from now on forks here. The driver's documentation asks
    /// that every fork is joined; this holds it to the word, whether the stream does anything or not.
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

    /// Whether the stream that it began on is after everything that was captured.
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

    /// What was captured.
    pub fn end(self) -> Arc<Graph> {
        Arc::new(Graph { nodes: self.nodes })
    }
}
