//! From a set of swapped gaps, or from decisions, to a schedule that fits: windows, addresses, commands, check, clock.
//!
//! Decisions either fit, or the result names the ops at which addresses took too much, and the search of decisions continues. A
//! tensor in pieces can lie either way round: if decisions do not fit, some tensors are turned, so that their last bytes come
//! first and stay last. In a pool of three and a half tensors nothing else fits: the next tensor has room for a half, sometimes
//! above the leaving tensor, sometimes below it. Sets of gaps are fixed: the first placement of a set may miss the pool, as
//! addresses leave holes. Then the windows are tightened, and then the placement is made for a smaller pool, down to one in which
//! only the operands of the running op are on the device. The first placement that fits is taken, so addresses cost as little as
//! these attempts can achieve.
//!
//! The chosen plan is settled: its windows get slack back, and its pool shrinks to the bytes that are alive, if little work finds
//! addresses for that.

use crate::decide::gaps::{Alternatives, GapId, Gaps};
use crate::decide::placement::{Placement, Slot};
use crate::decide::walk::{Iteration, Limit, Name, Walk};
use crate::decide::windows::{Clock, Course};
use crate::iteration::values::{Decisions, Values};
use crate::numbers::counted;
use crate::place::address::{ALIGNMENT, Addresses, ItemId, Items, Work, assign, assign_like, most_alive};
use crate::place::lower::lower;
use crate::random::Random;
use crate::request::{Error, PlanRequest, Shortage, Trick, Witness};
use crate::threads::{Expired, beside};
use plimsoll_ir::schedule::{Command, Duplex, Schedule, Stream, moved};
use plimsoll_ir::search_log::StepResult;
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Bytes, OpId, Seconds, TensorId, check, simulate};
use std::collections::HashMap;
use typed_index_collections::{TiSlice, TiVec};

/// Request, with the quantities derived from it.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub trace: &'a Trace,
    pub request: &'a PlanRequest<'a>,
    /// Budget minus resident bytes.
    pub pool: u64,
    pub bound: Seconds,
    /// Decisions that are certainly slower than this need not be realised.
    pub within: Seconds,
}

impl Case<'_> {
    /// Returns the trace's gaps; each op runs in the fastest alternative whose workspace fits next to its operands.
    pub fn gaps(&self) -> Gaps {
        Gaps::new(self.trace, Bytes(self.pool), Alternatives::BesideOwn)
    }

    /// Returns the trace's values, with their possible choices.
    pub fn values(&self) -> Values {
        Values::new(self.trace, Bytes(self.pool), self.request.allow)
    }

    /// By op: maximum bytes of the pool that it leaves free, next to its operands in its leanest alternative.
    pub fn spare(&self) -> impl Iterator<Item = u64> + '_ {
        let beside = |op: &Op| self.trace.touched_bytes(op) + op.least_workspace();
        self.trace.ops.iter().map(move |op| self.pool.saturating_sub(beside(op).0))
    }
}

/// A schedule that passed the check, or the reason why there is none: too little memory, or more time than the case allows.
pub(crate) enum Realised {
    Fits(Fitting),
    Short(Witness),
    Slow,
}

/// A schedule that passed the check, its makespan, and all bytes that it moves.
pub(crate) struct Fitting {
    pub schedule: Box<Schedule>,
    pub makespan: Seconds,
    pub moved: u64,
    /// The placement that has addresses in it; then the same with more slack, the most last.
    packings: Vec<(Placement, Items)>,
    order: Vec<ItemId>,
}

/// Parameters of one attempt to place a set of gaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Pool that windows are made for, as a share of the case's.
    pub pool: f64,
    /// Degree to which the windows are tightened.
    pub tighten: f64,
    /// Maximum number of conflicts that the search for addresses may look at.
    pub work: u64,
    /// Offsets are multiples of this. Attempts with 1 are skipped if all sizes are multiples of [`ALIGNMENT`]; see [`Case::useful`].
    pub alignment: u64,
}

/// Work that suffices for every sweep and some orders of best fit on a large trace.
pub(crate) const LIGHT: u64 = 1_000_000;

/// Work above which hill climbing pays.
pub(crate) const FULL: u64 = 3_000_000;

