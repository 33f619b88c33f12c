//! Consequences of decisions: the steps of the iteration, the memory at each, the bytes swapped between them.
//!
//! The walk goes through the trace. An op that needs absent values is preceded by a batch: the ops that make them again, and
//! those that make the absent inputs of these ops, in the order of the trace. A batch may also stand before an earlier op, if
//! there is more room for it ([`Decisions::early`]); its values are held then. Each step is a slot (see
//! [`crate::decide::placement`]). A value is on the device as an [`Instance`], from the step that makes it to the last one that
//! reads it; an update in place turns an instance of one value into one of a different value. Swapping takes bytes out of an
//! instance between two of its uses.
//!
//! A choice is examined only when an op needs the value, so that the walks of a search need not begin at the start: see
//! [`Trail`]. This runs for every set of decisions that a search evaluates: it is linear in the steps and does not allocate once
//! its arrays are large enough.
//!
//! This file deliberately does not choose.

mod trail;

pub use trail::{Trail, earlier};

use crate::compact::Compact;
use crate::decide::placement::{
    HomeId, Opens, Placement, Residency, ResidencyId, Slot, Step, Transfers, Window,
};
use crate::decide::windows::{Course, Move, MoveId};
use crate::iteration::values::{Choice, Decisions, GapId, OpAlternative, Touch, ValueId, Values};
use crate::levels::Levels;
use plimsoll_ir::{OpId, define_id};
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Instance of a walk.
    InstanceId, "instance");

/// Value on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The last value that it is.
    pub value: ValueId,
    /// Slot of the step that makes it; the start if it exists from the start.
    pub opens: Slot,
    /// Slot of its last use.
    pub last: Slot,
}

/// Name of an occupant of the pool. Equal names in two walks denote the same occupant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// An instance of a value: its position among the value's instances, and the home's position among the instance's homes.
    Instance {
        /// Last value that it is.
        value: ValueId,
        /// Position among the instances of the value.
        ordinal: u32,
        /// Position among the homes of the instance.
        home: u32,
    },
    /// Workspace of an op.
    Workspace {
        op: OpId,
        /// `true` if the op is recomputed.
        again: bool,
    },
}

/// Input of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Iteration<'a> {
    /// Values of the trace.
    pub values: &'a Values,
    /// Decisions about the values.
    pub decisions: &'a Decisions,
    /// By op: bytes that are left free while it runs, and while others are recomputed for it.
    pub margins: &'a TiSlice<OpId, u64>,
    /// Pool in bytes: if it is too small, an op runs in the next leaner alternative that fits.
    pub pool: u64,
}

/// Condition on which a walk ends early.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Maximum number of steps.
    pub steps: usize,
    /// Maximum seconds of steps that recompute ops.
    pub again: f64,
}

impl Limit {
    /// No limit.
    pub const NONE: Limit = Limit { steps: usize::MAX, again: f64::INFINITY };

    /// Returns `true` if a walk with this many ops left exceeds the limit.
    fn is_passed(self, walk: &Walk, ops: usize) -> bool {
        walk.steps.len() + ops > self.steps || walk.again_seconds > self.again
    }
}

/// Run of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub op: OpId,
    /// Op of the trace that it runs for: itself, or the one that needs the recomputed value.
    pub serves: OpId,
}

/// Evaluator of decisions, with its memory.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// Result of the last walk.
    pub course: Course,
    /// Steps; that of slot 1 first.
    pub steps: Vec<Run>,
    /// Seconds of all steps.
    pub seconds: f64,
    /// Seconds of the steps that recompute ops, by the decided alternatives.
    pub again_seconds: f64,
    instances: TiVec<InstanceId, Instance>,
    /// By move of the course: its instance, and the first byte of it that moves.
    of_move: TiVec<MoveId, (InstanceId, u64)>,
    memory: Memory,
    /// Slots of ops that have more than one alternative, with the alternative in which each runs.
    alternatives: Vec<(Slot, u8)>,
    states: TiVec<ValueId, ValueState>,
    /// Gaps whose choice was examined before their end, each with the first op that examined it.
    looks: Vec<(GapId, OpId)>,
    /// Op at which the walk ended early; `None` if it did not.
    ended: Option<OpId>,
    batch: Batch,
}

/// Terms of the bytes that each slot needs.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// By step: its workspace and its margin.
    beside: Vec<u64>,
    /// By slot: bytes of the instances on the device.
    instances: Levels<Slot>,
}

