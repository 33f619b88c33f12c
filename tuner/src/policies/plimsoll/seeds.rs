//! Initial decisions of a search: everything kept, everything swapped, and the linear program of the lower bound, rounded.
//!
//! [`relax`] returns the fractions of every value that are best kept, swapped and recomputed across the most expensive instant.
//! The fractions are rounded so that the bytes of each kind add up, value by value in the order of the trace. The program covers
//! one instant only, and ignores the memory that recomputing takes. Therefore it is also solved for several smaller budgets, and
//! long chains of values that are recomputed together are cut: some of them are kept.

use crate::bound::joint::{Relaxed, relax};
use crate::iteration::values::{Choice, Decisions, GapId, PARTS, ValueId, Values};
use crate::numbers::real;
use crate::place::realise::Case;
use crate::request::{Allow, Limits, Trick};
use crate::threads::{Expired, each};
use plimsoll_ir::Bytes;
use plimsoll_ir::trace::Trace;
use typed_index_collections::TiVec;

/// Shares of the budget beyond the floor for which the program is solved.
const SHARES: [f64; 7] = [0.97, 0.9, 0.75, 1.0, 0.84, 0.94, 0.6];

/// Factors by which the last op of the trace takes longer in the program than the first, alternating. For equal blocks the
/// program returns a mixture (a third of each is kept), which rounds to no whole number of blocks; with these prices, one is kept
/// before the other.
const TILTS: [f64; 2] = [0.05, -0.05];

/// Number of ops above which only the first three shares are used.
const MANY: usize = 3000;

/// Number of ops up to which a second thread is not worthwhile.
const FEW: usize = 100;

/// Maximum parts of the pool for values that are recomputed together, as divisors.
const CHAINS: [u64; 3] = [4, 16, 64];

/// Returns the linear program's solutions, one per share of the budget, at most `most`.
pub(super) fn solutions(case: &Case<'_>, most: usize) -> Vec<Relaxed> {
    let floor = case.trace.memory().floor().map_or(Bytes::ZERO, |f| f.1);
    let budget = Bytes(case.pool) + case.trace.resident_bytes;
    let request = case.request;
    let shares: &[f64] = match () {
        () if !request.uses(Trick::Seeds) => &[],
        () if !request.uses(Trick::Budgets) => &[1.0],
        () if case.trace.ops.len() > MANY => &SHARES[..3],
        () => &SHARES,
    };
    let (trace, link) = (case.trace, request.link);
    let (allow, tilts) = (Allow { swap: true, ..request.allow }, request.uses(Trick::Tilts));
    let solve = |at: usize, expired: Expired<'_>| {
        let room = budget.saturating_sub(floor).share(shares[at]);
        let tilt = if tilts { TILTS[at % TILTS.len()] } else { 0.0 };
        let limits = Limits { evaluations: None, expired };
        relax(&tilted(trace, tilt), floor + room, &link, allow, &limits)
    };
    each(shares.len().min(most), trace.ops.len() > FEW, request.limits.expired, solve)
}

/// Returns the seeds of all solutions, in parts of values or in whole values.
pub(super) fn seeds(case: &Case<'_>, values: &Values, solutions: &[Relaxed], parts: bool) -> Vec<Decisions> {
    let mut seeds = vec![values.keep_all(), swap_all(values)];
    for relaxed in solutions {
        for tail in [Choice::RecomputeEach, Choice::Recompute] {
            let seed = round(values, relaxed, tail, parts);
            let chains: &[u64] = if case.request.uses(Trick::Chains) { &CHAINS } else { &[] };
            let cut: Vec<Decisions> =
                chains.iter().map(|part| cut_chains(values, seed.clone(), case.pool / part)).collect();
            for seed in [seed].into_iter().chain(cut) {
                if !seeds.contains(&seed) {
                    seeds.push(seed);
                }
            }
        }
    }
    seeds
}

/// Returns the trace with ops that take longer (or shorter) the later they are.
fn tilted(trace: &Trace, tilt: f64) -> Trace {
    let mut tilted = trace.clone();
    let count = real(tilted.ops.len());
    for (i, op) in tilted.ops.iter_mut().enumerate() {
        op.seconds = op.seconds * (1.0 + tilt * real(i) / count);
    }
    tilted
}

/// Returns decisions that swap every value that can be swapped.
pub(super) fn swap_all(values: &Values) -> Decisions {
    let mut decisions = values.keep_all();
    for (gap, choice) in values.gaps.iter().zip(&mut decisions.choices).filter(|(gap, _)| gap.swap) {
        if gap.before.is_some() {
            *choice = Choice::Swap;
        }
    }
    decisions
}

