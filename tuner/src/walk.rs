//! What follows from decisions: the steps of the iteration, the memory at each, what is swapped between them.
//!
//! The walk goes through the trace. An op that needs values which are gone is preceded by a batch: the ops that make them
//! again, and those that make what these need and is gone too, in the order of the trace. Each step is a slot (see
//! [`crate::placement`]). A value is on the device as an [`Instance`], from the step that makes it to the last one that
//! reads it; an update in place turns an instance of one value into one of another. Swapping takes bytes out of an instance
//! between two of its uses.
//!
//! This runs for every set of decisions that a search looks at: it is linear in the steps and does not allocate once its
//! arrays are large enough.
//!
//! What this file does not do: run an op again at another time than just before the op that wants it.

use crate::placement::{Opens, Placement, Residency, Step, Transfer, Way, Window};
use crate::values::{Choice, Decisions, NONE, OpWay, Touch, Values};
use crate::windows::{Course, Move};
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

/// The evaluator of decisions, with its memory.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// By op: bytes that are left free while it runs, and while others run again for it.
    pub margins: Vec<u64>,
    /// What the last walk found.
    pub course: Course,
    /// The op of each step, and whether it runs again.
    pub steps: Vec<(u32, bool)>,
    /// The op of the trace that each step runs for: itself, or the one that needs what is made again.
    pub serves: Vec<u32>,
    /// Seconds that the device spends on running ops again.
    pub again_seconds: f64,
    instances: Vec<Instance>,
    /// By move of the course: its instance.
    of_move: Vec<u32>,
    /// By value.
    states: Vec<State>,
    /// The batch that is being put together: by op, whether it is in it; its ops; values to make; values that it made.
    marked: Vec<bool>,
    batch: Vec<u32>,
    open: Vec<u32>,
    made: Vec<u32>,
    /// By slot: by how much the bytes on the device change.
    change: Vec<i64>,
}

/// Where a value is.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Its instance on the device; [`NONE`] where it is gone.
    instance: u32,
    /// The slot of the use after which its part is away; [`NONE`] where all of it is there.
    away: u32,
    /// The slot that wrote the instance.
    written: u32,
    /// The gap that it is in; [`NONE`] once it was updated in place.
    gap: u32,
    /// Whether the host has its part.
    hosted: bool,
}

const UNBORN: State = State { instance: NONE, away: NONE, written: 0, gap: NONE, hosted: false };

impl Walk {
    /// A walk that leaves so many bytes free at each op.
    pub fn with_margins(margins: Vec<u64>) -> Walk {
        Walk { margins, ..Walk::default() }
    }

    /// Works out what follows from the decisions. Tells whether that is an iteration of at most so many steps, of which
    /// those that run ops again take at most so many seconds; where it is not, the walk ends early.
    pub fn go(&mut self, values: &Values, decisions: &Decisions, most_steps: usize, most_again: f64) -> bool {
        self.begin(values);
        self.start(values, decisions);
        for op in 0..values.ways.len() as u32 {
            let reads = values.reads.row(op as usize);
            let gone = reads.iter().any(|z| self.states[z.value as usize].instance == NONE);
            if gone {
                self.make_again(values, decisions, op);
                let steps = self.steps.len() + values.ways.len() - op as usize;
                if steps > most_steps || self.again_seconds > most_again {
                    return false;
                }
            }
            self.step(values, decisions, op, None);
            if gone {
                self.forget(decisions, reads);
            }
            let slot = self.steps.len() as u32;
            for touch in reads.iter().chain(values.writes.row(op as usize)) {
                self.leave(decisions, *touch, slot);
            }
        }
        self.add_memory(values);
        true
    }

    fn begin(&mut self, values: &Values) {
        self.steps.clear();
        self.serves.clear();
        self.margins.resize(values.ways.len(), 0);
        self.again_seconds = 0.0;
        self.instances.clear();
        self.of_move.clear();
        self.course.moves.clear();
        self.course.seconds.clear();
        self.course.seconds.push(0.0);
        self.course.need.clear();
        self.course.need.push(0);
        self.states.clear();
        self.states.resize(values.tensor.len(), UNBORN);
        self.marked.resize(values.ways.len(), false);
    }

