//! Stages of the search: whole tensors first, then parts of them, then these chunk by chunk. A stage consists of rounds, and a
//! round anneals, packs and offers:
//!
//! 1. *Anneal.* A run of the search (`search.rs`) finds decisions.
//! 2. *Pack.* The decisions get addresses, if a plan of their cost is wanted.
//! 3. *Offer.* A plan with addresses is a candidate. If addresses miss the pool, the next round leaves some bytes free at the
//!    ops that are too high, and restarts from the seeds if that led astray.
//!
//! If nothing has addresses in the end, bytes are left free at every op.
//!
//! This file deliberately orders transfers only by use, and takes account of addresses only through the bytes that it leaves
//! free.

use super::anytime::Early;
use super::candidates::Candidates;
use super::first::GoOn;
use super::glances::{Glances, SMALL};
use super::problem::{Problem, suggested};
use super::search::Search;
use crate::decide::windows::Cost;
use crate::iteration::values::{Decisions, PARTS, Values};
use crate::numbers::counted;
use crate::place::realise::{Case, Packing, Realised};
use crate::request::{Allow, Error, Limits, PlanRequest, Trick};
use plimsoll_ir::search_log::StepResult;
use plimsoll_ir::{Bytes, OpId, Seconds};
use typed_index_collections::TiVec;

/// Maximum number of rounds of a stage.
const ROUNDS: u64 = 16;

/// Rounds of a search that continues from a plan, and the divisor of their address looks.
const FEW_ROUNDS: u64 = 4;
const FEWER_LOOKS: u64 = 4;

/// Slowdown from leaving bytes free above which the search restarts (a limited number of times): it lost its way rather than its
/// room.
const LOST: f64 = 1.03;
const ANEW: u64 = 2;

/// Parts of the pool, as divisors, that are left free at every op, in turn, while nothing as fast as that has addresses.
const SPARE: [u64; 7] = [200, 100, 50, 33, 25, 16, 8];

/// Rounds without a result that fits after which the search begins from seeds that fit.
const MISSES: u32 = 4;

/// Rounds that miss by no less than before after which the stage ends.
const STUCK: u32 = 7;

/// Maximum factor on the usual looks for the addresses of one plan.
const MOST_EFFORT: u64 = 4;

/// Minimum share of the looks when evaluations are few, as a divisor.
const LEAST_LOOKS: u64 = 8;

/// A plan within this factor of the bound is not worth a further search.
const GOOD: f64 = 1.03;

/// Pieces are tried if a tensor is larger than this part of the pool: they leave holes, and gain little otherwise.
const COARSE: u64 = 12;

/// If a tensor is larger than this part, and there are few ops to choose among instead, pieces are also cut into chunks that
/// leave and return separately: a chunk waits only for its own room, but conflicts with more transfers.
const VERY_COARSE: u64 = 4;
const FEW_OPS: u64 = 250;
const CHUNKS: u8 = 4;

/// With pieces, which rarely pay on large traces, the rounds are limited so that they look at about this many ops in total, with
/// a minimum number of rounds.
const PIECE_OPS: u64 = 2000;
const PIECE_ROUNDS: u64 = 4;

#[derive(Clone, Copy)]
struct Stage {
    /// Name in the log.
    name: &'static str,
    /// Number of chunks into which parts of tensors are cut; `None` if tensors are swapped whole.
    chunks: Option<u8>,
    /// Maximum number of rounds.
    rounds: u64,
    /// `true` if the stage is skipped when the plans so far are good.
    only_if_poor: bool,
}

/// Returns the stages of a problem, in order.
fn stages(problem: &Problem<'_>) -> Vec<Stage> {
    let Allow { pieces, recompute, swap, .. } = problem.case.request.allow;
    let (ops, pool) = (counted(problem.case.trace.ops.len()), problem.case.pool);
    let largest = problem.values.bytes.iter().max().copied().unwrap_or_default();
    let very_coarse = largest > pool / VERY_COARSE && ops <= FEW_OPS;
    let mut stages = vec![Stage { name: "whole tensors", chunks: None, rounds: ROUNDS, only_if_poor: false }];
    if pieces && swap && largest > pool / COARSE {
        let rounds = (PIECE_OPS / ops).clamp(PIECE_ROUNDS, ROUNDS);
        // If ops are recomputed, whole tensors mostly do as well as pieces.
        let parts = Stage { name: "parts of tensors", chunks: Some(1), rounds, only_if_poor: false };
        stages.push(Stage { only_if_poor: recompute && !very_coarse, ..parts });
        let chunks = Stage { name: "chunks of tensors", chunks: Some(CHUNKS), ..parts };
        stages.push(Stage { only_if_poor: !very_coarse, ..chunks });
    }
    stages
}

