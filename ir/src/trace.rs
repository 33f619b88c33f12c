//! `trace/1`: one training iteration at one batch size, op by op.
//!
//! A trace states each op's reads, writes and duration; [`crate::program`] states its computation. The memory figures of a
//! trace follow from it exactly and are computed only here, except by [`crate::check`], which trusts no other code.

use crate::document::{Document, Fault, define_kind};
use crate::ids::{OpId, TensorId};
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::ops::Range;

define_kind!(TraceKind, "trace/1");

/// Limit of any sum of sizes in a document, so that arithmetic on them cannot overflow.
pub(crate) const BYTES_MAX: u64 = 1 << 62;

/// Limit of any sum of an iteration's seconds, so that times can be added and compared without running to infinity.
const SECONDS_MAX: f64 = 1e30;

/// One training iteration at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: TraceKind,
    /// Name of the network.
    pub name: String,
    /// Samples in one iteration, at least 1.
    pub batch: u64,
    /// Bytes that stay on the device for the whole iteration and are not tensors: parameters, gradients, optimizer state.
    pub resident_bytes: Bytes,
    /// Storages.
    pub tensors: Vec<Tensor>,
    /// Ops in the order of the compute stream.
    pub ops: Vec<Op>,
}

/// One storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Name, for people.
    pub name: String,
    /// Size.
    pub bytes: Bytes,
    /// Kind of its contents.
    pub kind: TensorKind,
}

/// The kind of a tensor's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// Samples or labels.
    Input,
    Activation,
    /// A gradient of an activation.
    Gradient,
    /// Anything else: masks, saved statistics, pooling indices.
    Other,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Name, for people.
    pub name: String,
    /// Layer that the op belongs to.
    pub layer: String,
    /// Layer type that the performance model groups by: `conv`, `bn`, `relu`, `pool`, `fc`, ...
    pub kind: String,
    /// Phase of the iteration.
    pub phase: Phase,
    /// Duration.
    pub seconds: Seconds,
    pub reads: Vec<TensorId>,
    /// Tensors that the op writes; one that it also reads is updated in place.
    pub writes: Vec<TensorId>,
    /// Scratch that lives only while the op runs.
    pub workspace_bytes: Bytes,
    /// Floating-point operations, 0 if unknown.
    pub flops: u64,
    /// `true` if, run again on the same versions of its reads, the op gives the same versions of its writes.
    pub recomputable: bool,
    /// Alternatives, which a schedule may pick by position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
}

/// A different kernel for an op, such as a convolution algorithm that is slower and needs less workspace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Name of the algorithm.
    pub name: String,
    /// Duration of the op with it.
    pub seconds: Seconds,
    /// Scratch of the algorithm.
    pub workspace_bytes: Bytes,
}

/// The phase of an op in the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Forward propagation.
    Forward,
    /// Backward propagation.
    Backward,
    /// The update of the parameters.
    Update,
}

/// The live interval of a tensor when nothing is swapped or recomputed, in ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// First op, or `None` if the tensor is on the device from the start of the iteration.
    pub born: Option<OpId>,
    /// Last op that reads or writes it, inclusive.
    pub dies: OpId,
}

impl Life {
    /// Returns the ops during which the tensor's bytes are taken, half-open, as positions.
    pub fn ops(self) -> Range<usize> {
        self.born.map_or(0, OpId::index)..self.dies.index() + 1
    }
}

/// Bytes in use at every op; each entry includes `resident_bytes`, and the workspace of the op's leanest alternative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryProfile {
    /// Bytes with nothing swapped or recomputed: resident, every live tensor, workspace.
    pub in_use: Vec<Bytes>,
    /// Bytes that the op itself touches: resident, its reads and writes, workspace.
    pub touched: Vec<Bytes>,
}

impl MemoryProfile {
    /// Returns the peak of `in_use` and its op; `None` without ops.
    pub fn peak(&self) -> Option<(OpId, Bytes)> {
        largest(&self.in_use)
    }

    /// Returns the smallest feasible budget, and the op that needs it.
    pub fn floor(&self) -> Option<(OpId, Bytes)> {
        largest(&self.touched)
    }
}

/// Returns the first of the largest entries.
fn largest(bytes: &[Bytes]) -> Option<(OpId, Bytes)> {
    let (at, most) = bytes.iter().enumerate().rev().max_by_key(|(_, b)| **b)?;
    Some((OpId::new(at), *most))
}

impl Op {
    /// Returns the duration of the fastest alternative.
    pub fn fastest_seconds(&self) -> Seconds {
        self.alternatives.iter().map(|alternative| alternative.seconds).fold(self.seconds, Seconds::min)
    }

    /// Returns the tensors that the op reads or writes, each once.
    pub fn touches(&self) -> impl Iterator<Item = TensorId> + '_ {
        let new_writes = self.writes.iter().enumerate();
        let new_writes =
            new_writes.filter(|(i, t)| !self.reads.contains(t) && !self.writes[..*i].contains(t));
        let new_reads = self.reads.iter().enumerate().filter(|(i, t)| !self.reads[..*i].contains(t));
        new_reads.chain(new_writes).map(|(_, t)| *t)
    }

    /// Returns the least workspace over all alternatives.
    pub fn least_workspace(&self) -> Bytes {
        self.alternatives.iter().map(|a| a.workspace_bytes).fold(self.workspace_bytes, Bytes::min)
    }
}

impl Trace {
    /// Returns the sum of all ops' seconds, each in its fastest alternative.
    pub fn fastest_seconds(&self) -> Seconds {
        self.ops.iter().map(Op::fastest_seconds).sum()
    }

