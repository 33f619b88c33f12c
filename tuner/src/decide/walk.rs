//! What follows from decisions: the steps of the iteration, the memory at each, what is swapped between them.
//!
//! The walk goes through the trace. An op that needs values which are gone is preceded by a batch: the ops that make them
//! again, and those that make what these need and is gone too, in the order of the trace. A batch may also stand before an
//! earlier op, where there is more room for it ([`Decisions::early`]); what it makes is held then. Each step is a slot (see
//! [`crate::decide::placement`]). A value is on the device as an [`Instance`], from the step that makes it to the last one that
//! reads it; an update in place turns an instance of one value into one of another. Swapping takes bytes out of an instance
//! between two of its uses.
//!
//! A choice is looked at only when something asks for the value, so that the walks of a search need not begin at the
//! start: see [`Trail`]. This runs for every set of decisions that a search looks at: it is linear in the steps and does
//! not allocate once its arrays are large enough.
//!
//! What this file does not do: choose.

mod trail;

pub use trail::Trail;

use crate::decide::placement::{Direction, Opens, Placement, Residency, Step, Transfer, Window};
use crate::decide::windows::{Course, Move};
use crate::iteration::values::{Choice, Decisions, NONE, OpAlternative, Touch, Values};
use plimsoll_ir::OpId;
use std::ops::Range;

/// A value on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The value that it is last.
    pub value: u32,
    /// The slot of the step that makes it; 0 where it is there from the start.
    pub opens: u32,
    /// The slot of its last use.
    pub last: u32,
}

/// What lies at a place; see [`Walk::names`].
pub type Name = (u32, u32, u32);

/// What a walk goes through.
#[derive(Clone, Copy, Debug)]
pub struct Iteration<'a> {
    /// The values of the trace.
    pub values: &'a Values,
    /// What is decided about them.
    pub decisions: &'a Decisions,
    /// By op: bytes that are left free while it runs, and while others are recomputed for it.
    pub margins: &'a [u64],
    /// In bytes: where it is short, an op runs in the next leaner way than decided that fits.
    pub pool: u64,
}

/// When a walk ends early.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// After more steps than these,
    pub steps: usize,
    /// or once those that recompute ops take more seconds than these.
    pub again: f64,
}

impl Limit {
    /// It does not.
    pub const NONE: Limit = Limit { steps: usize::MAX, again: f64::INFINITY };

    /// Whether it is passed by a walk with so many ops to go.
    fn is_passed(self, walk: &Walk, ops: u32) -> bool {
        walk.steps.len() + ops as usize > self.steps || walk.again_seconds > self.again
    }
}

/// An op that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The op.
    pub op: u32,
    /// The op of the trace that it runs for: itself, or the one that needs what is recomputed.
    pub serves: u32,
}

/// The evaluator of decisions, with its memory.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// What the last walk found.
    pub course: Course,
    /// The steps; that of slot 1 first.
    pub steps: Vec<Run>,
    /// Seconds of all steps.
    pub seconds: f64,
    /// Seconds of those that recompute ops, in the ways decided.
    pub again_seconds: f64,
    instances: Vec<Instance>,
    /// By move of the course: its instance, and the first byte of it that moves.
    of_move: Vec<(u32, u64)>,
    /// By step: its workspace and its margin.
    beside: Vec<u64>,
    /// The steps of ops that have more than one way, and the way in which each runs.
    alternatives: Vec<(u32, u8)>,
    /// By value.
    states: Vec<State>,
    /// The gaps whose choice was looked at before their end, each with the op at which that was first.
    looks: Vec<(u32, u32)>,
    /// The op at which the walk ended early; [`NONE`] where it did not.
    ended: u32,
    /// The batch that is being put together: by op, whether it is in it; its ops; values to make; values that it made.
    marked: Vec<bool>,
    batch: Vec<u32>,
    open: Vec<u32>,
    made: Vec<u32>,
    /// By slot: by how much the bytes on the device change.
    change: Vec<i64>,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug)]
