//! What can be decided about a trace: the gaps between uses during which a tensor's bytes may leave the device.
//!
//! # The data
//!
//! A tensor's time is cut into [`Live`] stretches: from a write that does not read it (or the start of the iteration)
//! to the last use before the next such write. Between two stretches the bytes mean nothing and nobody keeps them.
//! Within a stretch, a [`Gap`] lies between two consecutive uses that are at least two slots apart (slots as in
//! [`crate::decide::placement`]). A tensor may be split into pieces; every piece has gaps of its own, at the same slots.
//!
//! `base` is the pool that every slot needs when every gap is kept; swapping a gap frees its bytes during the slots that
//! lie strictly between its two uses. With all gaps swapped, every slot holds just what its op touches.

use crate::decide::placement::{
    Direction, HomeId, Opens, Placement, Residency, Slot, Step, Transfer, Window,
};
use crate::decide::windows::{Clock, Course, Move, MoveId};
use crate::levels::Levels;
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId, define_id};
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// A gap between two uses of a piece of a tensor.
    GapId, "gap");
define_id!(
    /// A stretch of time during which a tensor holds something that is still needed.
    LiveId, "stretch");
define_id!(
    /// The contents of a piece from one write to the next.
    VersionId, "version");

/// The decisions that a trace leaves open; see the head of this file.
#[derive(Clone, Debug)]
pub struct Gaps {
    /// How long each slot's op takes, in seconds; slot 0 takes none.
    pub seconds: TiVec<Slot, f64>,
    /// The pool bytes that each slot needs when nothing is swapped, workspace included.
    pub base: TiVec<Slot, u64>,
    /// The workspace of each slot, in bytes.
    pub workspace: TiVec<Slot, u64>,
    /// In which alternative each op runs.
    pub alternatives: TiVec<OpId, Option<u32>>,
    /// The stretches during which tensors hold something that is still needed; none for tensors of no bytes.
    pub lives: TiVec<LiveId, Live>,
    /// The gaps: those of one piece of one stretch side by side, in order of time.
    pub gaps: TiVec<GapId, Gap>,
    /// The version after the last that a gap names.
    pub versions: VersionId,
}

/// A stretch of time during which a tensor holds something that is still needed.
#[derive(Clone, Debug)]
pub struct Live {
    /// Which tensor.
    pub tensor: TensorId,
    /// Its pieces, from the first byte to the last without holes; one where it is not split.
    pub pieces: Vec<Range<u64>>,
    /// The slots from its first to its last use.
    pub slots: Range<Slot>,
    /// From the start, or written.
    pub opens: Opens,
    /// The first gap of the first piece.
    pub first_gap: GapId,
    /// How many gaps each piece has.
    pub gaps_each: u32,
}

/// The time between two consecutive uses of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// The stretch that it lies in.
    pub live: LiveId,
    /// How many bytes.
    pub bytes: u64,
    /// The slot of the last use before; the start where there is none since the start.
    pub after: Slot,
    /// The slot of the next use.
    pub before: Slot,
    /// The slot of the write that made the contents, the start where they are there from the start.
    pub writer: Slot,
    /// Gaps of the same version hold the same contents, of which one host copy is enough.
    pub version: VersionId,
}

impl Live {
    /// The gaps of the first piece, in order of time.
    pub fn gaps(&self) -> impl Iterator<Item = GapId> + use<> {
        (self.first_gap.0..self.first_gap.0 + self.gaps_each).map(GapId)
    }

    /// The gap at this position of the piece at that one.
    fn gap(&self, piece: u32, at: u32) -> GapId {
        GapId(self.first_gap.0 + piece * self.gaps_each + at)
    }
}

/// Which alternative each op should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternatives {
    /// The fastest whose workspace fits beside everything that is alive with nothing swapped.
    BesideAll,
    /// The fastest whose workspace fits beside what the op itself touches.
    BesideOwn,
    /// The fastest, whether it fits or not.
    Fastest,
    /// The fastest of those with the least workspace.
    Leanest,
}

/// The fastest alternative of an op with at most so much workspace; the leanest where none fits.
fn fastest(op: &Op, room: u64) -> (Option<u32>, f64, u64) {
    let mut alternatives = vec![(None, op.seconds.0, op.workspace_bytes.0)];
    let others = (0..).zip(&op.alternatives);
    alternatives.extend(others.map(|(k, a)| (Some(k), a.seconds.0, a.workspace_bytes.0)));
    let leanest = alternatives.iter().map(|w| w.2).min().unwrap_or_default();
    alternatives.retain(|w| w.2 <= room.max(leanest));
    alternatives
        .into_iter()
        .min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)))
        .expect("an op has at least its own alternative")
}

/// The uses of one tensor, in order: slot, reads it, writes it.
type Uses = Vec<(Slot, bool, bool)>;

