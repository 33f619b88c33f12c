//! The graph of memory ops (DQN §4.2): a node for each malloc, write, read and free of a value, in order of time.
//!
//! Edges join nodes that follow each other, and nodes of one tensor that follow each other; both ways, weighted by the time
//! between them. The paper's words would join every two nodes of a tensor: the edges between neighbours connect the rest.
//!
//! A node stands for at most one action. Offloading the value of a gap is the node of the touch that begins the gap, which is
//! also the node under execution when the gap is decided. Giving the value up is the node of the touch that ends the gap, where
//! it is recomputed; if that is taken, the value's malloc or free. Doing nothing is the first node.
//!
//! This file deliberately does not change the graph while an agent acts. The network gets the valid actions next to the graph.

use crate::iteration::values::{GapId, ValueId, Values};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::{Bytes, OpId};
use std::collections::BTreeMap;
use typed_index_collections::{TiSlice, TiVec};

/// Features of a node: size, transfer time, recompute time, time to the next use, type of action. Validity is the sixth.
pub(super) const FIXED: usize = 5;

/// The node of doing nothing.
pub(super) const NOTHING: u32 = 0;

/// Nodes of a gap's actions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nodes {
    /// Node under execution when the gap is decided, and the action that offloads its value.
    pub offload: u32,
    /// Action that gives its value up; `None` if all nodes of the value stand for others.
    pub remove: Option<u32>,
}

pub(super) struct Graph {
    /// By node: its features without validity, each about 1 in the mean.
    pub features: Vec<[f32; FIXED]>,
    /// By node: its neighbours, except itself.
    neighbours: Vec<u32>,
    starts: Vec<u32>,
    /// By node: sum of the weights of its edges. A weight is at least 0, so that the last sum of equation (1) is this sum times
    /// ReLU(W4).
    pub lags: Vec<f32>,
    /// By position among the gaps that are decided.
    pub gaps: Vec<Nodes>,
}

/// Node while the graph is built.
struct Node {
    value: ValueId,
    /// In seconds from the start of the iteration.
    time: f64,
}

impl Graph {
    /// Returns the graph of these gaps, and of all values of at least `least` bytes.
    pub fn new(values: &Values, gaps: &[GapId], link: &Link, least: u64) -> Graph {
        let Drawing { nodes, of_touch, ends } = Drawing::of(values, least);
        let mut neighbours: Vec<Vec<(u32, f64)>> = vec![Vec::new(); nodes.len()];
        let total: f64 = values.alternatives.iter().map(|a| a[0].seconds).sum();
        let mean = (total / values.alternatives.len() as f64).max(f64::MIN_POSITIVE);
        // Lags span from an op to the whole iteration: their order of magnitude counts.
        let scale = (1.0 + total / mean).ln().max(f64::MIN_POSITIVE);
        let scaled = |lag: f64| (1.0 + lag / mean).ln() / scale;
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        let mut reuse = vec![0.0; nodes.len()];
        for (at, node) in nodes.iter().enumerate() {
            let before = last.insert(values.tensor[node.value].0, at);
            let previous = at.checked_sub(1).filter(|previous| Some(*previous) != before);
            for other in before.into_iter().chain(previous) {
                let lag = scaled(node.time - nodes[other].time);
                neighbours[at].push((other as u32, lag));
                neighbours[other].push((at as u32, lag));
            }
            before.into_iter().for_each(|before| reuse[before] = scaled(node.time - nodes[before].time));
        }
        let gaps = assign(values, gaps, &of_touch, &ends, nodes.len());
        let mut kinds = vec![0.0; nodes.len()];
        for of in &gaps {
            kinds[of.offload as usize] = 1.0;
            of.remove.into_iter().for_each(|node| kinds[node as usize] = -1.0);
        }
        let features = |(at, node): (usize, &Node)| {
            let bytes = values.bytes[node.value];
            let seconds = |stream| link.seconds(stream, Bytes(bytes)).0;
            let maker = values.maker[node.value];
            let again = maker.map_or(0.0, |maker| values.alternatives[maker][0].seconds);
            [bytes as f64, seconds(Stream::Offload) + seconds(Stream::Prefetch), again, reuse[at], kinds[at]]
        };
        let features = level(&nodes.iter().enumerate().map(features).collect::<Vec<_>>());
        let lags = neighbours.iter().map(|row| row.iter().map(|edge| edge.1).sum::<f64>() as f32).collect();
        let mut starts = vec![0];
        starts.extend(neighbours.iter().scan(0, |sum, row| {
            *sum += row.len() as u32;
            Some(*sum)
        }));
        let neighbours = neighbours.into_iter().flatten().map(|edge| edge.0).collect();
        Graph { features, neighbours, starts, lags, gaps }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.features.len()
    }