/// Ops that are recomputed before an op, while they are collected.
#[derive(Clone, Debug, Default)]
struct Batch {
    /// By op: `true` if it is among them.
    marked: TiVec<OpId, bool>,
    ops: Vec<OpId>,
    /// Values to make.
    open: Vec<ValueId>,
    /// Values that they made.
    made: Vec<ValueId>,
}

/// State of a value.
#[derive(Clone, Copy, Debug)]
struct ValueState {
    place: Place,
    /// `true` if the host has its part.
    hosted: bool,
    /// Its instance on the device, the last one if it is gone; `None` before it is made.
    instance: Compact<InstanceId>,
    /// Slot that wrote the instance.
    written: Slot,
    /// Gap that it is in, and the slot of the previous touch; no gap once it was updated in place.
    gap: Compact<GapId>,
    since: Slot,
}

/// Place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Place that its gap's choice defines: nothing has needed the value since the gap began.
    Chosen,
    /// All of it on the device.
    Here,
    /// Its part is away.
    Away,
    /// Nowhere.
    Gone,
}

impl From<Choice> for Place {
    fn from(choice: Choice) -> Place {
        match choice {
            Choice::Keep => Place::Here,
            Choice::Swap => Place::Away,
            Choice::Recompute | Choice::RecomputeEach => Place::Gone,
        }
    }
}

const UNBORN: ValueState = ValueState {
    place: Place::Gone,
    hosted: false,
    instance: Compact::NONE,
    written: Slot::START,
    gap: Compact::NONE,
    since: Slot::START,
};

impl ValueState {
    /// Returns the instance of a value that was made.
    #[inline]
    fn made(&self) -> InstanceId {
        self.instance.get().expect("what is read was made before")
    }
}

impl Walk {
    /// Computes the consequences of the decisions. Returns `true` if the walk came to the end.
    pub fn go(&mut self, of: Iteration<'_>, limit: Limit) -> bool {
        self.begin(of.values);
        self.advance(of, OpId(0)..of.values.alternatives.next_key(), limit) && self.finish(of)
    }

    /// Puts only the values that exist from the start on the device.
    fn begin(&mut self, values: &Values) {
        self.steps.clear();
        (self.seconds, self.again_seconds) = (0.0, 0.0);
        self.instances.clear();
        self.of_move.clear();
        self.memory.beside.clear();
        self.alternatives.clear();
        self.looks.clear();
        self.course.moves.clear();
        self.course.seconds.clear();
        self.course.seconds.push(0.0);
        self.states.clear();
        self.states.resize(values.tensor.len(), UNBORN);
        self.batch.marked.resize(values.alternatives.len(), false);
        for v in values.tensor.keys().filter(|v| values.maker[*v].is_none()) {
            let there = Instance { value: v, opens: Slot::START, last: Slot::START };
            self.states[v].instance = self.instances.push_and_get_key(there).into();
            self.states[v].place = Place::Here;
            self.leave(Touch { value: v, gap: values.gaps_of(v).next() }, Slot::START);
        }
    }

    /// Continues through some ops.
    fn advance(&mut self, of: Iteration<'_>, ops: Range<OpId>, limit: Limit) -> bool {
        let Iteration { values, decisions, .. } = of;
        for op in OpId::each(ops) {
            let (reads, writes) = (values.reads.row(op), values.writes.row(op));
            let early = decisions.early_at(op);
            let mut gone = false;
            for z in reads {
                gone |= self.place(decisions, z.value) == Place::Gone;
            }
            for (_, gap) in early {
                gone |= self.is_due(of, *gap, op);
            }
            if gone {
                self.make_again(of, op, early);
                if limit.is_passed(self, values.alternatives.len() - op.index()) {
                    self.ended = Some(op);
                    return false;
                }
            }
            let slot = self.step(of, Run { op, serves: op });
            for y in writes {
                let instance = self.instance(values, y.value, slot).into();
                self.states[y.value] = ValueState { place: Place::Here, instance, written: slot, ..UNBORN };
            }
            if gone {
                self.forget(of, reads, early);
            }
            for touch in reads.iter().chain(writes) {
                self.leave(*touch, slot);
            }
        }
        true
    }

    /// Returns the place of a value, which its gap's choice defines at the first query.
    fn place(&mut self, decisions: &Decisions, v: ValueId) -> Place {
        let state = &mut self.states[v];
        if let (Place::Chosen, Some(gap)) = (state.place, state.gap.get()) {
            state.place = decisions.choices[gap].into();
        }
        state.place
    }