struct State {
    place: Place,
    /// Whether the host has its part.
    hosted: bool,
    /// Its instance on the device, the last one if it is gone.
    instance: u32,
    /// The slot that wrote the instance.
    written: u32,
    /// The gap that it is in, and the slot of the touch before; no gap once it was updated in place.
    gap: u32,
    since: u32,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Where its gap's choice puts it: nothing has asked since the gap began.
    Chosen,
    /// On the device, all of it.
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

const UNBORN: State =
    State { place: Place::Gone, hosted: false, instance: NONE, written: 0, gap: NONE, since: 0 };

impl Walk {
    /// Works out what follows from the decisions. Tells whether the walk came to the end.
    pub fn go(&mut self, of: Iteration<'_>, limit: Limit) -> bool {
        self.begin(of.values);
        self.advance(of, 0..of.values.alternatives.len() as u32, limit) && self.finish(of)
    }

    /// Puts values that are there from the start on the device, and nothing else.
    fn begin(&mut self, values: &Values) {
        self.steps.clear();
        (self.seconds, self.again_seconds) = (0.0, 0.0);
        self.instances.clear();
        self.of_move.clear();
        self.beside.clear();
        self.alternatives.clear();
        self.looks.clear();
        self.course.moves.clear();
        self.course.seconds.clear();
        self.course.seconds.push(0.0);
        self.states.clear();
        self.states.resize(values.tensor.len(), UNBORN);
        self.marked.resize(values.alternatives.len(), false);
        for v in (0..values.tensor.len()).filter(|v| values.maker[*v] == NONE) {
            self.states[v].instance = self.instances.len() as u32;
            self.states[v].place = Place::Here;
            self.instances.push(Instance { value: v as u32, opens: 0, last: 0 });
            let gap = values.first_gap[v];
            let gap = if gap < values.first_gap[v + 1] { gap } else { NONE };
            self.leave(Touch { value: v as u32, gap }, 0);
        }
    }

    /// Goes on through some ops.
    fn advance(&mut self, of: Iteration<'_>, ops: Range<u32>, limit: Limit) -> bool {
        let Iteration { values, decisions, .. } = of;
        for op in ops {
            let (reads, writes) = (values.reads.row(op as usize), values.writes.row(op as usize));
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
                if limit.is_passed(self, values.alternatives.len() as u32 - op) {
                    self.ended = op;
                    return false;
                }
            }
            let slot = self.step(of, Run { op, serves: op });
            for y in writes {
                let instance = self.instance(values, y.value, slot);
                self.states[y.value as usize] =
                    State { place: Place::Here, instance, written: slot, ..UNBORN };
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

    /// Where a value is, which its gap's choice tells the first who asks.
    fn place(&mut self, decisions: &Decisions, v: u32) -> Place {
        let state = &mut self.states[v as usize];
        if state.place == Place::Chosen {
            state.place = decisions.choices[state.gap as usize].into();
        }
        state.place
    }

    /// Whether a value is nowhere, asked for the sake of an op that does not read it.
    fn is_gone(&mut self, decisions: &Decisions, v: u32, op: u32) -> bool {
        let state = &self.states[v as usize];
        if state.place == Place::Chosen {
            self.looks.push((state.gap, op));
        }
        self.place(decisions, v) == Place::Gone
    }

    /// Whether the value of a gap, which this op lies in, is nowhere.
    fn is_due(&mut self, of: Iteration<'_>, gap: u32, op: u32) -> bool {
        let v = of.values.gaps[gap as usize].value;
        self.states[v as usize].gap == gap && self.is_gone(of.decisions, v, op)
    }

    /// Recomputes what makes the inputs of this op that are gone, and what is to be recomputed before it.
    fn make_again(&mut self, of: Iteration<'_>, op: u32, early: &[(u32, u32)]) {
        let Iteration { values, decisions, .. } = of;
        let (mut batch, mut open) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.open));
        self.made.clear();
        batch.clear();
        let reads = values.reads.row(op as usize).iter().map(|z| z.value);
        open.extend(reads.filter(|v| self.states[*v as usize].place == Place::Gone));
        for (_, gap) in early {
            if self.is_due(of, *gap, op) {
                open.push(values.gaps[*gap as usize].value);
            }
        }
        while let Some(v) = open.pop() {
            let maker = values.maker[v as usize];
            if !std::mem::replace(&mut self.marked[maker as usize], true) {
                batch.push(maker);
                let inputs = values.reads.row(maker as usize).iter().map(|z| z.value);
                open.extend(inputs.filter(|v| self.is_gone(decisions, *v, op)));
            }
        }
        batch.sort_unstable();
        for &maker in &batch {
            self.marked[maker as usize] = false;
            self.step_again(of, Run { op: maker, serves: op });
        }
        (self.batch, self.open) = (batch, open);
    }

