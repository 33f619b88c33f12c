//! `trace/1`: one training iteration at one batch size, op by op.
//!
//! A trace says what each op reads, writes and how long it takes; it does not say what is computed (that is
//! [`crate::program`]). Its memory figures follow from it exactly and are computed here, once, for everybody but
//! [`crate::check`], which trusts nobody.

use crate::document::{Document, Fault, define_kind};
use crate::ids::{OpId, TensorId};
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::ops::Range;

define_kind!(TraceKind, "trace/1");

/// No sum of sizes in a document passes this, so that arithmetic on them cannot overflow.
pub(crate) const BYTES_MAX: u64 = 1 << 62;

/// No sum of an iteration's seconds passes this, so that times can be added and compared without running to infinity.
const SECONDS_MAX: f64 = 1e30;

/// One training iteration at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: TraceKind,
    /// The network's name.
    pub name: String,
    /// Samples in one iteration, at least 1.
    pub batch: u64,
    /// What stays on the device for the whole iteration and is no tensor: parameters, gradients, optimizer state.
    pub resident_bytes: Bytes,
    /// The storages.
    pub tensors: Vec<Tensor>,
    /// In the order in which the compute stream runs them.
    pub ops: Vec<Op>,
}

/// One storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Whose it is, for people.
    pub name: String,
    /// Its size.
    pub bytes: Bytes,
    /// What it holds.
    pub kind: TensorKind,
}

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// Samples or labels.
    Input,
    /// A feature map.
    Activation,
    /// A gradient of a feature map.
    Gradient,
    /// Anything else: masks, saved statistics, pooling indices.
    Other,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Its name, for people.
    pub name: String,
    /// The layer that it belongs to.
    pub layer: String,
    /// The layer type that the performance model groups by: `conv`, `bn`, `relu`, `pool`, `fc`, ...
    pub kind: String,
    /// Where in the iteration it stands.
    pub phase: Phase,
    /// How long it takes.
    pub seconds: Seconds,
    /// The tensors that it reads.
    pub reads: Vec<TensorId>,
    /// The tensors that it writes; one that it also reads is updated in place.
    pub writes: Vec<TensorId>,
    /// Scratch that lives only while the op runs.
    pub workspace_bytes: Bytes,
    /// Floating-point operations, 0 where unknown.
    pub flops: u64,
    /// Run again on the same versions of its reads, it gives the same versions of its writes.
    pub recomputable: bool,
    /// Its alternatives, which a schedule may pick by position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
}

/// Another kernel for an op, such as a convolution algorithm that is slower and needs less workspace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// The algorithm's name.
    pub name: String,
    /// How long the op takes with it.
    pub seconds: Seconds,
    /// Its scratch.
    pub workspace_bytes: Bytes,
}

/// Where in the iteration an op stands.
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

/// The ops during which a tensor is alive when nothing is swapped or recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The first op, or none where the tensor is on the device from the start of the iteration.
    pub born: Option<OpId>,
    /// The last op that reads or writes it, inclusive.
    pub dies: OpId,
}

impl Life {
    /// The ops during which the tensor's bytes are taken, half-open, as positions.
    pub fn ops(self) -> Range<usize> {
        self.born.map_or(0, OpId::index)..self.dies.index() + 1
    }
}

/// Bytes in use at every op; each entry includes `resident_bytes`, and the workspace of the leanest alternative of the op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryProfile {
    /// With nothing swapped or recomputed: resident, every tensor alive, workspace.
    pub in_use: Vec<Bytes>,
    /// Only what the op itself touches: resident, its reads and writes, workspace.
    pub touched: Vec<Bytes>,
}

impl MemoryProfile {
    /// The most that is in use, and during which op. No op, no peak.
    pub fn peak(&self) -> Option<(OpId, Bytes)> {
        largest(&self.in_use)
    }

    /// What no plan fits below, and the op that needs it.
    pub fn floor(&self) -> Option<(OpId, Bytes)> {
        largest(&self.touched)
    }
}

/// The first of the largest entries.
fn largest(bytes: &[Bytes]) -> Option<(OpId, Bytes)> {
    let (at, most) = bytes.iter().enumerate().rev().max_by_key(|(_, b)| **b)?;
    Some((OpId::new(at), *most))
}

impl Op {
    /// How long its fastest alternative takes.
    pub fn fastest_seconds(&self) -> Seconds {
        self.alternatives.iter().map(|alternative| alternative.seconds).fold(self.seconds, Seconds::min)
    }

    /// The tensors that the op reads or writes, each once.
    pub fn touches(&self) -> impl Iterator<Item = TensorId> + '_ {
        let new_writes = self.writes.iter().enumerate();
        let new_writes =
            new_writes.filter(|(i, t)| !self.reads.contains(t) && !self.writes[..*i].contains(t));
        let new_reads = self.reads.iter().enumerate().filter(|(i, t)| !self.reads[..*i].contains(t));
        new_reads.chain(new_writes).map(|(_, t)| *t)
    }

    /// The least workspace over all its alternatives.
    pub fn least_workspace(&self) -> Bytes {
        self.alternatives.iter().map(|a| a.workspace_bytes).fold(self.workspace_bytes, Bytes::min)
    }
}

impl Trace {
    /// The sum of all ops' seconds, each in its fastest alternative.
    pub fn fastest_seconds(&self) -> Seconds {
        self.ops.iter().map(Op::fastest_seconds).sum()
    }

    /// The sum of all ops' seconds.
    pub fn compute_seconds(&self) -> Seconds {
        self.ops.iter().map(|op| op.seconds).sum()
    }

    /// The bytes of the tensors that an op writes.
    pub fn written_bytes(&self, op: &Op) -> Bytes {
        op.writes.iter().map(|t| self.tensors[t.index()].bytes).sum()
    }

    /// The bytes of the tensors that an op reads or writes.
    pub fn touched_bytes(&self, op: &Op) -> Bytes {
        op.touches().map(|t| self.tensors[t.index()].bytes).sum()
    }

    /// Before anything was measured all alternatives of an op take 0 seconds, and a planner takes the leanest. From here
    /// on each takes a little longer than the one before it: the usual alternative is planned wherever it fits.
    pub fn order_alternatives(&mut self) {
        for op in &mut self.ops {
            for (number, alternative) in (1..).zip(&mut op.alternatives) {
                alternative.seconds = op.seconds + Seconds(1e-6 * f64::from(number));
            }
        }
    }

    /// The life of every tensor; none for a tensor that no op touches.
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

    /// Bytes in use at every op.
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
