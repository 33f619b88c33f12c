//! The three baselines of Euro-Par'20 §6.1, on its chains: VDNN, TFLMS and AutoSwap.
//!
//! - `vdnn-ratio`: for every threshold, offload the stages whose u_F / |x| is above it, or half of them (every second one); the
//!   best of all these no-wait, ordered schedules. For more than 512 stages, 512 thresholds.
//! - `tflms`: offload the first n tensors, and start to prefetch d stages ahead; no profile, so that no computation ever
//!   waits for memory ("it is unable to delay forward computations"): bytes count as free only when their offload is over
//!   by the predicted times. The best n and d; of more than 64 stages, 64 values of n are tried, and d grows by about
//!   half each time.
//! - `autoswap`: offload in the order of a weighted average of four scores until everything fits; the best of many weights. The
//!   paper names neither scores nor their formulas; those of AutoSwap (Zhang et al., arXiv 1903.06631) are read as: the duration
//!   of absence (between the end of the offload and the start of the prefetch), the area of absence (that times bytes), the
//!   duration weighted by the excess of memory over the pool meanwhile, and the same with earlier choices counted as gone.
//!   Weights are drawn evenly, from the request's seed, in place of Bayesian optimisation. For more than 1024 stages, several are
//!   taken at once for the last score.
//!
//! When time is up, each returns the best so far.

use super::chain::{Stage, chain, ended};
use super::stages::{Fixed, needs, windows};
use crate::decide::gaps::{GapId, Gaps};
use crate::decide::placement::{Slot, Window};
use crate::place::realise::{Case, Realised};
use crate::random::Random;
use crate::range_max::RangeMax;
use crate::request::Error;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Stream;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

fn prepare(case: &Case<'_>) -> (Gaps, Vec<Stage>) {
    let gaps = case.gaps();
    let stages = chain(case.trace, &gaps);
    (gaps, stages)
}

/// `vdnn-ratio`.
pub(crate) fn ratio(case: &Case<'_>) -> Result<Realised, Error> {
    let (gaps, stages) = prepare(case);
    let mut order: Vec<usize> = (0..stages.len()).filter(|i| stages[*i].bytes > 0).collect();
    let ratio = |i: &usize| stages[*i].forward.seconds / Bytes(stages[*i].bytes).to_f64();
    order.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    let thresholds = order.len().min(THRESHOLDS);
    // From the lowest threshold on: the first set is the one that fits if any does.
    let sets = (0..=thresholds).rev().flat_map(|k| {
        let mut all = vec![false; stages.len()];
        order[..order.len() * k / thresholds.max(1)].iter().for_each(|i| all[*i] = true);
        let mut odd = true;
        let half = all.iter().map(|chosen| {
            odd ^= chosen;
            *chosen && !odd
        });
        let half = half.collect();
        [all, half]
    });
    case.realise_fastest(&gaps, &stages, sets)
}

/// Maximum number of thresholds.
const THRESHOLDS: usize = 512;

/// `autoswap`.
pub(crate) fn autoswap(case: &Case<'_>) -> Result<Realised, Error> {
    let (gaps, stages) = prepare(case);
    let scores = scores(case, &gaps, &stages);
    let mut random = Random::new(case.request.seed);
    let mut weights: Vec<[f64; 4]> = (0..4).map(|one| std::array::from_fn(|i| f64::from(i == one))).collect();
    // Exponentials of equal mean, of which only the proportions count, are uniform over all proportions.
    weights.extend((0..DRAWS).map(|_| std::array::from_fn(|_| -(1.0 - random.unit()).ln())));
    let sets = weights.iter().map(|weights| {
        let score = |i: &usize| weights.iter().zip(&scores).map(|(w, s)| w * s[*i]).sum::<f64>();
        let mut order: Vec<usize> = (0..stages.len()).collect();
        order.sort_by(|a, b| score(b).total_cmp(&score(a)));
        enough(&gaps, &stages, &order, case.pool)
    });
    case.realise_fastest(&gaps, &stages, sets)
}

