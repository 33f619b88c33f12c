//! DynProg (Euro-Par'20 §5): a dynamic program over the offloaded activations, exact if communications can be interrupted, in S
//! memory slots.
//!
//! A state after stage i - 1 is (K, d_F, d_B): the kept bytes of the stages so far, the bytes still to be offloaded when F_(i-1)
//! ends, and the bytes fetched ahead when B_(i-1) starts; negative ones are time left over, times the rate. The paper has M_F in
//! place of K; M_F = |x_i| + d_F⁺ + K, so that its equations (1) to (8) are those of `Program::advance`, with a stage's needs in
//! addition to kept and waiting bytes in one number. Equations (9) and (10) are `Program::between`. Of states with the same K,
//! one that has less of d_F, d_B and stall is at least as good (every equation rises in all three), so only such are stored; the
//! paper stores all.
//!
//! Rounding (§5.3.2): S = 500 slots of M / S bytes; temporaries up; u·β in partial sums, down; |x_i| in partial sums, up, and as
//! long as the result does not fit, those whose rounded value is below the true one are increased by one, the closest first. The
//! paper increases one at a time; here it is a sixteenth of them, so that there are few rounds.
//!
//! β is one rate in the paper; here offloads and prefetches have separate rates. The decisions become the no-wait, ordered
//! schedule (§5.3.1). The paper has no addresses: if none fit, the program is run for less memory.
//!
//! In a network that is no chain, such as U-Net, a late stage is the last to read tensors that an early stage's backward part
//! still needs: there the program counts them as temporaries, which cannot leave, and finds nothing although there are schedules.
//! Then it is run for more memory than there is, and its decisions are taken if they fit exactly.

use super::chain::{Stage, chain, swapped};
use crate::decide::gaps::Gaps;
use crate::place::realise::{CHEAP, Case, GIVEN, Realised};
use crate::request::{Error, Limits, Shortage};
use plimsoll_ir::{Bytes, define_id};
use typed_index_collections::TiVec;

define_id!(
    /// State after a stage.
    StateId, "state");

/// S.
const SLOTS: i64 = 500;

/// Maximum number of slots that a stage can move.
const MOVES: f64 = 1e12;

/// Shares of the pool that are planned for, until addresses fit.
const SHARES: [f64; 6] = [1.0, 0.99, 0.97, 0.94, 0.9, 0.8];

/// Shares that are planned for if nothing fits by the program's count, until the decisions fit exactly. Those that keep most come
/// first.
const WIDER: [f64; 10] = [3.0, 2.5, 2.0, 1.8, 1.6, 1.45, 1.3, 1.2, 1.1, 1.05];

pub(crate) fn realise(case: &Case<'_>) -> Result<Realised, Error> {
    let gaps = case.gaps();
    let stages = chain(case.trace, &gaps);
    for share in SHARES {
        let pool = Bytes(case.pool).share(share).0;
        let Some(offloaded) = decide(case, &gaps, &stages, pool, pool) else { break };
        // A schedule that gives up a pool's worth for addresses is the last resort.
        let attempts = if share > SHARES[SHARES.len() - 1] { &CHEAP[..] } else { &GIVEN[..] };
        let found = case.realise(&gaps, &swapped(&gaps, &stages, &offloaded), attempts)?;
        let short = matches!(&found, Realised::Short(witness) if witness.why == Shortage::Addresses);
        if !short {
            return Ok(found);
        }
    }
    for share in WIDER {
        let planned = Bytes(case.pool).share(share).0;
        let Some(offloaded) = decide(case, &gaps, &stages, case.pool, planned) else { continue };
        let found = case.realise(&gaps, &swapped(&gaps, &stages, &offloaded), &CHEAP)?;
        if !matches!(found, Realised::Short(_)) {
            return Ok(found);
        }
    }
    // The program allows nothing: all stages that can be offloaded are.
    case.realise(&gaps, &swapped(&gaps, &stages, &vec![true; stages.len()]), &GIVEN)
}