    /// Returns `true` if a value is absent, for an op that does not read it.
    fn is_gone(&mut self, decisions: &Decisions, v: ValueId, op: OpId) -> bool {
        let state = &self.states[v];
        if let (Place::Chosen, Some(gap)) = (state.place, state.gap.get()) {
            self.looks.push((gap, op));
        }
        self.place(decisions, v) == Place::Gone
    }

    /// Returns `true` if the value of a gap that contains this op is absent.
    fn is_due(&mut self, of: Iteration<'_>, gap: GapId, op: OpId) -> bool {
        let v = of.values.gaps[gap].value;
        self.states[v].gap.get() == Some(gap) && self.is_gone(of.decisions, v, op)
    }

    /// Recomputes the absent inputs of this op, and the values that are to be recomputed before it.
    fn make_again(&mut self, of: Iteration<'_>, op: OpId, early: &[(OpId, GapId)]) {
        let Iteration { values, decisions, .. } = of;
        let mut ops = std::mem::take(&mut self.batch.ops);
        let mut open = std::mem::take(&mut self.batch.open);
        self.batch.made.clear();
        ops.clear();
        let reads = values.reads.row(op).iter().map(|z| z.value);
        open.extend(reads.filter(|v| self.states[*v].place == Place::Gone));
        for (_, gap) in early {
            if self.is_due(of, *gap, op) {
                open.push(values.gaps[*gap].value);
            }
        }
        while let Some(v) = open.pop() {
            let maker = values.maker[v].expect("what is there from the start is never recomputed");
            if !std::mem::replace(&mut self.batch.marked[maker], true) {
                ops.push(maker);
                let inputs = values.reads.row(maker).iter().map(|z| z.value);
                open.extend(inputs.filter(|v| self.is_gone(decisions, *v, op)));
            }
        }
        ops.sort_unstable();
        for &maker in &ops {
            self.batch.marked[maker] = false;
            self.step_again(of, Run { op: maker, serves: op });
        }
        (self.batch.ops, self.batch.open) = (ops, open);
    }

    /// Runs an op whose inputs are present; returns its slot.
    fn step(&mut self, of: Iteration<'_>, run: Run) -> Slot {
        let Iteration { values, decisions, margins, .. } = of;
        let (alternatives, decided) = (&values.alternatives[run.op], decisions.alternatives[run.op]);
        let alternative = &alternatives[usize::from(decided)];
        let slot = self.course.seconds.push_and_get_key(alternative.seconds);
        if alternatives.len() > 1 {
            self.alternatives.push((slot, decided));
        }
        self.steps.push(run);
        self.seconds += alternative.seconds;
        let margin = margins.get(run.serves).copied().unwrap_or_default();
        self.memory.beside.push(alternative.workspace + margin);
        for z in values.reads.row(run.op) {
            let state = &mut self.states[z.value];
            let instance = state.made();
            self.instances[instance].last = slot;
            // Absent bytes are prefetched. Between two consecutive steps nothing can leave.
            if std::mem::replace(&mut state.place, Place::Here) == Place::Away && slot > state.since.next() {
                let offload = !std::mem::replace(&mut state.hosted, true);
                let (after, writer) = (state.since, state.written);
                let mut first = 0;
                for end in values.chunk_ends(z.value, decisions) {
                    let bytes = end - first;
                    if bytes == 0 {
                        continue;
                    }
                    self.course.moves.push(Move { bytes, after, before: slot, writer, offload });
                    self.of_move.push((instance, first));
                    first = end;
                }
            }
        }
        slot
    }

    /// Runs an op again. Its outputs replace their earlier instances, which end at their last use before.
    fn step_again(&mut self, of: Iteration<'_>, run: Run) {
        let Iteration { values, decisions, .. } = of;
        let slot = self.step(of, run);
        self.again_seconds += self.course.seconds[slot];
        for y in values.writes.row(run.op) {
            let instance = self.instance(values, y.value, slot).into();
            if self.is_gone(decisions, y.value, run.serves) {
                self.batch.made.push(y.value);
            }
            let state = &mut self.states[y.value];
            (state.place, state.instance, state.written) = (Place::Here, instance, slot);
        }
    }

    /// Returns the instance that a step makes of a value: a new one, or that of the value which it updates in place.
    fn instance(&mut self, values: &Values, v: ValueId, slot: Slot) -> InstanceId {
        let Some(from) = values.from[v] else {
            return self.instances.push_and_get_key(Instance { value: v, opens: slot, last: slot });
        };
        let from = &mut self.states[from];
        from.place = Place::Gone;
        let instance = from.made();
        self.instances[instance].value = v;
        instance
    }

