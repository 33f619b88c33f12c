//! The least cost of having what is wanted: a minimum cut, found as a maximum flow (Dinic's).
//!
//! Every needed value is had, either for its own price or from its maker; a maker that is recomputed costs its price and
//! wants its inputs, each of which is had likewise. A needed value's price is therefore paid unless its maker is recomputed,
//! a dead value's if some maker wants it and its own maker is not recomputed. With source = wanted, this is a cut:
//!
//! - source to maker, the prices of its needed outputs;
//! - maker to sink, its own price;
//! - maker to each dead input, without limit;
//! - dead value to its maker, or to the sink where it has none: its price.
//!
//! A needed value without a maker is paid in any case. The flow is a lower bound of the cost even where rounding leaves
//! it a hair below the maximum; that is why its value is used and not the cut's.

use super::values::Instant;
use crate::request::Limits;
use std::ops::Range;

const SOURCE: usize = 0;
const SINK: usize = 1;

/// The network of an instant.
pub(super) struct Cut {
    /// By node: its first arc; those of a node follow each other, in the order in which they were added.
    first: Vec<u32>,
    arcs: Vec<Arc>,
    /// Arcs that may carry something from the start, and what.
    limits: Vec<(u32, Limit)>,
    makers: usize,
    level: Vec<u32>,
    next: Vec<u32>,
    queue: Vec<u32>,
    /// The arcs from the source to where the search for paths is.
    path: Vec<u32>,
}

/// From one node to another.
#[derive(Clone, Copy)]
struct Arc {
    to: u32,
    /// The same arc backwards.
    back: u32,
    /// What it may carry yet.
    left: f64,
}

/// Arcs as they are added: from where, to where, and what each may carry.
#[derive(Default)]
struct Arcs(Vec<(u32, u32, Limit)>);

/// After so many paths it is asked whether time is up.
const PATHS: usize = 256;

/// What an arc may carry.
enum Limit {
    /// The price of a value.
    Value(u32),
    /// The prices of these values.
    Values(Vec<u32>),
    /// The price of a maker.
    Maker(usize),
    None,
}

/// What is cheapest.
pub(super) struct Cheapest {
    /// No way to have everything costs less.
    pub cost: f64,
    /// By maker: whether it is recomputed.
    pub again: Vec<bool>,
}

impl Arcs {
    fn add(&mut self, from: usize, to: usize, limit: Limit) {
        self.0.push((from as u32, to as u32, limit));
    }

    /// The network of these arcs and so many nodes.
    fn network(self, nodes: usize, makers: usize) -> Cut {
        let mut first = vec![0u32; nodes + 1];
        for (from, to, _) in &self.0 {
            first[*from as usize + 1] += 1;
            first[*to as usize + 1] += 1;
        }
        (0..nodes).for_each(|node| first[node + 1] += first[node]);
        let mut free = first.clone();
        let mut place = |node: u32| {
            free[node as usize] += 1;
            free[node as usize] - 1
        };
        let mut arcs = vec![Arc { to: 0, back: 0, left: 0.0 }; 2 * self.0.len()];
        let mut limits = Vec::with_capacity(self.0.len());
        for (from, to, limit) in self.0 {
            let (there, back) = (place(from), place(to));
            arcs[there as usize] = Arc { to, back, left: 0.0 };
            arcs[back as usize] = Arc { to: from, back: there, left: 0.0 };
            limits.push((there, limit));
        }
        let (level, next, queue, path) = Default::default();
        Cut { first, arcs, limits, makers, level, next, queue, path }
    }
}

