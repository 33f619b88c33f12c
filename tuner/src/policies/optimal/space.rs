//! Decision space: the values of a small trace, the ops that make and read them, and the values that memory, stage by stage,
//! forces out of the device.
//!
//! A *value* is a tensor in one version; sets of values are bits of one number. A *stage* is an op of the trace together with
//! the batch of ops that are recomputed just before it.
//!
//! Values and alternatives of ops are those of the planner; everything else is computed independently of its code, so that a bug
//! there shows as a difference.

use crate::iteration::uses::Uses;
use crate::iteration::values::alternatives;
use crate::request::Allow;
use plimsoll_ir::schedule::{Duplex, Link, Stream, place_on_host};
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId};
use std::collections::BTreeSet;
use typed_index_collections::TiVec;

pub(super) use crate::iteration::uses::ValueId;
pub(super) use crate::iteration::values::OpAlternative;

/// Set of values, by bit.
pub(super) type Set = u128;

/// Tensor in one version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub tensor: TensorId,
    pub bytes: u64,
    /// Op that makes it; `None` if it exists from the start.
    pub maker: Option<OpId>,
    /// Seconds of its offload and of its prefetch.
    pub out: f64,
    pub back: f64,
}

/// Op of the space.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub reads: Set,
    pub writes: Set,
    /// Inputs that it updates in place, which are gone then.
    pub consumed: Set,
    /// Bytes of outputs that are not updates in place.
    pub fresh: u64,
    /// Fastest first, each with less workspace than the previous one.
    pub alternatives: Vec<OpAlternative>,
    /// `true` if it may be recomputed.
    pub again: bool,
}

/// Constraint of an op's memory on every schedule: one of the options is away when it ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Press {
    /// Values that exist during the op, are read after it and not touched by it.
    pub across: Set,
    /// Minimum bytes of them that are not on the device when the op ends.
    pub away: u64,
    /// Ways to have them away: the swapped values, and the minimum time from the op's end to the end of the iteration; the least
    /// time first. Empty if nothing is away.
    pub options: Vec<(Set, f64)>,
}

/// Decisions that a trace leaves open, with their bounds.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub values: TiVec<ValueId, Value>,
    pub jobs: TiVec<OpId, Job>,
    pub machine: Machine,
    /// Values on the device at the start.
    pub start: Set,
    /// By value: versions of its tensor.
    pub versions: TiVec<ValueId, Set>,
    /// By stage, and once more for the end of the iteration.
    pub stages: TiVec<OpId, Wanted>,
    /// First stage before which nothing may be recomputed.
    pub final_stage: OpId,
    /// By op.
    pub press: TiVec<OpId, Press>,
}

/// Parameters from the request.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// In bytes.
    pub pool: u64,
    /// Host memory limit for swapped tensors, in bytes; `None` if all of them fit it.
    pub host: Option<u64>,
    /// `true` if values may be swapped.
    pub swap: bool,
    /// `true` if offloads and prefetches share the link.
    pub half: bool,
    /// Bytes per second of offloads.
    pub offload_rate: f64,
}

/// Values that matter from a stage on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Values that ops from then on read.
    pub needed: Set,
    /// Values that these ops may use, including those only for recomputing.
    pub useful: Set,
    /// Values of `needed` that may be given up without a copy on the host.
    pub recomputed: Set,
    /// Values that may be worth an offload from then on.
    pub worthy: Set,
}

/// Maximum number of values that are tried in all combinations.
const MOST_TRIED: u32 = 10;

/// Maximum number of partial sets examined for one cover.
const MOST_SETS: usize = 20_000;

/// Returns the values of a set.
pub(super) fn members(mut set: Set) -> impl Iterator<Item = ValueId> {
    std::iter::from_fn(move || {
        let at = ValueId(set.trailing_zeros());
        (set != 0).then(|| {
            set &= set - 1;
            at
        })
    })
}

/// Returns the set of one value.
pub(super) fn only(value: ValueId) -> Set {
    1 << value.0
}

/// Returns the set of some values.
pub(super) fn set_of(values: impl IntoIterator<Item = ValueId>) -> Set {
    values.into_iter().fold(0, |set, value| set | only(value))
}

/// Returns `true` if a value is in a set.
pub(super) fn holds(set: Set, value: ValueId) -> bool {
    set & only(value) != 0
}

