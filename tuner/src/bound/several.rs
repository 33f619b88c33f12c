//! A lower bound on the makespan of schedules that recompute ops and swap nothing, by several instants at once.
//!
//! [`super::joint`] considers the end of one op. If memory is short repeatedly, as at the skips of a U-Net, the work done before one
//! instant has to be done again for the next.
//!
//! # The program
//!
//! Instants 1..m are just before the ends of the first runs of ops q(1) < ... < q(m). Segment s lasts from instant s to the next,
//! the last one to the end. Values x, the operands of q, the values wanted after it and deadlines are those of [`super::joint`]. All
//! variables are from 0 to 1.
//!
//! ```text
//! minimise sum of seconds_w r(s,w)
//! (1) k(s,x) + r(s,writer of x) >= 1        x wanted after q(s), and read by an op of segment s
//! (2) k(s,z) + r(s,writer of z) >= r(s,w)   z an input of w, wanted after q(s)
//! (3) k(s,x) + r(s,writer of x) >= k(s+1,x) x wanted after both
//! (4) sum of bytes_x k(s,x) <= budget - resident - bytes that q(s) touches - its workspace
//! ```
//!
//! and for each instant but the last the program of [`super::joint`] for all that follows it, with shares R(s,w):
//!
//! ```text
//! (5) k(s,x) + R(s,writer of x) >= 1        x read after segment s, and not within
//! (6) k(s,z) + R(s,writer of z) >= R(s,w)   z an input of w
//! (7) R(s,w) <= sum of r(t,w) over t >= s
//! ```
//!
//! # Why it holds
//!
//! Take a valid schedule without transfers and its timeline, with commands that take some time (as in [`super::joint`]).
//!
//! - k(s,x) is the share of x's bytes for which a buffer that holds them is open at instant s. r(s,w) = 1 if w is recomputed in
//!   segment s: the compute stream is busy with q at an instant, so that no such run lies across one. R is r of [`super::joint`] at
//!   instant s.
//! - (1) to (3): if r of the writer is 1 there is nothing to show. Else nothing fills a byte of x within the segment, so that one
//!   that is in a buffer when an op of the segment starts, or at instant s + 1, was there at instant s.
//! - (4): at an instant the buffers of other tensors than those that q touches share no byte (rule 4).
//! - (5), (6) are shown in [`super::joint`].
//! - (7): a run that R counts is one of some segment. There are variables r(t,w) for all t at whose beginning a deadline has not
//!   passed.
//!
//! # How it is solved
//!
//! The program is not solved to optimality: any prices of the rows prove a bound ([`super::first_order`]). Each stretch of ops that
//! need more than the budget has one instant, as long as there is time for it; long traces have no instants.
//!
//! This file deliberately has no transfers: with them, several instants gave no sharper bound than one for any trace that was tried.

use super::first_order::Program;
use super::likeliest;
use super::values::{Instant, Values};
use crate::request::Limits;
use plimsoll_ir::Bytes;
use std::collections::BTreeMap;

/// Maximum product of steps and numbers in rows.
const WORK: usize = 10_000_000;
/// Steps of the solver: fewer than the first prove little, more than the second hardly more.
const STEPS: [usize; 2] = [400, 1000];
/// Maximum number of instants.
const INSTANTS: usize = 8;

/// By segment: columns by value or op.
type Columns = Vec<BTreeMap<usize, usize>>;

/// Program under construction.
struct Writer<'a> {
    all: &'a Values,
    /// By segment: the instant at its beginning.
    instants: Vec<Instant>,
    program: Program,
    kept: Columns,
    again: Columns,
}

