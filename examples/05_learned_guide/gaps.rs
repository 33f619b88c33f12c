//! The gaps of a trace that a plan decides about, and what a guide is told of each.

use plimsoll::ir::schedule::{Command, Link, Schedule};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, OpId, TensorId};
use std::collections::HashMap;

/// What is decided about a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Keep,
    Swap,
    Recompute,
}

impl Choice {
    pub const ALL: [Choice; 3] = [Choice::Keep, Choice::Swap, Choice::Recompute];
}

/// What a tensor holds from the op that writes it to the one that writes it next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueId(pub usize);

/// A value.
pub struct Value {
    pub tensor: TensorId,
    /// The op that writes it; none for what is there from the start.
    pub maker: Option<OpId>,
    /// The ops that write or read it, in order.
    touches: Vec<OpId>,
    gaps: Vec<Gap>,
}

/// Between two ops that touch a value one after the other, with others in between.
#[derive(Clone, Debug)]
pub struct Gap {
    pub value: ValueId,
    /// The last op that touches it before.
    pub begin: OpId,
    /// The op that touches it next.
    pub end: OpId,
    /// The bytes that are too many during the gap where everything is kept, at the op where most are.
    over: u64,
    /// The share of the gap's ops at which there are too many.
    share: f64,
}

impl Gap {
    /// Whether it helps to give the value up.
    pub fn is_crowded(&self) -> bool {
        self.over > 0
    }
}

/// How many numbers a guide is told of a gap.
pub const FACTS: usize = 24;

/// A closure of more ops is not worth recomputing.
const CLOSURE: usize = 64;

/// A trace with a budget and a link, and its gaps.
pub struct Gaps<'t> {
    pub trace: &'t Trace,
    budget: Bytes,
    link: Link,
    values: Vec<Value>,
    /// By op: the values that it reads, and those that it writes.
    reads: Vec<Vec<ValueId>>,
    writes: Vec<Vec<ValueId>>,
    /// By op: the seconds of all ops before it.
    starts: Vec<f64>,
}

