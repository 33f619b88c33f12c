//! Minimum cost of providing the needed values: a minimum cut, found as a maximum flow (Dinic's).
//!
//! Every needed value is provided either for its own price or by its maker; a maker that is recomputed costs its price and needs
//! its inputs, each of which is provided likewise. A needed value's price is therefore paid unless its maker is recomputed, a
//! dead value's if some maker needs it and its own maker is not recomputed. With source = needed, this is a cut:
//!
//! - source to maker, the prices of its needed outputs;
//! - maker to sink, its own price;
//! - maker to each dead input, without limit;
//! - dead value to its maker, or to the sink if it has none: its price.
//!
//! A needed value without a maker is always paid. The flow is a lower bound of the cost even if rounding leaves it slightly below
//! the maximum; that is why its value is used and not the cut's.

use super::values::Instant;
use crate::request::Limits;
use plimsoll_ir::define_id;
use std::ops::Range;
use typed_index_collections::{TiVec, ti_vec};

define_id!(
    /// Node of the network: the source, the sink, the makers, and the dead values.
    NodeId, "node");
define_id!(
    /// Arc from one node to another.
    ArcId, "arc");

const SOURCE: NodeId = NodeId(0);
const SINK: NodeId = NodeId(1);

/// Returns the node of a maker.
fn node_of(maker: usize) -> NodeId {
    NodeId::new(2 + maker)
}

/// Network of an instant.
pub(super) struct Cut {
    /// By node: its first arc; those of a node follow each other, in the order in which they were added.
    first: TiVec<NodeId, ArcId>,
    arcs: TiVec<ArcId, Arc>,
    /// Arcs with an initial capacity, and that capacity.
    limits: Vec<(ArcId, Limit)>,
    makers: usize,
    /// By node: its distance from the source in arcs with remaining capacity; `None` if it was not reached.
    level: TiVec<NodeId, Option<u32>>,
    next: TiVec<NodeId, ArcId>,
    queue: Vec<NodeId>,
    /// Arcs from the source to the current node of the search for paths.
    path: Vec<ArcId>,
}

/// From one node to another.
#[derive(Clone, Copy)]
struct Arc {
    to: NodeId,
    /// Reverse arc.
    back: ArcId,
    /// Remaining capacity.
    left: f64,
}

/// Number of paths between two checks of the time.
const PATHS: usize = 256;

/// Capacity of an arc.
enum Limit {
    /// Price of a value.
    Value(usize),
    /// Prices of these values.
    Values(Vec<usize>),
    /// Price of a maker.
    Maker(usize),
    None,
}

/// Cheapest choice.
pub(super) struct Cheapest {
    /// Lower bound on the cost of providing everything.
    pub cost: f64,
    /// By maker: `true` if it is recomputed.
    pub again: Vec<bool>,
}

impl Cut {
    /// Returns the cut at an instant.
    pub fn new(instant: &Instant) -> Cut {
        let makers = instant.makers.len();
        let mut next = node_of(makers);
        // Tail, head and capacity.
        let mut added: Vec<(NodeId, NodeId, Limit)> = Vec::new();
        let mut outputs: Vec<Vec<usize>> = vec![Vec::new(); makers];
        // By value: its node, if it is dead.
        let mut dead = vec![None; instant.wanted.len()];
        for (v, value) in instant.wanted.iter().enumerate() {
            if value.needed {
                value.maker.into_iter().for_each(|m| outputs[m].push(v));
            } else {
                dead[v] = Some(next);
                added.push((next, value.maker.map_or(SINK, node_of), Limit::Value(v)));
                next = next.next();
            }
        }
        for (m, (maker, outputs)) in instant.makers.iter().zip(outputs).enumerate() {
            if !outputs.is_empty() {
                added.push((SOURCE, node_of(m), Limit::Values(outputs)));
            }
            added.push((node_of(m), SINK, Limit::Maker(m)));
            let inputs = maker.inputs.iter().filter_map(|v| dead[*v]);
            added.extend(inputs.map(|node| (node_of(m), node, Limit::None)));
        }
        let mut first: TiVec<NodeId, ArcId> = ti_vec![ArcId(0); next.index() + 1];
        for node in added.iter().flat_map(|(from, to, _)| [from, to]) {
            first[node.next()] = first[node.next()].next();
        }
        for node in NodeId::each(SOURCE..next) {
            first[node.next()] = ArcId(first[node.next()].0 + first[node].0);
        }
        let mut free = first.clone();
        let mut place = |node: NodeId| {
            let place = free[node];
            free[node] = place.next();
            place
        };
        let mut arcs: TiVec<ArcId, Arc> =
            ti_vec![Arc { to: SOURCE, back: ArcId(0), left: 0.0 }; 2 * added.len()];
        let mut limits = Vec::with_capacity(added.len());
        for (from, to, limit) in added {
            let (there, back) = (place(from), place(to));
            arcs[there] = Arc { to, back, left: 0.0 };
            arcs[back] = Arc { to: from, back: there, left: 0.0 };
            limits.push((there, limit));
        }
        let (level, next, queue, path) = Default::default();
        Cut { first, arcs, limits, makers, level, next, queue, path }
    }

