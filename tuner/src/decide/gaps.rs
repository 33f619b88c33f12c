//! Gaps of a trace, about which policies decide: times between uses during which a tensor's bytes may leave the device.
//!
//! # The data
//!
//! A tensor's time is cut into [`Live`] stretches: from a write that does not read it (or the start of the iteration) to the last
//! use before the next such write. Between two stretches the bytes mean nothing and are not kept. Within a stretch, a [`Gap`]
//! lies between two consecutive uses that are at least two slots apart (slots as in [`crate::decide::placement`]).
//!
//! `base` is the pool that every slot needs when every gap is kept; swapping a gap frees its bytes during the slots that lie
//! strictly between its two uses. With all gaps swapped, every slot holds only the operands of its op.

use crate::decide::placement::{HomeId, Opens, Placement, Residency, Slot, Step, Transfers, Window};
use crate::decide::windows::{Clock, Course, Move, MoveId};
use crate::levels::Levels;
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId, define_id};
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Gap between two uses of a tensor.
    GapId, "gap");
define_id!(
    /// Live interval of a tensor: it holds bytes that are still needed.
    LiveId, "stretch");
define_id!(
    /// Contents of a tensor from one write to the next.
    VersionId, "version");

/// Decisions that a trace leaves open; see the head of this file.
#[derive(Clone, Debug)]
pub struct Gaps {
    /// Seconds of each slot's op; slot 0 takes none.
    pub seconds: TiVec<Slot, f64>,
    /// Pool bytes that each slot needs when nothing is swapped, workspace included.
    pub base: TiVec<Slot, u64>,
    /// Workspace of each slot, in bytes.
    pub workspace: TiVec<Slot, u64>,
    /// Alternative in which each op runs.
    pub alternatives: TiVec<OpId, Option<u32>>,
    /// Live intervals of the tensors that have bytes.
    pub lives: TiVec<LiveId, Live>,
    /// Gaps: those of one stretch adjacent, in order of time.
    pub gaps: TiVec<GapId, Gap>,
    /// Version after the last that a gap names.
    pub versions: VersionId,
}

/// Live interval of a tensor: it holds bytes that are still needed.
#[derive(Clone, Debug)]
pub struct Live {
    pub tensor: TensorId,
    pub bytes: u64,
    /// Slots from its first to its last use.
    pub slots: Range<Slot>,
    /// Start or write that opens it.
    pub opens: Opens,
    /// Its gaps, in order of time.
    pub gaps: Range<GapId>,
}

/// Time between two consecutive uses of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// Stretch that it lies in.
    pub live: LiveId,
    pub bytes: u64,
    /// Slot of the last use before; the start if there is none since the start.
    pub after: Slot,
    /// Slot of the next use.
    pub before: Slot,
    /// Slot of the write that made the contents; the start if they exist from the start.
    pub writer: Slot,
    /// Version. Gaps of the same version hold the same contents, for which one host copy suffices.
    pub version: VersionId,
}

/// Rule for the alternative of each op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternatives {
    /// The fastest whose workspace fits next to all live tensors with nothing swapped.
    BesideAll,
    /// The fastest whose workspace fits next to the op's own operands.
    BesideOwn,
    /// The fastest, even if it does not fit.
    Fastest,
    /// The fastest of those with the least workspace.
    Leanest,
}

/// Returns the fastest alternative of an op with at most this much workspace; the leanest if none fits.
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