    /// Puts values that are there from the start on the device.
    fn start(&mut self, values: &Values, decisions: &Decisions) {
        for v in (0..values.tensor.len()).filter(|v| values.maker[*v] == NONE) {
            self.states[v].instance = self.instances.len() as u32;
            self.instances.push(Instance { value: v as u32, opens: 0, last: 0 });
            let gap = values.first_gap[v];
            let gap = if gap < values.first_gap[v + 1] { gap } else { NONE };
            self.leave(decisions, Touch { value: v as u32, gap }, 0);
        }
    }

    /// Runs again what makes the inputs of this op that are gone.
    fn make_again(&mut self, values: &Values, decisions: &Decisions, op: u32) {
        let Walk { states, open, marked, batch, .. } = self;
        self.made.clear();
        batch.clear();
        let gone = |z: &&Touch| states[z.value as usize].instance == NONE;
        open.extend(values.reads.row(op as usize).iter().filter(gone).map(|z| z.value));
        while let Some(v) = open.pop() {
            let maker = values.maker[v as usize];
            if !std::mem::replace(&mut marked[maker as usize], true) {
                batch.push(maker);
                let inputs = values.reads.row(maker as usize);
                open.extend(inputs.iter().filter(gone).map(|z| z.value));
            }
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_unstable();
        for &maker in &batch {
            self.marked[maker as usize] = false;
            self.step(values, decisions, maker, Some(op));
        }
        self.batch = batch;
    }

    /// Runs an op; again, for the sake of another.
    fn step(&mut self, values: &Values, decisions: &Decisions, op: u32, serves: Option<u32>) {
        let again = serves.is_some();
        let serves = serves.unwrap_or(op);
        self.steps.push((op, again));
        self.serves.push(serves);
        let slot = self.steps.len() as u32;
        let way = &values.ways[op as usize][usize::from(decisions.ways[op as usize])];
        self.course.seconds.push(way.seconds);
        self.course.need.push(way.workspace + self.margins[serves as usize]);
        if again {
            self.again_seconds += way.seconds;
        }
        for z in values.reads.row(op as usize) {
            self.use_value(values, decisions, z.value, slot);
        }
        for y in values.writes.row(op as usize) {
            let v = y.value as usize;
            let from = values.from[v];
            let here = if from == NONE {
                self.instances.push(Instance { value: y.value, opens: slot, last: slot });
                self.instances.len() as u32 - 1
            } else {
                let here = std::mem::replace(&mut self.states[from as usize].instance, NONE);
                self.instances[here as usize].value = y.value;
                here
            };
            let state = &mut self.states[v];
            // A second copy of what is there already goes at once.
            if state.instance == NONE {
                (state.instance, state.written, state.away) = (here, slot, NONE);
                if again {
                    self.made.push(y.value);
                }
            }
        }
    }

    /// A step reads a value: what was away comes back.
    fn use_value(&mut self, values: &Values, decisions: &Decisions, v: u32, slot: u32) {
        let state = &mut self.states[v as usize];
        self.instances[state.instance as usize].last = slot;
        let after = std::mem::replace(&mut state.away, NONE);
        // Between two steps that follow each other nothing can leave.
        if after != NONE && slot > after + 1 {
            let offload = !std::mem::replace(&mut state.hosted, true);
            let bytes = values.part(v, decisions.parts[v as usize]);
            self.course.moves.push(Move { bytes, after, before: slot, writer: state.written, offload });
            self.of_move.push(state.instance);
        }
    }

    /// Gives up what the last batch made for the op of these reads alone.
    fn forget(&mut self, decisions: &Decisions, reads: &[Touch]) {
        for &v in &self.made {
            let state = &mut self.states[v as usize];
            let each = state.gap == NONE || decisions.choices[state.gap as usize] == Choice::RemakeEach;
            if each && !reads.iter().any(|z| z.value == v) {
                state.instance = NONE;
            }
        }
    }

    /// A value's next gap begins.
    fn leave(&mut self, decisions: &Decisions, touch: Touch, slot: u32) {
        let state = &mut self.states[touch.value as usize];
        state.gap = touch.gap;
        if touch.gap == NONE {
            return;
        }
        match decisions.choices[touch.gap as usize] {
            Choice::Keep => {}
            Choice::Swap => state.away = slot,
            Choice::Remake | Choice::RemakeEach => state.instance = NONE,
        }
    }

    /// Adds instances, less what is away, to the workspaces.
    fn add_memory(&mut self, values: &Values) {
        let Walk { course, change, instances, .. } = self;
        change.clear();
        change.resize(course.need.len() + 1, 0);
        for here in instances.iter() {
            let bytes = values.bytes[here.value as usize] as i64;
            change[here.opens as usize] += bytes;
            change[here.last as usize + 1] -= bytes;
        }
        for piece in &course.moves {
            change[piece.after as usize + 1] -= piece.bytes as i64;
            change[piece.before as usize] += piece.bytes as i64;
        }
        let mut bytes = 0;
        for (need, change) in course.need.iter_mut().zip(change) {
            bytes += *change;
            *need += bytes as u64;
        }
    }
}

impl Walk {
    /// The workspace of each step of the last walk, in bytes.
    pub fn workspaces(&self, values: &Values, decisions: &Decisions) -> Vec<u64> {
        self.ways(values, decisions).map(|way| way.workspace).collect()
    }