    /// Drops values that the last batch made for its own sake, and not for the op of these reads or to be held from here on.
    fn forget(&mut self, of: Iteration<'_>, reads: &[Touch], early: &[(OpId, GapId)]) {
        for &v in &self.batch.made {
            let state = &mut self.states[v];
            let gap = state.gap.get();
            let each = gap.is_none_or(|gap| of.decisions.choices[gap] == Choice::RecomputeEach);
            let held = early.iter().any(|(_, early)| Some(*early) == gap);
            if each && !held && !reads.iter().any(|z| z.value == v) {
                state.place = Place::Gone;
            }
        }
    }

    /// Begins a value's next gap.
    fn leave(&mut self, touch: Touch, slot: Slot) {
        let state = &mut self.states[touch.value];
        (state.gap, state.since) = (touch.gap.into(), slot);
        if touch.gap.is_some() {
            state.place = Place::Chosen;
        }
    }

    /// Returns the values that leave for the host, each with the end of the bytes that leave.
    pub fn offloads(&self) -> impl Iterator<Item = (ValueId, u64)> {
        let moves = self.course.moves.iter().zip(&self.of_move).filter(|(piece, _)| piece.offload);
        moves.map(|(piece, (instance, first))| (self.instances[*instance].value, first + piece.bytes))
    }

    /// Sums the memory: instances, minus absent bytes, plus workspaces.
    fn finish(&mut self, of: Iteration<'_>) -> bool {
        let Iteration { values, decisions, pool, .. } = of;
        let Walk { course, memory: Memory { beside, instances }, .. } = self;
        instances.clear(beside.len() + 1);
        for here in &self.instances {
            instances.hold(here.opens..here.last.next(), values.bytes[here.value]);
        }
        for piece in &course.moves {
            instances.free(piece.after.next()..piece.before, piece.bytes);
        }
        course.need.clear();
        // Nothing runs at the start, so the sum has only the instances.
        let mut sums = instances.sums();
        course.need.extend(sums.next());
        course.need.extend(beside.iter().zip(sums).map(|(beside, bytes)| beside + bytes));
        for (slot, alternative) in &mut self.alternatives {
            let op = self.steps[slot.index() - 1].op;
            let alternatives = &values.alternatives[op];
            let decided = usize::from(decisions.alternatives[op]);
            let (first, need) = (alternatives[decided], &mut course.need[*slot]);
            let room = pool.saturating_sub(*need - first.workspace);
            let mut leaner = (decisions.alternatives[op]..=u8::MAX).zip(&alternatives[decided..]);
            let fits = leaner.clone().find(|(_, alternative)| alternative.workspace <= room);
            let chosen = fits.or_else(|| leaner.next_back()).expect("the alternative decided is one");
            let OpAlternative { seconds, workspace, .. } = chosen.1;
            *alternative = chosen.0;
            *need = *need - first.workspace + workspace;
            course.seconds[*slot] = *seconds;
            self.seconds += seconds - first.seconds;
        }
        self.ended = None;
        true
    }

    /// Returns the op of the trace that a slot's step runs for.
    pub fn serves(&self, slot: Slot) -> OpId {
        self.run(slot).serves
    }

    /// Returns a slot's step. There is none at the start, before the first op; that op's stands for it.
    pub fn run(&self, slot: Slot) -> Run {
        self.steps[slot.previous().map_or(0, Slot::index)]
    }
}

impl Walk {
    /// Returns the workspace of each step of the last walk, in bytes.
    pub fn workspaces(&self, values: &Values) -> Vec<u64> {
        self.alternatives(values).map(|alternative| alternative.workspace).collect()
    }

    /// By home of the placement: its occupant.
    pub fn names(&self) -> TiVec<HomeId, Name> {
        let mut gaps: TiVec<InstanceId, u32> = vec![0; self.instances.len()].into();
        for (instance, _) in self.of_move.iter().filter(|(_, first)| *first == 0) {
            gaps[*instance] += 1;
        }
        let mut ordinals: TiVec<ValueId, u32> = vec![0; self.states.len()].into();
        let mut names = TiVec::new();
        for (here, gaps) in self.instances.iter().zip(gaps) {
            let (value, ordinal) = (here.value, ordinals[here.value]);
            names.extend((0..=gaps).map(|home| Name::Instance { value, ordinal, home }));
            ordinals[value] += 1;
        }
        names
    }