    /// Runs an op that has what it reads; gives its slot.
    fn step(&mut self, of: Iteration<'_>, run: Run) -> u32 {
        let Iteration { values, decisions, margins, .. } = of;
        let (alternatives, decided) =
            (&values.alternatives[run.op as usize], decisions.alternatives[run.op as usize]);
        let alternative = &alternatives[usize::from(decided)];
        if alternatives.len() > 1 {
            self.alternatives.push((self.steps.len() as u32, decided));
        }
        self.steps.push(run);
        self.seconds += alternative.seconds;
        self.course.seconds.push(alternative.seconds);
        self.beside
            .push(alternative.workspace + margins.get(run.serves as usize).copied().unwrap_or_default());
        let slot = self.steps.len() as u32;
        for z in values.reads.row(run.op as usize) {
            let state = &mut self.states[z.value as usize];
            self.instances[state.instance as usize].last = slot;
            // What was away is prefetched. Between two steps that follow each other nothing can leave.
            if std::mem::replace(&mut state.place, Place::Here) == Place::Away && slot > state.since + 1 {
                let offload = !std::mem::replace(&mut state.hosted, true);
                let (after, writer) = (state.since, state.written);
                let mut first = 0;
                for end in values.chunk_ends(z.value, decisions) {
                    let bytes = end - first;
                    if bytes == 0 {
                        continue;
                    }
                    self.course.moves.push(Move { bytes, after, before: slot, writer, offload });
                    self.of_move.push((state.instance, first));
                    first = end;
                }
            }
        }
        slot
    }

    /// Runs an op again. What it makes takes the place of what was there of it, which goes at its last use before.
    fn step_again(&mut self, of: Iteration<'_>, run: Run) {
        let Iteration { values, decisions, .. } = of;
        let slot = self.step(of, run);
        self.again_seconds += self.course.seconds[slot as usize];
        for y in values.writes.row(run.op as usize) {
            let instance = self.instance(values, y.value, slot);
            if self.is_gone(decisions, y.value, run.serves) {
                self.made.push(y.value);
            }
            let state = &mut self.states[y.value as usize];
            (state.place, state.instance, state.written) = (Place::Here, instance, slot);
        }
    }

    /// The instance that a step makes of a value: a new one, or that of the value which it updates in place.
    fn instance(&mut self, values: &Values, v: u32, slot: u32) -> u32 {
        let from = values.from[v as usize];
        if from == NONE {
            self.instances.push(Instance { value: v, opens: slot, last: slot });
            return self.instances.len() as u32 - 1;
        }
        let from = &mut self.states[from as usize];
        from.place = Place::Gone;
        self.instances[from.instance as usize].value = v;
        from.instance
    }

    /// Gives up what the last batch made for its own sake, and not for the op of these reads or to be held from here on.
    fn forget(&mut self, of: Iteration<'_>, reads: &[Touch], early: &[(u32, u32)]) {
        for &v in &self.made {
            let state = &mut self.states[v as usize];
            let each = state.gap == NONE || of.decisions.choices[state.gap as usize] == Choice::RecomputeEach;
            let held = early.iter().any(|(_, gap)| *gap == state.gap);
            if each && !held && !reads.iter().any(|z| z.value == v) {
                state.place = Place::Gone;
            }
        }
    }

    /// A value's next gap begins.
    fn leave(&mut self, touch: Touch, slot: u32) {
        let state = &mut self.states[touch.value as usize];
        (state.gap, state.since) = (touch.gap, slot);
        if touch.gap != NONE {
            state.place = Place::Chosen;
        }
    }

