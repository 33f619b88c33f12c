//! The problem of a search: the trace's values and gaps, the request, and what follows from them once. Nothing in it
//! changes while a search runs.
//!
//! What this file does not do: decide, or judge decisions.

use crate::iteration::values::{Gap, NONE, Values};
use crate::place::realise::Task;
use crate::request::Trick;
use std::collections::BTreeMap;

/// A tensor is tiny where it is no larger than this part of the pool.
const DUST: u64 = 20_000;

pub(super) struct Problem<'a> {
    /// Trace, request, pool and bound.
    pub task: &'a Task<'a>,
    /// The values of the trace, and their gaps.
    pub values: &'a Values,
    /// The gaps with another choice than to keep, in order of time.
    pub open: Vec<u32>,
    /// Open gaps that are alike, in order of time: same kind of maker, same bytes, same place among the gaps of the value.
    pub kinds: Vec<Vec<u32>>,
    /// By gap: its kind, and its position there; [`NONE`] for gaps that are not open.
    pub kind_of: Vec<(u32, u32)>,
    /// The ops with alternatives.
    pub with_alternatives: Vec<u32>,
    /// By value: seconds to recompute one of its bytes; 0 for values that are there from the start.
    pub recompute_seconds: Vec<f64>,
    /// Seconds of all ops, each in its fastest alternative. No makespan is shorter.
    pub fastest: f64,
}

impl<'a> Problem<'a> {
    pub fn new(task: &'a Task<'a>, values: &'a Values) -> Problem<'a> {
        let open = open_gaps(task, values);
        let kinds = alike(task, values, &open);
        let mut kind_of = vec![(NONE, NONE); values.gaps.len()];
        for (k, gaps) in kinds.iter().enumerate() {
            gaps.iter().enumerate().for_each(|(at, g)| kind_of[*g as usize] = (k as u32, at as u32));
        }
        let recompute_seconds = |v: usize| match values.maker[v] {
            NONE => 0.0,
            maker => values.alternatives[maker as usize][0].seconds / values.bytes[v] as f64,
        };
        let ops = 0..values.alternatives.len() as u32;
        Problem {
            task,
            values,
            open,
            kinds,
            kind_of,
            with_alternatives: ops.filter(|op| values.alternatives[*op as usize].len() > 1).collect(),
            recompute_seconds: (0..values.tensor.len()).map(recompute_seconds).collect(),
            fastest: values.alternatives.iter().map(|alternatives| alternatives[0].seconds).sum(),
        }
    }

    pub fn gap(&self, g: u32) -> &'a Gap {
        &self.values.gaps[g as usize]
    }

    /// The bytes of a gap's value.
    pub fn bytes(&self, g: u32) -> u64 {
        self.values.bytes[self.gap(g).value as usize]
    }

    pub fn uses(&self, trick: Trick) -> bool {
        self.task.request.uses(trick)
    }

    /// Evaluations of a search of this problem: as many as the request allows, else as many as its size suggests.
    pub fn evaluations(&self) -> u64 {
        self.task.request.limits.evaluations.unwrap_or_else(|| suggested(self.values))
    }
}

fn open_gaps(task: &Task<'_>, values: &Values) -> Vec<u32> {
    let gap = |g: u32| &values.gaps[g as usize];
    let mut open: Vec<u32> =
        (0..values.gaps.len() as u32).filter(|g| gap(*g).swap || gap(*g).recompute).collect();
    if task.request.uses(Trick::Dust) {
        open.retain(|g| values.bytes[gap(*g).value as usize] > task.pool / DUST);
    }
    open.sort_by_key(|g| (gap(*g).after.wrapping_add(1), *g));
    open
}

/// The gaps in sets of gaps that are alike.
fn alike(task: &Task<'_>, values: &Values, gaps: &[u32]) -> Vec<Vec<u32>> {
    let mut kinds: BTreeMap<(&str, u64, u32), Vec<u32>> = BTreeMap::new();
    for &g in gaps {
        let v = values.gaps[g as usize].value as usize;
        let kind = match values.maker[v] {
            NONE => "",
            maker => task.trace.ops[maker as usize].kind.as_str(),
        };
        kinds.entry((kind, values.bytes[v], g - values.first_gap[v])).or_default().push(g);
    }
    kinds.into_values().collect()
}

/// Evaluations that keep planning within a second for some 500 ops, within two for 1,500 and within twenty for 10,000;
/// fewer where there is little to decide.
pub fn suggested(values: &Values) -> u64 {
    let ops = values.alternatives.len() as u64;
    let open = values.gaps.iter().filter(|gap| gap.swap || gap.recompute).count() as u64;
    (22_000_000 / ops).max(12_000).min(120_000_000 / ops).clamp(500, 100_000).min(1000 + 400 * open)
}
