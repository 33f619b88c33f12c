//! Problem of a search: the trace's values and gaps, the request, and quantities derived from them once. A search never changes
//! it.
//!
//! This file deliberately neither decides nor judges decisions.

use crate::iteration::values::{Gap, GapId, ValueId, Values};
use crate::numbers::counted;
use crate::place::realise::Case;
use crate::request::Trick;
use plimsoll_ir::{Bytes, OpId, define_id};
use std::collections::BTreeMap;
use typed_index_collections::TiVec;

define_id!(
    /// Kind of similar open gaps.
    KindId, "kind");

/// A tensor is tiny if it is at most this fraction of the pool.
const DUST: u64 = 20_000;

pub(super) struct Problem<'a> {
    /// Trace, request, pool and bound.
    pub case: &'a Case<'a>,
    /// Values of the trace, with their gaps.
    pub values: &'a Values,
    /// Gaps with a choice other than keep, in order of time.
    pub open: Vec<GapId>,
    /// Similar open gaps, in order of time: same kind of maker, same bytes, same position among the gaps of the value.
    pub kinds: TiVec<KindId, Vec<GapId>>,
    /// By gap: its kind, and its position there; `None` for gaps that are not open.
    pub kind_of: TiVec<GapId, Option<(KindId, usize)>>,
    /// Ops with alternatives.
    pub with_alternatives: Vec<OpId>,
    /// By value: seconds to recompute one of its bytes; 0 for values that exist from the start.
    pub recompute_seconds: TiVec<ValueId, f64>,
    /// Seconds of all ops, each in its fastest alternative: a lower bound on the makespan.
    pub fastest: f64,
}

impl<'a> Problem<'a> {
    /// Returns the problem of a case.
    pub fn new(case: &'a Case<'a>, values: &'a Values) -> Problem<'a> {
        let open = open_gaps(case, values);
        let kinds = alike(case, values, &open);
        let mut kind_of: TiVec<GapId, _> = vec![None; values.gaps.len()].into();
        for (kind, gaps) in kinds.iter_enumerated() {
            gaps.iter().enumerate().for_each(|(at, g)| kind_of[*g] = Some((kind, at)));
        }
        let recompute_seconds = |v: ValueId| match values.maker[v] {
            None => 0.0,
            Some(maker) => values.alternatives[maker][0].seconds / Bytes(values.bytes[v]).to_f64(),
        };
        Problem {
            case,
            values,
            open,
            kinds,
            kind_of,
            with_alternatives: values
                .alternatives
                .keys()
                .filter(|op| values.alternatives[*op].len() > 1)
                .collect(),
            recompute_seconds: values.tensor.keys().map(recompute_seconds).collect(),
            fastest: values.alternatives.iter().map(|alternatives| alternatives[0].seconds).sum(),
        }
    }

    /// Gap with this number.
    pub fn gap(&self, g: GapId) -> &'a Gap {
        &self.values.gaps[g]
    }

    /// Returns the bytes of a gap's value.
    pub fn bytes(&self, g: GapId) -> u64 {
        self.values.bytes[self.gap(g).value]
    }

    /// Returns `true` if the search may use a trick.
    pub fn uses(&self, trick: Trick) -> bool {
        self.case.request.uses(trick)
    }

    /// Returns the number of evaluations of a search: the request's limit, else a number suggested by the size of the problem.
    pub fn evaluations(&self) -> u64 {
        self.case.request.limits.evaluations.unwrap_or_else(|| suggested(self.values))
    }
}

fn open_gaps(case: &Case<'_>, values: &Values) -> Vec<GapId> {
    let gap = |g: GapId| &values.gaps[g];
    let mut open: Vec<GapId> = values.gaps.keys().filter(|g| gap(*g).swap || gap(*g).recompute).collect();
    if case.request.uses(Trick::Dust) {
        open.retain(|g| values.bytes[gap(*g).value] > case.pool / DUST);
    }
    open.sort_by_key(|g| (gap(*g).begin(), *g));
    open
}

/// Returns the sets of similar gaps.
fn alike(case: &Case<'_>, values: &Values, gaps: &[GapId]) -> TiVec<KindId, Vec<GapId>> {
    let mut kinds: BTreeMap<(&str, u64, usize), Vec<GapId>> = BTreeMap::new();
    for &g in gaps {
        let v = values.gaps[g].value;
        let kind = values.maker[v].map_or("", |maker| case.trace.ops[maker.index()].kind.as_str());
        let place = values.gaps_of(v).take_while(|earlier| *earlier < g).count();
        kinds.entry((kind, values.bytes[v], place)).or_default().push(g);
    }
    kinds.into_values().collect()
}

/// Returns a number of evaluations that keeps planning within a second for some 500 ops, within two for 1,500 and within twenty
/// for 10,000; fewer if there is little to decide.
pub(crate) fn suggested(values: &Values) -> u64 {
    let ops = counted(values.alternatives.len());
    let open = counted(values.gaps.iter().filter(|gap| gap.swap || gap.recompute).count());
    (22_000_000 / ops).max(12_000).min(120_000_000 / ops).clamp(500, 100_000).min(1000 + 400 * open)
}