    /// What leaves for the host: of which value, and the end of the bytes that leave.
    pub fn offloads(&self) -> impl Iterator<Item = (u32, u64)> {
        let moves = self.course.moves.iter().zip(&self.of_move).filter(|(piece, _)| piece.offload);
        moves
            .map(|(piece, (instance, first))| (self.instances[*instance as usize].value, first + piece.bytes))
    }

    /// Adds up the memory: instances, less what is away, beside the workspaces.
    fn finish(&mut self, of: Iteration<'_>) -> bool {
        let Iteration { values, decisions, pool, .. } = of;
        let Walk { course, change, instances, .. } = self;
        change.clear();
        change.resize(self.beside.len() + 2, 0);
        for here in instances.iter() {
            let bytes = values.bytes[here.value as usize] as i64;
            change[here.opens as usize] += bytes;
            change[here.last as usize + 1] -= bytes;
        }
        for piece in &course.moves {
            change[piece.after as usize + 1] -= piece.bytes as i64;
            change[piece.before as usize] += piece.bytes as i64;
        }
        let mut bytes = change[0];
        course.need.clear();
        course.need.push(bytes as u64);
        course.need.extend(self.beside.iter().zip(&change[1..]).map(|(beside, change)| {
            bytes += change;
            beside + bytes as u64
        }));
        for (step, alternative) in &mut self.alternatives {
            let (op, slot) = (self.steps[*step as usize].op as usize, *step as usize + 1);
            let decided = usize::from(decisions.alternatives[op]);
            let (first, need) = (values.alternatives[op][decided], &mut course.need[slot]);
            let room = pool.saturating_sub(*need - first.workspace);
            let leaner = values.alternatives[op][decided..]
                .iter()
                .position(|alternative| alternative.workspace <= room);
            let chosen = leaner.map_or(values.alternatives[op].len() - 1, |leaner| decided + leaner);
            let OpAlternative { seconds, workspace, .. } = values.alternatives[op][chosen];
            *alternative = chosen as u8;
            *need = *need - first.workspace + workspace;
            course.seconds[slot] = seconds;
            self.seconds += seconds - first.seconds;
        }
        self.ended = NONE;
        true
    }

    /// The op of the trace that a slot's step runs for.
    pub fn serves(&self, slot: u32) -> u32 {
        self.run(slot).serves
    }

    /// A slot's step. There is none at slot 0, before the first op; that op's stands for it.
    pub fn run(&self, slot: u32) -> Run {
        self.steps[(slot as usize).max(1) - 1]
    }
}

impl Walk {
    /// The workspace of each step of the last walk, in bytes.
    pub fn workspaces(&self, values: &Values) -> Vec<u64> {
        self.alternatives(values).map(|alternative| alternative.workspace).collect()
    }

    /// By home of the placement: the value that lies there, the how-manieth instance of it, and the how-manieth home of that.
    /// What has the same name in another walk is the same thing.
    pub fn names(&self) -> Vec<Name> {
        let mut gaps = vec![0; self.instances.len()];
        for (instance, _) in self.of_move.iter().filter(|(_, first)| *first == 0) {
            gaps[*instance as usize] += 1;
        }
        let mut ordinals = vec![0; self.states.len()];
        let mut names = Vec::new();
        for (here, gaps) in self.instances.iter().zip(gaps) {
            let ordinal = &mut ordinals[here.value as usize];
            names.extend((0..=gaps).map(|home| (here.value, *ordinal, home)));
            *ordinal += 1;
        }
        names
    }

    /// By step: the way in which its op runs.
    fn alternatives<'a>(&'a self, values: &'a Values) -> impl Iterator<Item = &'a OpAlternative> {
        let mut alternatives = self.alternatives.iter().peekable();
        self.steps.iter().enumerate().map(move |(step, run)| {
            let alternative = alternatives
                .next_if(|(of, _)| *of as usize == step)
                .map_or(0, |(_, alternative)| *alternative);
            &values.alternatives[run.op as usize][usize::from(alternative)]
        })
    }