/// Attempts for a fixed set of gaps: lost bytes cost stalls.
pub(crate) const GIVEN: [Attempt; 11] = {
    const fn attempt(pool: f64, tighten: f64, work: u64) -> Attempt {
        Attempt { pool, tighten, work, alignment: ALIGNMENT }
    }
    [
        attempt(1.0, 0.5, LIGHT),
        attempt(1.0, 1.0, FULL),
        attempt(0.995, 1.0, LIGHT),
        attempt(0.99, 1.0, LIGHT),
        attempt(0.98, 1.0, LIGHT),
        attempt(0.96, 1.0, LIGHT),
        attempt(0.92, 1.0, LIGHT),
        attempt(0.84, 1.0, LIGHT),
        attempt(0.0, 1.0, FULL),
        Attempt { alignment: 1, ..attempt(1.0, 1.0, FULL) },
        Attempt { alignment: 1, ..attempt(0.0, 1.0, FULL) },
    ]
};

/// Looks if nothing may move, in addition to those of other plans: per op, and at most, which is about a second.
const ONLY_ADDRESSES_PER_OP: u64 = 250_000;
const ONLY_ADDRESSES: u64 = 100_000_000;

/// Degrees to which windows are tightened if that suffices; the widest last.
const SLACK: [f64; 2] = [0.75, 0.5];

/// Ratio of pool to alive bytes up to which the holes are worth no more work.
const NO_HOLES: f64 = 1.002;

/// Maximum looks for each attempt to settle a plan: some tenths of a second.
const SETTLING: u64 = 20_000_000;

/// Number of items up to which a second thread is not worthwhile.
const FEW_ITEMS: usize = 100;

/// Number of times that some tensors in pieces are turned if they have no addresses, each with a part of the looks.
const TURNS: usize = 24;
const TURNED: u64 = 8;

/// Tolerance for sums of floats.
const HAIR: f64 = 1e-9;

/// Attempts of [`GIVEN`] that lose little time of the iteration.
pub(crate) const CHEAP: [Attempt; 8] =
    [GIVEN[0], GIVEN[1], GIVEN[2], GIVEN[3], GIVEN[4], GIVEN[5], GIVEN[6], GIVEN[9]];

/// Order in which items were placed in similar plans.
#[derive(Default)]
pub(crate) struct Packing(HashMap<Name, usize>);

impl Packing {
    /// Returns the items of these names in the known order; new items come last. `None` if nothing is known.
    fn order(&self, names: &TiSlice<ItemId, Name>) -> Vec<ItemId> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut order: Vec<ItemId> = names.keys().collect();
        order.sort_by_key(|i| (self.0.get(&names[*i]).copied().unwrap_or(usize::MAX), *i));
        order
    }

    fn learn(&mut self, names: &TiSlice<ItemId, Name>, order: &[ItemId]) {
        for (rank, i) in order.iter().enumerate() {
            self.0.insert(names[*i], rank);
        }
    }
}

/// Returns the tensors in pieces that are turned in a trial: first every second one by order of transfers, so that one begins
/// where its neighbour ends; then, starting from the best set so far, one more or one fewer.
fn turn(pieces: &[TensorId], best: &[TensorId], trial: usize, random: &mut Random) -> Vec<TensorId> {
    if trial < 2 {
        return pieces.iter().skip(trial).step_by(2).copied().collect();
    }
    let one = pieces[random.below(pieces.len())];
    let mut tried: Vec<TensorId> = best.iter().copied().filter(|tensor| *tensor != one).collect();
    if tried.len() == best.len() {
        tried.push(one);
    }
    tried
}

/// By item: its name.
fn names(walk: &Walk, placement: &Placement, items: &Items) -> TiVec<ItemId, Name> {
    let homes = walk.names();
    let mut names: TiVec<ItemId, Option<Name>> = vec![None; items.items.len()].into();
    for (residency, item) in placement.residencies.iter().zip(&items.of_residency) {
        names[*item] = Some(homes[residency.home]);
    }
    for (step, item) in placement.steps.iter().zip(&items.of_step) {
        if let Some((item, _)) = item {
            names[*item] = Some(Name::Workspace { op: step.op, again: step.again });
        }
    }
    names.into_iter().map(|name| name.expect("an item is of a home or of a workspace")).collect()
}

