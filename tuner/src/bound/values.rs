//! Reads and writes of a trace's ops as values (a value is a tensor in one version), and the values that remain at an instant.
//!
//! # The data
//!
//! [`Values`] is made once for a trace, an [`Instant`] once for every op p at which the bound is looked for. Slots are
//! positions of writers: slot 0 is the start of the iteration, slot i + 1 is op i.
//! This file deliberately knows no budget and no link. Tensors of 0 bytes take no room and no time, and are left out.

use crate::iteration::uses::{Uses, ValueId};
use crate::levels::Levels;
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId};
use typed_index_collections::TiSlice;

/// Tensor in one version.
pub(super) struct Value {
    pub tensor: TensorId,
    pub bytes: u64,
    /// Slot that writes it.
    pub slot: usize,
    /// Ops that read it, in order.
    pub readers: Vec<usize>,
    /// First op that writes its tensor anew, if any.
    overwritten: Option<usize>,
}

/// Values of a trace.
pub(super) struct Values {
    pub values: Vec<Value>,
    /// By op: values that it reads, and values that it writes.
    pub reads: Vec<Vec<usize>>,
    writes: Vec<Vec<usize>>,
    recomputable: Vec<bool>,
    /// By op: bytes of its operands plus the leanest workspace.
    pub touched: Vec<u64>,
    /// `until[i]`: fastest seconds of the ops before op i; the last is the sum of all.
    pub until: Vec<f64>,
    /// By op: its fastest seconds.
    pub seconds: Vec<f64>,
}

impl Values {
    /// Returns the values of a valid trace. If not `recompute`, no op may be recomputed.
    pub fn of(trace: &Trace, recompute: bool) -> Values {
        let seconds: Vec<f64> = trace.ops.iter().map(|op| op.fastest_seconds().0).collect();
        let mut until = vec![0.0];
        seconds.iter().for_each(|s| until.push(until[until.len() - 1] + s));
        let least = |op: &Op| (trace.touched_bytes(op) + op.least_workspace()).0;
        let uses = Uses::of(trace);
        let value = |(v, readers): (ValueId, &Vec<OpId>)| Value {
            tensor: uses.tensor[v],
            bytes: trace.tensors[uses.tensor[v].index()].bytes.0,
            slot: uses.maker[v].map_or(0, |maker| maker.index() + 1),
            readers: readers.iter().map(|reader| reader.index()).collect(),
            overwritten: uses.next[v].and_then(|next| uses.maker[next]).map(OpId::index),
        };
        let values: Vec<Value> = uses.readers.iter_enumerated().map(value).collect();
        let positions = |rows: &TiSlice<OpId, Vec<ValueId>>| {
            rows.iter().map(|row| row.iter().map(|value| value.index()).collect()).collect()
        };
        Values {
            values,
            reads: positions(&uses.reads),
            writes: positions(&uses.writes),
            recomputable: trace.ops.iter().map(|op| recompute && op.recomputable).collect(),
            touched: trace.ops.iter().map(least).collect(),
            until,
            seconds,
        }
    }

    /// Returns `true` if an op reads and leaves a value, or writes it.
    pub fn touches(&self, op: usize, value: usize) -> bool {
        let value = &self.values[value];
        value.slot == op + 1 || (value.readers.binary_search(&op).is_ok() && value.overwritten != Some(op))
    }

    /// By op: bytes in use while it runs when nothing is swapped or recomputed, without the resident ones.
    pub fn in_use(&self) -> Vec<u64> {
        self.in_use_of(&|_| true)
    }

    /// Returns `true` if a value can never be recomputed.
    pub fn is_fixed(&self, value: &Value) -> bool {
        value.slot == 0 || !self.recomputable[value.slot - 1]
    }

    /// Returns the bytes in use by op; of the values that an op does not touch only these count.
    pub fn in_use_of(&self, counts: &dyn Fn(&Value) -> bool) -> Vec<u64> {
        let mut beside: Levels<usize> = Levels::new(self.touched.len());
        for value in self.values.iter().filter(|value| counts(value)) {
            let Some(&last) = value.readers.last() else { continue };
            // It lies next to the operands of the ops strictly between its writer and its last reader, except for its readers.
            if value.slot < last {
                beside.hold(value.slot..last, value.bytes);
            }
            for &reader in value.readers.iter().filter(|r| **r < last) {
                beside.free(reader..reader + 1, value.bytes);
            }
        }
        beside.sums().zip(&self.touched).map(|(beside, touched)| touched + beside).collect()
    }
}