impl Writer<'_> {
    /// Returns the first op after a segment.
    fn end(&self, segment: usize) -> usize {
        self.instants.get(segment + 1).map_or(self.all.seconds.len(), |next| next.op + 1)
    }

    /// Adds the columns; a second of recomputing costs 1 / `scale`.
    fn columns(&mut self, scale: f64) {
        let count = self.instants.len();
        for (s, instant) in self.instants.iter().enumerate() {
            for wanted in &instant.wanted {
                self.kept[s].insert(wanted.value, self.program.column(0.0));
            }
            for maker in &instant.makers {
                for t in (s..count).filter(|t| *t == s || maker.deadline > self.instants[*t].op) {
                    let column = || self.program.column(maker.seconds / scale);
                    self.again[t].entry(maker.op).or_insert_with(column);
                }
            }
        }
    }

    /// Adds a row: the sources of a value in a segment, and these columns with their factors, are at least `right`.
    fn provide(&mut self, s: usize, v: usize, others: Option<(usize, f64)>, right: f64) {
        let writer = self.all.values[v].slot.checked_sub(1);
        let made = writer.and_then(|writer| self.again[s].get(&writer));
        let had = self.kept[s].get(&v).into_iter().chain(made).map(|column| (*column, 1.0));
        self.program.row(had.chain(others), right);
    }

    /// Adds rows (1) to (4).
    fn within(&mut self, s: usize, room: u64) {
        let (all, end) = (self.all, self.end(s));
        let wanted = self.instants[s].wanted.iter().map(|v| (v.value, v.needed && v.deadline < end));
        for (v, read) in wanted.collect::<Vec<_>>() {
            if read {
                self.provide(s, v, None, 1.0);
            } else if let Some(&kept) = self.kept.get(s + 1).and_then(|kept| kept.get(&v)) {
                self.provide(s, v, Some((kept, -1.0)), 0.0);
            }
        }
        for (w, column) in self.again[s].clone() {
            for &z in all.reads[w].iter().filter(|z| self.kept[s].contains_key(z)).collect::<Vec<_>>() {
                self.provide(s, z, Some((column, -1.0)), 0.0);
            }
        }
        let instant = &self.instants[s];
        let unit = instant.wanted.iter().map(|v| v.bytes).sum::<f64>().max(1.0);
        let room = Bytes(room.saturating_sub(instant.touched)).to_f64();
        let bytes = instant.wanted.iter().map(|v| (self.kept[s][&v.value], -v.bytes / unit));
        self.program.row(bytes, -room / unit);
    }

    /// Adds rows (5) to (7).
    fn beyond(&mut self, s: usize) {
        let (instant, end) = (&self.instants[s], self.end(s));
        let made: Vec<usize> = instant.makers.iter().map(|_| self.program.column(0.0)).collect();
        let had = |at: usize| {
            let wanted = &instant.wanted[at];
            let columns = [self.kept[s][&wanted.value]].into_iter().chain(wanted.maker.map(|m| made[m]));
            columns.map(|column| (column, 1.0))
        };
        for (at, _) in instant.wanted.iter().enumerate().filter(|(_, v)| v.needed && v.deadline >= end) {
            self.program.row(had(at), 1.0);
        }
        for (maker, made) in instant.makers.iter().zip(&made) {
            let runs = self.again[s..].iter().filter_map(|again| again.get(&maker.op));
            self.program.row(runs.map(|column| (*column, 1.0)).chain([(*made, -1.0)]), 0.0);
            maker.inputs.iter().for_each(|z| self.program.row(had(*z).chain([(*made, -1.0)]), 0.0));
        }
    }
}

/// Returns the bound in seconds, for `room` bytes that are not resident and a known bound; 0 if nothing is proved, as for traces
/// that are too long. `good` is an op whose end is known to be a good instant.
pub(super) fn bound(all: &Values, room: u64, known: f64, good: Option<usize>, limits: &Limits<'_>) -> f64 {
    let excess: Vec<u64> = all.in_use().iter().map(|bytes| bytes.saturating_sub(room)).collect();
    for count in (2..=INSTANTS).rev().step_by(2) {
        let mut ops = likeliest(&excess, count);
        ops.extend(good);
        ops.sort_unstable();
        ops.dedup();
        // A value has some ten numbers in the rows of a segment.
        let guess: usize = ops.len() * all.values.len() / 2 * 10;
        if ops.len() < 2 || guess * STEPS[0] > 4 * WORK {
            continue;
        }
        let instants = ops.iter().map(|q| Instant::new(all, *q)).collect();
        let [kept, again] = [(); 2].map(|()| vec![BTreeMap::new(); ops.len()]);
        let mut writer = Writer { all, instants, program: Program::default(), kept, again };
        writer.columns(known);
        (0..ops.len()).for_each(|s| writer.within(s, room));
        (0..ops.len() - 1).for_each(|s| writer.beyond(s));
        let steps = WORK / writer.program.size().max(1);
        if steps < STEPS[0] || limits.is_expired() {
            continue;
        }
        let total = all.until[all.seconds.len()];
        let proved = writer.program.prove(steps.min(STEPS[1]), limits) * known;
        return (total + proved).min(2.0 * total);
    }
    0.0
}
