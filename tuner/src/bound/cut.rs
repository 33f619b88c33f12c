//! The least cost of having what is wanted: a minimum cut, found as a maximum flow (Dinic's).
//!
//! Every needed value is had, either for its own price or from its maker; a maker that runs again costs its price and
//! wants its inputs, each of which is had likewise. A needed value's price is therefore paid unless its maker runs again,
//! a dead value's if some maker wants it and its own maker does not run again. With source = wanted, this is a cut:
//!
//! - source to maker, the prices of its needed outputs;
//! - maker to sink, its own price;
//! - maker to each dead input, without limit;
//! - dead value to its maker, or to the sink where it has none: its price.
//!
//! A needed value without a maker is paid in any case. The flow is a lower bound of the cost even where rounding leaves
//! it a hair below the maximum; that is why its value is used and not the cut's.

use super::values::Instant;
use crate::plan::Limits;

const SOURCE: usize = 0;
const SINK: usize = 1;

/// The network of an instant.
pub(super) struct Cut {
    /// By node: its arcs.
    arcs_of: Vec<Vec<u32>>,
    /// Where each arc leads; arc `a ^ 1` is arc `a` backwards.
    to: Vec<u32>,
    /// What each arc may carry yet.
    left: Vec<f64>,
    limits: Vec<Limit>,
    makers: usize,
    level: Vec<u32>,
    next: Vec<u32>,
}

/// After so many paths it is asked whether time is up.
const PATHS: usize = 256;

/// What an arc may carry.
enum Limit {
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
    /// By maker: whether it runs again.
    pub again: Vec<bool>,
}

impl Cut {
    pub fn new(instant: &Instant) -> Cut {
        let makers = instant.makers.len();
        let mut cut = Cut {
            arcs_of: vec![Vec::new(); 2 + makers],
            to: Vec::new(),
            left: Vec::new(),
            limits: Vec::new(),
            makers,
            level: Vec::new(),
            next: Vec::new(),
        };
        let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); makers];
        let mut node_of = vec![None; instant.wanted.len()];
        for (v, value) in instant.wanted.iter().enumerate() {
            if value.needed {
                value.maker.into_iter().for_each(|m| outputs[m].push(v as u32));
            } else {
                let node = cut.arcs_of.len();
                node_of[v] = Some(node);
                cut.arcs_of.push(Vec::new());
                cut.arc(node, value.maker.map_or(SINK, |m| 2 + m), Limit::Values(vec![v as u32]));
            }
        }
        for (m, (maker, outputs)) in instant.makers.iter().zip(outputs).enumerate() {
            if !outputs.is_empty() {
                cut.arc(SOURCE, 2 + m, Limit::Values(outputs));
            }
            cut.arc(2 + m, SINK, Limit::Maker(m));
            for node in maker.inputs.iter().filter_map(|v| node_of[*v]) {
                cut.arc(2 + m, node, Limit::None);
            }
        }
        cut
    }

    fn arc(&mut self, from: usize, to: usize, limit: Limit) {
        self.arcs_of[from].push(self.to.len() as u32);
        self.arcs_of[to].push(self.to.len() as u32 + 1);
        self.to.extend([to as u32, from as u32]);
        self.limits.push(limit);
    }

    /// The cheapest choice at these prices, by wanted value and by maker. When time is up it is some choice, and its cost
    /// still a lower bound.
    pub fn cheapest(&mut self, values: &[f64], makers: &[f64], tiny: f64, limits: &Limits<'_>) -> Cheapest {
        self.left.clear();
        for limit in &self.limits {
            let most = match limit {
                Limit::Values(of) => of.iter().map(|v| values[*v as usize]).sum(),
                Limit::Maker(m) => makers[*m],
                Limit::None => f64::INFINITY,
            };
            self.left.extend([most, 0.0]);
        }
        let mut cost = 0.0;
        let mut paths = 0;
        let mut late = false;
        while self.reach(tiny) && !late {
            self.next.clear();
            self.next.resize(self.arcs_of.len(), 0);
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

    /// By node: its distance from the source over arcs that carry more. Whether the sink can be reached.
    fn reach(&mut self, tiny: f64) -> bool {
        self.level.clear();
        self.level.resize(self.arcs_of.len(), u32::MAX);
        self.level[SOURCE] = 0;
        let mut queue = vec![SOURCE];
        let mut at = 0;
        while let Some(&node) = queue.get(at) {
            at += 1;
            for &arc in &self.arcs_of[node] {
                let to = self.to[arc as usize] as usize;
                if self.left[arc as usize] > tiny && self.level[to] == u32::MAX {
                    self.level[to] = self.level[node] + 1;
                    queue.push(to);
                }
            }
        }
        self.level[SINK] != u32::MAX
    }

    /// One path to the sink, filled; how much it carries.
    fn augment(&mut self, tiny: f64) -> f64 {
        let mut path: Vec<u32> = Vec::new();
        let mut node = SOURCE;
        while node != SINK {
            let arcs = &self.arcs_of[node];
            let on = arcs[(self.next[node] as usize).min(arcs.len())..].iter().position(|arc| {
                let to = self.to[*arc as usize] as usize;
                self.left[*arc as usize] > tiny && self.level[to] == self.level[node] + 1
            });
            if let Some(skip) = on {
                self.next[node] += skip as u32;
                let arc = arcs[self.next[node] as usize];
                path.push(arc);
                node = self.to[arc as usize] as usize;
            } else {
                // A dead end: back, and past it.
                self.next[node] = arcs.len() as u32;
                let Some(arc) = path.pop() else { return 0.0 };
                node = self.to[arc as usize ^ 1] as usize;
                self.next[node] += 1;
            }
        }
        let most = path.iter().map(|arc| self.left[*arc as usize]).fold(f64::INFINITY, f64::min);
        for arc in path {
            self.left[arc as usize] -= most;
            self.left[arc as usize ^ 1] += most;
        }
        most
    }
}
