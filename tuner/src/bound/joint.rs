//! A lower bound on the makespan of every schedule, whether it swaps, recomputes ops or both: a linear program, by columns.
//!
//! # The program
//!
//! A *value* is a tensor in one version. Choose an op p; below, *end of p* is the instant just before its first run ends. For
//! every value x that is written no later than p, that p does not touch (it neither reads and leaves x, nor writes it) and that
//! may be wanted after p, there are fractions k (kept) and s (swapped); for every recomputable op w <= p that could be wanted
//! again, a number r.
//!
//! ```text
//! minimise T1 + T2
//! (1) k_x + s_x + r(writer of x) >= 1            x read by an op after p
//! (2) k_z + s_z + r(writer of z) >= r(w)         z an input of w
//! (3) sum of bytes_x k_x <= budget - resident - bytes that p touches - its workspace
//! (4) T1 >= seconds of the ops through p
//! (5) T1 >= seconds of the ops through w + sum of out_x s_x over x written at or after w      every w; and from the start
//! (6) T2 >= seconds of the ops after p + sum of seconds_w r(w)
//! (7) T2 >= seconds of the ops from j on + sum of back_x s_x over x with a deadline at or before j    every j after p
//! (8) sum of bytes_x s_x <= the host's memory, if that is limited
//! ```
//!
//! out_x = latency + bytes / offload rate, back_x alike; seconds are those of the fastest, workspace that of the leanest
//! alternative of an op; r = 0 if x is on the device from the start or its writer is not recomputable. The *deadline* of a value
//! that some op after p reads is the first such op; of any other value, the last deadline of the ops that would read it if they
//! were recomputed, where the deadline of an op is the last one of its outputs that p does not touch. A value without a deadline
//! is not wanted. The largest minimum over all tried p counts.
//!
//! # Why it holds
//!
//! Take a valid schedule and its timeline, and let T1 be the end of p's first run and T2 the rest of the makespan. The variables
//! are read off as follows; then every row holds, so that the minimum is no more than the makespan. (Let every command take some
//! time. If commands take none, give each an e more: the schedule stays valid, its makespan and the program are continuous in e,
//! and e goes to 0.)
//!
//! - k_x: the share of x's bytes for which, at the end of p, a buffer is open that holds x and that p does not write, or
//!   that a prefetch under way is filling with x.
//! - r(w) = 1 if w is recomputed after the end of p and before (the first run of) its deadline starts, else 0.
//! - s_x = 0 where r(writer of x) = 1; else the share of x's bytes that are not in k_x and that a prefetch which starts
//!   after the end of p brings before x's deadline starts.
//!
//! *First fills.* Let a command that runs after p and no later than x's deadline read x, and let r(writer of x) = 0. A
//! byte of x that is not in k_x is in no buffer at the end of p, and is read from one later: something fills it in
//! between. No compute does: the ops through p have had their first runs and only the writer of x makes x, which does not
//! run again before its own deadline, which is no earlier than x's. So a prefetch does, and the first that does starts
//! after the end of p (one under way is in k_x). The byte is in s_x.
//!
//! - (1) x's deadline reads it, in its first run. If r(writer) = 0, all its bytes are in k or in s by the above.
//! - (2) If r(w) = 1, w is recomputed after p and before w's deadline, reading z. If an op after p reads z, let j be the
//!   first: j or that run of w, whichever is earlier, is the reader, and not after z's deadline j. Else z's deadline is at
//!   or after w's. An input that p touches has no row, and one that p overwrites has one: a copy of it after p lies next
//!   to p's operands.
//! - (3) At the end of p all tensors that p reads, writes and uses as workspace lie in open buffers, at least as many bytes as
//!   the leanest alternative needs. The buffers of k are others: they hold other tensors, or the version of one that p
//!   overwrites elsewhere. Buffers that are open at one time share no byte of the pool (rule 4), a prefetch's included.
//! - (4) The compute stream has run all ops through p, once each at least.
//! - (5) A byte in s_x is prefetched from a host copy that was offloaded from an open buffer that held x. That offload
//!   ended by the end of p: had it not, the buffer that it reads would hold x at the end of p, so that the byte were in
//!   k_x, or would have been filled after p and before the first fill. It started after x was first written (rules 2
//!   and 3: an op is recomputed only after it ran), so no earlier than the ops through the writer take; and offloads of one
//!   stream follow each other. Every such x needs one transfer at least, and s_x <= 1: the latency counts s_x times at
//!   most.
//! - (6) After p the compute stream runs the later ops and, of those with r = 1, one run at least.
//! - (7) The transfers of s_x start after the end of p, follow each other, and end before x's deadline starts, after which
//!   the compute stream has all ops from there on to run.
//! - (8) A byte in s_x is on the host at the end of p, by (5), in the place of its tensor, which holds one version of it.
//!
//! # Without swapping
//!
//! Then every s is 0, whatever it would cost: rows (5) are dropped, and back_x is a price per byte that is far above that of
//! running ops again. The program has a solution for it even if no schedule fits. Since r <= 1, a minimum of more than twice the
//! seconds of all ops proves that none does, and the bound is limited to that.
//!
//! Likewise if the host is limited: a byte that exceeds it has such a price, and a minimum above the seconds of all ops twice and
//! all transfers once proves that no schedule fits.
//!
//! Pieces are fractions; whole tensors are fractions 0 and 1. In-place updates are ops like others: running one again
//! reads the earlier version and makes the later one. On a half-duplex link all rows hold as they are.
//!
//! This is the program of an earlier prototype, with three differences, all of which make it sharper: values that are needed only
//! for recomputing have deadlines, an earlier version of a value that p updates is not free, and latency counts.
//!
//! # How it is solved
//!
//! A solver of linear programs takes seconds at 10,000 ops. But at fixed prices for rows (3) to (7) the rest, (1) and (2), is a
//! minimum cut (`bound/cut.rs`), whose corners are whole numbers; so columns are generated (`bound/master.rs`: Dantzig and
//! Wolfe's decomposition), until the best mixture of columns costs no more than the bound that the prices prove. Every set of
//! prices proves a bound (Lagrange's), however it was found: a solver's error cannot make the bound wrong, only weak.
//!
//! This file deliberately does not try p at all ops of a long trace, combine several instants in one program (`bound/several.rs`
//! does, without swapping), or count the memory that recomputing needs, or memory before p. It has no better rows for half duplex.

