//! A lower bound on the makespan of schedules that recompute ops, by several instants at once.
//!
//! [`super::joint`] considers the end of one op. If memory is short repeatedly, as at the skips of a U-Net or with weights that
//! come and go, the work done before one instant has to be done again for the next.
//!
//! # The program
//!
//! Instants 1..m are just before the ends of the first runs of ops q(1) < ... < q(m); instant 0 is the start. Segment s lasts
//! from instant s to the next, the last one to the end. Values x, the operands of q, the values wanted after it, deadlines and
//! out_x, back_x are those of [`super::joint`]. All variables are from 0 to 1 but the times.
//!
//! ```text
//! minimise T(0) + ... + T(m)
//! (1) k(s,x) + b(s,x) + r(s,writer of x) >= 1        x wanted after q(s), and read by an op of segment s
//! (2) k(s,z) + b(s,z) + r(s,writer of z) >= r(s,w)   z an input of w, wanted after q(s)
//! (3) k(s,x) + b(s,x) + r(s,writer of x) >= k(s+1,x) x wanted after both
//! (4) sum of bytes_x k(s,x) <= budget - resident - bytes that q(s) touches - its workspace
//! (5) b(s,x) <= sum of o(t,x) over t < s             o(t,x) = 0 where x is made after segment t
//! (6) T(s) >= seconds of the ops of s + sum of seconds_w r(s,w)
//! (7) T(s) >= sum of back_x b(s,x); T(s) >= sum of out_x o(s,x); with a half-duplex link also the sum of both
//! (8) T(s) >= seconds from j to the end of s + sum of back_x b(s,x) over x read at or before j that no op can recompute
//! (9) T(s) >= seconds to the end of w + sum of out_x o(s,x) over x written at or after w
//! ```
//!
//! and for each instant but the last the program of [`super::joint`] for all that follows it, with shares S(s,x) and R(s,w):
//!
//! ```text
//! (10) k(s,x) + S(s,x) + R(s,writer of x) >= 1       x read after segment s, and not within
//! (11) k(s,z) + S(s,z) + R(s,writer of z) >= R(s,w)  z an input of w
//! (12) S(s,x) <= sum of b(t,x) over t >= s; S(s,x) <= sum of o(t,x) over t < s; R(s,w) <= sum of r(t,w) over t >= s
//! ```
//!
//! # Why it holds
//!
//! Take a valid schedule and its timeline, with commands that take some time (as in [`super::joint`]). For a byte of x, A(s)
//! is 1 if a buffer is open at instant s that holds it, else the part that is done of a prefetch that is filling one with it,
//! else 0. A transfer that lies across an instant counts for each segment in proportion to its time there, latency included.
//!
//! - k(s,x) is the mean of A(s) over x's bytes. r(s,w) = 1 if w is recomputed in segment s: the compute stream is busy with q
//!   at an instant, so that no such run lies across one.
//! - b(s,x): of every byte, the prefetch that is under way at instant s or else the first that starts later; the part of it
//!   that lies in segment s, at most 1 - A(s). But 0 if x's writer was recomputed between instant s and the start of that
//!   prefetch (not if it is under way).
//! - o(t,x): of every byte, the first offload; the part of it that lies in segment t.
//! - R and S are r and s of [`super::joint`] at instant s, S less the part of A(s) of a prefetch under way.
//! - (1) to (3): if r of the writer is 1 there is nothing to show. Else a byte that is in a buffer when an op of the segment
//!   starts, or at instant s + 1, was there at instant s or is filled by prefetches alone since; by the first of them, or it
//!   is under way. So A(s) and b add up to 1, or at least to A(s+1).
//! - (4): at an instant the buffers of other tensors than those that q touches share no byte (rule 4).
//! - (5): let b > 0 for a byte. A prefetch under way at instant s, or one that starts later while the byte is not there and
//!   the writer is not recomputed before, reads a host copy. The offload that made it ended by instant s: otherwise its
//!   buffer, open while it ran, held the byte at instant s (and b were 0), or was filled since, earlier than by the first
//!   that could. So the first offload of the byte ended by then, too. None starts before x is made.
//! - (6), (7): each stream runs one command at a time. Of a transfer of p bytes of x, latency / p + 1 / rate a byte is no
//!   less than out_x or back_x over bytes_x.
//! - (8): such an x is made once, before instant s, so that a byte which is missing then is filled by the prefetch that b
//!   counts, before j. (9): the first offload starts after x's writer has ended.
//! - (10), (11) are shown in [`super::joint`].
//! - (12): let S count a byte: it comes by a first fill after instant s, a prefetch, before the deadline, and the writer is
//!   not recomputed before. In the segment in which that prefetch starts, and in the next ones if it lies across instants, it
//!   is the one that b counts: A is 0 at the instant before it starts, and the part done of it later. The offload ended by
//!   instant s as in (5). A run that R counts is one of some segment. There are variables b(t,x) and r(t,w) for all t at
//!   whose beginning a deadline has not passed.
//!
//! Without swapping, b, o and S are dropped, and only (6) bounds the time.
//!
//! # How it is solved
//!
//! The program is not solved to optimality: any prices of the rows prove a bound ([`super::first_order`]). T(s) is at most
//! [`LONGEST`] times the known bound; a schedule in which it is more takes longer than any proved bound. Each stretch
//! of ops that need more than the budget has one instant, as long as there is time for it; long traces have no instants.