impl Space {
    /// Returns the space of a valid trace that is small enough.
    pub fn new(trace: &Trace, pool: u64, link: &Link, allow: Allow) -> Space {
        let update = trace.ops.iter().position(|op| op.phase == Phase::Update);
        let uses = Uses::of(trace);
        let values = uses.tensor.iter().zip(&uses.maker).map(|(&tensor, &maker)| {
            let bytes = trace.tensors[tensor.index()].bytes;
            let [out, back] = [Stream::Offload, Stream::Prefetch].map(|of| link.seconds(of, bytes).0);
            Value { tensor, bytes: bytes.0, maker, out, back }
        });
        let values: TiVec<ValueId, Value> = values.collect();
        let job = |(op, (reads, writes)): (&Op, (&Vec<ValueId>, &Vec<ValueId>))| {
            let consumed = reads.iter().filter(|v| op.writes.contains(&uses.tensor[**v]));
            let fresh = writes.iter().filter(|v| !op.reads.contains(&uses.tensor[**v]));
            Job {
                reads: set_of(reads.iter().copied()),
                writes: set_of(writes.iter().copied()),
                consumed: set_of(consumed.copied()),
                fresh: fresh.map(|v| values[*v].bytes).sum(),
                alternatives: alternatives(trace, op, Bytes(pool)),
                again: allow.recompute && op.recomputable && op.phase != Phase::Update,
            }
        };
        let mut space = Space {
            jobs: trace.ops.iter().zip(uses.reads.iter().zip(&uses.writes)).map(job).collect(),
            machine: Machine {
                pool,
                host: allow.host.map(|host| host.0),
                swap: allow.swap,
                half: link.duplex == Duplex::Half,
                offload_rate: link.offload_bytes_per_second.0,
            },
            start: set_of(values.keys().filter(|v| values[*v].maker.is_none())),
            values,
            versions: TiVec::new(),
            stages: TiVec::new(),
            final_stage: OpId::new(update.unwrap_or(trace.ops.len()) + 1),
            press: TiVec::new(),
        };
        let tensor = |v: ValueId| space.values[v].tensor;
        let versions = |v: ValueId| set_of(space.values.keys().filter(|u| tensor(*u) == tensor(v)));
        space.versions = space.values.keys().map(versions).collect();
        let all = space.on_host(Set::MAX);
        space.machine.host = space.machine.host.filter(|host| all > *host);
        space.add_stages();
        space.press = space.jobs.keys().map(|q| space.press_at(q)).collect();
        space.restrict_worthy();
        space
    }

    /// If nothing is recomputed, memory is short only during ops that lack room with everything kept.
    fn restrict_worthy(&mut self) {
        if self.jobs.iter().any(|job| job.again) {
            return;
        }
        let mut worthy = 0;
        for (stage, press) in self.press.iter_enumerated().rev() {
            worthy |= if press.away > 0 { press.across } else { 0 };
            self.stages[stage].worthy = worthy;
        }
    }

    /// Restricts offloads to these tensors.
    pub fn offload_only(&mut self, tensors: &dyn Fn(TensorId) -> bool) {
        let these = set_of(self.values.keys().filter(|v| tensors(self.values[*v].tensor)));
        self.stages.iter_mut().for_each(|stage| stage.worthy &= these);
    }

    fn add_stages(&mut self) {
        let end = self.jobs.next_key();
        let (mut needed, mut next_read) = (0, TiVec::<ValueId, OpId>::from(vec![end; self.values.len()]));
        let mut rows = Vec::new();
        for stage in OpId::each(OpId(0)..end.next()).rev() {
            if let Some(job) = self.jobs.get(stage) {
                needed |= job.reads;
                members(job.reads).for_each(|v| next_read[v] = stage);
            }
            let mut useful = needed;
            if stage < self.final_stage {
                // Backwards from the last op: an op's inputs are made before it.
                for job in self.jobs.iter().rev().filter(|job| job.again) {
                    useful |= if job.writes & useful != 0 { job.reads } else { 0 };
                }
            }
            let can = |v: &ValueId| next_read[*v] < self.final_stage && self.maker_again(*v).is_some();
            let recomputed = set_of(members(needed).filter(can));
            rows.push(Wanted { needed, useful, recomputed, worthy: useful });
        }
        self.stages = rows.into_iter().rev().collect();
    }

    /// Returns the op that makes a value, if it may be recomputed.
    pub fn maker_again(&self, value: ValueId) -> Option<OpId> {
        self.values[value].maker.filter(|k| self.jobs[*k].again)
    }