/// Maximum number of rounds in which all stages are scored.
const ROUNDS: usize = 1024;

/// Number of weights drawn.
const DRAWS: usize = 60;

/// Takes stages in this order until everything fits, skipping those that free nothing where it is needed.
fn enough(gaps: &Gaps, stages: &[Stage], order: &[usize], pool: u64) -> Vec<bool> {
    let mut set = vec![false; stages.len()];
    let mut over = RangeMax::beyond(&gaps.base, pool);
    for &i in order {
        let inside = |g: &GapId| gaps.gaps[*g].after.next()..gaps.gaps[*g].before;
        if stages[i].gaps.iter().any(|g| over.is_over_in(inside(g))) {
            set[i] = true;
            stages[i].gaps.iter().for_each(|g| over.take(inside(g), gaps.gaps[*g].bytes));
        }
    }
    set
}

/// Returns the four scores of every stage, each between 0 and 1.
fn scores(case: &Case<'_>, gaps: &Gaps, stages: &[Stage]) -> [Vec<f64>; 4] {
    // By slot, and once more for the end: sum of all slots before it.
    let sums = |of_slots: &mut dyn Iterator<Item = f64>| -> TiVec<Slot, f64> {
        let mut sum = 0.0;
        let more = of_slots.map(|of_slot| {
            sum += of_slot;
            sum
        });
        std::iter::once(0.0).chain(more).collect()
    };
    let begun = sums(&mut gaps.seconds.iter().copied());
    // Slots between the two parts of a stage.
    let between = |stage: &Stage| stage.forward.slots.end..stage.backward.slots.start.max(Slot(1));
    let absent = |stage: &Stage| {
        let Range { start, end } = between(stage);
        let moving = |stream| case.request.link.seconds(stream, Bytes(stage.bytes)).0;
        (begun[end] - begun[start] - moving(Stream::Offload) - moving(Stream::Prefetch)).max(0.0)
    };
    let duration: Vec<f64> = stages.iter().map(absent).collect();
    let area: Vec<f64> = stages.iter().zip(&duration).map(|(s, d)| Bytes(s.bytes).to_f64() * d).collect();
    let mut load = gaps.base.clone();
    let weighted = |load: &TiSlice<Slot, u64>| -> Vec<f64> {
        let beyond = |bytes: &u64| Bytes(bytes.saturating_sub(case.pool)).to_f64();
        let sums = sums(&mut gaps.seconds.iter().zip(load).map(|(seconds, bytes)| seconds * beyond(bytes)));
        let over = |stage: &Stage| {
            let Range { start, end } = between(stage);
            sums[end.max(start)] - sums[start]
        };
        stages.iter().map(over).collect()
    };
    let excess = weighted(&load);
    let mut submodular = vec![0.0; stages.len()];
    let mut left: Vec<usize> = (0..stages.len()).collect();
    let at_once = left.len().div_ceil(ROUNDS).max(1);
    while !left.is_empty() && !case.request.limits.is_expired() {
        let now = weighted(&load);
        left.sort_by(|a, b| now[*a].total_cmp(&now[*b]).then(a.cmp(b)));
        for stage in left.drain(left.len() - at_once.min(left.len())..).rev() {
            submodular[stage] = now[stage];
            for g in &stages[stage].gaps {
                let gap = &gaps.gaps[*g];
                load[gap.after.next()..gap.before].iter_mut().for_each(|b| *b -= gap.bytes);
            }
        }
        if left.last().is_none_or(|stage| now[*stage] <= 0.0) {
            break;
        }
    }
    [duration, area, excess, submodular].map(|scores| {
        let most = scores.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        scores.into_iter().map(|score| score / most).collect()
    })
}

