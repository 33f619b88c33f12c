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

use crate::decide::placement::{Direction, Opens, Placement, Residency, Step, Transfer, Window};
use crate::decide::windows::{Clock, Course, Move};
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId};
use std::ops::Range;

/// The decisions that a trace leaves open; see the head of this file.
#[derive(Clone, Debug)]
pub struct Gaps {
    /// How long each slot's op takes, in seconds; slot 0 takes none.
    pub seconds: Vec<f64>,
    /// The pool bytes that each slot needs when nothing is swapped, workspace included.
    pub base: Vec<u64>,
    /// The workspace of each slot, in bytes.
    pub workspace: Vec<u64>,
    /// In which way each op runs.
    pub alternatives: Vec<Option<u32>>,
    /// The stretches during which tensors hold something that is still needed; none for tensors of no bytes.
    pub lives: Vec<Live>,
    /// The gaps: those of one piece of one stretch side by side, in order of time.
    pub gaps: Vec<Gap>,
    /// How many different versions the gaps name.
    pub versions: u32,
}

/// A stretch of time during which a tensor holds something that is still needed.
#[derive(Clone, Debug)]
pub struct Live {
    /// Which tensor.
    pub tensor: TensorId,
    /// Its pieces, from the first byte to the last without holes; one where it is not split.
    pub pieces: Vec<Range<u64>>,
    /// The slots from its first to its last use.
    pub slots: Range<u32>,
    /// From the start, or written.
    pub opens: Opens,
    /// The first gap of the first piece.
    pub first_gap: u32,
    /// How many gaps each piece has.
    pub gaps_each: u32,
}

/// The time between two consecutive uses of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// The stretch that it lies in.
    pub live: u32,
    /// How many bytes.
    pub bytes: u64,
    /// The slot of the last use before; 0 where there is none since the start.
    pub after: u32,
    /// The slot of the next use.
    pub before: u32,
    /// The slot of the write that made the contents, 0 where they are there from the start.
    pub writer: u32,
    /// Gaps of the same version hold the same contents, of which one host copy is enough.
    pub version: u32,
}

/// Which way each op should run.
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
    let others = op.alternatives.iter().enumerate();
    alternatives.extend(others.map(|(k, a)| (Some(k as u32), a.seconds.0, a.workspace_bytes.0)));
    let leanest = alternatives.iter().map(|w| w.2).min().unwrap_or_default();
    alternatives.retain(|w| w.2 <= room.max(leanest));
    alternatives
        .into_iter()
        .min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)))
        .expect("an op has at least its own way")
}

/// The uses of one tensor, in order: slot, reads it, writes it.
type Uses = Vec<(u32, bool, bool)>;

