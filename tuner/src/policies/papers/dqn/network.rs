//! Network of the paper, by hand: equations (1) to (3), their gradients, and steps of gradient descent.
//!
//! Rows have [`P`] numbers. A matrix is stored column by column, so that products with it are sums of columns. Everything is
//! summed in one order, so that the same seed gives the same weights on every machine. If states are computed again with the same
//! weights, they change only within T - 1 edges of nodes whose validity changed: only these are computed.
//!
//! Choices that the paper leaves open:
//! - p is 8: a row fits two registers, and a graph of some thousand nodes takes a fraction of a millisecond.
//! - The sum over all nodes in equation (2) is a mean. W5 can undo it, and the rate is then right for graphs of any size.
//! - Weights begin uniformly distributed, as wide as keeps rows of about the same size from layer to layer.

use super::graph::{FIXED, Graph};
use crate::random::Random;

/// Length of a row, p.
pub(super) const P: usize = 8;

/// Number of times that neighbours are summed up, T.
const T: usize = 4;

/// Features of a node, validity the last.
const FEATURES: usize = FIXED + 1;

/// State of a node, or a part of the graph's.
type Row = [f32; P];

/// Offset of each matrix among the weights: W1, W2, W3, W4, W5, W6, W8, W7, and the end.
const W1: usize = 0;
const W2: usize = W1 + P * FEATURES;
const W3: usize = W2 + P * P;
const W4: usize = W3 + P * P;
const W5: usize = W4 + P;
const W6: usize = W5 + P * P;
const W8: usize = W6 + P * P;
const W7: usize = W8 + P * P;
pub(super) const WEIGHTS: usize = W7 + 3 * P;

/// Number of neighbours of a node, itself included, assumed for the initial W2.
const DEGREE: f64 = 5.0;

/// Maximum length of a step, however steep the loss is.
const LONGEST: f32 = 1.0;

pub(super) struct Network {
    weights: Vec<f32>,
    /// Number of changes of the weights.
    changes: u64,
}

/// States of all nodes of one graph, S^1 to S^T, with the sums of neighbours between them.
#[derive(Default)]
pub(super) struct States {
    /// Part of S^(t+1) that is the same for all t.
    bases: Vec<Row>,
    states: [Vec<Row>; T],
    sums: [Vec<Row>; T - 1],
    mean: Row,
    /// Input of the computation: the validity of nodes, and the number of changes of the weights.
    valid: Vec<bool>,
    changes: u64,
}

/// Changed nodes are followed if they are fewer than one in this many.
const FEW: usize = 40;

/// Parts of [g, W8 s_a] before ReLU.
struct Head([Row; 3]);

fn product(matrix: &[f32], row: &[f32]) -> Row {
    let mut out = [0.0; P];
    for (column, x) in matrix.chunks_exact(P).zip(row) {
        out.iter_mut().zip(column).for_each(|(out, w)| *out += w * x);
    }
    out
}

fn transposed(matrix: &[f32]) -> [f32; P * P] {
    std::array::from_fn(|at| matrix[at % P * P + at / P])
}

/// Returns the product with the transposed matrix.
fn product_back(matrix: &[f32], row: &Row) -> Row {
    let mut out = [0.0; P];
    for (out, column) in out.iter_mut().zip(matrix.chunks_exact(P)) {
        *out = column.iter().zip(row).map(|(w, x)| w * x).sum();
    }
    out
}

/// Adds `row` times `by` to a matrix.
fn add_outer(matrix: &mut [f32], row: &Row, by: &[f32]) {
    for (column, x) in matrix.chunks_exact_mut(P).zip(by) {
        column.iter_mut().zip(row).for_each(|(w, d)| *w += d * x);
    }
}

fn add(to: &mut Row, row: &Row) {
    to.iter_mut().zip(row).for_each(|(to, x)| *to += x);
}

fn relu(row: Row) -> Row {
    row.map(|x| x.max(0.0))
}

/// Returns the part of a gradient that passes a ReLU with output `out`.
fn passed(gradient: &Row, out: &Row) -> Row {
    let mut passed = *gradient;
    passed.iter_mut().zip(out).for_each(|(d, x)| *d = if *x > 0.0 { *d } else { 0.0 });
    passed
}