/// Value that p does not touch and that may be wanted after it.
pub(super) struct Wanted {
    /// Position in [`Values::values`].
    pub value: usize,
    pub tensor: TensorId,
    pub bytes: f64,
    pub slot: usize,
    /// Op before which it must be present: the op that reads it next, or the last of those before which it may be wanted to
    /// recompute a different value.
    pub deadline: usize,
    /// `true` if an op after p reads it.
    pub needed: bool,
    /// Op that can recompute it, as a position in [`Instant::makers`].
    pub maker: Option<usize>,
}

/// Op that may be recomputed after p.
pub(super) struct Maker {
    pub op: usize,
    pub seconds: f64,
    /// Op before which it would have to run: the last deadline of its outputs.
    pub deadline: usize,
    /// Values that it reads and that p does not touch, as positions in [`Instant::wanted`].
    pub inputs: Vec<usize>,
}

/// Values that remain at the end of op p.
pub(super) struct Instant {
    pub op: usize,
    pub wanted: Vec<Wanted>,
    pub makers: Vec<Maker>,
    /// Bytes of p's operands plus its workspace.
    pub touched: u64,
}

impl Instant {
    /// Returns the end of op p.
    pub fn new(all: &Values, p: usize) -> Instant {
        let mut wanted_of: Vec<Option<usize>> = vec![None; all.values.len()];
        let (of_value, of_op) = deadlines(all, p);
        let mut instant = Instant { op: p, wanted: Vec::new(), makers: Vec::new(), touched: all.touched[p] };
        for (v, deadline) in of_value.into_iter().enumerate().filter_map(|(v, of)| Some((v, of?))) {
            wanted_of[v] = Some(instant.wanted.len());
            let Value { tensor, bytes, slot, ref readers, .. } = all.values[v];
            let (bytes, needed) = (Bytes(bytes).to_f64(), readers.last().is_some_and(|r| *r > p));
            instant.wanted.push(Wanted { value: v, tensor, bytes, slot, deadline, needed, maker: None });
        }
        for (w, deadline) in of_op.into_iter().enumerate().filter_map(|(w, of)| Some((w, of?))) {
            for v in all.writes[w].iter().filter_map(|v| wanted_of[*v]) {
                instant.wanted[v].maker = Some(instant.makers.len());
            }
            let inputs = all.reads[w].iter().filter_map(|v| wanted_of[*v]).collect();
            instant.makers.push(Maker { op: w, seconds: all.seconds[w], deadline, inputs });
        }
        instant
    }
}

/// By value: the op before which it is wanted; by op through p: the op before which it would have to be recomputed. `None` if never.
fn deadlines(all: &Values, p: usize) -> (Vec<Option<usize>>, Vec<Option<usize>>) {
    let mut of_op: Vec<Option<usize>> = vec![None; p + 1];
    let mut of_value: Vec<Option<usize>> = vec![None; all.values.len()];
    let mut decide = |v: usize, of_op: &[Option<usize>]| {
        let value = &all.values[v];
        if all.touches(p, v) || value.slot > p + 1 {
            return None;
        }
        let next = value.readers.partition_point(|r| *r <= p);
        let again = || value.readers[..next].iter().filter_map(|r| of_op[*r]).max();
        of_value[v] = value.readers.get(next).copied().or_else(again);
        of_value[v]
    };
    // The deadline of a value is known once all its readers are: backwards.
    for w in (0..=p).rev() {
        let latest = all.writes[w].iter().filter_map(|v| decide(*v, &of_op)).max();
        of_op[w] = latest.filter(|_| all.recomputable[w]);
    }
    let start = (0..all.values.len()).filter(|v| all.values[*v].slot == 0);
    start.for_each(|v| _ = decide(v, &of_op));
    (of_value, of_op)
}
