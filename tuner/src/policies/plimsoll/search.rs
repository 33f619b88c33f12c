//! The search among decisions: simulated annealing on what [`crate::decide::walk`] and [`crate::decide::windows`] say that they cost.

use super::anytime::{self, Early};
use super::first;
use super::host::Host;
use super::moves::{Change, Move};
use super::seeds::{seeds, solutions};
use super::{HAIR, SAME};
use crate::bound::joint::Relaxed;
use crate::decide::walk::{Iteration, Limit, Trail};
use crate::decide::windows::{Clock, Cost};
use crate::iteration::values::{Choice, Decisions, NONE, Values};
use crate::place::realise::Task;
use crate::random::Random;
use crate::request::Trick;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

/// The searches that begin: from which seed, the best first, at which temperature, in mean seconds of an op.
const STARTS: [(usize, f64); 5] = [(0, 1.0), (0, 0.1), (1, 0.35), (2, 0.1), (3, 0.35)];

/// What a byte that does not fit costs at first, beside one that goes over the link.
const LENIENT: f64 = 4.0;

/// Until it costs so much, a search that found nothing that fits begins anew.
const STRICT: f64 = 256.0;

/// What does not fit counts at the slot where it is most, and at every other, too, so that one of several peaks can be lowered
/// before the rest: at so many slots together as much as at that one.
const PEAK: f64 = 16.0;

/// A search that begins once more has such a part of the evaluations of the first.
const ONCE_MORE: u64 = 3;

/// The temperature at which a search goes on.
const COLD: f64 = 0.06;

/// What a search looks for.
#[derive(Clone, Copy, Debug)]
enum Aim {
    /// The shortest makespan.
    Time,
    /// The fewest bytes moved, within so many seconds.
    Bytes { within: f64 },
}

/// What decisions cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub cost: Cost,
    /// Seconds spent on running ops again.
    pub again: f64,
    /// Bytes swapped that the host has no memory for.
    pub over_host: u64,
    /// An op at which room is missing, if it is at some.
    crowded: Option<Crowded>,
}

/// Where room is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowded {
    /// While this op runs,
    pub op: u32,
    /// or while others run again for it.
    pub again: bool,
}

/// Decisions and what they cost.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub decisions: Decisions,
    pub judged: Judged,
}

pub(super) struct Search<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) values: &'a Values,
    /// The linear program's, from which seeds are rounded.
    pub(super) solutions: Vec<Relaxed>,
    /// Seeds beside those of the linear program: what was planned for a few equal blocks, for all of them, and what fewer means
    /// find.
    pub(super) further: Vec<Decisions>,
    /// What the pass of `first.rs` decides, once it was asked.
    first: Option<Decisions>,
    trail: Trail,
    /// By op: the bytes that are left free for addresses.
    margins: Vec<u64>,
    clock: Clock,
    /// The host, where not everything fits it.
    pub host: Option<Host>,
    pub(super) random: Random,
    /// What may be changed, each move with the sum of the weights up to it.
    pub(super) moves: Vec<(f64, Move)>,
    /// Gaps that may be decided otherwise than to keep, in order of time, and where each stands among them.
    pub(super) worthy: Vec<u32>,
    /// Gaps that are alike: same kind and bytes of the maker, same distance.
    pub(super) kinds: Vec<Vec<u32>>,
    pub(super) kind_of: Vec<(u32, u32)>,
    /// The seconds of all ops in their fastest ways.
    fastest: f64,
    /// By value: seconds to make it for its bytes.
    pub(super) dearness: Vec<f64>,
    /// Ops with more than one way, and values of which a part may be swapped.
    pub(super) choosable: Vec<u32>,
    /// Evaluations of the first run.
    pub(super) evaluations: u64,
    /// What the last run found.
    last: Option<Found>,
    aim: Aim,
    /// Whether parts of values are swapped.
    pub(super) pieces: bool,
    /// Into how many chunks they are cut on their way.
    chunks: u8,
    /// Whether a search begins.
    fresh: bool,
    /// What a byte that does not fit costs, beside one that goes over the link.
    strictness: f64,
    /// Whether a search that begins does so from what fits, however slow that is.
    safely: bool,
    /// Whole plans on the way, where they are asked for.
    pub early: Option<Early>,
    pub late: bool,
}