fn uses_of(trace: &Trace) -> TiVec<TensorId, Uses> {
    let mut uses: TiVec<TensorId, Uses> = vec![Vec::new(); trace.tensors.len()].into();
    for (slot, op) in (1..).map(Slot).zip(&trace.ops) {
        for t in &op.reads {
            uses[*t].push((slot, true, false));
        }
        for t in &op.writes {
            match uses[*t].last_mut() {
                Some(last) if last.0 == slot => last.2 = true,
                _ => uses[*t].push((slot, false, true)),
            }
        }
    }
    uses
}

impl Gaps {
    /// The gaps of a valid trace, for a pool of so many bytes. `split` says into how many pieces a tensor is cut.
    pub fn new(
        trace: &Trace,
        pool: Bytes,
        alternatives: Alternatives,
        split: &dyn Fn(TensorId) -> u32,
    ) -> Gaps {
        let slots = trace.ops.len() + 1;
        let mut gaps = Gaps {
            seconds: vec![0.0; slots].into(),
            base: vec![0; slots].into(),
            workspace: vec![0; slots].into(),
            alternatives: vec![None; trace.ops.len()].into(),
            lives: TiVec::new(),
            gaps: TiVec::new(),
            versions: VersionId(0),
        };
        for (t, uses) in uses_of(trace).iter_enumerated() {
            let bytes = trace.tensors[t.index()].bytes;
            if bytes > Bytes::ZERO {
                gaps.add_tensor(t, bytes.0, uses, split(t));
            }
        }
        gaps.add_memory();
        for (at, op) in (0..).map(OpId).zip(&trace.ops) {
            let room = match alternatives {
                Alternatives::BesideAll => pool.0.saturating_sub(gaps.base[Slot::of(at)]),
                Alternatives::BesideOwn => pool.saturating_sub(trace.touched_bytes(op)).0,
                Alternatives::Fastest => u64::MAX,
                Alternatives::Leanest => 0,
            };
            gaps.set_alternative(op, at, room);
        }
        gaps
    }

    /// Chooses the fastest alternative of an op, which stands at this position, with at most so much workspace.
    pub fn set_alternative(&mut self, op: &Op, at: OpId, room: u64) {
        let (alternative, seconds, workspace) = fastest(op, room);
        let slot = Slot::of(at);
        self.base[slot] = self.base[slot] - self.workspace[slot] + workspace;
        (self.alternatives[at], self.seconds[slot], self.workspace[slot]) = (alternative, seconds, workspace);
    }

    /// Cuts one tensor's uses into stretches and gaps.
    fn add_tensor(&mut self, tensor: TensorId, bytes: u64, uses: &Uses, pieces: u32) {
        let count = u64::from(pieces.max(1)).min(bytes);
        // Pieces begin at multiples of 4096 bytes, so that each stays as aligned as its tensor.
        let cut = |k: u64| if k == count { bytes } else { (bytes / count).next_multiple_of(4096) * k };
        let pieces: Vec<Range<u64>> =
            (0..count).map(|k| cut(k).min(bytes)..cut(k + 1).min(bytes)).filter(|p| !p.is_empty()).collect();
        let mut from = 0;
        while from < uses.len() {
            // A write that does not read begins a stretch of its own.
            let more = uses[from + 1..].iter().position(|u| !u.1).unwrap_or(uses.len() - from - 1);
            let stretch = &uses[from..=from + more];
            let at_start = from == 0 && stretch[0].1;
            let begins = if at_start { Slot::START } else { stretch[0].0 };
            let ends = stretch[stretch.len() - 1].0.next();
            let (first_gap, mut gaps_each) = (self.gaps.next_key(), 0);
            for piece in &pieces {
                let (live, first) = (self.lives.next_key(), self.gaps.next_key());
                let (mut after, mut writer) = (begins, begins);
                let mut version = self.versions;
                for use_ in stretch {
                    if use_.0 > after.next() {
                        let bytes = piece.end - piece.start;
                        self.gaps.push(Gap { live, bytes, after, before: use_.0, writer, version });
                    }
                    after = use_.0;
                    if use_.2 && use_.0 != begins {
                        (writer, version) = (use_.0, version.next());
                    }
                }
                self.versions = version.next();
                gaps_each = self.gaps.next_key().0 - first.0;
            }
            let opens = if at_start { Opens::Start } else { Opens::Written };
            let pieces = pieces.clone();
            self.lives.push(Live { tensor, pieces, slots: begins..ends, opens, first_gap, gaps_each });
            from += more + 1;
        }
    }

    /// Sums the stretches into `base`.
    fn add_memory(&mut self) {
        let mut alive = Levels::new(self.base.len());
        for live in &self.lives {
            alive.hold(live.slots.clone(), live.pieces.last().map_or(0, |p| p.end));
        }
        self.base = alive.sums().collect();
    }

    /// Nothing swapped, as one entry for each gap.
    pub fn none(&self) -> TiVec<GapId, bool> {
        vec![false; self.gaps.len()].into()
    }

    /// Everything swapped, as one entry for each gap.
    pub fn all(&self) -> TiVec<GapId, bool> {
        vec![true; self.gaps.len()].into()
    }

