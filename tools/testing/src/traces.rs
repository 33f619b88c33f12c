//! Random traces: ops that read, update, overwrite and create tensors in all the ways that `trace/1` allows.

use crate::Random;
use plimsoll_ir::ids::TensorId;
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::units::{Bytes, Seconds};

/// Returns a small trace of 1 to 24 ops.
pub fn random_trace(seed: u64) -> Trace {
    let ops = 1 + Random::new(seed ^ 0x0995).below(24) as usize;
    random_trace_of(ops, seed)
}

/// Returns a trace of this many ops: inputs, tensors of 0 bytes, updates in place, overwriting, workspaces, alternatives,
/// dead tensors, ops that take no time.
pub fn random_trace_of(ops: usize, seed: u64) -> Trace {
    let mut maker = Maker { random: Random::new(seed), tensors: Vec::new(), recent: Vec::new() };
    for _ in 0..1 + maker.random.below(2) {
        maker.tensor(TensorKind::Input);
    }
    let ops: Vec<Op> = (0..ops).map(|i| maker.op(i, ops)).collect();
    Trace {
        kind: TraceKind,
        name: format!("random-{seed}"),
        batch: 1 + maker.random.below(64),
        resident_bytes: Bytes(maker.random.below(1000)),
        tensors: maker.tensors,
        ops,
    }
}

/// Returns a network of this many layers in a row, forward and backward, two ops each: a backward op reads its layer's input,
/// its output and the output's gradient. Sizes are multiples of 4096 bytes, every forward op can be recomputed.
pub fn chain_trace(layers: usize) -> Trace {
    let tensor = |i: usize, kind| {
        let bytes = Bytes(4096 * (1 + i as u64 * 7919 % 251));
        Tensor { name: format!("t{i}"), bytes, kind }
    };
    let mut tensors = vec![tensor(0, TensorKind::Input)];
    tensors.extend((1..=layers).map(|i| tensor(i, TensorKind::Activation)));
    tensors.extend((0..layers).map(|i| tensor(i, TensorKind::Gradient)));
    let op = |i: usize, phase, reads: Vec<usize>, write: usize| Op {
        name: format!("op{i}"),
        layer: format!("layer{i}"),
        kind: if i.is_multiple_of(3) { "conv" } else { "relu" }.into(),
        phase,
        seconds: Seconds(1e-5 * (1 + i * 31 % 17) as f64),
        reads: reads.into_iter().map(TensorId::new).collect(),
        writes: vec![TensorId::new(write)],
        workspace_bytes: Bytes::ZERO,
        flops: 0,
        recomputable: phase == Phase::Forward,
        alternatives: Vec::new(),
    };
    let mut ops: Vec<Op> = (0..layers).map(|i| op(i, Phase::Forward, vec![i], i + 1)).collect();
    ops.extend((0..layers).rev().map(|i| {
        let mut reads = vec![i, i + 1];
        reads.extend((i + 1 < layers).then_some(layers + 2 + i));
        op(i, Phase::Backward, reads, layers + 1 + i)
    }));
    let (name, resident_bytes) = (format!("chain-{layers}"), Bytes::ZERO);
    Trace { kind: TraceKind, name, batch: 1, resident_bytes, tensors, ops }
}

struct Maker {
    random: Random,
    tensors: Vec<Tensor>,
    /// Tensors that an op may read: written by an op before it, or present from the start.
    recent: Vec<TensorId>,
}

impl Maker {
    fn tensor(&mut self, kind: TensorKind) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        let bytes = if self.random.percent(6) { 0 } else { 1 + self.random.below(600) };
        self.tensors.push(Tensor { name: format!("t{}", id.0), bytes: Bytes(bytes), kind });
        self.recent.push(id);
        id
    }

    /// Returns a readable tensor, more often a late one; some stay in use over the whole trace.
    fn known(&mut self) -> Option<TensorId> {
        let count = self.recent.len();
        let late = self.random.percent(70);
        self.random.pick(if late { &self.recent[count.saturating_sub(8)..] } else { &self.recent })
    }

    fn op(&mut self, i: usize, ops: usize) -> Op {
        let mut reads = Vec::new();
        for _ in 0..self.random.below(4) {
            reads.extend(self.known().filter(|t| !reads.contains(t)));
        }
        let mut writes: Vec<TensorId> = Vec::new();
        if self.random.percent(25) {
            writes.extend(self.random.pick(&reads));
        }
        if self.random.percent(12) {
            writes.extend(self.known().filter(|t| !writes.contains(t)));
        }
        for _ in 0..[1, 1, 1, 0, 2][self.random.below(5) as usize] {
            let kind = if i * 2 < ops { TensorKind::Activation } else { TensorKind::Gradient };
            writes.push(self.tensor(kind));
        }
        let phase = match i * 5 / ops.max(1) {
            0 | 1 => Phase::Forward,
            2 | 3 => Phase::Backward,
            _ => Phase::Update,
        };
        let alternatives = (0..self.random.below(3)).map(|k| self.alternative(k)).collect();
        let Alternative { name: _, seconds, workspace_bytes } = self.alternative(0);
        let no_time = i > 0 && self.random.percent(4);
        Op {
            name: format!("op{i}"),
            layer: format!("layer{}", i / 2),
            kind: "random".into(),
            phase,
            seconds: if no_time { Seconds::ZERO } else { seconds },
            reads,
            writes,
            workspace_bytes,
            flops: self.random.below(1 << 40),
            recomputable: self.random.percent(75),
            alternatives,
        }
    }

    fn alternative(&mut self, k: u64) -> Alternative {
        let seconds = Seconds((1 + self.random.below(1000)) as f64 * 1e-3);
        let workspace_bytes = if self.random.percent(60) { 0 } else { 1 + self.random.below(300) };
        Alternative { name: format!("way{k}"), seconds, workspace_bytes: Bytes(workspace_bytes) }
    }
}