    /// Returns the host bytes of the tensors of these values: all versions of one share a place.
    pub fn on_host(&self, set: Set) -> u64 {
        let firsts = self.values.keys().filter(|v| self.is_first(*v) && set & self.versions[*v] != 0);
        firsts.map(|v| place_on_host(self.values[v].bytes)).fold(0, u64::saturating_add)
    }

    /// Returns `true` if a value is the first version of its tensor.
    pub fn is_first(&self, value: ValueId) -> bool {
        members(self.versions[value]).next() == Some(value)
    }

    /// Bytes of a set of values.
    pub fn bytes(&self, set: Set) -> u64 {
        members(set).map(|v| self.values[v].bytes).sum()
    }

    /// Returns the constraint of an op: values that cannot be on the device during it must be prefetched, or recomputed, after
    /// it.
    fn press_at(&self, q: OpId) -> Press {
        let job = &self.jobs[q];
        let made = |v: &ValueId| self.values[*v].maker.is_none_or(|maker| maker < q);
        let Wanted { needed, recomputed, .. } = self.stages[q.next()];
        let alive = members(needed & !job.reads & !job.writes).filter(made);
        let across = set_of(alive);
        let leanest = job.alternatives.iter().map(|alternative| alternative.workspace).min().unwrap_or(0);
        let own = self.bytes(job.reads) + job.fresh + leanest;
        let away = (self.bytes(across) + own).saturating_sub(self.machine.pool);
        let mut press = Press { across, away, options: Vec::new() };
        if away == 0 {
            return press;
        }
        if across.count_ones() > MOST_TRIED {
            press.options.push((0, self.tail(q, 0, 0)));
            return press;
        }
        let covers = self.covers(&members(across).collect::<Vec<ValueId>>(), away);
        for cover in covers.expect("few values have few sets") {
            let can = cover & recomputed;
            // All subsets of the values that can be recomputed.
            let mut again = can;
            loop {
                let swapped = cover & !again;
                if swapped == 0 || self.machine.swap {
                    press.options.push((swapped, self.tail(q, swapped, again)));
                }
                if again == 0 {
                    break;
                }
                again = (again - 1) & can;
            }
        }
        press.options.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut kept: Vec<(Set, f64)> = Vec::new();
        for option in press.options {
            if !kept.iter().any(|k| k.0 & !option.0 == 0) {
                kept.push(option);
            }
        }
        press.options = kept;
        press
    }

    /// Returns a lower bound on the time after an op, if `swapped` are prefetched and `again` recomputed then.
    fn tail(&self, q: OpId, swapped: Set, again: Set) -> f64 {
        let fastest = |job: &Job| job.alternatives[0].seconds;
        let makers: BTreeSet<OpId> = members(again).filter_map(|v| self.values[v].maker).collect();
        let extra: f64 = makers.into_iter().map(|k| fastest(&self.jobs[k])).sum();
        let later = &self.jobs[q.next()..self.jobs.next_key()];
        let mut rest: f64 = later.iter().map(fastest).sum();
        let mut least = rest + extra;
        let (mut link, mut back) = (0.0, swapped);
        for job in later {
            link += members(back & job.reads).map(|v| self.values[v].back).sum::<f64>();
            back &= !job.reads;
            if link > 0.0 {
                least = f64::max(least, link + rest);
            }
            rest -= fastest(job);
        }
        least
    }

    /// Returns all sets of these values that have this many bytes and would not without any one of them; `None` if there are too
    /// many to search.
    pub fn covers(&self, of: &[ValueId], lacking: u64) -> Option<Vec<Set>> {
        let bytes = |v: ValueId| self.values[v].bytes;
        let mut found = Vec::new();
        // Partial sets: chosen values, their bytes, and the next value to decide about.
        let mut open: Vec<(Set, u64, usize)> = vec![(0, 0, 0)];
        let mut looked = 0;
        while let Some((chosen, sum, next)) = open.pop() {
            looked += 1;
            if looked > MOST_SETS {
                return None;
            }
            if sum >= lacking {
                if members(chosen).all(|v| sum - bytes(v) < lacking) {
                    found.push(chosen);
                }
            } else if next < of.len() {
                open.push((chosen, sum, next + 1));
                open.push((chosen | only(of[next]), sum + bytes(of[next]), next + 1));
            }
        }
        Some(found)
    }
}