use super::first_order::Program;
use super::values::{Instant, Values};
use crate::request::Limits;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Duplex, Link};
use std::collections::BTreeMap;

/// Maximum length of a segment, as a multiple of the known bound; if it is exceeded, the known bound is too low.
const LONGEST: f64 = 3.0;
/// Maximum product of steps and numbers in rows.
const WORK: usize = 10_000_000;
/// Steps of the solver: fewer than the first prove little, more than the second hardly more.
const STEPS: [usize; 2] = [400, 1000];
/// Maximum number of instants.
const INSTANTS: usize = 8;
/// Maximum number of rows (8), and of rows (9), of a segment.
const LATE: usize = 6;

/// Input of the bound.
pub(super) struct Question<'a> {
    pub all: &'a Values,
    pub link: &'a Link,
    pub swap: bool,
    /// Bytes of the budget that are not resident.
    pub room: u64,
    /// Known bound, in seconds.
    pub known: f64,
}

type Columns = Vec<BTreeMap<usize, usize>>;

/// Program under construction.
struct Writer<'a> {
    question: &'a Question<'a>,
    /// Instants of segments 1 to m.
    instants: Vec<Instant>,
    /// By segment: positions of the wanted values.
    wanted: Vec<BTreeMap<usize, usize>>,
    program: Program,
    /// By segment: columns by value or op.
    kept: Columns,
    back: Columns,
    again: Columns,
    out: Columns,
    /// Divisor of seconds.
    scale: f64,
}