/// Rounds a solution. `tail` is the choice for values that are recomputed only for others' sake.
fn round(values: &Values, relaxed: &Relaxed, tail: Choice, parts: bool) -> Decisions {
    let mut decisions = values.keep_all();
    for (gap, choice) in values.gaps.iter().zip(&mut decisions.choices) {
        if gap.before.is_none() && gap.recompute {
            *choice = tail;
        }
    }
    let Some(p) = relaxed.op else { return decisions };
    let value_of = values.by_maker();
    let mut owed = [0.0f64; 3];
    for fate in &relaxed.values {
        let Some(&v) = value_of.get(&(fate.tensor, fate.writer)) else { continue };
        // The gap across the end of p.
        let Some(g) = values.gap_before(v, p.next()) else { continue };
        let gap = &values.gaps[g];
        if gap.before.is_some_and(|before| before <= p) {
            // By then it is updated in place, and has no gap there.
            continue;
        }
        if parts && gap.swap && fate.swapped > 0.0 && fate.kept > 0.0 {
            decisions.choices[g] = Choice::Swap;
            decisions.parts[v] = (fate.swapped * f64::from(PARTS)).ceil().clamp(1.0, f64::from(PARTS)) as u8;
            continue;
        }
        let recomputed = (1.0 - fate.kept - fate.swapped).max(0.0);
        let bytes = Bytes(values.bytes[v]).to_f64();
        let again = if gap.before.is_none() { tail } else { Choice::Recompute };
        let options = [(Choice::Keep, fate.kept), (Choice::Swap, fate.swapped), (again, recomputed)];
        let mut chosen = None::<usize>;
        for (k, (choice, share)) in options.iter().enumerate() {
            if *share > 0.0 && choice.is_open(gap) {
                owed[k] += share * bytes;
                if chosen.is_none_or(|c| owed[k] > owed[c]) {
                    chosen = Some(k);
                }
            }
        }
        if let Some(k) = chosen {
            owed[k] -= bytes;
            decisions.choices[g] = options[k].0;
        }
    }
    decisions
}

/// Values that are made of each other, with no resident value between them, are recomputed all at once and then stay. Keeps some
/// of them, so that such a chain takes at most `most` bytes.
pub(super) fn cut_chains(values: &Values, mut decisions: Decisions, most: u64) -> Decisions {
    let count = values.tensor.len();
    let mut chains = Chains { next: values.tensor.keys().collect(), bytes: vec![0; count].into() };
    let mut gone: TiVec<ValueId, bool> = vec![false; count].into();
    let mut inputs: Vec<ValueId> = Vec::new();
    for (v, maker) in values.maker.iter_enumerated() {
        let Some(maker) = *maker else { continue };
        gone[v] = values.becomes[v].is_some() || values.gaps_of(v).any(|g| decisions.recomputes(g));
        if !gone[v] {
            continue;
        }
        let reads = values.reads.row(maker).iter().filter(|z| gone[z.value]);
        inputs.clear();
        inputs.extend(reads.map(|z| chains.of(z.value)));
        inputs.sort_unstable();
        inputs.dedup();
        // Values that only others need are dropped once those are made.
        let mut gaps = values.gaps_of(v);
        let stays: Option<GapId> =
            gaps.find(|g| values.gaps[*g].before.is_some() && decisions.recomputes(*g));
        let own = stays.map_or(0, |_| values.bytes[v]);
        let all = inputs.iter().map(|z| chains.bytes[*z]).fold(own, u64::saturating_add);
        if let Some(first) = stays.filter(|_| all > most.max(own)) {
            [first].into_iter().chain(gaps).for_each(|g| decisions.choices[g] = Choice::Keep);
            gone[v] = false;
        } else {
            inputs.iter().for_each(|z| chains.next[*z] = v);
            chains.bytes[v] = all;
        }
    }
    decisions
}

/// Union-find over values; the representative is the last member.
struct Chains {
    /// By value: itself, or a later member of the same set.
    next: TiVec<ValueId, ValueId>,
    /// By representative.
    bytes: TiVec<ValueId, u64>,
}

impl Chains {
    fn of(&mut self, value: ValueId) -> ValueId {
        let mut at = value;
        while self.next[at] != at {
            self.next[at] = self.next[self.next[at]];
            at = self.next[at];
        }
        at
    }
}
