//! What an iteration saves for its backward pass, layer by layer, and the iteration as a tool runs it that frees what some
//! modules save.
//!
//! The rewritten iteration is a trace again, so that its peak and its seconds are those of any trace.

use super::Means;
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::{Op, Phase, Tensor, TensorKind, Trace};
use plimsoll_ir::{Bytes, Seconds, TensorId};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What an iteration saves.
pub(super) struct Saved<'a> {
    pub trace: &'a Trace,
    /// The names of the layers, in the order of their first ops.
    pub layers: Vec<&'a str>,
    /// The layer of each op, as a position in these.
    layer_of: Vec<usize>,
    /// What each layer's backward ops read of the forward pass, or of the input.
    by: Vec<Vec<TensorId>>,
    /// The layer that wrote each tensor last in the forward pass.
    writer: Vec<Option<usize>>,
    /// The layers that save each tensor.
    savers: Vec<Vec<usize>>,
}

/// How long a tensor's copies take, to the host and from there.
fn copies(link: Link, bytes: Bytes) -> [Seconds; 2] {
    [link.offload_bytes_per_second, link.prefetch_bytes_per_second]
        .map(|rate| link.latency_seconds + bytes / rate)
}

impl<'a> Saved<'a> {
    pub fn of(trace: &'a Trace) -> Saved<'a> {
        let mut positions: HashMap<&str, usize> = HashMap::new();
        let mut layers = Vec::new();
        let mut layer_of = Vec::with_capacity(trace.ops.len());
        for op in &trace.ops {
            let layer = *positions.entry(&op.layer).or_insert_with(|| {
                layers.push(op.layer.as_str());
                layers.len() - 1
            });
            layer_of.push(layer);
        }
        let mut by = vec![Vec::new(); layers.len()];
        let mut writer = vec![None; trace.tensors.len()];
        let mut savers = vec![Vec::new(); trace.tensors.len()];
        let mut is_gradient: Vec<bool> =
            trace.tensors.iter().map(|tensor| tensor.kind == TensorKind::Gradient).collect();
        for (op, layer) in trace.ops.iter().zip(layer_of.iter().copied()) {
            match op.phase {
                Phase::Forward => op.writes.iter().for_each(|t| writer[t.index()] = Some(layer)),
                Phase::Backward | Phase::Update => {
                    for t in op.reads.iter().filter(|t| !is_gradient[t.index()]) {
                        let saved: &mut Vec<TensorId> = &mut by[layer];
                        if !saved.contains(t) {
                            saved.push(*t);
                            savers[t.index()].push(layer);
                        }
                    }
                    op.writes.iter().for_each(|t| is_gradient[t.index()] = true);
                }
            }
        }
        Saved { trace, layers, layer_of, by, writer, savers }
    }

    /// What wrapping these layers frees while those behind them run: what no other layer saves. Copies also free what is saved
    /// besides by the layer in front of them that wrote it, but only where that one is wrapped, too: the second number.
    pub fn freed_by(&self, layers: &Range<usize>, means: Means) -> [Bytes; 2] {
        let is_here = |layer: &usize| layers.contains(layer);
        let mut freed = [Bytes::ZERO; 2];
        for (t, tensor) in self.trace.tensors.iter().enumerate() {
            let (savers, writer) = (&self.savers[t], self.writer[t]);
            let is_saved_in_front =
                |saver: &usize| is_here(saver) || (*saver < layers.start && Some(*saver) == writer);
            let is_written_here = writer.as_ref().is_some_and(is_here);
            if !savers.iter().any(is_here) {
                continue;
            }
            match means {
                Means::Recompute if is_written_here && savers.iter().all(is_here) => freed[0] += tensor.bytes,
                Means::Offload(_) if savers.iter().all(is_here) => freed[0] += tensor.bytes,
                Means::Offload(_) if savers.iter().all(is_saved_in_front) => freed[1] += tensor.bytes,
                _ => {}
            }
        }
        freed
    }

    /// The ops of these layers that run again: forward ops, up to the last that writes anything that the layers save. One that
    /// writes no tensor, such as that of running statistics, does not.
    fn again(&self, layers: &Range<usize>) -> Vec<usize> {
        let is_again = |op: &Op| op.phase == Phase::Forward && !op.writes.is_empty();
        let of_layers = (0..self.trace.ops.len()).filter(|op| layers.contains(&self.layer_of[*op]));
        let mut again: Vec<usize> = of_layers.filter(|op| is_again(&self.trace.ops[*op])).collect();
        let is_saved = |t: &TensorId| self.by[layers.clone()].iter().any(|saved| saved.contains(t));
        let last = again.iter().rposition(|op| self.trace.ops[*op].writes.iter().any(is_saved));
        again.truncate(last.map_or(0, |last| last + 1));
        again
    }

    /// The iteration where these modules, none within another, are wrapped.
    pub fn rewritten(&self, modules: &[Range<usize>], means: Means) -> Trace {
        let mut module_of = vec![None; self.layers.len()];
        for (module, layers) in modules.iter().enumerate() {
            module_of[layers.clone()].fill(Some(module));
        }
        let trace = self.trace;
        let mut rewriter = Rewriter {
            saved: self,
            tensors: trace.tensors.clone(),
            ops: Vec::new(),
            now: (0..trace.tensors.len()).map(TensorId::new).collect(),
            gradients: HashSet::new(),
        };
        match means {
            Means::Recompute => rewriter.recomputes(&module_of, modules),
            Means::Offload(link) => rewriter.offloads(&module_of, link),
        }
        let Rewriter { tensors, ops, .. } = rewriter;
        Trace { name: trace.name.clone(), tensors, ops, ..*trace }
    }
}

/// An iteration that is being rewritten.
struct Rewriter<'a> {
    saved: &'a Saved<'a>,
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    /// The tensor in which the value of each of the trace's tensors is.
    now: Vec<TensorId>,
    /// The tensors that a backward op has written.
    gradients: HashSet<TensorId>,
}

