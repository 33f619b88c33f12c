//! Traces, links and budgets at the edge of sense and beyond it, derived from a string of bytes: a fuzzer's mutations and the
//! random draws of property tests give the same cases.
//!
//! Most cases are valid and odd: tensors of no bytes and of 2^60, ops that take no time, the smallest positive time or almost
//! forever, rows of updates in place, tensors that every op, one op or no op uses. Some are meaningless (sizes whose sum
//! passes 64 bits, ids that name nothing, rates of 0 and NaN) and must be refused with a message.
//!
//! The file does not state the expected result of a case. Any bytes give a case, and a case of `n` bytes has at most about
//! `n / 4` ops, so that none takes long.

use plimsoll_ir::document::Document;
use plimsoll_ir::ids::TensorId;
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::units::{Bytes, BytesPerSecond, Seconds};

/// Choices derived from a string of bytes; after its end, always the first.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Returns the choices that these bytes encode.
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices { bytes }
    }

    /// Returns a number below `end`, from as many bytes as it needs; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        let count = (64 - end.saturating_sub(1).leading_zeros() as usize).div_ceil(8);
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % end.max(1)
    }

    /// Returns `true` in `of_256` of 256 cases, and `false` once the bytes have ended.
    pub fn chance(&mut self, of_256: u64) -> bool {
        self.below(256) >= 256 - of_256
    }

    /// Returns one of several; `from` must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A case to plan.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// Trace, valid or not.
    pub trace: Trace,
    /// Budget, from nothing to more than is countable; often between the trace's floor and peak.
    pub budget: Bytes,
    /// Link, with any rates.
    pub link: Link,
}

/// Derives a case from bytes.
pub fn hostile(choices: &mut Choices<'_>) -> Hostile {
    let mut trace = Maker::trace(choices);
    if choices.chance(20) {
        spoil(choices, &mut trace);
    }
    let link = link(choices);
    let budget = budget(choices, &trace);
    Hostile { trace, budget, link }
}

/// Sizes from which a trace picks one row: many fit together in each row, except the last.
const SIZES: [&[u64]; 5] = [
    &[100, 50, 7, 1, 0, 600],
    &[25_600, 256, 257, 255, 0, 4_096, 1_000_000],
    &[1 << 30, (1 << 30) + 1, 1, 0, 12_345_678, 3 << 20],
    &[1 << 55, 1 << 40, 1, 0, (1 << 54) - 1],
    &[1, 600, 0, 100, 1 << 60, 50, 7, 1 << 59],
];

/// Seconds from which a trace picks one row.
const SECONDS: [&[f64]; 4] = [
    &[1.0, 0.5, 0.25, 3.0],
    &[0.0, 0.0, 1e-3, 1.0],
    &[1e-9, 5e-324, f64::MIN_POSITIVE, 0.0, 1e-300],
    &[1.0, 1e18, 0.0, 1e28, 1e-300],
];

struct Maker<'c, 'b> {
    choices: &'c mut Choices<'b>,
    sizes: &'static [u64],
    seconds: &'static [f64],
    tensors: Vec<Tensor>,
    /// Tensors that an op may read: written by an op before it, or present from the start.
    known: Vec<TensorId>,
    ops: Vec<Op>,
}

impl<'c, 'b> Maker<'c, 'b> {
    fn trace(choices: &'c mut Choices<'b>) -> Trace {
        // Odd sizes and times are rarer than plain ones.
        let sizes = SIZES[choices.pick(&[0, 0, 0, 1, 1, 2, 3, 4])];
        let seconds = SECONDS[choices.pick(&[0, 0, 0, 1, 2, 3])];
        let (tensors, known, ops) = (Vec::new(), Vec::new(), Vec::new());
        let mut maker = Maker { choices, sizes, seconds, tensors, known, ops };
        for _ in 0..maker.choices.below(4) {
            let kind = maker.choices.pick(&[TensorKind::Input, TensorKind::Other]);
            maker.tensor(kind);
        }
        if maker.choices.chance(40) {
            maker.tensor(TensorKind::Activation);
            maker.known.pop();
        }
        let rows = 1 + maker.choices.below(5);
        (0..rows).for_each(|_| maker.row());
        maker.phases();
        let resident = maker.choices.pick(&[0, 10, 1 << 20]);
        Trace {
            kind: TraceKind,
            name: "hostile".into(),
            batch: 1 + maker.choices.below(3),
            resident_bytes: Bytes(resident),
            tensors: maker.tensors,
            ops: maker.ops,
        }
    }

