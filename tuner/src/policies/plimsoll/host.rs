//! Host memory used by decisions, if not everything fits it: an excess counts like bytes that do not fit the device, so that the
//! search recomputes instead of swapping.
//!
//! Every tensor of which anything leaves has a separate place on the host, for the largest part that ever leaves
//! ([`plimsoll_ir::schedule::Schedule::host_bytes`]). The swapped part of a value is its leading part, so that the largest part
//! counts.
//!
//! The planner first plans without the limit ([`super::decide`]): if that plan fits the host, a limit changes nothing. Otherwise
//! it plans within the limit, from all of its seeds, and from these with less swapped ([`Host::mended`]).
//!
//! This file deliberately puts no price on a byte of the host: all decisions that fit are equally good.

use crate::decide::walk::Walk;
use crate::iteration::values::{Choice, Decisions, GapId, ValueId, Values};
use crate::place::realise::Case;
use plimsoll_ir::TensorId;
use plimsoll_ir::schedule::place_on_host;
use std::collections::{BTreeMap, BTreeSet};
use typed_index_collections::{TiSlice, TiVec};

/// Limit, with a buffer for counting.
pub(super) struct Host {
    limit: u64,
    /// By tensor: end of its part that leaves; 0 for tensors not among `leaving`.
    ends: TiVec<TensorId, u64>,
    leaving: Vec<TensorId>,
}

impl Host {
    /// Returns `None` if everything that may leave fits the host, or nothing may leave.
    pub fn new(case: &Case<'_>, values: &Values) -> Option<Host> {
        let limit = case.request.allow.host?.0;
        let tensors = &case.trace.tensors;
        let open = values.gaps.iter().filter(|gap| gap.swap);
        let open: BTreeSet<TensorId> = open.map(|gap| values.tensor[gap.value]).collect();
        let all = open.iter().map(|t| u128::from(place_on_host(tensors[t.index()].bytes.0))).sum::<u128>();
        let (ends, leaving) = (vec![0; tensors.len()].into(), Vec::new());
        (all > u128::from(limit)).then_some(Host { limit, ends, leaving })
    }

    /// Returns the host bytes that a walk needs beyond the limit.
    pub fn over(&mut self, values: &Values, walk: &Walk) -> u64 {
        for (value, end) in walk.offloads() {
            let tensor = values.tensor[value];
            let known = &mut self.ends[tensor];
            if *known == 0 {
                self.leaving.push(tensor);
            }
            *known = end.max(*known);
        }
        let ends = &mut self.ends;
        let places = self.leaving.drain(..).map(|t| place_on_host(std::mem::take(&mut ends[t])));
        places.fold(0, u64::saturating_add).saturating_sub(self.limit)
    }

    /// Returns the host bytes needed by decisions that exceed the limit by this much.
    pub fn needs(&self, over: u64) -> u64 {
        self.limit.saturating_add(over)
    }

    /// Returns the bytes of the limit that decisions leave.
    pub fn room(&self, values: &Values, decisions: &Decisions) -> u64 {
        self.limit.saturating_sub(taken(&places(values, decisions)))
    }

    /// Returns decisions that swap no more than fits the host. Values that cost the fewest seconds per byte to recompute are
    /// recomputed instead; if that is not enough, values that cannot be recomputed are kept. `None` if the decisions fit as they
    /// are.
    pub fn mended(
        &self,
        values: &Values,
        decisions: &Decisions,
        dearness: &TiSlice<ValueId, f64>,
    ) -> Option<Decisions> {
        let places = places(values, decisions);
        let mut bytes = taken(&places);
        if bytes <= self.limit {
            return None;
        }
        let fixed = |gaps: &[GapId]| gaps.iter().any(|g| !values.gaps[*g].recompute);
        let dear = |gaps: &[GapId]| gaps.iter().map(|g| dearness[values.gaps[*g].value]).sum::<f64>();
        let with_price = |(place, gaps): (u64, Vec<GapId>)| (fixed(&gaps), dear(&gaps), place, gaps);
        let mut places: Vec<(bool, f64, u64, Vec<GapId>)> = places.into_values().map(with_price).collect();
        places.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut mended = decisions.clone();
        for (fixed, _, place, gaps) in places {
            if bytes <= self.limit {
                break;
            }
            bytes -= place;
            let choice = if fixed { Choice::Keep } else { Choice::Recompute };
            gaps.into_iter().for_each(|g| mended.choices[g] = choice);
        }
        Some(mended)
    }
}

/// By tensor that is ever swapped: its host bytes, and the gaps in which it is swapped.
type Places = BTreeMap<TensorId, (u64, Vec<GapId>)>;

fn taken(places: &Places) -> u64 {
    places.values().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
}

fn places(values: &Values, decisions: &Decisions) -> Places {
    let mut places = Places::new();
    let swapped = values.gaps.iter_enumerated().filter(|(g, _)| decisions.choices[*g] == Choice::Swap);
    for (g, gap) in swapped {
        let (place, gaps) = places.entry(values.tensor[gap.value]).or_default();
        let part = values.part(gap.value, decisions.parts[gap.value]);
        *place = place_on_host(part).max(*place);
        gaps.push(g);
    }
    places
}
