//! Search among decisions: from seeds, by annealing (`annealer.rs`), in runs that continue from each other.
//!
//! The first run begins from the best seeds, at several temperatures. A later run continues from the last result, or restarts if
//! nothing fits, if the search lost its way, or if there are more seeds.
//!
//! This file deliberately neither assigns addresses to its results nor decides which run is the last (`stages.rs`).

use super::annealer::{Annealer, COLD};
use super::anytime::{self, Early};
use super::first;
use super::judge::{Aim, Found, Judged, LENIENT};
use super::moves::Moves;
use super::problem::Problem;
use super::seeds::{seeds, solutions};
use crate::bound::joint::Relaxed;
use crate::iteration::values::Decisions;
use crate::request::Trick;
use plimsoll_ir::OpId;
use typed_index_collections::TiVec;

/// Annealings at the beginning: index of the seed, best first, and temperature, in mean seconds of an op.
const STARTS: [(usize, f64); 5] = [(0, 1.0), (0, 0.1), (1, 0.35), (2, 0.1), (3, 0.35)];

/// Number of these that continue.
const GO_ON: usize = 2;

/// Share of an annealing in the evaluations, as a divisor; the last annealing has three such shares.
const PARTS: u64 = 10;

/// Cost of an excess byte up to which a search that found nothing that fits restarts.
const STRICT: f64 = 256.0;

/// Share of the first run's evaluations for a restarted search, as a divisor.
const ONCE_MORE: u64 = 3;

pub(super) struct Search<'a> {
    pub problem: &'a Problem<'a>,
    pub annealer: Annealer<'a>,
    /// Solutions of the linear program, from which seeds are rounded.
    pub solutions: Vec<Relaxed>,
    /// Decisions of the pass of `first.rs`, once it has run.
    first: Option<Decisions>,
    /// Further seeds: the plan for a few equal blocks, applied to all of them, and plans with fewer means.
    pub further: Vec<Decisions>,
    /// Evaluations of the first run.
    pub evaluations: u64,
    /// Number of chunks into which swapped parts of values are cut; `None` if values are swapped whole.
    chunks: Option<u8>,
    /// Result of the last run.
    last: Option<Found>,
    /// `true` if the next run begins from the seeds and the last result.
    pub fresh: bool,
    /// `true` if a run from the seeds begins from those that fit, however slow they are.
    pub safely: bool,
    /// Complete plans during the search, if requested.
    pub early: Option<Early>,
}