impl<'a> Search<'a> {
    /// `programs` is how many linear programs are solved for seeds at most.
    pub fn new(task: &'a Task<'a>, values: &'a Values, evaluations: u64, programs: usize) -> Search<'a> {
        let mut worthy: Vec<u32> = (0..values.gaps.len() as u32)
            .filter(|g| values.gaps[*g as usize].swap || values.gaps[*g as usize].remake)
            .collect();
        let dust = task.pool / 20_000;
        if task.request.uses(Trick::Dust) {
            worthy.retain(|g| values.bytes[values.gaps[*g as usize].value as usize] > dust);
        }
        worthy.sort_by_key(|g| (values.gaps[*g as usize].after.wrapping_add(1), *g));
        let mut by_kind: BTreeMap<(&str, u64, u32), Vec<u32>> = BTreeMap::new();
        for &g in &worthy {
            let gap = &values.gaps[g as usize];
            let v = gap.value as usize;
            let kind = values
                .maker
                .get(v)
                .filter(|m| **m != NONE)
                .map_or("", |m| task.trace.ops[*m as usize].kind.as_str());
            by_kind.entry((kind, values.bytes[v], g - values.first_gap[v])).or_default().push(g);
        }
        let kinds: Vec<Vec<u32>> = by_kind.into_values().collect();
        let mut kind_of = vec![(NONE, NONE); values.gaps.len()];
        for (k, gaps) in kinds.iter().enumerate() {
            gaps.iter().enumerate().for_each(|(at, g)| kind_of[*g as usize] = (k as u32, at as u32));
        }
        let choosable =
            (0..values.ways.len() as u32).filter(|op| values.ways[*op as usize].len() > 1).collect();
        let dearness = |v: usize| match values.maker[v] {
            NONE => 0.0,
            maker => values.ways[maker as usize][0].seconds / values.bytes[v] as f64,
        };
        let mut search = Search {
            task,
            values,
            moves: Vec::new(),
            solutions: solutions(task, programs),
            further: Vec::new(),
            first: None,
            trail: Trail::default(),
            margins: vec![0; values.ways.len()],
            clock: Clock::new(&task.request.link),
            host: Host::new(task, values),
            random: Random::new(task.request.seed),
            worthy,
            kinds,
            kind_of,
            choosable,
            dearness: (0..values.tensor.len()).map(dearness).collect(),
            fastest: values.ways.iter().map(|ways| ways[0].seconds).sum(),
            evaluations,
            last: None,
            aim: Aim::Time,
            pieces: false,
            chunks: 1,
            fresh: true,
            strictness: LENIENT,
            safely: false,
            early: None,
            late: false,
        };
        search.moves = search.moves();
        search
    }

    /// The best decisions found: by a run from the seeds, or by a short one that goes on from what was found last.
    pub fn run(&mut self) -> Found {
        let share = self.evaluations / 10;
        let found = match self.last.take() {
            Some(last) if !self.fresh => {
                let last = self.found(last.decisions);
                self.anneal(share / 2, COLD, last)
            }
            last => {
                let share = if last.is_some() { share / ONCE_MORE } else { share };
                let seeds = seeds(self.task, self.values, &self.solutions, self.pieces);
                let first =
                    self.first.get_or_insert_with(|| first::decisions(self.task, self.values)).clone();
                let seeds = seeds.into_iter().chain([first]);
                let seeds = seeds.chain(self.further.clone()).chain(last.map(|last| last.decisions));
                let chunks = self.chunks;
                let host = self.host.as_ref();
                let mended = |seed: &Decisions| host?.mended(self.values, seed, &self.dearness);
                let with_mended = |seed| [mended(&seed), Some(seed)].into_iter().flatten();
                let seeds: Vec<Decisions> = seeds.flat_map(with_mended).collect();
                let mut seeds: Vec<Found> =
                    seeds.into_iter().map(|seed| self.found(Decisions { chunks, ..seed })).collect();
                let misses = |seed: &Found| self.safely && seed.judged.cost.overflow > 0;
                seeds.sort_by(|a, b| {
                    misses(a).cmp(&misses(b)).then(self.score(&a.judged).total_cmp(&self.score(&b.judged)))
                });
                self.add_early_seed(&seeds);
                if self.task.request.uses(Trick::Restarts) {
                    self.restart(&seeds, share)
                } else {
                    self.anneal(10 * share, STARTS[0].1, seeds.swap_remove(0))
                }
            }
        };
        self.fresh = false;
        if found.judged.cost.overflow > 0 && self.task.request.uses(Trick::Strictness) {
            // A few times from the start; then from what is nearly there.
            self.fresh = self.strictness < STRICT;
            self.strictness *= 4.0;
        } else {
            self.strictness = LENIENT;
        }
        self.last = Some(found.clone());
        let cost = &found.judged.cost;
        let within = cost.seconds.max(self.task.bound.0) * (1.0 + SAME / 2.0);
        let settled = cost.overflow == 0 && cost.seconds <= self.task.bound.0 * (1.0 + SAME);
        if settled && !self.late && self.task.request.uses(Trick::Lighten) {
            // Faster it cannot be; with fewer bytes moved perhaps.
            self.aim = Aim::Bytes { within };
            let lighter = self.lighten(found, share);
            let lighter = self.anneal(2 * share, COLD, lighter);
            let lighter = self.lighten(lighter, share);
            self.aim = Aim::Time;
            return lighter;
        }
        found
    }

    /// A short search from these decisions, with so many bytes left free by op.
    pub fn improve(&mut self, decisions: Decisions, evaluations: u64, margins: &[u64]) -> Found {
        self.margins.copy_from_slice(margins);
        self.strictness = 4.0 * LENIENT;
        let from = self.found(decisions);
        self.anneal(evaluations, COLD, from)
    }

    /// Gives addresses to what was found, where whole plans are asked for on the way and it is faster than those so far.
    pub fn add_early(&mut self, found: &Found) {
        if let Some(early) = self.early.as_mut().filter(|early| early.wants(found)) {
            early.add(self.task, self.values, &self.margins, found);
        }
    }

    /// The same for the best of the seeds that has addresses: as they are, or after a short search, with more and more bytes
    /// left free at every op. The search goes on as if nothing had happened.
    fn add_early_seed(&mut self, seeds: &[Found]) {
        let Some(mut early) = self.early.take() else { return };
        let (margins, random) = (self.margins.clone(), self.random.clone());
        let tries = anytime::FREE.iter().flat_map(|free| (0..anytime::SEEDS).map(move |at| (*free, at)));
        for (free, at) in tries {
            let mut seed = seeds[at.min(seeds.len() - 1)].clone();
            if let Some(part) = free {
                self.leave(self.task.pool / part);
                seed = self.found(seed.decisions);
                seed = self.anneal(self.evaluations / anytime::SHORT, COLD, seed);
            }
            let fits = seed.judged.cost.overflow == 0 && early.is_faster(&seed);
            tracing::debug!(free, at, fits, seconds = seed.judged.cost.seconds, "early");
            if fits && early.add(self.task, self.values, &self.margins, &seed) {
                break;
            }
        }
        (self.margins, self.random) = (margins, random);
        self.early = Some(early);
    }

    /// Searches from several seeds, and goes on with the best two of what comes of it, then with the best.
    fn restart(&mut self, seeds: &[Found], share: u64) -> Found {
        let mut found = Vec::with_capacity(STARTS.len());
        for (at, heat) in STARTS {
            found.push(self.anneal(share, heat, seeds[at.min(seeds.len() - 1)].clone()));
            self.add_early(&found[found.len() - 1]);
        }
        self.sort(&mut found);
        let mut found: Vec<Found> =
            found.into_iter().take(2).map(|found| self.anneal(share, COLD, found)).collect();
        self.sort(&mut found);
        self.add_early(&found[0]);
        self.anneal(3 * share, COLD, found.swap_remove(0))
    }

    /// Keeps what need not be swapped, largest first, as far as so many evaluations go.
    fn lighten(&mut self, mut found: Found, evaluations: u64) -> Found {
        let mut swapped: Vec<u32> = (0..self.values.gaps.len() as u32)
            .filter(|g| found.decisions.choices[*g as usize] == Choice::Swap)
            .collect();
        let bytes = |g: &u32| self.values.bytes[self.values.gaps[*g as usize].value as usize];
        swapped.sort_by_key(|g| (Reverse(bytes(g)), *g));
        for g in swapped.into_iter().take(evaluations as usize) {
            found.decisions.choices[g as usize] = Choice::Keep;
            let judged = self.judge(&found.decisions, 0, f64::INFINITY);
            if self.score(&judged) < self.score(&found.judged) {
                found.judged = judged;
            } else {
                found.decisions.choices[g as usize] = Choice::Swap;
            }
        }
        found
    }

    /// The next run begins from these, too, if there are any.
    pub fn add_seeds(&mut self, seeds: Vec<Decisions>) {
        if !seeds.is_empty() {
            self.further.extend(seeds);
            self.begin_anew();
        }
    }

    /// The next run begins from the seeds, and from what the last one found.
    pub fn begin_anew(&mut self) {
        self.fresh = true;
    }

    /// So does it, from those that fit, however slow they are: what did not fit led to nothing that does.
    pub fn begin_safely(&mut self) {
        self.fresh = true;
        self.safely = true;
    }

    /// From now on parts of values are swapped, too, cut into so many chunks.
    pub fn allow_pieces(&mut self, chunks: u8) {
        self.chunks = chunks;
        self.pieces = true;
        self.moves = self.moves();
        self.margins.fill(0);
        self.begin_anew();
    }

    /// The best first.
    fn sort(&self, found: &mut [Found]) {
        found.sort_by(|a, b| {
            self.rank(&a.judged).partial_cmp(&self.rank(&b.judged)).unwrap_or(Ordering::Equal)
        });
    }

    /// What does not fit comes after what does, whatever it takes.
    fn rank(&self, judged: &Judged) -> (bool, f64) {
        (judged.cost.overflow > 0, self.score(judged))
    }

    /// By op: the bytes that are left free for addresses.
    pub fn margins(&self) -> &[u64] {
        &self.margins
    }

    /// Leaves more bytes free.
    pub fn widen(&mut self, excess: &[u64], share: f64) {
        let everywhere = excess.iter().max().copied().unwrap_or_default();
        let narrow = self.task.request.uses(Trick::Margins);
        for ((margin, excess), spare) in self.margins.iter_mut().zip(excess).zip(self.task.spare()) {
            let excess = if narrow { *excess } else { everywhere };
            *margin = margin.saturating_add((excess as f64 * share) as u64).min(spare);
        }
    }

    /// Leaves so many bytes free at every op that does not need them itself.
    pub fn leave(&mut self, bytes: u64) {
        self.margins.fill(0);
        self.widen(&vec![bytes; self.task.trace.ops.len()], 1.0);
    }

    /// Leaves fewer bytes free; tells whether that can be.
    pub fn narrow(&mut self) -> bool {
        let some = self.margins.iter().any(|margin| *margin > 0);
        self.margins.iter_mut().for_each(|margin| *margin = *margin / 5 * 4);
        some
    }

    /// What these decisions cost; infinitely much where that is certainly more than a score of `most`. They differ from
    /// those that stand only in what matters from op `first` on.
    fn judge(&mut self, decisions: &Decisions, first: u32, most: f64) -> Judged {
        let steps = 3 * self.values.ways.len() + 64;
        // Drawn for what is cut off, too, so that this changes nothing of what follows.
        let place = self.random.unit();
        let again = match self.aim {
            Aim::Time => most * (1.0 + HAIR) - self.fastest,
            Aim::Bytes { .. } => f64::INFINITY,
        };
        let of = Iteration { values: self.values, decisions, margins: &self.margins, pool: self.task.pool };
        let ended = self.trail.go(of, first, Limit { steps, again });
        let walk = self.trail.walk();
        let over = walk.course.need.iter().map(|need| need.saturating_sub(self.task.pool));
        let (overflow, excess) =
            over.fold((0, 0u64), |(most, sum), over| (over.max(most), sum.saturating_add(over)));
        let over_host = self.host.as_mut().map_or(0, |host| host.over(self.values, walk));
        let overflow = overflow.saturating_add(over_host);
        let least = Cost { seconds: self.fastest.max(walk.seconds), overflow, excess, ..Cost::default() };
        let again = walk.again_seconds;
        if !ended || self.score(&Judged { cost: least, again, over_host, crowded: None }) > most {
            let cost = Cost { seconds: f64::INFINITY, ..Cost::default() };
            return Judged { cost, again: 0.0, over_host, crowded: None };
        }
        let mut cost = self.clock.evaluate(&walk.course, self.task.pool);
        cost.overflow = cost.overflow.saturating_add(over_host);
        let over = self.clock.over();
        let crowded = (!over.is_empty()).then(|| {
            let run = walk.run(over[(place * over.len() as f64) as usize]);
            Crowded { op: run.serves, again: run.op != run.serves }
        });
        Judged { cost, again, over_host, crowded }
    }

    fn found(&mut self, decisions: Decisions) -> Found {
        let judged = self.judge(&decisions, 0, f64::INFINITY);
        Found { decisions, judged }
    }

    /// What these decisions cost, and the pool bytes that their steps need at most.
    pub(super) fn look(&mut self, decisions: Decisions) -> (Judged, u64) {
        let judged = self.found(decisions).judged;
        (judged, self.trail.walk().course.need.iter().max().copied().unwrap_or_default())
    }

    /// The first op to which changes of the decisions that stand matter.
    fn first(&self, changed: &Decisions, changes: &[Change]) -> u32 {
        let look = |change: &Change| match *change {
            Change::Gap(g, _) => self.trail.look(self.values, g),
            Change::Part(v, _) => self.trail.look_at_part(self.values, changed, v),
            Change::Way(op, _) => op,
            Change::Early(g, old) => old.min(changed.early_of(g)),
        };
        changes.iter().map(look).min().unwrap_or(NONE)
    }

    /// What counts, in seconds: time, or bytes moved, with what does not fit counted as if it went over the link many
    /// times, the more the longer nothing fits; and as a hint the seconds that the link and the device spend on it.
    pub(super) fn score(&self, judged: &Judged) -> f64 {
        let Judged { cost, again, .. } = judged;
        let link = &self.task.request.link;
        let slow = link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0);
        let scale = self.task.bound.0.max(cost.seconds * 1e-3);
        let penalty = if cost.overflow > 0 {
            let bytes = cost.overflow as f64 + cost.excess as f64 / PEAK;
            self.strictness * (bytes / slow + 1e-3 * scale)
        } else {
            0.0
        };
        let moved = cost.moved as f64 / slow;
        match self.aim {
            Aim::Time => cost.seconds + penalty + 1e-5 * moved + 1e-5 * again,
            Aim::Bytes { within } if cost.seconds > within => {
                moved + penalty + 20.0 * (cost.seconds - within) + 0.01 * scale
            }
            Aim::Bytes { .. } => moved + penalty,
        }
    }