    /// Returns the neighbours of a node, except itself.
    pub fn neighbours(&self, node: usize) -> &[u32] {
        &self.neighbours[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}

/// Divides each feature but the last by its mean.
fn level(features: &[[f64; FIXED]]) -> Vec<[f32; FIXED]> {
    let mut means = [0.0; FIXED];
    features.iter().for_each(|row| means.iter_mut().zip(row).for_each(|(mean, x)| *mean += x));
    means.iter_mut().for_each(|mean| *mean /= features.len() as f64);
    means[FIXED - 1] = 1.0;
    let divided = |row: &[f64; FIXED]| {
        let mut out = [0.0; FIXED];
        for ((out, x), mean) in out.iter_mut().zip(row).zip(means) {
            *out = if mean > 0.0 { (x / mean) as f32 } else { 0.0 };
        }
        out
    };
    features.iter().map(divided).collect()
}

/// Returns the nodes of each gap's actions.
fn assign(
    values: &Values,
    gaps: &[GapId],
    of_touch: &BTreeMap<(ValueId, Option<OpId>), u32>,
    ends: &TiSlice<ValueId, [Option<u32>; 2]>,
    count: usize,
) -> Vec<Nodes> {
    let mut taken = vec![false; count];
    taken[NOTHING as usize] = true;
    let begin = |g: &GapId| {
        let gap = &values.gaps[*g];
        of_touch[&(gap.value, gap.after)]
    };
    gaps.iter().for_each(|g| taken[begin(g) as usize] = true);
    let nodes = |g: &GapId| {
        let gap = &values.gaps[*g];
        let [malloc, free] = ends[gap.value];
        let own = [Some(of_touch[&(gap.value, gap.before)]), malloc, free];
        let remove = own.into_iter().flatten().find(|node| !taken[*node as usize]);
        remove.into_iter().for_each(|node| taken[node as usize] = true);
        Nodes { offload: begin(g), remove }
    };
    gaps.iter().map(nodes).collect()
}

/// Nodes of a graph.
struct Drawing {
    nodes: Vec<Node>,
    /// By value and op: node of the write or read; the start of the iteration writes the values that exist from then on.
    of_touch: BTreeMap<(ValueId, Option<OpId>), u32>,
    /// By value: its malloc and its free; `None` if it is updated in place.
    ends: TiVec<ValueId, [Option<u32>; 2]>,
}

impl Drawing {
    fn add(&mut self, value: ValueId, time: f64) -> u32 {
        self.nodes.push(Node { value, time });
        self.nodes.len() as u32 - 1
    }

    fn touch(&mut self, value: ValueId, op: Option<OpId>, time: f64) {
        let node = self.add(value, time);
        self.of_touch.insert((value, op), node);
    }

    fn of(values: &Values, least: u64) -> Drawing {
        let ends = vec![[None; 2]; values.tensor.len()].into();
        let mut drawn = Drawing { nodes: Vec::new(), of_touch: BTreeMap::new(), ends };
        let is_drawn = |v: &ValueId| values.bytes[*v] >= least;
        let mut last = values.maker.clone();
        for op in values.alternatives.keys() {
            values.reads.row(op).iter().for_each(|z| last[z.value] = Some(op));
        }
        for v in values.maker.keys().filter(|v| values.maker[*v].is_none()).filter(is_drawn) {
            drawn.ends[v][0] = Some(drawn.add(v, 0.0));
            drawn.touch(v, None, 0.0);
        }
        let mut time = 0.0;
        for op in values.alternatives.keys() {
            let writes = values.writes.row(op).iter().map(|touch| touch.value).filter(is_drawn);
            let reads = values.reads.row(op).iter().map(|touch| touch.value).filter(is_drawn);
            for y in writes.clone().filter(|y| values.from[*y].is_none()) {
                drawn.ends[y][0] = Some(drawn.add(y, time));
            }
            let touched = reads.chain(writes);
            touched.clone().for_each(|v| drawn.touch(v, Some(op), time));
            time += values.alternatives[op][0].seconds;
            for v in touched.filter(|v| values.becomes[*v].is_none() && last[*v] == Some(op)) {
                if drawn.ends[v][1].is_none() {
                    drawn.ends[v][1] = Some(drawn.add(v, time));
                }
            }
        }
        drawn
    }
}