impl<'a> Search<'a> {
    /// Returns a search. `programs` is the maximum number of linear programs solved for seeds.
    pub fn new(problem: &'a Problem<'a>, evaluations: u64, programs: usize) -> Search<'a> {
        Search {
            problem,
            annealer: Annealer::new(problem),
            solutions: solutions(problem.case, programs),
            first: None,
            further: Vec::new(),
            evaluations,
            chunks: None,
            last: None,
            fresh: true,
            safely: false,
            early: None,
        }
    }

    /// Returns `true` if time was up.
    pub fn is_late(&self) -> bool {
        self.annealer.late
    }

    /// Returns the best decisions found, by a run from the seeds, or by a short run that continues from the last result.
    pub fn run(&mut self) -> Found {
        let share = self.evaluations / PARTS;
        let found = match self.last.take() {
            Some(last) if !self.fresh => {
                let last = self.annealer.found(last.decisions);
                self.annealer.anneal(share / 2, COLD, last)
            }
            last => {
                let share = if last.is_some() { share / ONCE_MORE } else { share };
                let mut seeds = self.seeds(last);
                self.add_early_seed(&seeds);
                if self.problem.uses(Trick::Restarts) {
                    self.restart(&seeds, share)
                } else {
                    self.annealer.anneal(PARTS * share, STARTS[0].1, seeds.swap_remove(0))
                }
            }
        };
        self.fresh = false;
        let judge = &mut self.annealer.judge;
        if found.judged.cost.overflow > 0 && self.problem.uses(Trick::Strictness) {
            // A few times from the start, then from the nearest miss.
            self.fresh = judge.strictness < STRICT;
            judge.strictness *= 4.0;
        } else {
            judge.strictness = LENIENT;
        }
        let lighter = judge.lighter_aim(&found.judged.cost);
        self.last = Some(found.clone());
        match lighter {
            Some(aim) if !self.is_late() && self.problem.uses(Trick::Lighten) => {
                self.lighten(aim, found, share)
            }
            _ => found,
        }
    }

    /// Returns all seeds and the last result, best first.
    fn seeds(&mut self, last: Option<Found>) -> Vec<Found> {
        let Problem { case, values, ref recompute_seconds, .. } = *self.problem;
        let rounded = seeds(case, values, &self.solutions, self.chunks.is_some());
        let first = self.first.get_or_insert_with(|| first::decisions(self.problem)).clone();
        let further = self.further.iter().cloned();
        let all = rounded.into_iter().chain([first]).chain(further).chain(last.map(|last| last.decisions));
        let host = self.annealer.judge.host.as_ref();
        let mended = |seed: &Decisions| host?.mended(values, seed, recompute_seconds);
        let all: Vec<Decisions> =
            all.flat_map(|seed| [mended(&seed), Some(seed)].into_iter().flatten()).collect();
        let chunks = self.chunks.unwrap_or(1);
        let found = all.into_iter().map(|seed| self.annealer.found(Decisions { chunks, ..seed }));
        let mut found: Vec<Found> = found.collect();
        let misses = |seed: &Found| self.safely && seed.judged.cost.overflow > 0;
        let score = |seed: &Found| self.annealer.judge.score(&seed.judged);
        found.sort_by(|a, b| misses(a).cmp(&misses(b)).then(score(a).total_cmp(&score(b))));
        found
    }

    /// Anneals from several seeds, continues with the best two results, then with the best.
    fn restart(&mut self, seeds: &[Found], share: u64) -> Found {
        let mut found = Vec::with_capacity(STARTS.len());
        for (at, heat) in STARTS {
            found.push(self.annealer.anneal(share, heat, seeds[at.min(seeds.len() - 1)].clone()));
            self.add_early(&found[found.len() - 1]);
        }
        self.annealer.judge.sort(&mut found);
        found.truncate(GO_ON);
        let mut found: Vec<Found> =
            found.into_iter().map(|found| self.annealer.anneal(share, COLD, found)).collect();
        self.annealer.judge.sort(&mut found);
        self.add_early(&found[0]);
        self.annealer.anneal(3 * share, COLD, found.swap_remove(0))
    }

    /// Reduces the bytes moved at the same makespan, when the makespan cannot be reduced.
    fn lighten(&mut self, aim: Aim, found: Found, share: u64) -> Found {
        self.annealer.judge.aim = aim;
        let lighter = self.annealer.lighten(found, share);
        let lighter = self.annealer.anneal(2 * share, COLD, lighter);
        let lighter = self.annealer.lighten(lighter, share);
        self.annealer.judge.aim = Aim::Time;
        lighter
    }

    /// Assigns addresses to a result, if complete plans are requested during the search and this one is faster than those so far.
    pub fn add_early(&mut self, found: &Found) {
        let Problem { case, values, .. } = *self.problem;
        if let Some(early) = self.early.as_mut().filter(|early| early.wants(found)) {
            early.add(case, values, &self.annealer.judge.margins, found);
        }
    }

    /// Does the same for the best seed that has addresses: as it is, or after a short search, with more and more bytes left free
    /// at every op. This does not affect the rest of the search.
    fn add_early_seed(&mut self, seeds: &[Found]) {
        let Some(mut early) = self.early.take() else { return };
        let Problem { case, values, .. } = *self.problem;
        let annealer = &mut self.annealer;
        let (margins, random) = (annealer.judge.margins.clone(), annealer.random.clone());
        let tries = anytime::FREE.iter().flat_map(|free| (0..anytime::SEEDS).map(move |at| (*free, at)));
        for (free, at) in tries {
            let mut seed = seeds[at.min(seeds.len() - 1)].clone();
            if let Some(part) = free {
                annealer.judge.leave(case.pool / part);
                seed = annealer.found(seed.decisions);
                seed = annealer.anneal(self.evaluations / anytime::SHORT, COLD, seed);
            }
            let fits = seed.judged.cost.overflow == 0 && early.is_faster(&seed);
            tracing::debug!(free, at, fits, seconds = seed.judged.cost.seconds, "early");
            if fits && early.add(case, values, &annealer.judge.margins, &seed) {
                break;
            }
        }
        (annealer.judge.margins, annealer.random) = (margins, random);
        self.early = Some(early);
    }

    /// Returns the cost of these decisions, and the maximum pool bytes of their steps.
    pub fn look(&mut self, decisions: Decisions) -> (Judged, u64) {
        let judged = self.annealer.found(decisions).judged;
        (judged, self.annealer.judge.needed())
    }

    /// Adds seeds, and starts the next run from the seeds if any were added.
    pub fn add_seeds(&mut self, seeds: Vec<Decisions>) {
        if !seeds.is_empty() {
            self.further.extend(seeds);
            self.fresh = true;
        }
    }

    /// Starts the next run from these decisions, in pieces of this many chunks or in whole values, with this many bytes left free
    /// by op.
    pub fn go_on(&mut self, decisions: Decisions, margins: TiVec<OpId, u64>, pieces: Option<u8>) {
        if let Some(chunks) = pieces {
            self.allow_pieces(chunks);
        }
        self.annealer.judge.margins = margins;
        self.last = Some(self.annealer.found(decisions));
        self.fresh = false;
    }

    /// Allows swapping parts of values, cut into this many chunks.
    pub fn allow_pieces(&mut self, chunks: u8) {
        self.chunks = Some(chunks);
        self.annealer.moves = Moves::new(self.problem, true);
        self.annealer.judge.margins.fill(0);
        self.fresh = true;
    }
}