/// By stage: `true` if it is offloaded, by a program for `planned` bytes; `None` if nothing fits into the pool.
fn decide(case: &Case<'_>, gaps: &Gaps, stages: &[Stage], pool: u64, planned: u64) -> Option<Vec<bool>> {
    let link = &case.request.link;
    let rates = [link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0];
    let unit = (Bytes(planned).to_f64() / slots(SLOTS)).max(1.0);
    let exact: Vec<f64> = stages.iter().map(|stage| Bytes(stage.bytes).to_f64() / unit).collect();
    let mut x = differences(exact.iter().copied(), f64::ceil);
    loop {
        let program = Program::new(stages, &x, unit, rates);
        let offloaded = program.solve(&case.request.limits)?;
        let fits = gaps.least(&swapped(gaps, stages, &offloaded)).iter().all(|bytes| *bytes <= pool);
        if fits {
            return Some(offloaded);
        }
        let mut below: Vec<usize> = (0..x.len()).filter(|i| slots(x[*i]) < exact[*i]).collect();
        // Rounding makes up for slots, and not for bytes that do not exist.
        if planned > pool || below.is_empty() || case.request.limits.is_expired() {
            return None;
        }
        let short = |i: &usize| exact[*i] - slots(x[*i]);
        below.sort_by(|a, b| short(a).total_cmp(&short(b)));
        below.iter().take(x.len().div_ceil(16)).for_each(|i| x[*i] += 1);
    }
}

/// Returns a number of slots as a real number: exact, as all are below 2^53.
fn slots(count: i64) -> f64 {
    count as f64
}

/// Returns a rounded number of slots.
fn whole(slots: f64) -> i64 {
    slots as i64
}

/// Returns the differences of rounded partial sums.
fn differences(values: impl Iterator<Item = f64>, round: fn(f64) -> f64) -> Vec<i64> {
    let (mut sum, mut before) = (0.0, 0i64);
    let difference = |value: f64| {
        sum += value;
        let now = whole(round(sum));
        let difference = now - before;
        before = now;
        difference
    };
    values.map(difference).collect()
}

/// Sizes in slots, and times in slots that the link moves meanwhile.
struct Program {
    x: Vec<i64>,
    /// Needs of F_i and B_i in addition to kept and waiting bytes of earlier stages.
    needs: [Vec<i64>; 2],
    /// u_F·β and u_B·β.
    moves: [Vec<i64>; 2],
    /// Seconds to move a slot, out and in.
    seconds: [f64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct ChainState {
    kept: i64,
    /// d_F and d_B.
    waiting: [i64; 2],
    /// Seconds of stall.
    idle: f64,
    step: Step,
}

/// Origin of a state, which is all that is stored of the states of earlier stages.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    /// Previous state, and `true` if the stage between was offloaded.
    from: StateId,
    offloaded: bool,
}

impl Program {
    fn new(stages: &[Stage], x: &[i64], unit: f64, rates: [f64; 2]) -> Program {
        let mut sum = 0;
        let mut needs = [Vec::new(), Vec::new()];
        for (stage, x) in stages.iter().zip(x) {
            sum += stage.bytes;
            for (needs, most) in needs.iter_mut().zip([stage.forward.bytes, stage.backward.bytes]) {
                needs.push(x + whole(((Bytes(most).to_f64() - Bytes(sum).to_f64()) / unit).ceil()));
            }
        }
        // Amounts above everything count as everything: sums stay within 64 bits.
        let forward = stages.iter().map(|stage| (stage.forward.seconds * rates[0] / unit).min(MOVES));
        let backward = stages.iter().map(|stage| (stage.backward.seconds * rates[1] / unit).min(MOVES));
        let moves = [differences(forward, f64::floor), differences(backward, f64::floor)];
        Program { x: x.to_vec(), needs, moves, seconds: rates.map(|rate| unit / rate) }
    }