fn uses_of(trace: &Trace) -> Vec<Uses> {
    let mut uses: Vec<Uses> = vec![Vec::new(); trace.tensors.len()];
    for (i, op) in trace.ops.iter().enumerate() {
        let slot = i as u32 + 1;
        for t in &op.reads {
            uses[t.index()].push((slot, true, false));
        }
        for t in &op.writes {
            match uses[t.index()].last_mut() {
                Some(last) if last.0 == slot => last.2 = true,
                _ => uses[t.index()].push((slot, false, true)),
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
            seconds: vec![0.0; slots],
            base: vec![0; slots],
            workspace: vec![0; slots],
            alternatives: Vec::with_capacity(slots - 1),
            lives: Vec::new(),
            gaps: Vec::new(),
            versions: 0,
        };
        for (t, uses) in uses_of(trace).iter().enumerate() {
            if trace.tensors[t].bytes > Bytes::ZERO {
                gaps.add_tensor(TensorId::new(t), trace.tensors[t].bytes.0, uses, split(TensorId::new(t)));
            }
        }
        gaps.add_memory();
        for (i, op) in trace.ops.iter().enumerate() {
            let room = match alternatives {
                Alternatives::BesideAll => pool.0.saturating_sub(gaps.base[i + 1]),
                Alternatives::BesideOwn => pool.saturating_sub(trace.touched_bytes(op)).0,
                Alternatives::Fastest => u64::MAX,
                Alternatives::Leanest => 0,
            };
            gaps.alternatives.push(None);
            gaps.set_alternative(op, i + 1, room);
        }
        gaps
    }

    /// Chooses the fastest alternative for the op of a slot with at most so much workspace.
    pub fn set_alternative(&mut self, op: &Op, slot: usize, room: u64) {
        let (alternative, seconds, workspace) = fastest(op, room);
        self.base[slot] = self.base[slot] - self.workspace[slot] + workspace;
        (self.alternatives[slot - 1], self.seconds[slot], self.workspace[slot]) =
            (alternative, seconds, workspace);
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
            let begins = if at_start { 0 } else { stretch[0].0 };
            let ends = stretch[stretch.len() - 1].0 + 1;
            let first_gap = self.gaps.len() as u32;
            for piece in &pieces {
                let live = self.lives.len() as u32;
                let (mut after, mut writer) = (begins, begins);
                let mut version = self.versions;
                for use_ in stretch {
                    if use_.0 > after + 1 {
                        let bytes = piece.end - piece.start;
                        self.gaps.push(Gap { live, bytes, after, before: use_.0, writer, version });
                    }
                    after = use_.0;
                    if use_.2 && use_.0 != begins {
                        (writer, version) = (use_.0, version + 1);
                    }
                }
                self.versions = version + 1;
            }
            let gaps_each = (self.gaps.len() as u32 - first_gap) / pieces.len() as u32;
            let opens = if at_start { Opens::Start } else { Opens::Written };
            let pieces = pieces.clone();
            self.lives.push(Live { tensor, pieces, slots: begins..ends, opens, first_gap, gaps_each });
            from += more + 1;
        }
    }

    /// Sums the stretches into `base`.
    fn add_memory(&mut self) {
        let mut change = vec![0i64; self.base.len() + 1];
        for live in &self.lives {
            let bytes = live.pieces.last().map_or(0, |p| p.end) as i64;
            change[live.slots.start as usize] += bytes;
            change[live.slots.end as usize] -= bytes;
        }
        let mut alive = 0;
        for (base, change) in self.base.iter_mut().zip(change) {
            alive += change;
            *base = alive as u64;
        }
    }

    /// The pool bytes that each slot needs at least when these gaps are swapped.
    pub fn least(&self, swapped: &[bool]) -> Vec<u64> {
        let mut freed = vec![0i64; self.base.len() + 1];
        for gap in self.gaps.iter().zip(swapped).filter(|(_, swapped)| **swapped).map(|(gap, _)| gap) {
            freed[gap.after as usize + 1] += gap.bytes as i64;
            freed[gap.before as usize] -= gap.bytes as i64;
        }
        let mut free = 0;
        let mut least = self.base.clone();
        for (least, freed) in least.iter_mut().zip(freed) {
            free += freed;
            *least -= free as u64;
        }
        least
    }

    /// The iteration in which just these gaps are swapped, and the gap of each of its moves. One entry of `swapped` a gap.
    pub fn course(&self, swapped: &[bool]) -> (Course, Vec<u32>) {
        let mut of_move: Vec<u32> = (0..self.gaps.len() as u32).filter(|g| swapped[*g as usize]).collect();
        let mut hosted = vec![false; self.versions as usize];
        let mut offload = vec![false; self.gaps.len()];
        for &g in &of_move {
            // Gaps of one version stand in order of time; one copy serves all.
            let version = self.gaps[g as usize].version as usize;
            offload[g as usize] = !std::mem::replace(&mut hosted[version], true);
        }
        of_move.sort_by_key(|g| self.gaps[*g as usize].before);
        let move_of = |g: &u32| {
            let Gap { bytes, after, before, writer, .. } = self.gaps[*g as usize];
            Move { bytes, after, before, writer, offload: offload[*g as usize] }
        };
        let moves = of_move.iter().map(move_of).collect();
        (Course { seconds: self.seconds.clone(), need: self.least(swapped), moves }, of_move)
    }

    /// By gap: when it leaves and returns within a pool of so many bytes; see [`Clock::windows`].
    pub fn windows(
        &self,
        clock: &mut Clock,
        swapped: &[bool],
        pool: u64,
        tighten: f64,
    ) -> Vec<Option<Window>> {
        let (course, of_move) = self.course(swapped);
        clock.evaluate(&course, pool);
        let mut windows = vec![None; self.gaps.len()];
        for (g, window) in of_move.into_iter().zip(clock.windows(&course, tighten)) {
            windows[g as usize] = Some(window);
        }
        windows
    }

    /// Joins one decision per gap (none keeps the bytes where they are) into residencies and transfers.
    ///
    /// `windows` has one entry for each gap. Offloads are ordered by the slot after which their gap begins,
    /// prefetches by the slot of their next use.
    pub fn placement(&self, windows: &[Option<Window>]) -> Placement {
        let mut placement = Placement::default();
        placement.steps.extend(self.alternatives.iter().enumerate().map(|(i, alternative)| Step {
            op: OpId::new(i),
            again: false,
            alternative: *alternative,
        }));
        // Transfers with the key that orders them, as the course of these gaps does: slot, offloads first and those by last
        // use and writer, then by next use and gap.
        type Key = (u32, u8, (u32, u32), (u32, u32));
        let mut keyed: Vec<(Key, Transfer)> = Vec::new();
        let mut homes = 0;
        for live in &self.lives {
            let count = live.gaps_each;
            for (piece, bytes) in live.pieces.iter().enumerate() {
                let first_gap = live.first_gap + piece as u32 * count;
                let mut home = homes;
                let mut begins = live.slots.start;
                let mut opens = live.opens;
                for k in 0..count {
                    let whole = (0..live.pieces.len() as u32)
                        .all(|p| windows[(live.first_gap + p * count + k) as usize].is_some());
                    if let Some(window) = windows[(first_gap + k) as usize] {
                        let gap = &self.gaps[(first_gap + k) as usize];
                        let order = (gap.before, first_gap + k);
                        let here = placement.residencies.len() as u32;
                        let (tensor, bytes) = (live.tensor, bytes.clone());
                        let slots = begins..window.leaves;
                        placement.residencies.push(Residency { tensor, bytes, home, slots, opens });
                        if let Some(before) = window.offload {
                            let transfer =
                                Transfer { residency: here, direction: Direction::Offload, before };
                            keyed.push(((before, 0, (gap.after, gap.writer), order), transfer));
                        }
                        let before = window.returns;
                        let transfer =
                            Transfer { residency: here + 1, direction: Direction::Prefetch, before };
                        keyed.push(((before, 1, (0, 0), order), transfer));
                        (begins, opens) = (window.returns, Opens::Prefetched);
                    }
                    home += u32::from(whole);
                }
                let (tensor, bytes, slots) = (live.tensor, bytes.clone(), begins..live.slots.end);
                placement.residencies.push(Residency { tensor, bytes, home, slots, opens });
            }
            homes += count + 1;
        }
        keyed.sort_by_key(|(key, transfer)| (*key, transfer.residency));
        placement.transfers = keyed.into_iter().map(|(_, transfer)| transfer).collect();
        placement
    }

    /// The tensor that a gap belongs to.
    pub fn tensor(&self, gap: usize) -> TensorId {
        self.lives[self.gaps[gap].live as usize].tensor
    }
}
