//! Greedy (Euro-Par'20 §4.2): the no-wait, ordered, eager schedule that offloads the first activations.
//!
//! Theorem 2: if activations can be offloaded in part, it is optimal to offload the first M_peak - M_GPU bytes. Greedy rounds up
//! to whole activations: the first k of them, "where k is the smallest index such that" they are enough. In a chain all of them
//! are alive at the peak, so that enough means that everything fits; in a trace with a different memory profile it means just
//! that here: k is the smallest for which every op fits.
//!
//! The paper has no addresses. If none fit, more activations are offloaded, twice as many more each time; all of them if time is
//! up.

use super::chain::{Stage, chain, swapped};
use crate::decide::gaps::Gaps;
use crate::place::realise::{CHEAP, Case, GIVEN, Realised};
use crate::request::{Error, Shortage};

pub(crate) fn realise(case: &Case<'_>) -> Result<Realised, Error> {
    let gaps = case.gaps();
    let stages = chain(case.trace, &gaps);
    let least = prefix(&gaps, &stages, case.pool);
    let mut more = 0;
    loop {
        let k = (least + more).min(stages.len());
        let set: Vec<bool> = (0..stages.len()).map(|i| i < k).collect();
        // A schedule that gives up a pool's worth for addresses is the last resort.
        let attempts = if k == stages.len() { &GIVEN[..] } else { &CHEAP[..] };
        let found = case.realise(&gaps, &swapped(&gaps, &stages, &set), attempts)?;
        let short = matches!(&found, Realised::Short(witness) if witness.why == Shortage::Addresses);
        if !short || k == stages.len() {
            return Ok(found);
        }
        more = if case.request.limits.is_expired() { stages.len() } else { 2 * more + 1 };
    }
}

/// Returns the smallest k for which offloading the first k stages leaves no op above the pool; all if none does.
fn prefix(gaps: &Gaps, stages: &[Stage], pool: u64) -> usize {
    let fits = |k: usize| {
        let set: Vec<bool> = (0..stages.len()).map(|i| i < k).collect();
        gaps.least(&swapped(gaps, stages, &set)).iter().all(|bytes| *bytes <= pool)
    };
    // Each further stage only frees bytes.
    let all: Vec<usize> = (0..stages.len()).collect();
    all.partition_point(|k| !fits(*k))
}