use super::cut::Cut;
use super::master::{Choice, Column, Frame, Master, Prices};
use super::values::{Instant, Values, Wanted};
use super::{likeliest, several};
use crate::numbers::real;
use crate::request::{Allow, Limits};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, Seconds, TensorId};

/// The search for a bound ends within this share of the best that its instant can give.
const CLOSE: f64 = 2e-6;
/// Cost of lacking all wanted values if nothing is swapped, in seconds of all ops.
const LACK: f64 = 1e3;
/// Maximum number of columns of one instant.
const COLUMNS: usize = 120;
/// Maximum product of columns and ops, as every column has a few bytes per op.
const CELLS: usize = 40_000_000;
/// Number of stretches into which the ops that need more than the budget are cut.
const STRETCHES: usize = 64;
/// Maximum product of stretches and ops.
const WORK: usize = 250_000;

/// Program of one instant.
struct Program<'a> {
    instant: &'a Instant,
    frame: Frame,
    /// By wanted value: the seconds that each stream needs for it, and its bytes; all divided by the scales.
    out: Vec<f64>,
    back: Vec<f64>,
    bytes: Vec<f64>,
    again: Vec<f64>,
    /// Made for the first prices.
    cut: Option<Cut>,
    bound: f64,
    /// Maximum number of columns.
    columns: usize,
    limits: &'a Limits<'a>,
}