/// Runs the search: seeds, then for each stage rounds that anneal, pack and offer.
pub(super) fn search(case: &Case<'_>, glances: &Glances, candidates: &mut Candidates) -> Result<(), Error> {
    let first = std::mem::take(&mut candidates.early);
    let early = if case.request.anytime { Some(Early::new(case, first)?) } else { None };
    let values = case.values();
    let problem = Problem::new(case, &values);
    let mut search = Search::new(&problem, problem.evaluations(), usize::MAX);
    search.early = early;
    if problem.uses(Trick::Copies) {
        search.copy_blocks();
    }
    for stage in stages(&problem) {
        if stage.only_if_poor && candidates.fastest() <= candidates.bound * GOOD {
            continue;
        }
        if let Some(chunks) = stage.chunks {
            search.allow_pieces(chunks);
        }
        let (packing, effort, lowest) = (Packing::default(), 1, f64::INFINITY);
        let (problem, search, glances) = (&problem, &mut search, Some(glances));
        Rounds { stage, problem, glances, search, candidates, packing, effort, lowest, needs: None }.go()?;
        if search.is_late() || candidates.settled() {
            break;
        }
    }
    let Early { found, fault, .. } = search.early.take().unwrap_or_default();
    (candidates.early, candidates.late) = (found, search.is_late());
    fault.map_or(Ok(()), Err)
}

/// Runs a few rounds that continue from decisions, in whole tensors or in pieces as they are.
pub(super) fn go_on(
    case: &Case<'_>,
    values: &Values,
    from: GoOn,
    candidates: &mut Candidates,
) -> Result<(), Error> {
    let GoOn { decisions, margins, packing } = from;
    let usual = case.request.limits.evaluations.unwrap_or_else(|| suggested(values));
    // Addresses have less work, too.
    let limits = Limits { evaluations: Some(usual / FEWER_LOOKS), ..case.request.limits };
    let case = &Case { request: &PlanRequest { limits, ..*case.request }, ..*case };
    let problem = &Problem::new(case, values);
    let pieces = decisions.parts.iter().any(|parts| *parts < PARTS).then_some(decisions.chunks);
    let search = &mut Search::new(problem, usual, 0);
    search.go_on(decisions, margins, pieces);
    let stage = Stage { name: "going on", chunks: pieces, rounds: FEW_ROUNDS, only_if_poor: false };
    let (effort, lowest, glances) = (1, f64::INFINITY, None);
    Rounds { stage, problem, glances, search, candidates, packing, effort, lowest, needs: None }.rounds()?;
    candidates.late = search.is_late();
    Ok(())
}

/// Rounds of a stage.
struct Rounds<'a, 'p> {
    stage: Stage,
    problem: &'p Problem<'p>,
    /// Plans with fewer means; `None` if they are not requested.
    glances: Option<&'a Glances>,
    search: &'a mut Search<'p>,
    candidates: &'a mut Candidates,
    packing: Packing,
    /// Factor on the usual looks for addresses.
    effort: u64,
    /// Smallest makespan found, with or without addresses.
    lowest: f64,
    /// Bytes that the last plan without addresses would need.
    needs: Option<Bytes>,
}

/// Decisions without addresses in the pool.
struct Missed {
    decisions: Decisions,
    /// By op: excess bytes.
    excess: TiVec<OpId, u64>,
}

impl Rounds<'_, '_> {
    /// Runs rounds; then, while nothing has addresses, more rounds with bytes left free everywhere.
    fn go(mut self) -> Result<(), Error> {
        if self.rounds()? { self.spare() } else { Ok(()) }
    }