    fn tensor(&mut self, kind: TensorKind) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        let bytes = Bytes(self.choices.pick(self.sizes));
        self.tensors.push(Tensor { name: format!("t{}", id.0), bytes, kind });
        self.known.push(id);
        id
    }

    fn op(&mut self, reads: Vec<TensorId>, writes: Vec<TensorId>) {
        let i = self.ops.len();
        let workspace = |choices: &mut Choices<'_>, sizes: &[u64]| {
            if choices.chance(40) { choices.pick(sizes) } else { 0 }
        };
        let mut alternatives = Vec::new();
        while alternatives.len() < 2 && self.choices.chance(40) {
            let seconds = Seconds(self.choices.pick(self.seconds));
            let workspace_bytes = Bytes(workspace(self.choices, self.sizes));
            alternatives.push(Alternative { name: "other".into(), seconds, workspace_bytes });
        }
        self.ops.push(Op {
            name: format!("op{i}"),
            layer: format!("layer{}", if self.choices.chance(40) { i / 3 } else { i }),
            kind: self.choices.pick(&["conv", "relu", "bn", "any"]).into(),
            phase: Phase::Forward,
            seconds: Seconds(self.choices.pick(self.seconds)),
            reads,
            writes,
            workspace_bytes: Bytes(workspace(self.choices, self.sizes)),
            flops: self.choices.pick(&[0, 1, u64::MAX]),
            recomputable: !self.choices.chance(60),
            alternatives,
        });
    }

    /// Returns some of the readable tensors, each once.
    fn some(&mut self, most: u64) -> Vec<TensorId> {
        let mut some = Vec::new();
        for _ in 0..self.choices.below(most + 1) {
            if self.known.is_empty() {
                break;
            }
            let late = self.choices.below(self.known.len() as u64) as usize;
            let t = self.known[self.known.len() - 1 - late];
            if !some.contains(&t) {
                some.push(t);
            }
        }
        some
    }

    /// Adds a row of ops of one sort.
    fn row(&mut self) {
        let length = self.choices.pick(&[1, 2, 3, 5, 8, 13, 20, 50]);
        let sort = self.choices.pick(&[1, 0, 7, 2, 7, 0, 3, 4, 5, 6, 8, 7, 2]);
        let first = self.known.len();
        let every = self.known.first().copied();
        for _ in 0..length {
            match sort {
                // Any reads, a new tensor, sometimes one that is overwritten or updated.
                0 => {
                    let reads = self.some(3);
                    let mut writes = if self.choices.chance(60) { self.some(1) } else { Vec::new() };
                    if !self.choices.chance(30) {
                        writes.push(self.tensor(TensorKind::Activation));
                    }
                    self.op(reads, writes);
                }
                // A chain.
                1 => {
                    let reads: Vec<TensorId> = self.known.last().copied().into_iter().collect();
                    let made = self.tensor(TensorKind::Activation);
                    self.op(reads, vec![made]);
                }
                // The way back over the known tensors: the last one first.
                2 => {
                    let back = self.known.len().min(self.ops.len() + 2);
                    let other = self.choices.below(back as u64 + 1) as usize;
                    let mut reads: Vec<TensorId> = self.known.last().copied().into_iter().collect();
                    let other = self.known.len().checked_sub(other + 1).map(|at| self.known[at]);
                    reads.extend(other.filter(|t| !reads.contains(t)));
                    let made = self.tensor(TensorKind::Gradient);
                    self.op(reads, vec![made]);
                }
                // Updates in place of one tensor, and overwriting.
                3 => {
                    let one: Vec<TensorId> = self.known.last().copied().into_iter().collect();
                    let reads = if self.choices.chance(40) { Vec::new() } else { one.clone() };
                    self.op(reads, one);
                }
                // One tensor in every op.
                4 => {
                    let reads = every.into_iter().collect();
                    let made = self.tensor(TensorKind::Activation);
                    self.op(reads, vec![made]);
                }
                // Dead tensors.
                5 => {
                    let made = self.tensor(TensorKind::Other);
                    self.known.pop();
                    self.op(Vec::new(), vec![made]);
                }
                // No tensors.
                6 => self.op(Vec::new(), Vec::new()),
                // Only reads, from the last to the first: the way back of the paper's chains.
                7 => {
                    let at = self.known.len().saturating_sub(self.ops.len() % (self.known.len() + 1) + 1);
                    let reads = self.known.get(at).copied().into_iter().collect();
                    self.op(reads, Vec::new());
                }
                // Each op updates the tensor of the previous one, and writes a new one.
                _ => {
                    let one: Vec<TensorId> = self.known.get(first.max(1) - 1).copied().into_iter().collect();
                    let mut writes = one.clone();
                    writes.push(self.tensor(TensorKind::Activation));
                    self.op(one, writes);
                }
            }
        }
        if self.choices.chance(16) {
            let all = self.known.clone();
            self.op(all, Vec::new());
        }
    }

    /// Splits the ops into forward, backward, update, each possibly empty.
    fn phases(&mut self) {
        let count = self.ops.len();
        let forward = self.choices.pick(&[count / 2, count / 3, count, 0, count * 3 / 4]);
        let backward = self.choices.pick(&[count, count * 7 / 8, forward]);
        for (i, op) in self.ops.iter_mut().enumerate() {
            op.phase = match i {
                i if i < forward => Phase::Forward,
                i if i < backward.max(forward) => Phase::Backward,
                _ => Phase::Update,
            };
        }
    }
}