/// Returns the ratio of the pool to the bytes that are alive in it.
fn holes(height: u64, alive: u64) -> f64 {
    Bytes(height).to_f64() / Bytes(alive.max(1)).to_f64()
}

impl Fitting {
    /// Times a checked schedule.
    fn new(trace: &Trace, schedule: Schedule) -> Fitting {
        let makespan = simulate::simulate(trace, &schedule).makespan();
        let pieces = schedule.commands.iter().filter_map(|command| moved(trace, command));
        let moved = pieces.fold(0, |all: u64, (_, bytes)| all.saturating_add(bytes.end - bytes.start));
        let (schedule, packings, order) = (Box::new(schedule), Vec::new(), Vec::new());
        Fitting { schedule, makespan, moved, packings, order }
    }
}

impl Realised {
    /// Returns the result as an entry of the log.
    pub fn step_result(&self) -> StepResult {
        match self {
            Realised::Fits(Fitting { makespan, moved, .. }) => {
                StepResult::Planned { makespan_seconds: *makespan, moved_bytes: Bytes(*moved) }
            }
            Realised::Slow => StepResult::NoFaster,
            Realised::Short(witness) => StepResult::Short { needs_bytes: witness.needs },
        }
    }
}

/// Returns the op of the slot that needs most, and its bytes.
pub(crate) fn fullest(needs: &TiSlice<Slot, u64>) -> (OpId, u64) {
    let fullest = needs.iter_enumerated().rev().max_by_key(|(_, bytes)| **bytes);
    fullest.map_or((OpId(0), 0), |(slot, most)| (slot.op().unwrap_or(OpId(0)), *most))
}