impl States {
    fn average(&mut self) {
        let mut total = [0.0; P];
        self.states[T - 1].iter().for_each(|state| add(&mut total, state));
        self.mean = total.map(|x| x / self.valid.len() as f32);
    }
}

impl Network {
    /// Returns a network with drawn weights.
    pub fn new(random: &mut Random) -> Network {
        let widths = [
            (P * FEATURES, FEATURES as f64),
            (P * P, P as f64 * DEGREE * DEGREE),
            (P * P, P as f64),
            (P, 1.0),
            (3 * P * P, P as f64),
            (3 * P, 3.0 * P as f64),
        ];
        let mut weights = Vec::with_capacity(WEIGHTS);
        for (count, inputs) in widths {
            let width = (3.0 / inputs).sqrt();
            weights.extend((0..count).map(|_| (width * (2.0 * random.unit() - 1.0)) as f32));
        }
        Network { weights, changes: 1 }
    }

    /// Sets a weight, and returns the old one.
    #[cfg(test)]
    pub fn set(&mut self, weight: usize, value: f32) -> f32 {
        self.changes += 1;
        std::mem::replace(&mut self.weights[weight], value)
    }

    fn matrix(&self, at: usize) -> &[f32] {
        &self.weights[at..at + P * P]
    }

    /// Returns ReLU(W4), the state of an edge of weight 1.
    fn edge(&self) -> Row {
        let mut edge = [0.0; P];
        edge.copy_from_slice(&self.weights[W4..W5]);
        relu(edge)
    }

    /// Equation (1), T times. `valid` is `true` for nodes whose action can be taken.
    pub fn embed(&self, graph: &Graph, valid: &[bool], states: &mut States) {
        let count = graph.len();
        let known = states.changes == self.changes && states.valid.len() == count;
        if known {
            let other = |node: &usize| states.valid[*node] != valid[*node];
            let changed: Vec<usize> = (0..count).filter(other).collect();
            if changed.len() * FEW < count {
                self.follow(graph, valid, &changed, states);
                return;
            }
        }
        states.bases.resize(count, [0.0; P]);
        states.states.iter_mut().for_each(|rows| rows.resize(count, [0.0; P]));
        states.sums.iter_mut().for_each(|rows| rows.resize(count, [0.0; P]));
        states.valid = valid.to_vec();
        states.changes = self.changes;
        self.base(graph, 0..count, states);
        for t in 1..T {
            self.step(graph, t, 0..count, states);
        }
        states.average();
    }

    /// Recomputes the states that these nodes of changed validity affect.
    fn follow(&self, graph: &Graph, valid: &[bool], changed: &[usize], states: &mut States) {
        if changed.is_empty() {
            return;
        }
        changed.iter().for_each(|node| states.valid[*node] = valid[*node]);
        self.base(graph, changed.iter().copied(), states);
        let mut near = changed.to_vec();
        for t in 1..T {
            let others: Vec<usize> =
                near.iter().flat_map(|node| graph.neighbours(*node)).map(|other| *other as usize).collect();
            near.extend(others);
            near.sort_unstable();
            near.dedup();
            self.step(graph, t, near.iter().copied(), states);
        }
        states.average();
    }

    /// Computes the bases and the first states of nodes.
    fn base(&self, graph: &Graph, nodes: impl Iterator<Item = usize>, states: &mut States) {
        let edge = product(self.matrix(W3), &self.edge());
        let validity = &self.weights[W1 + P * FIXED..W2];
        for node in nodes {
            let mut base = product(&self.weights[W1..], &graph.features[node]);
            let lag = graph.lags[node];
            base.iter_mut().zip(edge).for_each(|(base, edge)| *base += lag * edge);
            if states.valid[node] {
                base.iter_mut().zip(validity).for_each(|(base, w)| *base += w);
            }
            states.bases[node] = base;
            states.states[0][node] = relu(base);
        }
    }