/// What a module's backward ops read in place of tensors of the forward pass.
type Twins = HashMap<TensorId, TensorId>;

impl Rewriter<'_> {
    /// A further tensor like this one.
    fn like(&mut self, tensor: TensorId) -> TensorId {
        self.tensors.push(self.tensors[tensor.index()].clone());
        TensorId::new(self.tensors.len() - 1)
    }

    /// Forward ops, in which whatever a module reads and another overwrites stays for the module's second run; then the others,
    /// each module's forward ops once more before the first of its backward ops.
    fn recomputes(&mut self, module_of: &[Option<usize>], modules: &[Range<usize>]) {
        let trace = self.saved.trace;
        // By tensors of the rewritten trace: who wrote it last, and whether a module that did not reads it.
        let mut owner: HashMap<TensorId, Option<usize>> = HashMap::new();
        let mut is_input: HashMap<TensorId, bool> = HashMap::new();
        let mut forward: HashMap<usize, Op> = HashMap::new();
        let starts = trace.ops.iter().position(|op| op.phase != Phase::Forward).unwrap_or(trace.ops.len());
        for (at, op) in trace.ops[..starts].iter().enumerate() {
            let module = module_of[self.saved.layer_of[at]];
            let reads: Vec<TensorId> = op.reads.iter().map(|t| self.now[t.index()]).collect();
            for t in &reads {
                if module.is_some() && owner.get(t).copied().flatten() != module {
                    is_input.insert(*t, true);
                }
            }
            for t in &op.writes {
                let overwrites = owner.contains_key(&self.now[t.index()]);
                if overwrites && is_input.contains_key(&self.now[t.index()]) {
                    self.now[t.index()] = self.like(*t);
                }
                owner.insert(self.now[t.index()], module);
            }
            let writes = op.writes.iter().map(|t| self.now[t.index()]).collect();
            let op = Op { reads, writes, ..op.clone() };
            if module.is_some() {
                forward.insert(at, op.clone());
            }
            self.ops.push(op);
        }
        let mut twins: HashMap<usize, Twins> = HashMap::new();
        for (at, op) in trace.ops.iter().enumerate().skip(starts) {
            let module = module_of[self.saved.layer_of[at]];
            if let Some(module) = module.filter(|module| !twins.contains_key(module)) {
                let mut own = Twins::new();
                for again in self.saved.again(&modules[module]) {
                    let op = &forward[&again];
                    let reads = op.reads.iter().map(|t| *own.get(t).unwrap_or(t)).collect();
                    for t in &op.writes {
                        if !own.contains_key(t) {
                            own.insert(*t, self.like(*t));
                        }
                    }
                    let writes = op.writes.iter().map(|t| own[t]).collect();
                    let name = format!("{}.again", op.name);
                    let phase = Phase::Backward;
                    self.ops.push(Op { name, phase, reads, writes, ..op.clone() });
                }
                own.retain(|t, _| owner[t] == Some(module));
                twins.insert(module, own);
            }
            self.push_backward(op, module.and_then(|module| twins.get(&module)));
        }
    }

    /// Each layer's ops, and behind them the copies of all that it saves; before its backward ops the copies back.
    fn offloads(&mut self, module_of: &[Option<usize>], link: Link) {
        let saved = self.saved;
        let trace = saved.trace;
        let is_forward = |(_, op): &(usize, &Op)| op.phase == Phase::Forward;
        let mut last = vec![0; saved.layers.len()];
        trace.ops.iter().enumerate().filter(is_forward).for_each(|(at, _)| last[saved.layer_of[at]] = at);
        let mut back: HashMap<usize, Twins> = HashMap::new();
        for (at, op) in trace.ops.iter().enumerate() {
            let layer = saved.layer_of[at];
            let copied: &[TensorId] = if module_of[layer].is_some() { &saved.by[layer] } else { &[] };
            if op.phase == Phase::Forward {
                self.ops.push(op.clone());
                for t in copied.iter().filter(|_| at == last[layer]) {
                    let [seconds, _] = copies(link, trace.tensors[t.index()].bytes);
                    self.push_copy(op, "offload", seconds, vec![*t], Vec::new());
                }
                continue;
            }
            if let Entry::Vacant(entry) = back.entry(layer) {
                let mut own = Twins::new();
                for t in copied {
                    let copy = self.like(*t);
                    let [_, seconds] = copies(link, trace.tensors[t.index()].bytes);
                    self.push_copy(op, "prefetch", seconds, Vec::new(), vec![copy]);
                    own.insert(*t, copy);
                }
                entry.insert(own);
            }
            self.push_backward(op, back.get(&layer));
        }
    }

    /// An op with its tensors where they are now; what it writes is there from now on.
    fn push_backward(&mut self, op: &Op, own: Option<&Twins>) {
        let here = |t: &TensorId| {
            let now = self.now[t.index()];
            let twin = own.filter(|_| !self.gradients.contains(&now)).and_then(|own| own.get(&now));
            twin.copied().unwrap_or(now)
        };
        let reads = op.reads.iter().map(here).collect();
        let writes: Vec<TensorId> = op.writes.iter().map(here).collect();
        for (t, written) in op.writes.iter().zip(&writes) {
            self.now[t.index()] = *written;
            self.gradients.insert(*written);
        }
        self.ops.push(Op { reads, writes, ..op.clone() });
    }

    fn push_copy(
        &mut self,
        of: &Op,
        what: &str,
        seconds: Seconds,
        reads: Vec<TensorId>,
        writes: Vec<TensorId>,
    ) {
        self.ops.push(Op {
            name: format!("{}.{what}", of.layer),
            layer: of.layer.clone(),
            kind: what.to_owned(),
            phase: of.phase,
            seconds,
            reads,
            writes,
            workspace_bytes: Bytes::ZERO,
            flops: 0,
            recomputable: false,
            alternatives: Vec::new(),
        });
    }
}