/// Makes a trace meaningless.
fn spoil(choices: &mut Choices<'_>, trace: &mut Trace) {
    let op = choices.below(trace.ops.len() as u64) as usize;
    let sort = choices.below(9);
    let Some(found) = trace.ops.get_mut(op) else { return };
    match sort {
        0 => found.reads.push(TensorId(choices.pick(&[u32::MAX, 100_000]))),
        1 => found.seconds = Seconds(choices.pick(&[-1.0, f64::NAN, f64::INFINITY, -0.0, 1e300, f64::MAX])),
        2 => found.phase = choices.pick(&[Phase::Update, Phase::Forward]),
        3 => found.writes.extend(found.writes.clone()),
        4 => found.workspace_bytes = Bytes(choices.pick(&[u64::MAX, 1 << 63, (1 << 62) + 1])),
        5 => trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = Bytes(u64::MAX / 3)),
        6 => trace.resident_bytes = Bytes(choices.pick(&[u64::MAX, 1 << 62, 1 << 61])),
        7 => trace.ops.clear(),
        _ => trace.batch = 0,
    }
}

fn link(choices: &mut Choices<'_>) -> Link {
    const GOOD: [f64; 6] = [1e3, 1.0, 1e9, 12.2e9, 1e-6, 1e21];
    const ODD: [f64; 9] =
        [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 5e-324, 1e300, f64::MAX, f64::NEG_INFINITY];
    let odd = choices.chance(40);
    let rate = |choices: &mut Choices<'_>| {
        let odd = odd && !choices.chance(128);
        BytesPerSecond(if odd { choices.pick(&ODD) } else { choices.pick(&GOOD) })
    };
    Link {
        offload_bytes_per_second: rate(choices),
        prefetch_bytes_per_second: rate(choices),
        latency_seconds: Seconds(if odd {
            choices.pick(&[0.0, -1.0, f64::NAN, f64::INFINITY, 1e300])
        } else {
            choices.pick(&[0.0, 0.0, 1e-6, 1.0, 1e9, 5e-324])
        }),
        duplex: choices.pick(&[Duplex::Full, Duplex::Half]),
    }
}

fn budget(choices: &mut Choices<'_>, trace: &Trace) -> Bytes {
    let memory = if trace.validate().is_ok() { Some(trace.memory()) } else { None };
    let bounds = memory.and_then(|memory| Some((memory.floor()?.1.0, memory.peak()?.1.0)));
    let (floor, peak) = bounds.unwrap_or((0, 1 << 20));
    // The floor counts everything an op touches; the peak excludes what it overwrites, so it may be below the floor.
    let between = |share: u64| floor + (peak.saturating_sub(floor) / 8).saturating_mul(share);
    let some = [between(2), between(1), between(3), between(5), floor, peak, floor + 1, peak * 2 + 4096];
    let odd = [0, floor.saturating_sub(1), 1 << 62, (1 << 62) + 1, u64::MAX, 1 << 40, 1];
    Bytes(if choices.chance(40) { choices.pick(&odd) } else { choices.pick(&some) })
}