    /// Computes the states of nodes at time t, from those of the previous time.
    fn step(&self, graph: &Graph, t: usize, nodes: impl Iterator<Item = usize>, states: &mut States) {
        let w2 = self.matrix(W2);
        let States { bases, states, sums, .. } = states;
        let (before, after) = states.split_at_mut(t);
        let (before, after) = (&before[t - 1], &mut after[0]);
        for node in nodes {
            let mut sum = before[node];
            for other in graph.neighbours(node) {
                add(&mut sum, &before[*other as usize]);
            }
            sums[t - 1][node] = sum;
            let mut state = product(w2, &sum);
            add(&mut state, &bases[node]);
            after[node] = relu(state);
        }
    }

    fn head(&self, states: &States, current: u32, action: u32) -> Head {
        let last = &states.states[T - 1];
        Head([
            product(self.matrix(W5), &states.mean),
            product(self.matrix(W6), &last[current as usize]),
            product(self.matrix(W8), &last[action as usize]),
        ])
    }

    /// Equations (2) and (3): returns the value of an action at a node under execution.
    pub fn value(&self, states: &States, current: u32, action: u32) -> f32 {
        let head = self.head(states, current, action);
        head.0.as_flattened().iter().zip(&self.weights[W7..]).map(|(h, w)| h.max(0.0) * w).sum()
    }

    /// Adds the gradient of the value, times `slope`, to `gradient`.
    pub fn backward(
        &self,
        graph: &Graph,
        valid: &[bool],
        states: &States,
        (current, action): (u32, u32),
        slope: f32,
        gradient: &mut [f32],
    ) {
        let count = graph.len();
        let last = &states.states[T - 1];
        let Head(head) = self.head(states, current, action);
        let inputs = [&states.mean, &last[current as usize], &last[action as usize]];
        let mut behind = [[0.0; P]; 3];
        for (k, at) in [W5, W6, W8].into_iter().enumerate() {
            let mut slopes = [0.0; P];
            for i in 0..P {
                slopes[i] = if head[k][i] > 0.0 { slope * self.weights[W7 + k * P + i] } else { 0.0 };
                gradient[W7 + k * P + i] += slope * head[k][i].max(0.0);
            }
            add_outer(&mut gradient[at..at + P * P], &slopes, inputs[k]);
            behind[k] = product_back(self.matrix(at), &slopes);
        }
        // By node: slopes of the states of one time, then of the sums before them.
        let mut slopes = vec![behind[0].map(|x| x / count as f32); count];
        add(&mut slopes[current as usize], &behind[1]);
        add(&mut slopes[action as usize], &behind[2]);
        let mut lagged = [0.0; P];
        let mut of_sums = vec![[0.0; P]; count];
        let back = transposed(self.matrix(W2));
        for t in (0..T).rev() {
            for node in 0..count {
                let slope = passed(&slopes[node], &states.states[t][node]);
                add_outer(&mut gradient[W1..W1 + P * FIXED], &slope, &graph.features[node]);
                if valid[node] {
                    add_outer(&mut gradient[W1 + P * FIXED..W2], &slope, &[1.0]);
                }
                let lag = graph.lags[node];
                lagged.iter_mut().zip(slope).for_each(|(sum, d)| *sum += lag * d);
                if t > 0 {
                    add_outer(&mut gradient[W2..W3], &slope, &states.sums[t - 1][node]);
                    of_sums[node] = product(&back, &slope);
                }
            }
            if t > 0 {
                for node in 0..count {
                    let mut slope = of_sums[node];
                    // The neighbour relation is symmetric.
                    for other in graph.neighbours(node) {
                        add(&mut slope, &of_sums[*other as usize]);
                    }
                    slopes[node] = slope;
                }
            }
        }
        let edge = self.edge();
        add_outer(&mut gradient[W3..W4], &lagged, &edge);
        let of_edge = passed(&product_back(self.matrix(W3), &lagged), &edge);
        gradient[W4..W5].iter_mut().zip(of_edge).for_each(|(g, d)| *g += d);
    }

    /// One step down a gradient, which is cleared.
    pub fn descend(&mut self, gradient: &mut [f32], rate: f32) {
        self.changes += 1;
        let length = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        let rate = rate * (LONGEST / length.max(LONGEST));
        for (weight, slope) in self.weights.iter_mut().zip(gradient) {
            *weight -= rate * std::mem::take(slope);
        }
    }
}