impl Case<'_> {
    /// Returns the schedule of a set of swapped gaps, one entry of `swapped` per gap.
    pub fn realise(
        &self,
        gaps: &Gaps,
        swapped: &TiSlice<GapId, bool>,
        attempts: &[Attempt],
    ) -> Result<Realised, Error> {
        let (op, most) = fullest(&gaps.least(swapped));
        if most > self.pool {
            return Ok(self.short(op, most, Shortage::Policy));
        }
        if self.is_slow(&gaps.course(swapped).0) {
            return Ok(Realised::Slow);
        }
        let mut clock = Clock::new(&self.request.link);
        let mut lowest = u64::MAX;
        // Once time is up, only the attempt most likely to fit is still made.
        let surest = attempts.iter().map(|attempt| attempt.pool).fold(1.0, f64::min);
        for attempt in self.useful(attempts) {
            if lowest < u64::MAX && attempt.pool > surest && self.request.limits.is_expired() {
                continue;
            }
            // The attempt most likely to fit is the last resort.
            let work = if attempt.pool < 0.5 { self.thorough() } else { attempt.work };
            let attempt = Attempt { work, ..*attempt };
            let (placement, items) = self.place(gaps, &mut clock, swapped, &attempt);
            if let Some(found) = self.with_addresses(&attempt, &mut lowest, &placement, &items)? {
                return Ok(found);
            }
        }
        Ok(self.without_addresses(lowest))
    }

    /// Returns the attempts that may gain something: those with 1 as alignment do not if all sizes are aligned. An item at the end
    /// of a pool whose size is not would start at an address that no kernel takes.
    pub fn useful<'b>(&self, attempts: &'b [Attempt]) -> impl Iterator<Item = &'b Attempt> {
        let aligned = self.sizes_are_aligned();
        attempts.iter().filter(move |attempt| attempt.alignment > 1 || !aligned)
    }

    /// Returns the placement of an attempt in which these gaps are swapped, with its items.
    pub fn place(
        &self,
        gaps: &Gaps,
        clock: &mut Clock,
        swapped: &TiSlice<GapId, bool>,
        attempt: &Attempt,
    ) -> (Placement, Items) {
        let pool = Bytes(self.pool).share(attempt.pool).0.min(self.pool);
        let placement = gaps.placement(&gaps.windows(clock, swapped, pool, attempt.tighten));
        let items = Items::new(&placement, &gaps.workspace.raw[1..]);
        (placement, items)
    }

    /// Returns the schedule of a placement; `None` if its addresses miss the pool, of which they take at least `lowest` bytes then.
    pub fn with_addresses(
        &self,
        attempt: &Attempt,
        lowest: &mut u64,
        placement: &Placement,
        items: &Items,
    ) -> Result<Option<Realised>, Error> {
        let work = self.work(attempt.work);
        let addresses = assign(&items.items, self.pool, attempt.alignment, work, self.request.seed);
        *lowest = addresses.height.min(*lowest);
        let fits = addresses.height <= self.pool;
        fits.then(|| self.finish(placement, items, &addresses)).transpose()
    }

    /// Returns the schedule of decisions, with this much left free at each op; or the smallest pool found with this many looks,
    /// and each op's excess over the case's pool in it. `packing` has the order of items in similar plans, and is updated from
    /// this one.
    ///
    /// The windows are tight. [`Case::settle`] gives slack back.
    pub fn realise_decisions(
        &self,
        values: &Values,
        decisions: &Decisions,
        margins: &TiSlice<OpId, u64>,
        looks: u64,
        packing: &mut Packing,
    ) -> Result<(Realised, TiVec<OpId, u64>), Error> {
        let mut walk = Walk::default();
        let mut clock = Clock::new(&self.request.link);
        if !walk.go(Iteration { values, decisions, margins, pool: self.pool }, Limit::NONE) {
            unreachable!("a walk ends only at its limit");
        }
        let workspaces = walk.workspaces(values);
        let mut place = |tighten: f64, turned: &[TensorId]| {
            clock.evaluate(&walk.course, self.pool);
            let placement = walk.placement(values, &clock.windows(&walk.course, tighten));
            let placement = placement.turned(self.trace, turned);
            let items = Items::new(&placement, &workspaces);
            (placement, items)
        };
        let (mut placement, mut items) = place(1.0, &[]);
        let names = names(&walk, &placement, &items);
        let order = packing.order(&names);
        let seed = self.request.seed;
        let assign =
            |alignment: u64| assign_like(&items.items, &order, self.pool, alignment, self.work(looks), seed);
        let mut addresses = assign(ALIGNMENT);
        if addresses.height > self.pool && !self.sizes_are_aligned() {
            // Sizes that are not aligned leave gaps, whose bytes may be the shortage.
            let closer = assign(1);
            addresses = if closer.height <= self.pool { closer } else { addresses };
        }
        let mut turned = Vec::new();
        if addresses.height > self.pool && self.request.uses(Trick::Turns) {
            let mut random = Random::new(seed);
            let pieces = placement.tensors_in_pieces(self.trace);
            for trial in 0..if pieces.is_empty() { 0 } else { TURNS } {
                let tried = turn(&pieces, &turned, trial, &mut random);
                let (other, its_items) = place(1.0, &tried);
                let work = self.work(looks / TURNED);
                let found = assign_like(&its_items.items, &order, self.pool, ALIGNMENT, work, seed);
                if found.height <= addresses.height {
                    (placement, items, addresses, turned) = (other, its_items, found, tried);
                }
                if addresses.height <= self.pool || self.request.limits.is_expired() {
                    break;
                }
            }
        }
        packing.learn(&names, &addresses.order);
        tracing::debug!(
            items = items.items.len(),
            over = Bytes(addresses.height).to_f64() / Bytes(self.pool).to_f64(),
            "addressed"
        );
        if addresses.height > self.pool {
            let excess = self.excess(&walk, &items, &addresses);
            return Ok((self.without_addresses(addresses.height), excess));
        }
        let mut realised = self.finish(&placement, &items, &addresses)?;
        if let Realised::Fits(fitting) = &mut realised {
            fitting.packings.extend(SLACK.map(|tighten| place(tighten, &turned)));
        }
        Ok((realised, vec![0; margins.len()].into()))
    }

    /// Returns the same plan with the widest windows for which little work finds a pool without holes, or with those that leave
    /// the fewest, if that is no slower: slack covers times that differ from the prediction.
    pub fn settle(&self, mut fitting: Fitting) -> Result<Fitting, Error> {
        let looks = (FULL / 2 + 1_500 * counted(self.trace.ops.len())).min(SETTLING);
        let packings = std::mem::take(&mut fitting.packings);
        if self.request.limits.is_expired() {
            return Ok(fitting);
        }
        let known = fitting.schedule.pool_bytes.0;
        let (order, seed, without) = (&fitting.order, self.request.seed, self.request.without);
        let (pool, expired) = (self.pool, self.request.limits.expired);
        let within = |at: usize| if at == 0 { known } else { pool };
        let pack = |at: usize, expired: Expired<'_>| {
            let (items, limit) = (&packings[at].1.items, within(at));
            let work = Work { looks, expired, without };
            let found = assign_like(items, order, limit, ALIGNMENT, work, seed);
            let alive = most_alive(items);
            let again = found.height <= limit && found.height > alive;
            let lower = again.then(|| assign_like(items, &found.order, alive, ALIGNMENT, work, seed));
            lower.filter(|lower| lower.height < found.height).unwrap_or(found)
        };
        let without_holes = |at: usize, found: &Addresses| {
            let holes = holes(found.height, most_alive(&packings[at].1.items));
            found.height <= within(at) && holes <= NO_HOLES
        };
        // The widest two at once, as the first alone seldom suffices.
        let mut wide = Vec::new();
        if let Some(next) = packings.len().checked_sub(2).filter(|_| order.len() > FEW_ITEMS) {
            let here = || {
                let found = pack(next + 1, expired);
                let wanted = !without_holes(next + 1, &found);
                (found, wanted)
            };
            let (widest, next) = beside(true, expired, here, |expired| pack(next, expired));
            wide.extend(next.into_iter().chain([widest]));
        }
        let mut best: Option<(f64, Fitting)> = None;
        for (at, (placement, items)) in packings.iter().enumerate().rev() {
            let alive = most_alive(&items.items);
            if self.request.limits.is_expired() {
                break;
            }
            if at == 0 && alive == known {
                return Ok(fitting);
            }
            let found = wide.pop().unwrap_or_else(|| pack(at, expired));
            let holes = holes(found.height, alive);
            tracing::debug!(at, alive, height = found.height, within = within(at), "settled");
            if found.height > within(at) || best.as_ref().is_some_and(|(least, _)| holes >= *least) {
                continue;
            }
            let Realised::Fits(settled) = self.finish(placement, items, &found)? else { continue };
            if settled.makespan.0 <= fitting.makespan.0 * (1.0 + HAIR) {
                best = Some((holes, settled));
            }
            if best.as_ref().is_some_and(|(least, _)| *least <= NO_HOLES) {
                break;
            }
        }
        Ok(best.map_or(fitting, |(_, settled)| settled))
    }

    /// By op: excess over the pool of the bytes present while it runs, or while others are recomputed for it.
    fn excess(&self, walk: &Walk, items: &Items, addresses: &Addresses) -> TiVec<OpId, u64> {
        let mut excess: TiVec<OpId, u64> = vec![0; self.trace.ops.len()].into();
        for (item, offset) in items.items.iter().zip(&addresses.offsets) {
            let over = (offset + item.hull.bytes.end).saturating_sub(self.pool);
            for slot in Slot::each(item.hull.slots.clone()).filter(|slot| over > 0 && *slot > Slot::START) {
                let of = &mut excess[walk.serves(slot)];
                *of = over.max(*of);
            }
        }
        excess
    }

    /// Returns `true` if the steps or the transfers of a course alone take longer than the case allows.
    pub fn is_slow(&self, course: &Course) -> bool {
        let computing: f64 = course.seconds.iter().sum();
        computing.max(self.moving(course)) > self.within.0 * (1.0 + 1e-9)
    }

    /// Returns the seconds that the link is busy with the transfers of a course, in the direction that takes longer.
    pub fn moving(&self, course: &Course) -> f64 {
        let link = &self.request.link;
        let (mut out, mut back) = (0.0, 0.0);
        for piece in &course.moves {
            let seconds = |stream| link.seconds(stream, Bytes(piece.bytes)).0;
            out += if piece.offload { seconds(Stream::Offload) } else { 0.0 };
            back += seconds(Stream::Prefetch);
        }
        if link.duplex == Duplex::Half { out + back } else { f64::max(out, back) }
    }

    /// Returns this many looks, until time is up.
    pub fn work(&self, looks: u64) -> Work<'_> {
        Work { looks, expired: self.request.limits.expired, without: self.request.without }
    }

    /// Returns the looks if everything depends on the addresses: at least [`FULL`], and some for every op.
    pub fn thorough(&self) -> u64 {
        2 * FULL + 10_000 * counted(self.trace.ops.len())
    }

    /// Returns the looks if nothing may move, so that only addresses must be found: as many as the time of a plan allows.
    pub fn exhaustive(&self) -> u64 {
        self.thorough() + (ONLY_ADDRESSES_PER_OP * counted(self.trace.ops.len())).min(ONLY_ADDRESSES)
    }

    /// Returns `true` if every size is a multiple of [`ALIGNMENT`].
    fn sizes_are_aligned(&self) -> bool {
        let sizes = self.trace.tensors.iter().map(|t| t.bytes.0);
        let mut all = sizes.chain(self.trace.ops.iter().map(|op| op.workspace_bytes.0));
        all.all(|bytes| bytes.is_multiple_of(ALIGNMENT))
    }

    /// Returns the result if an op needs this many bytes of the pool.
    pub fn short(&self, op: OpId, bytes: u64, why: Shortage) -> Realised {
        Realised::Short(self.witness(op, Bytes(bytes) + self.trace.resident_bytes, why))
    }

    fn witness(&self, op: OpId, needs: Bytes, why: Shortage) -> Witness {
        let name = self.trace.ops[op.index()].name.clone();
        Witness { op, name, needs, short_by: needs.saturating_sub(self.request.budget), why }
    }

    /// Returns the result for decisions without addresses; the tightest addresses found take this many bytes of the pool.
    pub fn without_addresses(&self, height: u64) -> Realised {
        let (op, _) = self.trace.memory().floor().unwrap_or((OpId(0), Bytes::ZERO));
        self.short(op, height, Shortage::Addresses)
    }

    /// Returns the result for decisions that swap this much, if the host has no memory for it.
    pub fn short_of_host(&self, needs: Bytes) -> Option<Realised> {
        let limit = self.request.allow.host.filter(|limit| needs > *limit)?;
        let (op, _) = self.trace.memory().floor().unwrap_or((OpId(0), Bytes::ZERO));
        let witness = self.witness(op, needs, Shortage::HostTried);
        Some(Realised::Short(Witness { short_by: needs - limit, ..witness }))
    }

    /// Returns a schedule, made for a different budget or link or for a trace of the same tensors and ops, with this budget and
    /// link; `None` if it is not valid for the case, or uses means that are not allowed.
    pub fn valid(&self, schedule: &Schedule) -> Option<Fitting> {
        let PlanRequest { budget, link, allow, .. } = *self.request;
        let Trace { name, batch, .. } = self.trace;
        let schedule =
            Schedule { trace: name.clone(), batch: *batch, budget_bytes: budget, link, ..schedule.clone() };
        check::check(self.trace, &schedule).ok()?;
        let allowed = |command: &Command| match command {
            Command::Compute { again, .. } => allow.recompute || !again,
            Command::Offload { first_byte, bytes, .. } | Command::Prefetch { first_byte, bytes, .. } => {
                allow.swap && (allow.pieces || (first_byte.is_none() && bytes.is_none()))
            }
        };
        if !schedule.commands.iter().all(allowed) {
            return None;
        }
        let within_host = self.short_of_host(schedule.host_bytes(self.trace)).is_none();
        within_host.then(|| Fitting::new(self.trace, schedule))
    }

    /// Lowers, checks and times a placement.
    pub fn finish(
        &self,
        placement: &Placement,
        items: &Items,
        addresses: &Addresses,
    ) -> Result<Realised, Error> {
        let PlanRequest { budget, link, policy, .. } = *self.request;
        let schedule = lower(self.trace, placement, items, addresses, budget, link)
            .map_err(|fault| Error::internal(format_args!(" of policy {policy}: {fault}")))?;
        check::check(self.trace, &schedule).map_err(|violation| {
            Error::internal(format_args!(": policy {policy} made a schedule that is not valid: {violation}"))
        })?;
        if let Some(short) = self.short_of_host(schedule.host_bytes(self.trace)) {
            return Ok(short);
        }
        let fitting = Fitting::new(self.trace, schedule);
        let packings = vec![(placement.clone(), items.clone())];
        Ok(Realised::Fits(Fitting { packings, order: addresses.order.clone(), ..fitting }))
    }
}
