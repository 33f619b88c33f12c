//! The stages of the search: whole tensors first, then parts of them, then these chunk by chunk. A stage is rounds, and a round
//! anneals, packs and offers:
//!
//! 1. *Anneal.* A run of the search (`search.rs`) finds decisions.
//! 2. *Pack.* The decisions get addresses, where a plan of their cost is wanted.
//! 3. *Offer.* What has addresses is a candidate. Where addresses miss the pool, the next round leaves some bytes free at the
//!    ops that are too high, and begins from the seeds again where that led astray.
//!
//! Where still nothing has addresses in the end, bytes are left free at every op.
//!
//! What this file does not do: order transfers otherwise than by use; choose decisions by what addresses leave room for, other
//! than by bytes that it leaves free.

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
use crate::request::{Allow, Limits, PlanError, PlanRequest, Trick};
use plimsoll_ir::search_log::StepResult;
use plimsoll_ir::{Bytes, OpId, Seconds};
use typed_index_collections::TiVec;

/// The rounds of a stage at most.
const ROUNDS: u64 = 16;

/// The rounds of a search that goes on from a plan, and which part of the usual looks for addresses each has.
const FEW_ROUNDS: u64 = 4;
const FEWER_LOOKS: u64 = 4;

/// Where leaving bytes free made what is found so many times slower than it was, the search begins anew, so often at most: it
/// lost its way rather than its room.
const LOST: f64 = 1.03;
const ANEW: u64 = 2;

/// Where still nothing as fast as that has addresses, such parts of the pool are left free at every op, one after the other.
const SPARE: [u64; 7] = [200, 100, 50, 33, 25, 16, 8];

/// After so many rounds without anything that fits the search begins from what does.
const MISSES: u32 = 4;

/// After so many that miss by no less than before the stage ends.
const STUCK: u32 = 7;

/// So many times the usual looks at most are spent on the addresses of one plan.
const MOST_EFFORT: u64 = 4;

/// With few evaluations at least such a part of the looks.
const LEAST_LOOKS: u64 = 8;

/// A plan this near the bound is not worth another search.
const GOOD: f64 = 1.03;

/// Pieces are looked at where a tensor is larger than this part of the pool: they leave holes, and gain little else.
const COARSE: u64 = 12;

/// Where one is larger than this part, and there are not many ops to choose among instead, pieces are cut into so many chunks,
/// too, each of which leaves and returns by itself: it waits for room for itself only, but tangles with more.
const VERY_COARSE: u64 = 4;
const FEW_OPS: u64 = 250;
const CHUNKS: u8 = 4;

/// With pieces, which rarely pay on large traces, there are rounds until so many ops were looked at, but at least so many.
const PIECE_OPS: u64 = 2000;
const PIECE_ROUNDS: u64 = 4;

/// A stage of the search.
#[derive(Clone, Copy)]
struct Stage {
    /// How the log calls it.
    name: &'static str,
    /// Into how many chunks parts of tensors are cut; none where tensors are swapped whole.
    chunks: Option<u8>,
    /// How many rounds it has at most.
    rounds: u64,
    /// Whether it is left out where the plans so far are good.
    only_if_poor: bool,
}

/// The stages of a problem, in order.
fn stages(problem: &Problem<'_>) -> Vec<Stage> {
    let Allow { pieces, recompute, swap, .. } = problem.case.request.allow;
    let (ops, pool) = (counted(problem.case.trace.ops.len()), problem.case.pool);
    let largest = problem.values.bytes.iter().max().copied().unwrap_or_default();
    let very_coarse = largest > pool / VERY_COARSE && ops <= FEW_OPS;
    let mut stages = vec![Stage { name: "whole tensors", chunks: None, rounds: ROUNDS, only_if_poor: false }];
    if pieces && swap && largest > pool / COARSE {
        let rounds = (PIECE_OPS / ops).clamp(PIECE_ROUNDS, ROUNDS);
        // Where ops are recomputed, whole tensors mostly do as well as pieces.
        let parts = Stage { name: "parts of tensors", chunks: Some(1), rounds, only_if_poor: false };
        stages.push(Stage { only_if_poor: recompute && !very_coarse, ..parts });
        let chunks = Stage { name: "chunks of tensors", chunks: Some(CHUNKS), ..parts };
        stages.push(Stage { only_if_poor: !very_coarse, ..chunks });
    }
    stages
}