impl Cut {
    pub fn new(instant: &Instant) -> Cut {
        let makers = instant.makers.len();
        let mut nodes = 2 + makers;
        let mut arcs = Arcs::default();
        let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); makers];
        let mut node_of = vec![None; instant.wanted.len()];
        for (v, value) in instant.wanted.iter().enumerate() {
            if value.needed {
                value.maker.into_iter().for_each(|m| outputs[m].push(v as u32));
            } else {
                node_of[v] = Some(nodes);
                arcs.add(nodes, value.maker.map_or(SINK, |m| 2 + m), Limit::Value(v as u32));
                nodes += 1;
            }
        }
        for (m, (maker, outputs)) in instant.makers.iter().zip(outputs).enumerate() {
            if !outputs.is_empty() {
                arcs.add(SOURCE, 2 + m, Limit::Values(outputs));
            }
            arcs.add(2 + m, SINK, Limit::Maker(m));
            for node in maker.inputs.iter().filter_map(|v| node_of[*v]) {
                arcs.add(2 + m, node, Limit::None);
            }
        }
        arcs.network(nodes, makers)
    }

    /// The cheapest choice at these prices, by wanted value and by maker. When time is up it is some choice, and its cost
    /// still a lower bound.
    pub fn cheapest(&mut self, values: &[f64], makers: &[f64], tiny: f64, limits: &Limits<'_>) -> Cheapest {
        self.arcs.iter_mut().for_each(|arc| arc.left = 0.0);
        for (arc, limit) in &self.limits {
            self.arcs[*arc as usize].left = match limit {
                Limit::Value(v) => values[*v as usize],
                Limit::Values(of) => of.iter().map(|v| values[*v as usize]).sum(),
                Limit::Maker(m) => makers[*m],
                Limit::None => f64::INFINITY,
            };
        }
        let mut cost = 0.0;
        let mut paths = 0;
        let mut late = false;
        while self.reach(tiny) && !late {
            self.next.clone_from(&self.first);
            self.path.clear();
            loop {
                late |= paths % PATHS == 0 && limits.is_expired();
                paths += 1;
                let more = self.augment(tiny);
                if more <= 0.0 || late {
                    break;
                }
                cost += more;
            }
        }
        let again = (0..self.makers).map(|m| self.level[2 + m] != u32::MAX).collect();
        Cheapest { cost, again }
    }

    fn arcs_of(&self, node: usize) -> Range<usize> {
        self.first[node] as usize..self.first[node + 1] as usize
    }

    /// By node: its distance from the source over arcs that carry more, as far as it is no more than the sink's. Whether
    /// the sink can be reached.
    fn reach(&mut self, tiny: f64) -> bool {
        self.level.clear();
        self.level.resize(self.first.len() - 1, u32::MAX);
        self.level[SOURCE] = 0;
        self.queue.clear();
        self.queue.push(SOURCE as u32);
        let mut at = 0;
        while let Some(&node) = self.queue.get(at) {
            at += 1;
            let further = self.level[node as usize] + 1;
            for arc in &self.arcs[self.arcs_of(node as usize)] {
                let level = &mut self.level[arc.to as usize];
                if arc.left > tiny && *level == u32::MAX {
                    *level = further;
                    if arc.to as usize == SINK {
                        return true;
                    }
                    self.queue.push(arc.to);
                }
            }
        }
        false
    }

    /// One path to the sink, filled; how much it carries. It goes on where the last one was full.
    fn augment(&mut self, tiny: f64) -> f64 {
        let mut node = self.path.last().map_or(SOURCE, |arc| self.arcs[*arc as usize].to as usize);
        while node != SINK {
            let end = self.first[node + 1];
            let (further, from) = (self.level[node] + 1, self.next[node].min(end));
            let arcs = &self.arcs[from as usize..end as usize];
            let on = |arc: &Arc| arc.left > tiny && self.level[arc.to as usize] == further;
            if let Some(skip) = arcs.iter().position(on) {
                let arc = from + skip as u32;
                self.next[node] = arc;
                self.path.push(arc);
                node = self.arcs[arc as usize].to as usize;
            } else {
                // A dead end: back, and past it.
                self.next[node] = end;
                let Some(arc) = self.path.pop() else { return 0.0 };
                let back = self.arcs[arc as usize].back;
                node = self.arcs[back as usize].to as usize;
                self.next[node] += 1;
            }
        }
        let left = |arc: &u32| self.arcs[*arc as usize].left;
        let most = self.path.iter().map(left).fold(f64::INFINITY, f64::min);
        for &arc in &self.path {
            let arc = &mut self.arcs[arc as usize];
            arc.left -= most;
            let back = arc.back;
            self.arcs[back as usize].left += most;
        }
        let full = self.path.iter().position(|arc| self.arcs[*arc as usize].left <= tiny);
        self.path.truncate(full.unwrap_or_default());
        most
    }
}