impl<'a> Program<'a> {
    fn new(search: &Search<'a>, instant: &'a Instant) -> Program<'a> {
        let Search { all, link, swap, room, host, scale, limits } = search;
        let p = instant.op;
        let sum: f64 = instant.wanted.iter().map(|v| v.bytes).sum::<f64>().max(1.0);
        let latency = link.latency_seconds.0;
        let by_link = |rate: f64| move |v: &Wanted| (v.bytes / rate + latency) / scale;
        let (out, back): (Vec<f64>, Vec<f64>) = if *swap {
            let out = by_link(link.offload_bytes_per_second.0);
            let back = by_link(link.prefetch_bytes_per_second.0);
            instant.wanted.iter().map(|v| (out(v), back(v))).unzip()
        } else {
            instant.wanted.iter().map(|v| (0.0, v.bytes / sum * LACK)).unzip()
        };
        let total = all.until[all.until.len() - 1];
        let frame = Frame {
            released: all.until[..=p + 1].iter().map(|s| s / scale).collect(),
            rest: all.until[p + 1..all.until.len() - 1].iter().map(|s| (total - s) / scale).collect(),
            room: Bytes(room.saturating_sub(instant.touched)).to_f64() / sum,
            host: host.filter(|_| *swap).map(|host| Bytes(host).to_f64() / sum),
            lack: LACK,
        };
        Program {
            instant,
            frame,
            out,
            back,
            bytes: instant.wanted.iter().map(|v| v.bytes / sum).collect(),
            again: instant.makers.iter().map(|m| m.seconds / scale).collect(),
            cut: None,
            bound: 0.0,
            columns: (CELLS / all.until.len()).clamp(8, COLUMNS),
            limits,
        }
    }

    /// Returns the best column at these prices, and records the bound that they prove.
    fn price(&mut self, prices: &Prices) -> Column {
        let Program { instant, frame, .. } = self;
        let (p, wanted) = (instant.op, &instant.wanted);
        let mut by_slot = vec![0.0; frame.released.len()];
        let mut by_deadline = vec![0.0; frame.rest.len()];
        let mut bound =
            prices.before() * frame.released[frame.released.len() - 1] - prices.memory * frame.room;
        bound += prices.after() * frame.rest.first().copied().unwrap_or_default();
        bound -= prices.host * frame.host.unwrap_or_default();
        for &(w, price) in &prices.out {
            bound += price * frame.released[w];
            by_slot[w] += price;
        }
        for &(j, price) in &prices.back {
            bound += price * frame.rest[j];
            by_deadline[j] += price;
        }
        (1..by_slot.len()).for_each(|w| by_slot[w] += by_slot[w - 1]);
        (1..by_deadline.len()).rev().for_each(|j| by_deadline[j - 1] += by_deadline[j]);
        let keep = |v: usize| prices.memory * self.bytes[v];
        let swap = |v: usize| {
            let moved = by_slot[wanted[v].slot] * self.out[v]
                + by_deadline[wanted[v].deadline - p - 1] * self.back[v];
            moved + prices.host * self.bytes[v]
        };
        let each: Vec<f64> = (0..wanted.len()).map(|v| keep(v).min(swap(v))).collect();
        let makers: Vec<f64> = self.again.iter().map(|s| s * prices.after()).collect();
        let cut = self.cut.get_or_insert_with(|| Cut::new(instant));
        let cheapest = cut.cheapest(&each, &makers, 1e-13, self.limits);
        let fixed = wanted.iter().zip(&each).filter(|(v, _)| v.needed && v.maker.is_none());
        bound += fixed.map(|(_, price)| price).sum::<f64>() + cheapest.cost;
        self.bound = self.bound.max(bound);
        let choice = choose(instant, cheapest.again, |v| keep(v) < swap(v));
        self.column(choice)
    }

    /// Returns the known choice of a different instant as a column of this one: values wanted only here are swapped.
    fn column_like(&self, known: &Known) -> Column {
        let again = self.instant.makers.iter().map(|maker| known.again[maker.op]).collect();
        let wanted = &self.instant.wanted;
        self.column(choose(self.instant, again, |v| known.kept[wanted[v].value]))
    }

    /// Returns the column of a choice.
    fn column(&self, choice: Choice) -> Column {
        let wanted = &self.instant.wanted;
        let mut out = vec![0.0; self.frame.released.len()];
        let mut back = vec![0.0; self.frame.rest.len()];
        let (mut bytes, mut hosted) = (0.0, 0.0);
        for (v, kept) in choice.kept.iter().enumerate() {
            match kept {
                Some(true) => bytes += self.bytes[v],
                Some(false) => {
                    hosted += self.bytes[v];
                    out[wanted[v].slot] += self.out[v];
                    back[wanted[v].deadline - self.instant.op - 1] += self.back[v];
                }
                None => {}
            }
        }
        (1..out.len()).rev().for_each(|w| out[w - 1] += out[w]);
        (1..back.len()).for_each(|j| back[j] += back[j - 1]);
        let again = self.again.iter().zip(&choice.again).filter(|(_, again)| **again).map(|(s, _)| s).sum();
        Column { kept: bytes, hosted, out, back, again, choice }
    }

    /// Looks for the best prices, as long as they may give more than `enough`, from columns like the known ones. Returns the
    /// columns with their fractions in the cheapest mixture; none if there is no mixture.
    fn solve(&mut self, enough: f64, known: &[Known]) -> Vec<(Column, f64)> {
        let kept = self.instant.wanted.iter().map(|v| v.needed.then_some(false)).collect();
        let mut master = Master::new(self.column(Choice { kept, again: vec![false; self.again.len()] }));
        master.columns.extend(known.iter().map(|known| self.column_like(known)));
        let mut parts = Vec::new();
        // Without a mixture the bound stays at the one proved so far.
        while let Some(mixture) = master.mixture(&self.frame) {
            parts = mixture.parts;
            let close = mixture.cost <= self.bound.max(enough) * (1.0 + CLOSE);
            if close || master.columns.len() >= self.columns || self.limits.is_expired() {
                break;
            }
            master.columns.push(self.price(&mixture.prices));
        }
        master.columns.into_iter().zip(parts).filter(|(_, part)| *part > 0.0).collect()
    }
}