    /// Algorithm 1. `None` if nothing fits, or if time is up.
    fn solve(&self, limits: &Limits<'_>) -> Option<Vec<bool>> {
        let step = Step { from: StateId(0), offloaded: false };
        let first = ChainState { kept: 0, waiting: [0, 0], idle: 0.0, step };
        let mut states: TiVec<StateId, ChainState> = vec![first].into();
        let mut steps: Vec<TiVec<StateId, Step>> = Vec::with_capacity(self.x.len());
        for i in 0..self.x.len() {
            if i % 64 == 0 && limits.is_expired() {
                return None;
            }
            let mut fronts: Vec<Vec<ChainState>> = vec![Vec::new(); SLOTS as usize + 1];
            for (from, state) in states.iter_enumerated() {
                for next in self.advance(i, state, from).into_iter().flatten() {
                    // More than all slots can never be kept.
                    let kept = usize::try_from(next.kept).expect("no stage has fewer bytes than none");
                    if let Some(front) = fronts.get_mut(kept) {
                        insert(front, next);
                    }
                }
            }
            states = fronts.concat().into();
            steps.push(states.iter().map(|state| state.step).collect());
        }
        let total = |state: &ChainState| state.idle + self.between(state);
        let order = |a: &StateId, b: &StateId| {
            let (a, b) = (&states[*a], &states[*b]);
            total(a).total_cmp(&total(b)).then(b.kept.cmp(&a.kept))
        };
        let mut at = states.keys().min_by(order)?;
        let mut offloaded = vec![false; self.x.len()];
        for (offloaded, steps) in offloaded.iter_mut().zip(&steps).rev() {
            (*offloaded, at) = (steps[at].offloaded, steps[at].from);
        }
        Some(offloaded)
    }

    /// Equations (1) to (8): the states after stage i, with x_i offloaded and kept; `None` if it does not fit.
    fn advance(&self, i: usize, state: &ChainState, from: StateId) -> Option<[ChainState; 2]> {
        let mut passed = [0; 2];
        let mut idle = state.idle;
        for (direction, passed) in passed.iter_mut().enumerate() {
            let excess = state.kept + self.needs[direction][i] - SLOTS;
            if excess > 0 {
                return None;
            }
            let wait = (excess + state.waiting[direction].max(0)).max(0);
            idle += slots(wait) * self.seconds[direction];
            *passed = wait + self.moves[direction][i];
        }
        let [out, into] = state.waiting;
        // x_i can leave while F_i runs, but not come while B_i does.
        let waiting = [out.max(0) + self.x[i] - passed[0], self.x[i] + (into - passed[1]).max(0)];
        let step = Step { from, offloaded: true };
        let offloaded = ChainState { kept: state.kept, waiting, idle, step };
        let waiting = [out - passed[0], into - passed[1]];
        let step = Step { from, offloaded: false };
        Some([offloaded, ChainState { kept: state.kept + self.x[i], waiting, idle, step }])
    }

    /// Equations (9) and (10): the stall between the phases, in seconds.
    fn between(&self, state: &ChainState) -> f64 {
        let [out, into] = state.waiting;
        match (out > 0, into > 0) {
            (false, false) => 0.0,
            (true, true) => slots(out) * self.seconds[0] + slots(into) * self.seconds[1],
            // One direction continues during the first ops of the other phase: those of the backward pass in the order in which
            // they run, those of the forward pass from its end.
            (true, false) => self.overlap(state, 0, 1, -into),
            (false, true) => self.overlap(state, 1, 0, -out),
        }
    }

    fn overlap(&self, state: &ChainState, direction: usize, phase: usize, free: i64) -> f64 {
        let waiting = state.waiting[direction];
        // A slot of time, converted to the other rate.
        let scale = self.seconds[phase] / self.seconds[direction];
        let mut idle = slots(waiting) - slots(free) * scale;
        let mut alive: i64 = self.x.iter().sum();
        let offloaded = alive - state.kept;
        let mut passed = 0i64;
        for j in (0..self.x.len()).rev() {
            alive -= self.x[j];
            if passed >= free {
                break;
            }
            let held = alive + self.needs[phase][j] - offloaded + waiting;
            idle = idle.max(slots(held - SLOTS) - slots(passed) * scale);
            passed += self.moves[phase][j];
        }
        idle.max(0.0) * self.seconds[direction]
    }
}

/// Adds a state to those of its K, unless one is as good in everything; removes those that it dominates.
fn insert(front: &mut Vec<ChainState>, state: ChainState) {
    let no_worse = |a: &ChainState, b: &ChainState| {
        a.idle <= b.idle && a.waiting[0] <= b.waiting[0] && a.waiting[1] <= b.waiting[1]
    };
    if !front.iter().any(|other| no_worse(other, &state)) {
        front.retain(|other| !no_worse(&state, other));
        front.push(state);
    }
}