/// `tflms`.
pub(crate) fn tflms(case: &Case<'_>) -> Result<Realised, Error> {
    let (gaps, stages) = prepare(case);
    let counts = stages.len().min(64);
    let mut found: Option<(u64, f64, TiVec<GapId, Option<Fixed>>)> = None;
    for k in 0..=counts {
        let late = case.request.limits.is_expired();
        // When time is up, the last set tried is the one that fits if any does.
        let count = if late { stages.len() } else { stages.len() * k / counts.max(1) };
        let mut ahead = 1;
        while ahead <= stages.len().max(1) {
            let fixed = ahead_of_use(case, &gaps, &stages[..count], &stages, ahead);
            let windows = windows(&fixed);
            let most = needs(&gaps, &windows).into_iter().max().unwrap_or_default();
            let overflow = most.saturating_sub(case.pool);
            let seconds = if overflow == 0 { predicted(case, &gaps, &windows) } else { f64::INFINITY };
            if found.as_ref().is_none_or(|f| (overflow, seconds) < (f.0, f.1)) {
                found = Some((overflow, seconds, fixed));
            }
            if late {
                break;
            }
            ahead += 1 + ahead / 2;
        }
        if late {
            break;
        }
    }
    let (_, _, fixed) = found.expect("no stage offloaded is one of them");
    case.realise_fixed(&gaps, &fixed)
}

/// Returns the windows of these stages' gaps when no op waits for an offload, and prefetches start this many stages ahead.
fn ahead_of_use(
    case: &Case<'_>,
    gaps: &Gaps,
    offloaded: &[Stage],
    stages: &[Stage],
    ahead: usize,
) -> TiVec<GapId, Option<Fixed>> {
    let ended = ended(gaps);
    let mut link = 0.0f64;
    let mut fixed: TiVec<GapId, Option<Fixed>> = vec![None; gaps.gaps.len()].into();
    for (i, stage) in offloaded.iter().enumerate() {
        // First backward op of the stage this many stages above; above all stages, the start of the backward pass.
        let mut above = stages[(i + ahead).min(stages.len() - 1)..].iter().map(|s| &s.backward.slots);
        let trigger = above.find(|slots| !slots.is_empty()).map(|slots| slots.start);
        for &g in &stage.gaps {
            let gap = &gaps.gaps[g];
            let seconds = case.request.link.seconds(Stream::Offload, Bytes(gap.bytes)).0;
            link = link.max(ended[gap.writer]) + seconds;
            // A slot starts when the previous one has ended.
            let left = ended.partition_point(|end| *end < link * (1.0 - 1e-12)).next();
            let leaves = left.max(gap.after.next());
            let returns = trigger.unwrap_or(gap.before).min(gap.before).max(leaves);
            if leaves < gap.before && returns > leaves {
                let window = Window { leaves, returns, offload: Some(gap.writer.next()) };
                fixed[g] = Some(Fixed { window, offloaded_by: None, prefetched_by: None });
            }
        }
    }
    fixed
}

/// Returns the seconds of an iteration that waits only for prefetches.
fn predicted(case: &Case<'_>, gaps: &Gaps, windows: &TiSlice<GapId, Option<Window>>) -> f64 {
    let mut fetched: TiVec<Slot, Vec<GapId>> = vec![Vec::new(); gaps.base.len() + 1].into();
    for (g, window) in windows.iter_enumerated() {
        if let Some(window) = window {
            fetched[window.returns].push(g);
        }
    }
    let (mut time, mut link) = (0.0f64, 0.0f64);
    let mut ready: TiVec<Slot, f64> = vec![0.0; gaps.base.len() + 1].into();
    for slot in Slot::each(Slot(1)..gaps.base.next_key()) {
        fetched[slot].sort_by_key(|g| gaps.gaps[*g].before);
        for &g in &fetched[slot] {
            let gap = &gaps.gaps[g];
            link = link.max(time) + case.request.link.seconds(Stream::Prefetch, Bytes(gap.bytes)).0;
            ready[gap.before] = ready[gap.before].max(link);
        }
        time = time.max(ready[slot]) + gaps.seconds[slot];
    }
    time
}