impl<'t> Gaps<'t> {
    pub fn new(trace: &'t Trace, budget: Bytes, link: Link) -> Gaps<'t> {
        let mut values: Vec<Value> = Vec::new();
        let mut newest: Vec<Option<ValueId>> = vec![None; trace.tensors.len()];
        let (mut reads, mut writes, mut starts) = (Vec::new(), Vec::new(), vec![0.0]);
        for (id, op) in (0..).map(OpId).zip(&trace.ops) {
            let mut add = |tensor: TensorId, maker: Option<OpId>| {
                values.push(Value { tensor, maker, touches: vec![id], gaps: Vec::new() });
                ValueId(values.len() - 1)
            };
            let read: Vec<ValueId> = (op.reads.iter())
                .map(|tensor| *newest[tensor.index()].get_or_insert_with(|| add(*tensor, None)))
                .collect();
            let written: Vec<ValueId> = op.writes.iter().map(|tensor| add(*tensor, Some(id))).collect();
            for (tensor, value) in op.writes.iter().zip(&written) {
                newest[tensor.index()] = Some(*value);
            }
            for &value in &read {
                let touches = &mut values[value.0].touches;
                if touches.last() != Some(&id) {
                    touches.push(id);
                }
            }
            writes.push(written);
            reads.push(read);
            starts.push(starts[id.index()] + op.seconds.0);
        }
        let in_use = trace.memory().in_use;
        let over: Vec<u64> = in_use.iter().map(|bytes| bytes.0.saturating_sub(budget.0)).collect();
        for (at, value) in values.iter_mut().enumerate() {
            let between = |pair: &[OpId]| {
                let (begin, end) = (pair[0], pair[1]);
                let inside = over.get(begin.index() + 1..end.index()).filter(|ops| !ops.is_empty())?;
                let most = inside.iter().copied().max().unwrap_or_default();
                let crowded = inside.iter().filter(|over| **over > 0).count();
                let share = crowded as f64 / inside.len() as f64;
                Some(Gap { value: ValueId(at), begin, end, over: most, share })
            };
            value.gaps = value.touches.windows(2).filter_map(between).collect();
        }
        Gaps { trace, budget, link, values, reads, writes, starts }
    }

    /// The link.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Those that are crowded, in the order of values and time.
    pub fn crowded(&self) -> impl Iterator<Item = &Gap> {
        self.values.iter().flat_map(|value| &value.gaps).filter(|gap| gap.is_crowded())
    }

    pub fn values(&self) -> &[Value] {
        &self.values
    }

    pub fn value(&self, value: ValueId) -> &Value {
        &self.values[value.0]
    }

    /// The values that an op reads.
    pub fn reads(&self, op: OpId) -> &[ValueId] {
        &self.reads[op.index()]
    }

    /// The values that an op writes.
    pub fn writes(&self, op: OpId) -> &[ValueId] {
        &self.writes[op.index()]
    }

    /// The gap of a value that begins with an op.
    pub fn beginning(&self, value: ValueId, op: OpId) -> Option<&Gap> {
        self.value(value).gaps.iter().find(|gap| gap.begin == op)
    }

    /// The gap of a value that is open before an op.
    pub fn around(&self, value: ValueId, op: OpId) -> Option<&Gap> {
        self.value(value).gaps.iter().find(|gap| gap.begin < op && op <= gap.end)
    }

    /// Whether a value is of use at an op or later.
    pub fn is_alive(&self, value: ValueId, op: OpId) -> bool {
        self.value(value).touches.last().is_some_and(|last| *last >= op)
    }

    /// Of every crowded gap whether its value can be recomputed.
    pub fn recomputable(&self) -> Vec<bool> {
        self.crowded().map(|gap| self.closure(gap, false).is_some()).collect()
    }

    fn bytes(&self, value: ValueId) -> f64 {
        self.trace.tensors[self.value(value).tensor.index()].bytes.0 as f64
    }

    /// The op that recomputes a value.
    fn again(&self, value: ValueId) -> Option<OpId> {
        self.value(value).maker.filter(|op| self.trace.ops[op.index()].recomputable)
    }

    /// The seconds and the ops of making a value anew before the op at its gap's end: what is dead has to be made, too, and so
    /// has what is in a crowded gap, where that is `lost`. None where it cannot be, or takes very much.
    fn closure(&self, gap: &Gap, lost: bool) -> Option<(f64, usize)> {
        let mut open = vec![gap.value];
        let mut ops: Vec<OpId> = Vec::new();
        while let Some(value) = open.pop() {
            let maker = self.again(value)?;
            if ops.contains(&maker) {
                continue;
            }
            ops.push(maker);
            if ops.len() > CLOSURE {
                return None;
            }
            for &read in self.reads(maker) {
                let around = self.around(read, gap.end).filter(|of| of.end > gap.end);
                let gone = lost && around.is_some_and(Gap::is_crowded) && self.again(read).is_some();
                if !self.is_alive(read, gap.end) || gone {
                    open.push(read);
                }
            }
        }
        Some((ops.iter().map(|op| self.trace.ops[op.index()].seconds.0).sum(), ops.len()))
    }

    /// Of every crowded gap what a guide is told of it; all numbers are about -1 to 1.
    pub fn facts(&self) -> Vec<[f32; FACTS]> {
        let gaps: Vec<&Gap> = self.crowded().collect();
        let peak = gaps.iter().map(|gap| gap.over).max().unwrap_or(1) as f64;
        let pool = (self.budget - self.trace.resident_bytes).0.max(1) as f64;
        let (out, back) = (self.link.offload_bytes_per_second.0, self.link.prefetch_bytes_per_second.0);
        let total = self.starts[self.starts.len() - 1].max(1e-12);
        let turn = gaps.iter().max_by_key(|gap| gap.over).map_or(0.5, |gap| {
            let inside = gap.begin.index() + 1..gap.end.index();
            self.starts[(inside.start + inside.end) / 2] / total
        });
        let closures: Vec<[Option<(f64, usize)>; 2]> =
            gaps.iter().map(|gap| [false, true].map(|lost| self.closure(gap, lost))).collect();
        let dear = |at: usize| {
            closures[at][0]
                .map_or(f64::INFINITY, |(seconds, _)| seconds / self.bytes(gaps[at].value).max(1.0))
        };
        let cheaper = self.before(&gaps, |a, b| dear(a).total_cmp(&dear(b)), peak);
        let earlier = self.before(&gaps, |a, b| gaps[a].begin.cmp(&gaps[b].begin), peak);
        let later = self.before(&gaps, |a, b| gaps[b].end.cmp(&gaps[a].end), peak);
        let recomputable: f64 =
            (0..gaps.len()).filter(|at| dear(*at).is_finite()).map(|at| self.bytes(gaps[at].value)).sum();
        let all: f64 = gaps.iter().map(|gap| self.bytes(gap.value)).sum();
        let log = |ratio: f64| (ratio.clamp(1e-6, 1e6).ln() / 5.0).clamp(-2.0, 2.0);
        let facts = |(at, gap): (usize, &&Gap)| {
            let bytes = self.bytes(gap.value).max(1.0);
            let [begin, end] = [gap.begin.index() + 1, gap.end.index()].map(|op| self.starts[op]);
            let moving = bytes / out + bytes / back;
            let [alone, chain] = closures[at].map(|found| found.map_or(1e6 * moving, |(seconds, _)| seconds));
            let ops = closures[at].map(|found| found.map_or(CLOSURE, |(_, ops)| ops) as f64);
            let maker = self.value(gap.value).maker;
            let reads =
                maker.map_or(0.0, |op| self.reads(op).iter().map(|read| self.bytes(*read)).sum::<f64>());
            [
                log(bytes / pool),
                gap.over as f64 / peak,
                gap.share,
                begin / total,
                end / total,
                (end - begin) / total,
                log((end - begin) / moving),
                log(alone / moving),
                log(chain / moving),
                if closures[at][0].is_some() { 1.0 } else { -1.0 },
                log(ops[0]),
                log(ops[1]),
                cheaper[at].min(2.0),
                earlier[at].min(2.0),
                later[at].min(2.0),
                log(total * turn * out / peak),
                log(total * (1.0 - turn) * back / peak),
                log(peak / pool),
                log(recomputable / peak),
                log(all / peak),
                log(reads / bytes),
                log(bytes / peak),
                self.value(gap.value).touches.len() as f64 / 4.0 - 1.0,
                begin / (total * turn).max(1e-12) - 1.0,
            ]
            .map(|fact| fact as f32)
        };
        gaps.iter().enumerate().map(facts).collect()
    }

    /// By gap: the bytes of those that come before it in an order, over the bytes that are too many.
    fn before(
        &self,
        gaps: &[&Gap],
        mut order: impl FnMut(usize, usize) -> std::cmp::Ordering,
        peak: f64,
    ) -> Vec<f64> {
        let mut sorted: Vec<usize> = (0..gaps.len()).collect();
        sorted.sort_by(|a, b| order(*a, *b));
        let (mut sum, mut before) = (0.0, vec![0.0; gaps.len()]);
        for at in sorted {
            before[at] = sum / peak;
            sum += self.bytes(gaps[at].value);
        }
        before
    }

    /// What a schedule does in every crowded gap.
    pub fn choices_of(&self, schedule: &Schedule) -> Vec<Choice> {
        let mut chosen: HashMap<(ValueId, OpId), Choice> = HashMap::new();
        let mut newest: Vec<Option<ValueId>> = vec![None; self.trace.tensors.len()];
        for (at, value) in self.values.iter().enumerate().filter(|(_, value)| value.maker.is_none()) {
            newest[value.tensor.index()] = Some(ValueId(at));
        }
        let mut now = OpId(0);
        let mut choose = |value: ValueId, now: OpId, choice: Choice| {
            if let Some(gap) = self.around(value, now) {
                chosen.insert((value, gap.end), choice);
            }
        };
        // A command stands before the op that it serves.
        for command in &schedule.commands {
            match command {
                Command::Compute { op, again: false, .. } => {
                    now = op.next();
                    for &value in self.writes(*op) {
                        newest[self.value(value).tensor.index()] = Some(value);
                    }
                }
                Command::Compute { op, .. } => {
                    self.writes(*op).iter().for_each(|value| choose(*value, now, Choice::Recompute));
                }
                Command::Prefetch { tensor, .. } => {
                    newest[tensor.index()].into_iter().for_each(|value| choose(value, now, Choice::Swap));
                }
                Command::Offload { .. } => {}
            }
        }
        let of = |gap: &Gap| chosen.get(&(gap.value, gap.end)).copied().unwrap_or(Choice::Keep);
        self.crowded().map(of).collect()
    }
}