/// Uses of one tensor, in order: slot, `true` if it reads, `true` if it writes.
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
    /// Returns the gaps of a valid trace, for a pool of this many bytes.
    pub fn new(trace: &Trace, pool: Bytes, alternatives: Alternatives) -> Gaps {
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
                gaps.add_tensor(t, bytes.0, uses);
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

    /// Chooses the fastest alternative of the op at this position, with at most this much workspace.
    pub fn set_alternative(&mut self, op: &Op, at: OpId, room: u64) {
        let (alternative, seconds, workspace) = fastest(op, room);
        let slot = Slot::of(at);
        self.base[slot] = self.base[slot] - self.workspace[slot] + workspace;
        (self.alternatives[at], self.seconds[slot], self.workspace[slot]) = (alternative, seconds, workspace);
    }

    /// Cuts one tensor's uses into stretches and gaps.
    fn add_tensor(&mut self, tensor: TensorId, bytes: u64, uses: &Uses) {
        let mut from = 0;
        while from < uses.len() {
            // A write that does not read begins a new stretch.
            let more = uses[from + 1..].iter().position(|u| !u.1).unwrap_or(uses.len() - from - 1);
            let stretch = &uses[from..=from + more];
            let at_start = from == 0 && stretch[0].1;
            let begins = if at_start { Slot::START } else { stretch[0].0 };
            let ends = stretch[stretch.len() - 1].0.next();
            let (live, first) = (self.lives.next_key(), self.gaps.next_key());
            let (mut after, mut writer) = (begins, begins);
            for use_ in stretch {
                if use_.0 > after.next() {
                    self.gaps.push(Gap {
                        live,
                        bytes,
                        after,
                        before: use_.0,
                        writer,
                        version: self.versions,
                    });
                }
                after = use_.0;
                if use_.2 && use_.0 != begins {
                    (writer, self.versions) = (use_.0, self.versions.next());
                }
            }
            self.versions = self.versions.next();
            let opens = if at_start { Opens::Start } else { Opens::Written };
            let gaps = first..self.gaps.next_key();
            self.lives.push(Live { tensor, bytes, slots: begins..ends, opens, gaps });
            from += more + 1;
        }
    }

    /// Sums the stretches into `base`.
    fn add_memory(&mut self) {
        let mut alive = Levels::new(self.base.len());
        for live in &self.lives {
            alive.hold(live.slots.clone(), live.bytes);
        }
        self.base = alive.sums().collect();
    }

    /// Returns no swapped gap, as one entry per gap.
    pub fn none(&self) -> TiVec<GapId, bool> {
        vec![false; self.gaps.len()].into()
    }

    /// Returns all gaps as swapped, as one entry per gap.
    pub fn all(&self) -> TiVec<GapId, bool> {
        vec![true; self.gaps.len()].into()
    }

    /// Returns the minimum pool bytes of each slot when these gaps are swapped.
    pub fn least(&self, swapped: &TiSlice<GapId, bool>) -> TiVec<Slot, u64> {
        let mut away = Levels::new(self.base.len());
        for (gap, _) in self.gaps.iter().zip(swapped).filter(|(_, swapped)| **swapped) {
            away.hold(gap.after.next()..gap.before, gap.bytes);
        }
        self.base.iter().zip(away.sums()).map(|(base, away)| base - away).collect()
    }

    /// Returns the iteration in which only these gaps are swapped, and the gap of each of its moves. `swapped` has one entry per
    /// gap.
    pub fn course(&self, swapped: &TiSlice<GapId, bool>) -> (Course, TiVec<MoveId, GapId>) {
        let mut of_move: Vec<GapId> = self.gaps.keys().filter(|g| swapped[*g]).collect();
        let mut hosted: TiVec<VersionId, bool> = vec![false; self.versions.index()].into();
        let mut offload: TiVec<GapId, bool> = vec![false; self.gaps.len()].into();
        for &g in &of_move {
            // Gaps of one version are in order of time; one copy serves all.
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

    /// By gap: its window within a pool of this many bytes; see [`Clock::windows`].
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

    /// Joins one decision per gap (`None` keeps the bytes on the device) into residencies and transfers.
    ///
    /// `windows` has one entry per gap. Offloads are ordered by the slot after which their gap begins, prefetches by the slot of
    /// their next use.
    pub fn placement(&self, windows: &TiSlice<GapId, Option<Window>>) -> Placement {
        let mut placement = Placement::default();
        placement.steps.extend(self.alternatives.iter_enumerated().map(|(op, alternative)| Step {
            op,
            again: false,
            alternative: *alternative,
        }));
        // In the order of the course of these gaps: by next use and gap.
        let mut transfers = Transfers::new();
        let mut home = HomeId(0);
        for Live { tensor, bytes, slots, opens, gaps } in self.lives.iter().cloned() {
            let residency = |home, slots, opens| Residency { tensor, bytes: 0..bytes, home, slots, opens };
            let (mut begins, mut opens) = (slots.start, opens);
            for g in GapId::each(gaps) {
                let Some(window) = windows[g] else { continue };
                let gap = &self.gaps[g];
                let here =
                    placement.residencies.push_and_get_key(residency(home, begins..window.leaves, opens));
                transfers.add(here, window, [gap.after, gap.writer], (gap.before, g));
                (begins, opens) = (window.returns, Opens::Prefetched);
                home = home.next();
            }
            placement.residencies.push(residency(home, begins..slots.end, opens));
            home = home.next();
        }
        placement.transfers = transfers.sorted();
        placement
    }

    /// Returns the tensor that a gap belongs to.
    pub fn tensor(&self, gap: GapId) -> TensorId {
        self.lives[self.gaps[gap].live].tensor
    }
}