impl<'a> Writer<'a> {
    fn new(question: &'a Question<'a>, ops: &[usize]) -> Writer<'a> {
        let all = question.all;
        let instants: Vec<Instant> = ops.iter().map(|q| Instant::new(all, *q)).collect();
        let none = || vec![BTreeMap::new(); ops.len() + 1];
        let mut wanted = none();
        for (s, instant) in instants.iter().enumerate() {
            wanted[s + 1] = instant.wanted.iter().enumerate().map(|(at, v)| (v.value, at)).collect();
        }
        let scale = question.known;
        let program = Program::default();
        Writer {
            question,
            instants,
            wanted,
            program,
            kept: none(),
            back: none(),
            again: none(),
            out: none(),
            scale,
        }
    }

    /// Returns the instant at the beginning of a segment, which is not the first.
    fn instant(&self, segment: usize) -> &Instant {
        &self.instants[segment - 1]
    }

    /// Returns the first op after a segment.
    fn end(&self, segment: usize) -> usize {
        self.instants.get(segment).map_or(self.question.all.seconds.len(), |next| next.op + 1)
    }

    /// Returns the first op of a segment.
    fn begin(&self, segment: usize) -> usize {
        if segment == 0 { 0 } else { self.instant(segment).op + 1 }
    }

    fn last(&self) -> usize {
        self.instants.len()
    }

    fn columns(&mut self) {
        let Question { all, swap, .. } = *self.question;
        for s in 1..=self.last() {
            let values: Vec<(usize, usize)> =
                self.instant(s).wanted.iter().map(|v| (v.value, v.deadline)).collect();
            let makers: Vec<(usize, usize, f64)> =
                self.instant(s).makers.iter().map(|m| (m.op, m.deadline, m.seconds)).collect();
            for &(v, deadline) in &values {
                self.kept[s].insert(v, self.program.column(0.0, 1.0));
                for t in s..=self.last() {
                    let q = self.instant(t).op;
                    if swap && (t == s || (deadline > q && !all.touches(q, v))) {
                        self.back[t].entry(v).or_insert_with(|| self.program.column(0.0, 1.0));
                        for u in (0..t).filter(|u| all.values[v].slot < self.instants[*u].op + 1) {
                            self.out[u].entry(v).or_insert_with(|| self.program.column(0.0, 1.0));
                        }
                    }
                }
            }
            for (w, deadline, seconds) in makers {
                let cost = if swap { 0.0 } else { seconds / self.scale };
                for t in (s..=self.last()).filter(|t| *t == s || deadline > self.instants[t - 1].op) {
                    self.again[t].entry(w).or_insert_with(|| self.program.column(cost, 1.0));
                }
            }
        }
    }

    /// Returns the column of a value, with a factor, if there is one.
    fn part(of: &BTreeMap<usize, usize>, key: Option<usize>, factor: f64) -> Option<(usize, f64)> {
        key.and_then(|key| of.get(&key)).map(|column| (*column, factor))
    }

    /// Returns the possible sources of a value in a segment.
    fn had(&self, s: usize, v: usize) -> Vec<(usize, f64)> {
        let writer = self.question.all.values[v].slot.checked_sub(1);
        let parts = [
            Self::part(&self.kept[s], Some(v), 1.0),
            Self::part(&self.back[s], Some(v), 1.0),
            Self::part(&self.again[s], writer, 1.0),
        ];
        parts.into_iter().flatten().collect()
    }

    /// Adds rows (1) to (5).
    fn within(&mut self, s: usize) {
        let all = self.question.all;
        let wanted: Vec<(usize, usize, bool)> =
            self.instant(s).wanted.iter().map(|v| (v.value, v.deadline, v.needed)).collect();
        for &(v, deadline, needed) in &wanted {
            let had = self.had(s, v);
            if needed && deadline < self.end(s) {
                self.program.row(had, 1.0);
            } else if let Some(kept) = self.kept.get(s + 1).and_then(|kept| kept.get(&v)) {
                self.program.row(had.into_iter().chain([(*kept, -1.0)]), 0.0);
            }
        }
        let makers: Vec<(usize, usize)> = self.again[s].iter().map(|(w, column)| (*w, *column)).collect();
        for (w, column) in makers {
            for z in all.reads(w).iter().filter(|z| self.wanted[s].contains_key(z)) {
                let had = self.had(s, *z);
                self.program.row(had.into_iter().chain([(column, -1.0)]), 0.0);
            }
        }
        let weight = |v: usize| Bytes(all.values[v].bytes).to_f64();
        let unit = wanted.iter().map(|v| weight(v.0)).sum::<f64>().max(1.0);
        let room = Bytes(self.question.room.saturating_sub(self.instant(s).touched)).to_f64();
        let bytes = wanted.iter().map(|v| (self.kept[s][&v.0], -weight(v.0) / unit));
        self.program.row(bytes, -room / unit);
        let back: Vec<(usize, usize)> = self.back[s].iter().map(|(v, column)| (*v, *column)).collect();
        for (v, column) in back {
            let left = self.left(s, v);
            self.program.row(left.into_iter().chain([(column, -1.0)]), 0.0);
        }
    }

    /// Returns the offloads of a value before a segment.
    fn left(&self, s: usize, v: usize) -> Vec<(usize, f64)> {
        self.out[..s].iter().filter_map(|out| Self::part(out, Some(v), 1.0)).collect()
    }

    /// Adds rows (10) to (12).
    fn beyond(&mut self, s: usize) {
        let swap = self.question.swap;
        let count = self.instant(s).wanted.len();
        let mut column = || self.program.column(0.0, 1.0);
        let come: Vec<Option<usize>> = (0..count).map(|_| swap.then(&mut column)).collect();
        let made: Vec<usize> = (0..self.instants[s - 1].makers.len()).map(|_| column()).collect();
        let had = |of: &Writer<'_>, at: usize| -> Vec<(usize, f64)> {
            let wanted = &of.instant(s).wanted[at];
            let kept = of.kept[s][&wanted.value];
            let others = [come[at], wanted.maker.map(|m| made[m])].into_iter().flatten();
            [kept].into_iter().chain(others).map(|column| (column, 1.0)).collect()
        };
        for at in 0..count {
            let wanted = &self.instant(s).wanted[at];
            let (v, needed, deadline) = (wanted.value, wanted.needed, wanted.deadline);
            if needed && deadline >= self.end(s) {
                let had = had(self, at);
                self.program.row(had, 1.0);
            }
            if let Some(come) = come[at] {
                let back: Vec<(usize, f64)> =
                    self.back[s..].iter().filter_map(|back| Self::part(back, Some(v), 1.0)).collect();
                let left = self.left(s, v);
                self.program.row(back.into_iter().chain([(come, -1.0)]), 0.0);
                self.program.row(left.into_iter().chain([(come, -1.0)]), 0.0);
            }
        }
        for (m, made) in made.iter().enumerate() {
            let (w, inputs) = (self.instant(s).makers[m].op, self.instant(s).makers[m].inputs.clone());
            let runs: Vec<(usize, f64)> =
                self.again[s..].iter().filter_map(|again| Self::part(again, Some(w), 1.0)).collect();
            self.program.row(runs.into_iter().chain([(*made, -1.0)]), 0.0);
            for z in inputs {
                let had = had(self, z);
                self.program.row(had.into_iter().chain([(*made, -1.0)]), 0.0);
            }
        }
    }

    /// Adds rows (6) to (9), with the column of T.
    fn times(&mut self, s: usize) {
        let Question { all, link, .. } = *self.question;
        let (begin, end) = (self.begin(s), self.end(s));
        let seconds = |from: usize, to: usize| (all.until[to] - all.until[from]) / self.scale;
        let time = self.program.column(1.0, LONGEST);
        let latency = link.latency_seconds.0;
        let cost = |v: usize, rate: f64| -(Bytes(all.values[v].bytes).to_f64() / rate + latency) / self.scale;
        let back: Vec<(usize, (usize, f64))> = self.back[s]
            .iter()
            .map(|(v, c)| (*v, (*c, cost(*v, link.prefetch_bytes_per_second.0))))
            .collect();
        let out: Vec<(usize, (usize, f64))> =
            self.out[s].iter().map(|(v, c)| (*v, (*c, cost(*v, link.offload_bytes_per_second.0)))).collect();
        let again: Vec<(usize, f64)> =
            self.again[s].iter().map(|(w, c)| (*c, -all.seconds[*w] / self.scale)).collect();
        let parts = |of: &[(usize, (usize, f64))]| of.iter().map(|part| part.1).collect::<Vec<_>>();
        let mut rows = vec![(again, seconds(begin, end)), (parts(&back), 0.0), (parts(&out), 0.0)];
        if link.duplex == Duplex::Half {
            rows.push((parts(&back).into_iter().chain(parts(&out)).collect(), 0.0));
        }
        // Values that no op can recompute: by the op that reads them first in this segment.
        let mut due: Vec<(usize, (usize, f64))> = Vec::new();
        if s > 0 {
            let wanted = |v: &usize| self.wanted[s].get(v).map(|at| &self.instant(s).wanted[*at]);
            let sure = back.iter().filter_map(|(v, part)| wanted(v).map(|wanted| (wanted, part)));
            let sure = sure.filter(|(w, _)| w.needed && w.maker.is_none() && w.deadline < end);
            due = sure.map(|(w, part)| (w.deadline, *part)).collect();
        }
        for j in some(due.iter().map(|due| due.0)) {
            let early = due.iter().filter(|due| due.0 <= j).map(|due| due.1).collect();
            rows.push((early, seconds(j, end)));
        }
        for slot in some(out.iter().map(|(v, _)| all.values[*v].slot).filter(|slot| *slot > begin)) {
            let late = out.iter().filter(|(v, _)| all.values[*v].slot >= slot).map(|part| part.1).collect();
            rows.push((late, seconds(begin, slot)));
        }
        for (parts, right) in rows {
            self.program.row(parts.into_iter().chain([(time, 1.0)]), right);
        }
    }
}