    /// By home of the placement: the value that lies there, the how-manieth instance of it, and the how-manieth home of that.
    /// What has the same name in another walk is the same thing.
    pub fn names(&self) -> Vec<Name> {
        let mut moves = vec![0; self.instances.len()];
        self.of_move.iter().for_each(|instance| moves[*instance as usize] += 1);
        let mut ordinals = vec![0; self.states.len()];
        let mut names = Vec::new();
        for (here, moves) in self.instances.iter().zip(moves) {
            let ordinal = &mut ordinals[here.value as usize];
            names.extend((0..=moves).map(|home| (here.value, *ordinal, home)));
            *ordinal += 1;
        }
        names
    }

    fn ways<'a>(&'a self, values: &'a Values, decisions: &'a Decisions) -> impl Iterator<Item = &'a OpWay> {
        self.steps.iter().map(|(op, _)| &values.ways[*op as usize][usize::from(decisions.ways[*op as usize])])
    }

    /// The last walk, with the windows of its moves.
    pub fn placement(&self, values: &Values, decisions: &Decisions, windows: &[Window]) -> Placement {
        let mut placement = Placement::default();
        let steps = self.steps.iter().zip(self.ways(values, decisions));
        placement.steps.extend(steps.map(|((op, again), way)| Step {
            op: OpId(*op),
            again: *again,
            alternative: way.alternative,
        }));
        let mut moves: Vec<Vec<u32>> = vec![Vec::new(); self.instances.len()];
        for (m, instance) in self.of_move.iter().enumerate() {
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

/// Turns instances into residencies.
struct Placing<'a> {
    walk: &'a Walk,
    values: &'a Values,
    windows: &'a [Window],
    placement: Placement,
    /// Transfers with the key that orders them, as [`crate::windows`] does: slot, offloads first and those by last use, then
    /// by move.
    keyed: Vec<((u32, u8, u32, u32), Transfer)>,
    homes: u32,
}

impl Placing<'_> {
    /// Cuts an instance into the pieces that its moves ask for.
    fn add(&mut self, here: &Instance, moves: &[u32]) {
        let whole = self.values.bytes[here.value as usize];
        let mut cuts: Vec<u64> = moves.iter().map(|m| self.walk.course.moves[*m as usize].bytes).collect();
        cuts.push(whole);
        cuts.sort_unstable();
        cuts.dedup();
        let mut first = 0;
        for cut in cuts {
            self.add_piece(here, first..cut, moves);
            first = cut;
        }
        self.homes += moves.len() as u32 + 1;
    }

    fn add_piece(&mut self, here: &Instance, bytes: Range<u64>, moves: &[u32]) {
        let whole = self.values.bytes[here.value as usize];
        let tensor = self.values.tensor[here.value as usize];
        let mut home = self.homes;
        let mut begins = here.opens;
        let mut opens = if begins == 0 { Opens::Start } else { Opens::Written };
        for &m in moves {
            let (window, piece) = (self.windows[m as usize], self.walk.course.moves[m as usize]);
            if piece.bytes >= bytes.end {
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
                    let transfer = Transfer { residency: here, way: Way::Offload, before };
                    self.keyed.push(((before, 0, piece.after, m), transfer));
                }
                let transfer = Transfer { residency: here + 1, way: Way::Prefetch, before: window.returns };
                self.keyed.push(((window.returns, 1, piece.before, m), transfer));
                (begins, opens) = (window.returns, Opens::Prefetched);
            }
            // Where all of it leaves, it may come back elsewhere.
            home += u32::from(piece.bytes == whole);
        }
        let slots = begins..here.last + 1;
        self.placement.residencies.push(Residency { tensor, bytes, home, slots, opens });
    }
}