    /// Returns the cheapest choice at these prices, by wanted value and by maker. When time is up it is some choice, and its cost
    /// still a lower bound.
    pub fn cheapest(&mut self, values: &[f64], makers: &[f64], tiny: f64, limits: &Limits<'_>) -> Cheapest {
        self.arcs.iter_mut().for_each(|arc| arc.left = 0.0);
        for (arc, limit) in &self.limits {
            self.arcs[*arc].left = match limit {
                Limit::Value(v) => values[*v],
                Limit::Values(of) => of.iter().map(|v| values[*v]).sum(),
                Limit::Maker(m) => makers[*m],
                Limit::None => f64::INFINITY,
            };
        }
        let mut cost = 0.0;
        let mut paths = 0;
        let mut late = false;
        while self.reach(tiny) && !late {
            self.next.raw.clone_from(&self.first.raw);
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
        let again = (0..self.makers).map(|m| self.level[node_of(m)].is_some()).collect();
        Cheapest { cost, again }
    }

    fn arcs_of(&self, node: NodeId) -> Range<ArcId> {
        self.first[node]..self.first[node.next()]
    }

    /// Computes the levels up to the sink's. Returns `true` if the sink can be reached.
    fn reach(&mut self, tiny: f64) -> bool {
        self.level.clear();
        self.level.resize(self.first.len() - 1, None);
        self.level[SOURCE] = Some(0);
        self.queue.clear();
        self.queue.push(SOURCE);
        let mut at = 0;
        while let Some(&node) = self.queue.get(at) {
            at += 1;
            let further = self.level[node].map(|level| level + 1);
            for arc in &self.arcs[self.arcs_of(node)] {
                let level = &mut self.level[arc.to];
                if arc.left > tiny && level.is_none() {
                    *level = further;
                    if arc.to == SINK {
                        return true;
                    }
                    self.queue.push(arc.to);
                }
            }
        }
        false
    }

    /// Fills one path to the sink and returns its flow. Continues where the last one was full.
    fn augment(&mut self, tiny: f64) -> f64 {
        let mut node = self.path.last().map_or(SOURCE, |arc| self.arcs[*arc].to);
        while node != SINK {
            let end = self.first[node.next()];
            let further = self.level[node].map(|level| level + 1);
            let from = self.next[node].min(end);
            let on = |arc: &Arc| arc.left > tiny && self.level[arc.to] == further;
            if let Some((arc, to)) = (from.0..).map(ArcId).zip(&self.arcs[from..end]).find(|(_, arc)| on(arc))
            {
                self.next[node] = arc;
                self.path.push(arc);
                node = to.to;
            } else {
                // A dead end: back, and past it.
                self.next[node] = end;
                let Some(arc) = self.path.pop() else { return 0.0 };
                node = self.arcs[self.arcs[arc].back].to;
                self.next[node] = self.next[node].next();
            }
        }
        let left = |arc: &ArcId| self.arcs[*arc].left;
        let most = self.path.iter().map(left).fold(f64::INFINITY, f64::min);
        for &arc in &self.path {
            let Arc { back, .. } = self.arcs[arc];
            self.arcs[arc].left -= most;
            self.arcs[back].left += most;
        }
        let full = self.path.iter().position(|arc| self.arcs[*arc].left <= tiny);
        self.path.truncate(full.unwrap_or_default());
        most
    }
}