    /// The pool bytes that each slot needs at least when these gaps are swapped.
    pub fn least(&self, swapped: &TiSlice<GapId, bool>) -> TiVec<Slot, u64> {
        let mut away = Levels::new(self.base.len());
        for (gap, _) in self.gaps.iter().zip(swapped).filter(|(_, swapped)| **swapped) {
            away.hold(gap.after.next()..gap.before, gap.bytes);
        }
        self.base.iter().zip(away.sums()).map(|(base, away)| base - away).collect()
    }

    /// The iteration in which just these gaps are swapped, and the gap of each of its moves. One entry of `swapped` a gap.
    pub fn course(&self, swapped: &TiSlice<GapId, bool>) -> (Course, TiVec<MoveId, GapId>) {
        let mut of_move: Vec<GapId> = self.gaps.keys().filter(|g| swapped[*g]).collect();
        let mut hosted: TiVec<VersionId, bool> = vec![false; self.versions.index()].into();
        let mut offload: TiVec<GapId, bool> = vec![false; self.gaps.len()].into();
        for &g in &of_move {
            // Gaps of one version stand in order of time; one copy serves all.
            offload[g] = !std::mem::replace(&mut hosted[self.gaps[g].version], true);
        }
        of_move.sort_by_key(|g| self.gaps[*g].before);
        let move_of = |g: &GapId| {
            let Gap { bytes, after, before, writer, .. } = self.gaps[*g];
            Move { bytes, after, before, writer, offload: offload[*g] }
        };
        let moves = of_move.iter().map(move_of).collect();
        (Course { seconds: self.seconds.clone(), need: self.least(swapped), moves }, of_move.into())
    }

    /// By gap: when it leaves and returns within a pool of so many bytes; see [`Clock::windows`].
    pub fn windows(
        &self,
        clock: &mut Clock,
        swapped: &TiSlice<GapId, bool>,
        pool: u64,
        tighten: f64,
    ) -> TiVec<GapId, Option<Window>> {
        let (course, of_move) = self.course(swapped);
        clock.evaluate(&course, pool);
        let mut windows: TiVec<GapId, Option<Window>> = vec![None; self.gaps.len()].into();
        for (g, window) in of_move.into_iter().zip(clock.windows(&course, tighten)) {
            windows[g] = Some(window);
        }
        windows
    }

    /// Joins one decision per gap (none keeps the bytes where they are) into residencies and transfers.
    ///
    /// `windows` has one entry for each gap. Offloads are ordered by the slot after which their gap begins,
    /// prefetches by the slot of their next use.
    pub fn placement(&self, windows: &TiSlice<GapId, Option<Window>>) -> Placement {
        let mut placement = Placement::default();
        placement.steps.extend(self.alternatives.iter_enumerated().map(|(op, alternative)| Step {
            op,
            again: false,
            alternative: *alternative,
        }));
        // Transfers with the key that orders them, as the course of these gaps does: slot, offloads first and those by last
        // use and writer, then by next use and gap.
        type Key = (Slot, Direction, (Slot, Slot), (Slot, GapId));
        let mut keyed: Vec<(Key, Transfer)> = Vec::new();
        let mut homes = HomeId(0);
        for live in &self.lives {
            let whole = |at: u32| (0..).zip(&live.pieces).all(|(p, _)| windows[live.gap(p, at)].is_some());
            for (piece, bytes) in (0..).zip(&live.pieces) {
                let mut home = homes;
                let mut begins = live.slots.start;
                let mut opens = live.opens;
                for at in 0..live.gaps_each {
                    let g = live.gap(piece, at);
                    if let Some(window) = windows[g] {
                        let gap = &self.gaps[g];
                        let order = (gap.before, g);
                        let (tensor, bytes) = (live.tensor, bytes.clone());
                        let slots = begins..window.leaves;
                        let residency = Residency { tensor, bytes, home, slots, opens };
                        let here = placement.residencies.push_and_get_key(residency);
                        if let Some(before) = window.offload {
                            let transfer =
                                Transfer { residency: here, direction: Direction::Offload, before };
                            keyed.push((
                                (before, Direction::Offload, (gap.after, gap.writer), order),
                                transfer,
                            ));
                        }
                        let before = window.returns;
                        let transfer =
                            Transfer { residency: here.next(), direction: Direction::Prefetch, before };
                        let first = (Slot::START, Slot::START);
                        keyed.push(((before, Direction::Prefetch, first, order), transfer));
                        (begins, opens) = (window.returns, Opens::Prefetched);
                    }
                    if whole(at) {
                        home = home.next();
                    }
                }
                let (tensor, bytes, slots) = (live.tensor, bytes.clone(), begins..live.slots.end);
                placement.residencies.push(Residency { tensor, bytes, home, slots, opens });
            }
            homes = HomeId(homes.0 + live.gaps_each + 1);
        }
        keyed.sort_by_key(|(key, transfer)| (*key, transfer.residency));
        placement.transfers = keyed.into_iter().map(|(_, transfer)| transfer).collect();
        placement
    }

    /// The tensor that a gap belongs to.
    pub fn tensor(&self, gap: GapId) -> TensorId {
        self.lives[self.gaps[gap].live].tensor
    }
}