    /// The last walk, with the windows of its moves.
    pub fn placement(&self, values: &Values, windows: &[Window]) -> Placement {
        let mut placement = Placement::default();
        let steps = self.steps.iter().zip(self.alternatives(values));
        placement.steps.extend(steps.map(|(run, alternative)| Step {
            op: OpId(run.op),
            again: run.op != run.serves,
            alternative: alternative.alternative,
        }));
        let mut moves: Vec<Vec<u32>> = vec![Vec::new(); self.instances.len()];
        for (m, (instance, _)) in self.of_move.iter().enumerate() {
            moves[*instance as usize].push(m as u32);
        }
        let mut placing = Placing { walk: self, values, windows, placement, keyed: Vec::new(), homes: 0 };
        self.instances.iter().zip(&moves).for_each(|(here, moves)| placing.add(here, moves));
        let Placing { mut placement, mut keyed, .. } = placing;
        keyed.sort_by_key(|(key, transfer)| (*key, transfer.residency));
        placement.transfers = keyed.into_iter().map(|(_, transfer)| transfer).collect();
        placement
    }
}

/// The order of transfers is that of [`crate::decide::windows`]: by slot, offloads first and those by last use and writer,
/// then by move.
type Key = (u32, u8, (u32, u32), u32);

/// Turns instances into residencies.
struct Placing<'a> {
    walk: &'a Walk,
    values: &'a Values,
    windows: &'a [Window],
    placement: Placement,
    /// Transfers with the key that orders them.
    keyed: Vec<(Key, Transfer)>,
    homes: u32,
}

impl Placing<'_> {
    /// Cuts an instance into the pieces that its moves ask for.
    fn add(&mut self, here: &Instance, moves: &[u32]) {
        let whole = self.values.bytes[here.value as usize];
        let mut cuts: Vec<u64> = moves.iter().map(|m| self.moved(*m).end).collect();
        cuts.push(whole);
        cuts.sort_unstable();
        cuts.dedup();
        let mut first = 0;
        for cut in cuts {
            self.add_piece(here, first..cut, moves);
            first = cut;
        }
        self.homes += self.gaps(moves).count() as u32 + 1;
    }

    /// Which bytes of its instance a move takes.
    fn moved(&self, m: u32) -> Range<u64> {
        let (_, first) = self.walk.of_move[m as usize];
        first..first + self.walk.course.moves[m as usize].bytes
    }

    /// The moves of an instance by gap: chunk by chunk.
    fn gaps<'m>(&self, moves: &'m [u32]) -> impl Iterator<Item = &'m [u32]> {
        let before = |m: u32| self.walk.course.moves[m as usize].before;
        moves.chunk_by(move |a, b| before(*a) == before(*b))
    }

    fn add_piece(&mut self, here: &Instance, bytes: Range<u64>, moves: &[u32]) {
        let whole = self.values.bytes[here.value as usize];
        let tensor = self.values.tensor[here.value as usize];
        let mut home = self.homes;
        let mut begins = here.opens;
        let mut opens = if begins == 0 { Opens::Start } else { Opens::Written };
        let gaps: Vec<&[u32]> = self.gaps(moves).collect();
        for gap in gaps {
            if let Some(&m) = gap.iter().find(|m| self.moved(**m).contains(&bytes.start)) {
                let (window, piece) = (self.windows[m as usize], self.walk.course.moves[m as usize]);
                let here = self.placement.residencies.len() as u32;
                let slots = begins..window.leaves;
                self.placement.residencies.push(Residency {
                    tensor,
                    bytes: bytes.clone(),
                    home,
                    slots,
                    opens,
                });
                if let Some(before) = window.offload {
                    let transfer = Transfer { residency: here, direction: Direction::Offload, before };
                    self.keyed.push(((before, 0, (piece.after, piece.writer), m), transfer));
                }
                let transfer =
                    Transfer { residency: here + 1, direction: Direction::Prefetch, before: window.returns };
                self.keyed.push(((window.returns, 1, (0, 0), m), transfer));
                (begins, opens) = (window.returns, Opens::Prefetched);
            }
            // Where all of it leaves, it may return elsewhere.
            let gone: u64 = gap.iter().map(|m| self.walk.course.moves[*m as usize].bytes).sum();
            home += u32::from(gone == whole);
        }
        let slots = begins..here.last + 1;
        self.placement.residencies.push(Residency { tensor, bytes, home, slots, opens });
    }
}