/// Returns the choice that recomputes these makers; `keep` selects the other wanted values that are kept, the rest is swapped.
fn choose(instant: &Instant, again: Vec<bool>, keep: impl Fn(usize) -> bool) -> Choice {
    let mut has: Vec<bool> = instant.wanted.iter().map(|v| v.needed).collect();
    for (maker, _) in instant.makers.iter().zip(&again).filter(|(_, again)| **again) {
        maker.inputs.iter().for_each(|v| has[*v] = true);
    }
    let made = |v: usize| instant.wanted[v].maker.is_some_and(|m| again[m]);
    let kept = (0..has.len()).map(|v| (has[v] && !made(v)).then(|| keep(v))).collect();
    Choice { kept, again }
}

/// Choice at some instant, to be reused for others: a choice that is best at one op's end is mostly good at the next op's, and
/// often shows at once that the next op gives no better bound.
struct Known {
    /// By value: `true` if it is kept.
    kept: Vec<bool>,
    /// By op: `true` if it is recomputed.
    again: Vec<bool>,
}

impl Known {
    fn new(all: &Values, instant: &Instant, choice: &Choice) -> Known {
        let mut known = Known { kept: vec![false; all.values.len()], again: vec![false; all.seconds.len()] };
        for (wanted, kept) in instant.wanted.iter().zip(&choice.kept) {
            known.kept[wanted.value] = *kept == Some(true);
        }
        for (maker, again) in instant.makers.iter().zip(&choice.again) {
            known.again[maker.op] = *again;
        }
        known
    }
}

/// Trace at a budget.
struct Search<'a> {
    all: Values,
    link: &'a Link,
    swap: bool,
    /// Bytes of the budget that are not resident.
    room: u64,
    /// Limit of swapped bytes; `None` means unlimited.
    host: Option<u64>,
    /// Divisor of seconds.
    scale: f64,
    limits: &'a Limits<'a>,
}