    /// By step: alternative in which its op runs.
    fn alternatives<'a>(&'a self, values: &'a Values) -> impl Iterator<Item = &'a OpAlternative> {
        let mut alternatives = self.alternatives.iter().peekable();
        (1..).map(Slot).zip(&self.steps).map(move |(slot, run)| {
            let alternative =
                alternatives.next_if(|(of, _)| *of == slot).map_or(0, |(_, alternative)| *alternative);
            &values.alternatives[run.op][usize::from(alternative)]
        })
    }

    /// Returns the placement of the last walk, with the windows of its moves.
    pub fn placement(&self, values: &Values, windows: &TiSlice<MoveId, Window>) -> Placement {
        let mut placement = Placement::default();
        let steps = self.steps.iter().zip(self.alternatives(values));
        placement.steps.extend(steps.map(|(run, alternative)| Step {
            op: run.op,
            again: run.op != run.serves,
            alternative: alternative.alternative,
        }));
        let mut moves: TiVec<InstanceId, Vec<MoveId>> = vec![Vec::new(); self.instances.len()].into();
        for (m, (instance, _)) in self.of_move.iter_enumerated() {
            moves[*instance].push(m);
        }
        let mut placing =
            Placing { walk: self, values, windows, placement, transfers: Transfers::new(), homes: HomeId(0) };
        self.instances.iter().zip(&moves).for_each(|(here, moves)| placing.add(here, moves));
        Placement { transfers: placing.transfers.sorted(), ..placing.placement }
    }
}

/// Turns instances into residencies.
struct Placing<'a> {
    walk: &'a Walk,
    values: &'a Values,
    windows: &'a TiSlice<MoveId, Window>,
    placement: Placement,
    /// In the order of [`crate::decide::windows`]: by move.
    transfers: Transfers<MoveId>,
    homes: HomeId,
}

impl Placing<'_> {
    /// Cuts an instance into the pieces of its moves.
    fn add(&mut self, here: &Instance, moves: &[MoveId]) {
        let whole = self.values.bytes[here.value];
        let mut cuts: Vec<u64> = moves.iter().map(|m| self.moved(*m).end).collect();
        cuts.push(whole);
        cuts.sort_unstable();
        cuts.dedup();
        let mut first = 0;
        for cut in cuts {
            self.add_piece(here, first..cut, moves);
            first = cut;
        }
        // One more than there are gaps.
        self.homes = self.gaps(moves).fold(self.homes, |home, _| home.next()).next();
    }

    /// Returns the bytes of its instance that a move takes.
    fn moved(&self, m: MoveId) -> Range<u64> {
        let (_, first) = self.walk.of_move[m];
        first..first + self.walk.course.moves[m].bytes
    }

    /// Returns the moves of an instance by gap: chunk by chunk.
    fn gaps<'m>(&self, moves: &'m [MoveId]) -> impl Iterator<Item = &'m [MoveId]> {
        let before = |m: MoveId| self.walk.course.moves[m].before;
        moves.chunk_by(move |a, b| before(*a) == before(*b))
    }

    fn add_piece(&mut self, here: &Instance, bytes: Range<u64>, moves: &[MoveId]) {
        let whole = self.values.bytes[here.value];
        let tensor = self.values.tensor[here.value];
        let mut home = self.homes;
        let mut begins = here.opens;
        let mut opens = if begins == Slot::START { Opens::Start } else { Opens::Written };
        let gaps: Vec<&[MoveId]> = self.gaps(moves).collect();
        for gap in gaps {
            if let Some(&m) = gap.iter().find(|m| self.moved(**m).contains(&bytes.start)) {
                let (window, piece) = (self.windows[m], self.walk.course.moves[m]);
                let slots = begins..window.leaves;
                let residency = Residency { tensor, bytes: bytes.clone(), home, slots, opens };
                let here: ResidencyId = self.placement.residencies.push_and_get_key(residency);
                self.transfers.add(here, window, [piece.after, piece.writer], m);
                (begins, opens) = (window.returns, Opens::Prefetched);
            }
            // If all of it leaves, it may return elsewhere.
            let gone: u64 = gap.iter().map(|m| self.walk.course.moves[*m].bytes).sum();
            if gone == whole {
                home = home.next();
            }
        }
        let slots = begins..here.last.next();
        self.placement.residencies.push(Residency { tensor, bytes, home, slots, opens });
    }
}