    /// Returns the sum of all ops' seconds.
    pub fn compute_seconds(&self) -> Seconds {
        self.ops.iter().map(|op| op.seconds).sum()
    }

    /// Returns the bytes of the tensors that an op writes.
    pub fn written_bytes(&self, op: &Op) -> Bytes {
        op.writes.iter().map(|t| self.tensors[t.index()].bytes).sum()
    }

    /// Returns the bytes of the tensors that an op reads or writes.
    pub fn touched_bytes(&self, op: &Op) -> Bytes {
        op.touches().map(|t| self.tensors[t.index()].bytes).sum()
    }

    /// Gives each alternative a slightly longer time than the one before it. Before any measurement all take 0 seconds, and a
    /// planner would take the leanest; with these times it takes the default alternative wherever that fits.
    pub fn order_alternatives(&mut self) {
        for op in &mut self.ops {
            for (number, alternative) in (1..).zip(&mut op.alternatives) {
                alternative.seconds = op.seconds + Seconds(1e-6 * f64::from(number));
            }
        }
    }

    /// Returns the live interval of every tensor; `None` for a tensor that no op touches.
    pub fn lives(&self) -> Vec<Option<Life>> {
        let mut lives: Vec<Option<Life>> = vec![None; self.tensors.len()];
        for (i, op) in self.ops.iter().enumerate() {
            let here = OpId::new(i);
            for t in &op.reads {
                lives[t.index()].get_or_insert(Life { born: None, dies: here }).dies = here;
            }
            for t in &op.writes {
                lives[t.index()].get_or_insert(Life { born: Some(here), dies: here }).dies = here;
            }
        }
        lives
    }

    /// Returns the bytes in use at every op.
    pub fn memory(&self) -> MemoryProfile {
        let mut born = vec![Bytes::ZERO; self.ops.len() + 1];
        let mut freed = vec![Bytes::ZERO; self.ops.len() + 1];
        for (tensor, life) in self.tensors.iter().zip(self.lives()) {
            let Some(life) = life else { continue };
            born[life.ops().start] += tensor.bytes;
            freed[life.ops().end] += tensor.bytes;
        }
        let mut alive = self.resident_bytes;
        let mut memory = MemoryProfile { in_use: Vec::new(), touched: Vec::new() };
        for (i, op) in self.ops.iter().enumerate() {
            alive = alive + born[i] - freed[i];
            let workspace = op.least_workspace();
            memory.in_use.push(alive + workspace);
            memory.touched.push(self.resident_bytes + self.touched_bytes(op) + workspace);
        }
        memory
    }
}

impl Document for Trace {
    const KIND: &'static str = "trace/1";

    fn validate(&self) -> Result<(), Fault> {
        let fault = |place: String, why: String| Err(Fault::Meaning { place, why });
        if self.batch == 0 {
            return fault("batch".into(), "a batch has at least 1 sample".into());
        }
        if self.ops.is_empty() {
            return fault("ops".into(), "a trace has at least one op".into());
        }
        let mut total = u128::from(self.resident_bytes.0);
        total += self.tensors.iter().map(|t| u128::from(t.bytes.0)).sum::<u128>();
        let mut all_seconds = 0.0;
        let mut written = vec![false; self.tensors.len()];
        let mut last_phase = Phase::Forward;
        for (i, op) in self.ops.iter().enumerate() {
            let name = &op.name;
            if op.phase < last_phase {
                let why = format!("`{name}` is of the phase {:?}, after {last_phase:?}", op.phase);
                return fault(format!("ops[{i}].phase"), why);
            }
            last_phase = op.phase;
            let alternatives = op.alternatives.iter().map(|a| (a.seconds, a.workspace_bytes));
            for (seconds, workspace) in alternatives.chain([(op.seconds, op.workspace_bytes)]) {
                if !(seconds.0.is_finite() && seconds.0 >= 0.0) {
                    return fault(
                        format!("ops[{i}]"),
                        format!("`{name}` takes {} seconds; needs 0 or more", seconds.0),
                    );
                }
                total += u128::from(workspace.0);
                all_seconds += seconds.0;
            }
            for (list, ids) in [("reads", &op.reads), ("writes", &op.writes)] {
                for (j, t) in ids.iter().enumerate() {
                    let place = || format!("ops[{i}].{list}[{j}]");
                    let Some(tensor) = self.tensors.get(t.index()) else {
                        let why = format!("{t} does not exist; there are {} tensors", self.tensors.len());
                        return fault(place(), why);
                    };
                    if ids[..j].contains(t) {
                        return fault(place(), format!("{t} is listed twice"));
                    }
                    let made_here = matches!(tensor.kind, TensorKind::Activation | TensorKind::Gradient);
                    if list == "reads" && made_here && !written[t.index()] {
                        let later = self.ops[i..].iter().position(|o| o.writes.contains(t));
                        let who = match later {
                            Some(k) => {
                                format!("only `{}` (op {}) writes it, later", self.ops[i + k].name, i + k)
                            }
                            None => "no op writes it".to_owned(),
                        };
                        let why = format!(
                            "`{name}` reads {t} (`{}`) before it is written: {who}; what is on the device from the \
                             start has the kind `input` or `other`",
                            tensor.name
                        );
                        return fault(place(), why);
                    }
                }
            }
            for t in &op.writes {
                written[t.index()] = true;
            }
        }
        if all_seconds > SECONDS_MAX {
            let why =
                format!("all ops together take {all_seconds} seconds; at most {SECONDS_MAX:e} make sense");
            return fault("ops".into(), why);
        }
        if total > u128::from(BYTES_MAX) {
            return fault(
                "tensors".into(),
                format!("all sizes together are {total} bytes; at most 2^62 make sense"),
            );
        }
        Ok(())
    }
}