impl<'a> Search<'a> {
    fn new(trace: &Trace, budget: Bytes, link: &'a Link, allow: Allow, limits: &'a Limits<'a>) -> Search<'a> {
        let all = Values::of(trace, allow.recompute);
        let total = all.until[all.until.len() - 1];
        let room = budget.saturating_sub(trace.resident_bytes).0;
        // Smaller values cannot be a divisor, and need no scaling.
        let (host, scale) = (allow.host.map(|host| host.0), if total > 1e-200 { total } else { 1.0 });
        Search { all, link, swap: allow.swap, room, host, scale, limits }
    }

    /// Returns the largest possible minimum of a program that has a solution: all ops twice and, if bytes are swapped, everything
    /// each way.
    fn most(&self) -> f64 {
        let bytes: f64 = self.all.values.iter().map(|value| Bytes(value.bytes).to_f64()).sum();
        let rates = [self.link.offload_bytes_per_second, self.link.prefetch_bytes_per_second];
        let latency = 2.0 * self.link.latency_seconds.0 * real(self.all.values.len());
        let moved = rates.iter().map(|rate| bytes / rate.0).sum::<f64>() + latency;
        2.0 * self.all.until[self.all.seconds.len()] + if self.swap { moved } else { 0.0 }
    }

    /// Returns the largest bound of the tried ops, divided by the scale, and the op that gives it; `None` if that is no more than
    /// the sum of all seconds, or than the known bound.
    fn sharpest(&self, known: Seconds) -> (f64, Option<usize>) {
        let in_use = self.all.in_use();
        let excess: Vec<u64> = in_use.iter().map(|bytes| bytes.saturating_sub(self.room)).collect();
        let stretches = (WORK / excess.len()).clamp(4, STRETCHES);
        let (mut best, mut bound) = (None, self.all.until[excess.len()].max(known.0) / self.scale);
        let mut known: Vec<Known> = Vec::new();
        let mut sharpen = |ops: &mut dyn Iterator<Item = usize>| {
            for p in ops {
                if self.limits.is_expired() {
                    break;
                }
                let instant = Instant::new(&self.all, p);
                let mut program = Program::new(self, &instant);
                let columns = program.solve(bound, &known);
                if program.bound > bound && program.bound.is_finite() {
                    (best, bound) = (Some(p), program.bound);
                    let choices = columns.iter().map(|(column, _)| &column.choice);
                    known = choices.map(|choice| Known::new(&self.all, &instant, choice)).collect();
                }
            }
            (bound, best)
        };
        let (_, first) = sharpen(&mut likeliest(&excess, stretches).into_iter());
        let near = first.map(|p| p.saturating_sub(stretches / 2)..excess.len().min(p + stretches / 2));
        sharpen(&mut near.unwrap_or_default().filter(|p| excess[*p] > 0))
    }
}

/// Returns the bound for a valid trace, a budget that is not below its floor, and a link, of every schedule that uses only the
/// allowed means: swapping, recomputing, or both. It is never below the known bound, and the search skips values below that.
///
/// When time is up it is the best bound proved so far.
pub(super) fn bound(
    known: Seconds,
    trace: &Trace,
    budget: Bytes,
    link: &Link,
    allow: Allow,
    limits: &Limits<'_>,
) -> Seconds {
    let search = Search::new(trace, budget, link, allow, limits);
    let (bound, op) = search.sharpest(known);
    let short = !allow.swap || allow.host.is_some();
    // Beyond that no schedule fits.
    let one = known.0.max((bound * search.scale).min(if short { search.most() } else { f64::INFINITY }));
    let worth = !allow.swap && one > 0.0 && one.is_finite();
    let several = if worth { several::bound(&search.all, search.room, one, op, limits) } else { 0.0 };
    // Sums of many numbers are slightly off.
    Seconds(one.max(several * (1.0 - 1e-9)))
}

/// Solution of the program for the values that an op leaves: a seed for a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Relaxed {
    /// Its minimum, a bound for every schedule.
    pub bound: Seconds,
    /// Op whose end gives it; `None` if the bound is the sum of all seconds and nothing need be done.
    pub op: Option<OpId>,
    /// Values that the op does not touch and that may be wanted after it.
    pub values: Vec<Fate>,
}

/// Solution for one value. The part that is neither kept nor swapped is recomputed, or not wanted after all.
#[derive(Clone, Debug, PartialEq)]
pub struct Fate {
    /// Tensor of the value.
    pub tensor: TensorId,
    /// Op that writes it; `None` if it is on the device from the start.
    pub writer: Option<OpId>,
    /// Fraction that stays on the device, k of the program.
    pub kept: f64,
    /// Fraction that is swapped, s of the program.
    pub swapped: f64,
}

/// Returns the solution of the program that gives the bound.
pub fn relax(trace: &Trace, budget: Bytes, link: &Link, allow: Allow, limits: &Limits<'_>) -> Relaxed {
    let search = Search::new(trace, budget, link, allow, limits);
    let (bound, op) = search.sharpest(Seconds::ZERO);
    let bound = Seconds(bound * search.scale);
    let Some(p) = op else { return Relaxed { bound, op: None, values: Vec::new() } };
    let instant = Instant::new(&search.all, p);
    let columns = Program::new(&search, &instant).solve(0.0, &[]);
    let share = |holds: &dyn Fn(&Choice) -> bool| -> f64 {
        columns.iter().filter(|(column, _)| holds(&column.choice)).map(|(_, part)| part).sum()
    };
    let fate = |(v, value): (usize, &Wanted)| Fate {
        tensor: value.tensor,
        writer: value.slot.checked_sub(1).map(OpId::new),
        kept: share(&|choice| choice.kept[v] == Some(true)),
        swapped: share(&|choice| choice.kept[v] == Some(false)),
    };
    let values = instant.wanted.iter().enumerate().map(fate).collect();
    Relaxed { bound, op: Some(OpId::new(p)), values }
}

#[cfg(test)]
#[path = "joint_tests.rs"]
mod tests;