/// Returns a few of these, evenly spread.
fn some(numbers: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    let step = numbers.len().div_ceil(LATE).max(1);
    numbers.into_iter().step_by(step).collect()
}

/// Returns the ops at whose ends the instants are: from each stretch of the ops that need more than there is room for, the one
/// that needs most, and one that is known to be good.
fn choose(excess: &[u64], count: usize, good: Option<usize>) -> Vec<usize> {
    let over: Vec<usize> = (0..excess.len()).filter(|p| excess[*p] > 0).collect();
    let stretch = over.len().div_ceil(count).max(1);
    let most = |ops: &[usize]| ops.iter().copied().max_by_key(|p| (excess[*p], std::cmp::Reverse(*p)));
    let mut ops: Vec<usize> = over.chunks(stretch).filter_map(most).chain(good).collect();
    ops.sort_unstable();
    ops.dedup();
    ops
}

/// Returns the bound in seconds; 0 if nothing is proved, as for traces that are too long.
pub(super) fn bound(question: &Question<'_>, good: Option<usize>, limits: &Limits<'_>) -> f64 {
    let all = question.all;
    let excess: Vec<u64> = all.in_use().iter().map(|bytes| bytes.saturating_sub(question.room)).collect();
    for count in (2..=INSTANTS).rev().step_by(2) {
        let ops = choose(&excess, count, good);
        // A value has some ten numbers in the rows of a segment.
        let guess: usize = ops.len() * all.values.len() / 2 * 10;
        if ops.len() < 2 || guess * STEPS[0] > 4 * WORK {
            continue;
        }
        let mut writer = Writer::new(question, &ops);
        writer.columns();
        (1..=ops.len()).for_each(|s| writer.within(s));
        (1..ops.len()).for_each(|s| writer.beyond(s));
        if question.swap {
            (0..=ops.len()).for_each(|s| writer.times(s));
        }
        let steps = WORK / writer.program.size().max(1);
        if steps < STEPS[0] || limits.is_expired() {
            continue;
        }
        let proved = writer.program.prove(steps.min(STEPS[1]), limits) * question.known;
        let total = all.until[all.seconds.len()];
        return if question.swap {
            proved.min(LONGEST * question.known)
        } else {
            (total + proved).min(2.0 * total)
        };
    }
    0.0
}
