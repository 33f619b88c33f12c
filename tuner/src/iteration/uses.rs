//! Values of a trace, with the ops that make and read them, for deciding, lowering and bounding.
//!
//! A *value* is a tensor in one version. Tensors of 0 bytes need no decision, no room and no time, and are left out.
//!
//! This file deliberately does not define the possible decisions about a value (`values.rs`).

use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, TensorId, define_id};
use std::collections::BTreeMap;
use typed_index_collections::TiVec;

define_id!(
    /// Value of an iteration.
    ValueId, "value");

/// Values of a trace, in the order in which ops first touch them.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// By value: its tensor.
    pub tensor: TiVec<ValueId, TensorId>,
    /// By value: op that makes it; `None` if it exists from the start.
    pub maker: TiVec<ValueId, Option<OpId>>,
    /// By value: ops that read it, in order.
    pub readers: TiVec<ValueId, Vec<OpId>>,
    /// By value: previous version of its tensor, which its maker overwrites or updates in place.
    pub previous: TiVec<ValueId, Option<ValueId>>,
    /// By value: next version of its tensor, which replaces it.
    pub next: TiVec<ValueId, Option<ValueId>>,
    /// By op: values that it reads, in the order of its `reads`.
    pub reads: TiVec<OpId, Vec<ValueId>>,
    /// By op: values that it makes, in the order of its `writes`.
    pub writes: TiVec<OpId, Vec<ValueId>>,
}

impl Uses {
    /// Returns the values of a valid trace.
    pub fn of(trace: &Trace) -> Uses {
        let mut uses = Uses::default();
        let mut current: TiVec<TensorId, Option<ValueId>> = vec![None; trace.tensors.len()].into();
        let sized = |t: &&TensorId| trace.tensors[t.index()].bytes > Bytes::ZERO;
        for op in &trace.ops {
            let here = uses.reads.next_key();
            let mut reads = Vec::with_capacity(op.reads.len());
            for &t in op.reads.iter().filter(sized) {
                let value = *current[t].get_or_insert_with(|| uses.add(t, None, None));
                uses.readers[value].push(here);
                reads.push(value);
            }
            uses.reads.push(reads);
            let mut writes = Vec::with_capacity(op.writes.len());
            for &t in op.writes.iter().filter(sized) {
                let value = uses.add(t, Some(here), current[t]);
                current[t] = Some(value);
                writes.push(value);
            }
            uses.writes.push(writes);
        }
        uses
    }

    /// Returns the value that an op makes of this one in place: the next version, if its maker reads this one.
    pub fn becomes(&self, value: ValueId) -> Option<ValueId> {
        self.next[value].filter(|next| self.readers[value].last() == self.maker[*next].as_ref())
    }

    /// By tensor: the value that exists from the start, if an op reads it.
    pub fn at_start(&self) -> BTreeMap<TensorId, ValueId> {
        let there = self.maker.iter_enumerated().filter(|(_, maker)| maker.is_none());
        there.map(|(value, _)| (self.tensor[value], value)).collect()
    }

    fn add(&mut self, tensor: TensorId, maker: Option<OpId>, previous: Option<ValueId>) -> ValueId {
        self.maker.push(maker);
        self.readers.push(Vec::new());
        self.previous.push(previous);
        self.next.push(None);
        let value = self.tensor.push_and_get_key(tensor);
        if let Some(previous) = previous {
            self.next[previous] = Some(value);
        }
        value
    }
}