/// Seeds; then for each stage rounds that anneal, pack and offer.
pub(super) fn search(
    case: &Case<'_>,
    glances: &Glances,
    candidates: &mut Candidates,
) -> Result<(), PlanError> {
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

/// A few rounds that go on from decisions, in whole tensors or in pieces as they are.
pub(super) fn go_on(
    case: &Case<'_>,
    values: &Values,
    from: GoOn,
    candidates: &mut Candidates,
) -> Result<(), PlanError> {
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

/// The rounds of a stage.
struct Rounds<'a, 'p> {
    stage: Stage,
    problem: &'p Problem<'p>,
    /// What fewer means find; none where that is not asked for.
    glances: Option<&'a Glances>,
    search: &'a mut Search<'p>,
    candidates: &'a mut Candidates,
    packing: Packing,
    /// How many times the usual looks an address may take.
    effort: u64,
    /// The least seconds of what was found, addresses or not.
    lowest: f64,
    /// The bytes that the last plan without addresses would need.
    needs: Option<Bytes>,
}

/// Decisions without addresses in the pool.
struct Missed {
    decisions: Decisions,
    /// By op: so many bytes are too many.
    excess: TiVec<OpId, u64>,
}

impl Rounds<'_, '_> {
    /// Rounds; then, while nothing has addresses, more of them with bytes left free everywhere.
    fn go(mut self) -> Result<(), PlanError> {
        if self.rounds()? { self.spare() } else { Ok(()) }
    }

    /// So many rounds at most, until what was found fits. Tells whether all were made.
    fn rounds(&mut self) -> Result<bool, PlanError> {
        let Problem { case, .. } = *self.problem;
        let Stage { name, rounds, .. } = self.stage;
        // What did not fit last, and how often the search found it anew.
        let mut last: Option<Decisions> = None;
        let (mut repeats, mut anew, mut misses) = (0u32, 0, 0);
        // The least bytes that were too many, and how many rounds found no fewer.
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
                    self.search.begin_safely();
                }
                if stuck == STUCK {
                    return Ok(false);
                }
            }
            if cost.seconds > self.lowest * LOST && anew < ANEW && self.problem.uses(Trick::Anew) {
                anew += 1;
                self.search.begin_anew();
            }
            let judge = &mut self.search.annealer.judge;
            if let Some(Missed { decisions, excess }) = missed {
                repeats = if last.as_ref() == Some(&decisions) { repeats + 1 } else { 0 };
                last = Some(decisions);
                let share = f64::from(1 << (2 * repeats)) / (4 - 4 * round / rounds).max(1) as f64;
                judge.widen(&excess, share);
            } else if self.candidates.settled() || (!judge.narrow() && cost.overflow == 0) {
                // What fits with nothing left free is as good as it gets.
                return Ok(false);
            }
            if self.search.is_late() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Rounds that leave bytes free at every op, more and more, while nothing as fast as what was found has addresses.
    fn spare(&mut self) -> Result<(), PlanError> {
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

    /// Whether no candidate comes near what was found.
    fn is_wanting(&self) -> bool {
        self.candidates.fastest() > self.lowest * LOST
    }

    /// Anneals, packs what was found if a plan of its cost is wanted, and offers that.
    fn round(&mut self, tried: &str) -> Result<(Cost, Option<Missed>), PlanError> {
        let (decisions, cost) = self.anneal();
        let decided = Some(Seconds(cost.seconds));
        let packed_early = self.search.is_late() && self.search.early.is_some();
        if cost.overflow > 0 {
            self.candidates.log.add(
                tried,
                decided,
                StepResult::OverPool { over_bytes: Bytes(cost.overflow) },
            );
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
        // Where nothing else comes near, addresses are worth more work.
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

    /// See [`Self::pack`]. Where addresses miss by as much as the last time, the order that is known is what they miss by, and
    /// they are looked for once more from none.
    fn pack_again(&mut self, decisions: &Decisions) -> Result<(Realised, TiVec<OpId, u64>), PlanError> {
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

    /// A schedule of decisions; or the least pool that was found for them, and by how much each op exceeds the pool in it.
    fn pack(&mut self, decisions: &Decisions) -> Result<(Realised, TiVec<OpId, u64>), PlanError> {
        if !self.problem.uses(Trick::Packing) {
            self.packing = Packing::default();
        }
        let Problem { case, values, .. } = *self.problem;
        let ops = counted(case.trace.ops.len());
        let looks = self.effort * ((10_000 * ops).min(1_000_000) + 6_000 * ops);
        // Who asks for fewer evaluations than usual asks for less work.
        let usual = suggested(values);
        let evaluations = self.problem.evaluations().min(usual);
        let looks = looks / usual.div_ceil(evaluations.max(1)).min(LEAST_LOOKS);
        let margins = &self.search.annealer.judge.margins;
        case.realise_decisions(values, decisions, margins, looks, &mut self.packing)
    }
}