    /// Runs at most this many rounds, until the result fits. Returns `true` if all were run.
    fn rounds(&mut self) -> Result<bool, Error> {
        let Problem { case, .. } = *self.problem;
        let Stage { name, rounds, .. } = self.stage;
        // The last decisions that did not fit, and how often the search found them again.
        let mut last: Option<Decisions> = None;
        let (mut repeats, mut anew, mut misses) = (0u32, 0, 0);
        // The smallest excess in bytes, and the number of rounds that did not reduce it.
        let (mut overflow, mut stuck) = (u64::MAX, 0);
        for round in 0..rounds {
            let (cost, missed) = self.round(&format!("{name}, round {}", round + 1))?;
            let poor = cost.overflow > 0 || cost.seconds > case.bound.0 * GOOD;
            let glances = self.glances.filter(|_| round == 0 && poor && self.problem.uses(Trick::Fewer));
            if let Some(glances) = glances {
                self.search.add_seeds(glances.seeds(case, &cost));
            }
            if cost.overflow > 0 && self.lowest.is_infinite() {
                misses += 1;
                stuck = if cost.overflow < overflow { 0 } else { stuck + 1 };
                overflow = overflow.min(cost.overflow);
                if misses == MISSES {
                    // Those that did not fit led to nothing that does.
                    (self.search.fresh, self.search.safely) = (true, true);
                }
                if stuck == STUCK {
                    return Ok(false);
                }
            }
            if cost.seconds > self.lowest * LOST && anew < ANEW && self.problem.uses(Trick::Anew) {
                anew += 1;
                self.search.fresh = true;
            }
            let judge = &mut self.search.annealer.judge;
            if let Some(Missed { decisions, excess }) = missed {
                repeats = if last.as_ref() == Some(&decisions) { repeats + 1 } else { 0 };
                last = Some(decisions);
                let share = f64::from(1 << (2 * repeats)) / (4 - 4 * round / rounds).max(1) as f64;
                judge.widen(&excess, share);
            } else if self.candidates.settled() || (!judge.narrow() && cost.overflow == 0) {
                // A result that fits with nothing left free cannot be improved.
                return Ok(false);
            }
            if self.search.is_late() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs rounds that leave more and more bytes free at every op, while nothing as fast as the best result has addresses.
    fn spare(&mut self) -> Result<(), Error> {
        if !self.problem.uses(Trick::Spare) {
            return Ok(());
        }
        for part in SPARE {
            let missed = self.lowest.is_infinite() || self.is_wanting();
            if self.search.is_late() || !missed {
                break;
            }
            self.search.annealer.judge.leave(self.problem.case.pool / part);
            let tried = format!("{}, 1/{part} of the pool left free", self.stage.name);
            let (cost, _) = self.round(&tried)?;
            if cost.overflow > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Returns `true` if no candidate comes near the best result.
    fn is_wanting(&self) -> bool {
        self.candidates.fastest() > self.lowest * LOST
    }

    /// Anneals, packs the result if a plan of its cost is wanted, and offers that.
    fn round(&mut self, tried: &str) -> Result<(Cost, Option<Missed>), Error> {
        let (decisions, cost) = self.anneal();
        let decided = Some(Seconds(cost.seconds));
        let packed_early = self.search.is_late() && self.search.early.is_some();
        if cost.overflow > 0 {
            let over = StepResult::OverPool { over_bytes: Bytes(cost.overflow) };
            self.candidates.log.add(tried, decided, over);
            return Ok((cost, None));
        }
        if packed_early {
            return Ok((cost, None));
        }
        if !self.candidates.want(&cost) {
            self.candidates.log.add(tried, decided, StepResult::NoFaster);
            return Ok((cost, None));
        }
        let (realised, excess) = self.pack_again(&decisions)?;
        let fits = matches!(realised, Realised::Fits(_));
        self.candidates.offer_decided(tried, decided, realised);
        // If nothing else comes near, addresses are worth more work.
        self.effort = if fits || !self.is_wanting() { 1 } else { (2 * self.effort).min(MOST_EFFORT) };
        Ok((cost, (!fits).then_some(Missed { decisions, excess })))
    }

    fn anneal(&mut self) -> (Decisions, Cost) {
        let found = self.search.run();
        let (cost, over_host) = (found.judged.cost, found.judged.over_host);
        let host = self.search.annealer.judge.host.as_ref();
        if let Some(host) = host.filter(|_| over_host > 0 && cost.overflow == over_host) {
            self.candidates.short_of_host(self.problem.case, host.needs(over_host));
        }
        if cost.overflow == 0 {
            self.lowest = self.lowest.min(cost.seconds);
        }
        if self.search.is_late() {
            self.search.add_early(&found);
        }
        (found.decisions, cost)
    }

    /// Calls [`Self::pack`]. If addresses miss by as much as the last time, the known order is the cause: searches once more
    /// without it.
    fn pack_again(&mut self, decisions: &Decisions) -> Result<(Realised, TiVec<OpId, u64>), Error> {
        let found = self.pack(decisions)?;
        let needs = match &found.0 {
            Realised::Short(short) => Some(short.needs),
            Realised::Fits(_) | Realised::Slow => None,
        };
        let same = needs.is_some() && std::mem::replace(&mut self.needs, needs) == needs;
        let small = self.problem.case.trace.ops.len() <= SMALL;
        if !same || small || !self.problem.uses(Trick::Reorder) {
            return Ok(found);
        }
        let known = std::mem::take(&mut self.packing);
        let again = self.pack(decisions)?;
        if matches!(again.0, Realised::Fits(_)) {
            return Ok(again);
        }
        self.packing = known;
        Ok(found)
    }

    /// Returns a schedule of decisions; or the smallest pool found for them, and each op's excess over the pool in it.
    fn pack(&mut self, decisions: &Decisions) -> Result<(Realised, TiVec<OpId, u64>), Error> {
        if !self.problem.uses(Trick::Packing) {
            self.packing = Packing::default();
        }
        let Problem { case, values, .. } = *self.problem;
        let ops = counted(case.trace.ops.len());
        let looks = self.effort * ((10_000 * ops).min(1_000_000) + 6_000 * ops);
        // A request for fewer evaluations than usual also asks for less work here.
        let usual = suggested(values);
        let evaluations = self.problem.evaluations().min(usual);
        let looks = looks / usual.div_ceil(evaluations.max(1)).min(LEAST_LOOKS);
        let margins = &self.search.annealer.judge.margins;
        case.realise_decisions(values, decisions, margins, looks, &mut self.packing)
    }
}