    /// Whether there is nothing more to be found.
    fn done(&self, cost: &Cost) -> bool {
        let fits = cost.overflow == 0;
        match self.aim {
            Aim::Time => fits && cost.seconds <= self.task.bound.0 * (1.0 + HAIR),
            Aim::Bytes { within } => fits && cost.seconds <= within && cost.moved == 0,
        }
    }

    /// Improves on decisions with so many evaluations. `heat` is the temperature at the start, in mean seconds of an op.
    fn anneal(&mut self, evaluations: u64, heat: f64, from: Found) -> Found {
        let request = self.task.request;
        let unit = if request.uses(Trick::Heat) { heat / self.values.ways.len() as f64 } else { 0.0 };
        let mut current = self.score(&from.judged);
        let mut state = from.decisions.clone();
        let mut crowded = from.judged.crowded;
        let mut best = (self.rank(&from.judged), from);
        let mut changes = Vec::new();
        if self.worthy.is_empty() {
            return best.1;
        }
        self.judge(&state, 0, f64::INFINITY);
        self.trail.accept(self.values);
        for evaluation in 0..evaluations {
            if self.done(&best.1.judged.cost) {
                break;
            }
            if evaluation % 64 == 0 && self.task.request.limits.is_expired() {
                self.late = true;
                break;
            }
            let progress = evaluation as f64 / evaluations as f64;
            self.change(&mut state, crowded, &mut changes);
            if changes.is_empty() {
                continue;
            }
            // What is taken is drawn first, so that what cannot be taken need not be timed.
            let warmth = best.0.1 * unit * (1.0 - progress) * (1.0 - progress);
            let most = current - warmth * self.random.unit().max(f64::MIN_POSITIVE).ln();
            let first = self.first(&state, &changes);
            if first == NONE {
                continue;
            }
            let judged =
                self.judge(&state, first, if request.uses(Trick::Cutoff) { most } else { f64::INFINITY });
            let next = self.score(&judged);
            if next <= most {
                self.trail.accept(self.values);
                current = next;
                crowded = judged.crowded;
                let rank = (judged.cost.overflow > 0, next);
                if rank < best.0 {
                    best = (rank, Found { decisions: state.clone(), judged });
                }
            } else {
                changes.iter().rev().for_each(|change| change.undo(&mut state));
            }
        }
        best.1
    }
}
