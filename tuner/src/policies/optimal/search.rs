//! Best-first search through all orders of commands; or stage by stage in turn, if a fast end is wanted before the fastest is
//! proved.
//!
//! # The states
//!
//! A schedule is a list of commands in order of their starts. For a given order, nothing is lost by starting each command as
//! early as the streams, its data and the memory permit, no earlier than the previous command: all later commands can only gain.
//! So the search appends commands one by one; a [`SearchState`] is the relevant part of a list: the stage, the values on the
//! device and on the host, the command of each stream and its end. A value on the device that is not read by the command that
//! needs room may be given up at that moment, if it is on the host or can be recomputed; its bytes were free since its last use,
//! so that nothing is lost by deciding late.
//!
//! # Omissions that lose nothing
//!
//! - A state that a different state dominates ([`Trick::Dominance`]): the latter has the same values on the device, no less on
//!   the host, and, if the host is short, offloaded nothing that the former did not; all its streams are free no later. All
//!   continuations of the former are possible for the latter.
//! - An offload that could have started before the previous command ([`Trick::Prompt`]): it needs no room, so that the list in
//!   which it does start earlier is as good and is searched as well. So it starts just when its stream becomes free or its value
//!   is made. (Prefetches take room, and are tried at all times.)
//! - A state from which no end within the best known is possible ([`Trick::Bounds`]): remaining compute, prefetches that must
//!   come, offloads that must end before an op fits, and the time after it by [`super::space::Press`].
//! - A fetched value that is given up before it is read, and a recomputed op whose outputs its batch does not read.
//! - Of the values that may be given up for room, sets of which a part suffices.

use super::space::{Set, Space, ValueId, Wanted, holds, members, only, set_of};
use crate::request::{Trick, Tricks};
use plimsoll_ir::{Bytes, OpId, define_id};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use typed_index_collections::TiVec;

define_id!(
    /// State of the search.
    StateId, "state");

const COMPUTE: usize = 0;
const OFFLOAD: usize = 1;
const PREFETCH: usize = 2;

/// Relative tolerance for sums of floats in a different order.
const HAIR: f64 = 1e-12;

/// Minimum relative improvement over a known end.
const FASTER: f64 = 1e-6;

/// In turns, the maximum number of comparisons per allowed state: in some traces most states have the same key.
const COMPARED: usize = 200;

/// Command of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Start of the iteration.
    Begin,
    Run {
        op: OpId,
        again: bool,
        /// Position among the op's alternatives.
        alternative: usize,
    },
    Offload {
        value: ValueId,
    },
    Prefetch {
        value: ValueId,
    },
}

/// Work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Nothing,
    Op(OpId),
    Value(ValueId),
}

/// Command with its start, and the values given up for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub action: Action,
    pub start: f64,
    pub end: f64,
    pub given_up: Set,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// Commands of a fastest iteration.
    Fastest(Vec<Timed>),
    /// There is no iteration within the requested time.
    Nothing,
    /// The states were exhausted, or time was up: no iteration takes less time than this. With [`Order::Turns`], also the fastest
    /// found by then.
    Late { bound: f64, best: Option<Vec<Timed>> },
}

/// Order in which states are expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Smallest bound of all: the first end is a fastest one, and a search that stops has proved the most.
    Best,
    /// Smallest bound of each stage in turn: ends are found early, each faster than the last.
    Turns,
}

#[derive(Clone, Debug)]
struct SearchState {
    step: Step,
    stage: OpId,
    /// Ops before this one are no longer recomputed in this batch.
    after: OpId,
    dead: bool,
    /// Previous state that has the same key.
    next: Option<StateId>,
    places: Places,
    streams: Streams,
    /// By op: a bit that is set if it was recomputed in this batch and its outputs were not read yet.
    idle: u32,
    bound: f64,
}

/// Origin of a state.
#[derive(Clone, Copy, Debug)]
struct Step {
    parent: StateId,
    action: Action,
    given_up: Set,
}

/// Places of the values.
#[derive(Clone, Copy, Debug)]
struct Places {
    device: Set,
    host: Set,
    /// Values that were ever offloaded, if the host is short.
    placed: Set,
    /// Fetched and not read yet.
    unread: Set,
}

/// Activity of the streams.
#[derive(Clone, Copy, Debug)]
struct Streams {
    /// Start of the last command.
    now: f64,
    /// By stream: end of its work, and that work.
    free: [f64; 3],
    busy: [Busy; 3],
    /// Bytes that become free when compute has ended, and when the offload has; none wait for a prefetch.
    leaving: [u64; 3],
}

/// Equal for states of which one may dominate the other.
type Key = (OpId, OpId, Set);

/// Fast hash for a few numbers.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_u128(&mut self, number: u128) {
        // The lower half, and the upper one.
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

impl Streams {
    fn is_busy(&self, stream: usize) -> bool {
        self.free[stream] > self.now
    }

    /// Returns `true` if a stream transfers one of these values, or did last.
    fn transfers(&self, stream: usize, values: Set) -> bool {
        matches!(self.busy[stream], Busy::Value(value) if holds(values, value))
    }
}

impl SearchState {
    fn key(&self) -> Key {
        (self.stage, self.after, self.places.device)
    }

    /// Returns `true` if all continuations of `other` are possible for this state, no later.
    fn stands_for(&self, other: &SearchState) -> bool {
        let (places, theirs) = (&self.places, &other.places);
        let (streams, others) = (&self.streams, &other.streams);
        let slack = HAIR * others.now;
        let now = others.now + slack;
        let stream = |s: usize| {
            streams.free[s] <= now
                || streams.busy[s] == others.busy[s]
                    && streams.free[s] <= others.free[s] + slack
                    && streams.leaving[s] <= others.leaving[s]
        };
        streams.now <= now
            && (0..3).all(stream)
            && theirs.host & !places.host == 0
            && places.placed & !theirs.placed == 0
            && places.unread & !theirs.unread == 0
            && self.idle & !other.idle == 0
    }

    fn end(&self) -> f64 {
        self.streams.free.iter().copied().fold(0.0, f64::max)
    }
}

/// State in the queue: the smallest bound first, as the bits of a float that is not negative; of equal ones the most advanced.
type Entry = (Reverse<u64>, OpId, StateId);

/// States that wait to be expanded.
struct Queue {
    order: Order,
    /// By stage; all in the first if the order is that of bounds alone.
    waiting: TiVec<OpId, BinaryHeap<Entry>>,
    /// Stage whose turn it is.
    turn: OpId,
}

impl Queue {
    fn new(order: Order, stages: usize) -> Queue {
        let queues = if order == Order::Best { 1 } else { stages };
        Queue { order, waiting: vec![BinaryHeap::new(); queues].into(), turn: OpId(0) }
    }

    fn push(&mut self, entry: Entry) {
        let stage = if self.order == Order::Best { OpId(0) } else { entry.1 };
        self.waiting[stage].push(entry);
    }

    fn pop(&mut self) -> Option<Entry> {
        for _ in 0..self.waiting.len() {
            let turn = self.turn;
            self.turn = if turn.next() < self.waiting.next_key() { turn.next() } else { OpId(0) };
            if let Some(entry) = self.waiting[turn].pop() {
                return Some(entry);
            }
        }
        None
    }

    /// Returns the smallest bound of all that wait, and of this one.
    fn least(&self, bound: f64) -> f64 {
        self.waiting
            .iter()
            .filter_map(BinaryHeap::peek)
            .map(|entry| f64::from_bits(entry.0.0))
            .fold(bound, f64::min)
    }
}

/// Returns the fastest list of commands that takes no longer than `within`, keeping at most this many states; and the number of
/// states examined.
pub(super) fn fastest(
    space: &Space,
    within: f64,
    most_states: usize,
    order: Order,
    expired: &dyn Fn() -> bool,
    without: Tricks,
) -> (Found, usize) {
    let mut search = Search {
        space,
        within,
        without,
        states: TiVec::new(),
        lost: Cell::new(false),
        queue: Queue::new(order, space.jobs.len() + 1),
        compared: 0,
        known: HashMap::default(),
    };
    search.offer(search.root());
    let mut looked = 0;
    let mut best = None;
    while let Some((Reverse(bound), stage, at)) = search.queue.pop() {
        let bound = f64::from_bits(bound);
        if search.states[at].dead || bound > search.within {
            continue;
        }
        if stage == space.jobs.next_key() {
            best = Some(search.commands(at));
            if order == Order::Best {
                break;
            }
            search.within = bound * (1.0 - FASTER);
            continue;
        }
        looked += 1;
        let worn = order == Order::Turns && search.compared > most_states.saturating_mul(COMPARED);
        let late = search.states.len() > most_states || worn || looked % 64 == 0 && expired();
        let children = if late { Vec::new() } else { search.children(at) };
        if late || search.lost.get() {
            let bound = search.queue.least(bound);
            return (Found::Late { bound, best }, looked);
        }
        for child in children {
            search.offer(child);
        }
    }
    (best.map_or(Found::Nothing, Found::Fastest), looked)
}

struct Search<'a> {
    space: &'a Space,
    within: f64,
    without: Tricks,
    states: TiVec<StateId, SearchState>,
    /// `true` if there were too many ways to make room to try all of them.
    lost: Cell<bool>,
    queue: Queue,
    /// Number of comparisons of two states.
    compared: usize,
    /// By key: the last state that has it; each stores the previous one.
    known: HashMap<Key, StateId, BuildHasherDefault<Mix>>,
}

impl Search<'_> {
    fn root(&self) -> SearchState {
        SearchState {
            step: Step { parent: StateId(0), action: Action::Begin, given_up: 0 },
            stage: OpId(0),
            after: OpId(0),
            dead: false,
            next: None,
            places: Places { device: self.space.start, host: 0, placed: 0, unread: 0 },
            streams: Streams { now: 0.0, free: [0.0; 3], busy: [Busy::Nothing; 3], leaving: [0; 3] },
            idle: 0,
            bound: 0.0,
        }
    }

    /// Returns the commands that lead to a state.
    fn commands(&self, mut at: StateId) -> Vec<Timed> {
        let mut commands = Vec::new();
        loop {
            let SearchState { step: Step { parent, action, given_up }, streams, .. } =
                self.states[at].clone();
            let stream = match action {
                Action::Begin => break,
                Action::Run { .. } => COMPUTE,
                Action::Offload { .. } => OFFLOAD,
                Action::Prefetch { .. } => PREFETCH,
            };
            let (start, end) = (streams.now, streams.free[stream]);
            commands.push(Timed { action, start, end, given_up });
            at = parent;
        }
        commands.reverse();
        commands
    }

    /// Adds a state to the queue, unless a different one dominates it or it ends too late.
    fn offer(&mut self, mut state: SearchState) {
        let least = if state.stage == self.space.jobs.next_key() || self.without.contains(Trick::Bounds) {
            state.end()
        } else {
            self.least_end(&state)
        };
        // Sums in a different order do not make a state worse.
        if least > state.bound * (1.0 + HAIR) {
            state.bound = least;
        }
        if state.bound > self.within {
            return;
        }
        if !self.without.contains(Trick::Dominance) && !self.is_best(&mut state) {
            return;
        }
        let (bound, stage) = (Reverse(state.bound.to_bits()), state.stage);
        self.queue.push((bound, stage, self.states.push_and_get_key(state)));
    }

    /// Returns `true` if no known state dominates this one. States that this one dominates become dead.
    fn is_best(&mut self, state: &mut SearchState) -> bool {
        let key = state.key();
        let mut head = self.known.get(&key).copied();
        let (mut next, mut before) = (head, None::<StateId>);
        while let Some(at) = next {
            let other = &self.states[at];
            next = other.next;
            self.compared += 1;
            if other.stands_for(state) {
                return false;
            }
            if state.stands_for(other) {
                self.states[at].dead = true;
                match before {
                    None => head = next,
                    Some(before) => self.states[before].next = next,
                }
            } else {
                before = Some(at);
            }
        }
        state.next = head;
        self.known.insert(key, self.states.next_key());
        true
    }

    /// Returns a lower bound on the end of any list that begins like this.
    fn least_end(&self, state: &SearchState) -> f64 {
        let space = self.space;
        let (places, streams) = (&state.places, &state.streams);
        let clear = |s: usize| streams.free[s].max(streams.now);
        let (mut ended, left) = (clear(COMPUTE), clear(OFFLOAD));
        // Seconds of prefetches that must still come.
        let mut fetches = 0.0;
        let mut least = state.end();
        let mut seen = places.device;
        let mut made: u32 = 0;
        for (q, job) in space.jobs.iter_enumerated().skip(state.stage.index()) {
            // Absent inputs that were made before now.
            let mut gone = job.reads & !seen;
            while let Some(v) = members(gone).next() {
                gone &= !only(v);
                seen |= only(v);
                if space.values[v].maker.is_some_and(|maker| maker >= state.stage) {
                    continue;
                }
                let again = space.maker_again(v).filter(|_| q < space.final_stage);
                match (again, holds(places.host, v)) {
                    (None, true) => fetches += space.values[v].back,
                    (None, false) => return f64::INFINITY,
                    (Some(maker), false) if made >> maker.0 & 1 == 0 => {
                        made |= 1 << maker.0;
                        ended += space.jobs[maker].alternatives[0].seconds;
                        gone |= space.jobs[maker].reads & !seen;
                    }
                    _ => {}
                }
            }
            // On a half-duplex link offloads and prefetches add up.
            let before = clear(PREFETCH) + fetches;
            let start = if fetches > 0.0 { ended.max(before) } else { ended };
            let from = if space.machine.half && fetches > 0.0 { left.max(before) } else { left };
            let seconds = job.alternatives[0].seconds;
            let press = &space.press[q];
            ended = start + seconds;
            if press.away == 0 {
                least = least.max(ended);
                continue;
            }
            // One option is away when it starts, and one, maybe a different one, when it ends.
            let there = press.across & (places.host | space.stages[q.next()].recomputed);
            let need = Bytes(press.away.saturating_sub(space.bytes(there)));
            let need = need.to_f64() / space.machine.offload_rate;
            let out = |swapped: Set| {
                members(swapped & !places.host).map(|v| space.values[v].out).sum::<f64>().max(need)
            };
            let gone = |swapped: Set| match out(swapped) {
                0.0 => 0.0,
                seconds => from + seconds,
            };
            let first = press.options.iter().map(|option| gone(option.0)).fold(f64::INFINITY, f64::min);
            ended = start.max(first) + seconds;
            let mut last = f64::INFINITY;
            for &(swapped, tail) in &press.options {
                if ended + tail >= last {
                    break;
                }
                last = last.min(ended.max(gone(swapped)) + tail);
            }
            least = least.max(last);
        }
        least
    }

    fn children(&self, at: StateId) -> Vec<SearchState> {
        let mut children = Vec::new();
        self.runs(at, &mut children);
        if self.space.machine.swap {
            self.offloads(at, &mut children);
            self.prefetches(at, &mut children);
        }
        children
    }

    /// Returns the values that may be given up without losing any that is needed and cannot be restored.
    fn evictable(&self, state: &SearchState) -> Set {
        let Wanted { needed, recomputed, .. } = self.space.stages[state.stage];
        let spare = state.places.host | !needed | recomputed;
        state.places.device & spare & !state.places.unread
    }

    /// Adds the next compute commands: the op of the stage, or ops that recompute its absent inputs.
    fn runs(&self, at: StateId, children: &mut Vec<SearchState>) {
        let space = self.space;
        let state = &self.states[at];
        let (stage, device) = (state.stage, state.places.device);
        if space.jobs[stage].reads & !device == 0 {
            for alternative in 0..space.jobs[stage].alternatives.len() {
                self.run(at, stage, false, alternative, children);
            }
            return;
        }
        if stage >= space.final_stage {
            return;
        }
        let mut wanted = space.jobs[stage].reads & !device;
        for k in OpId::each(state.after..stage).rev() {
            let job = &space.jobs[k];
            if !job.again || job.writes & wanted == 0 {
                continue;
            }
            wanted |= job.reads & !device;
            if job.reads & !device == 0 {
                for alternative in 0..job.alternatives.len() {
                    self.run(at, k, true, alternative, children);
                }
            }
        }
    }

    fn run(&self, at: StateId, op: OpId, again: bool, alternative: usize, children: &mut Vec<SearchState>) {
        let space = self.space;
        let state = &self.states[at];
        let job = &space.jobs[op];
        let action = Action::Run { op, again, alternative };
        // Its outputs replace their earlier instances.
        let replaced = job.writes & state.places.device;
        let need = job.fresh + job.alternatives[alternative].workspace;
        let candidates = self.evictable(state) & !job.reads & !replaced;
        let from = self.earliest_by_streams(state, action);
        self.with_room(state, from, need, replaced, candidates, &mut |start, given_up| {
            let mut next = self.begin(at, action, start, given_up);
            next.places.device = next.places.device & !job.consumed | job.writes;
            next.places.unread &= !job.reads;
            let used = members(job.reads).filter_map(|v| space.values[v].maker);
            next.idle = used.fold(next.idle, |idle, maker| idle & !(1 << maker.0)) | u32::from(again) << op.0;
            if !again && next.idle != 0 {
                return;
            }
            next.streams.free[COMPUTE] = start + job.alternatives[alternative].seconds;
            next.streams.busy[COMPUTE] = Busy::Op(op);
            next.streams.leaving[COMPUTE] = job.alternatives[alternative].workspace;
            (next.stage, next.after) =
                if again { (state.stage, op.next()) } else { (state.stage.next(), OpId(0)) };
            let useless = next.places.device & !space.stages[next.stage].useful;
            if useless & next.places.unread != 0 {
                return;
            }
            self.give_up(&mut next, useless);
            children.push(next);
        });
    }

    fn offloads(&self, at: StateId, children: &mut Vec<SearchState>) {
        let space = self.space;
        let state = &self.states[at];
        let Places { device, host, .. } = state.places;
        for value in members(device & !host & space.stages[state.stage].worthy) {
            // The copy is that of the newest version on the device.
            let is_old = members(space.versions[value] & device).any(|version| version > value);
            let action = Action::Offload { value };
            let start = self.earliest_by_streams(state, action);
            let late = start < state.streams.now;
            if is_old || late && !self.without.contains(Trick::Prompt) {
                continue;
            }
            let short = space.machine.host;
            let placed = if short.is_some() { state.places.placed | only(value) } else { 0 };
            if short.is_some_and(|host| space.on_host(placed) > host) {
                continue;
            }
            let mut next = self.begin(at, action, start.max(state.streams.now), 0);
            // The host keeps one version.
            next.places.host = next.places.host & !space.versions[value] | only(value);
            next.places.placed = placed;
            next.streams.free[OFFLOAD] = next.streams.now + space.values[value].out;
            next.streams.busy[OFFLOAD] = Busy::Value(value);
            next.streams.leaving[OFFLOAD] = 0;
            children.push(next);
        }
    }

    fn prefetches(&self, at: StateId, children: &mut Vec<SearchState>) {
        let space = self.space;
        let state = &self.states[at];
        let Places { device, host, .. } = state.places;
        for value in members(host & !device & space.stages[state.stage].useful) {
            let action = Action::Prefetch { value };
            let need = space.values[value].bytes;
            let from = self.earliest_by_streams(state, action);
            self.with_room(state, from, need, 0, self.evictable(state), &mut |start, given_up| {
                let mut next = self.begin(at, action, start, given_up);
                next.places.device |= only(value);
                next.places.unread |= only(value);
                next.streams.free[PREFETCH] = start + space.values[value].back;
                next.streams.busy[PREFETCH] = Busy::Value(value);
                children.push(next);
            });
        }
    }

    /// Returns the earliest start of a command if there were room; for all but offloads no earlier than the previous one.
    fn earliest_by_streams(&self, state: &SearchState, action: Action) -> f64 {
        let (space, streams) = (self.space, &state.streams);
        let [compute, offload, prefetch] = streams.free;
        let link = if space.machine.half { offload.max(prefetch) } else { 0.0 };
        match action {
            Action::Begin => 0.0,
            Action::Run { op, .. } => {
                let job = &space.jobs[op];
                let mut start = streams.now.max(compute);
                if streams.transfers(PREFETCH, job.reads) {
                    start = start.max(prefetch);
                }
                let updated = members(job.consumed).fold(0, |set, v| set | space.versions[v]);
                if streams.transfers(OFFLOAD, updated) { start.max(offload) } else { start }
            }
            Action::Offload { value } => {
                let versions = space.versions[value];
                let mut start = offload.max(link);
                if matches!(streams.busy[COMPUTE], Busy::Op(op) if space.jobs[op].writes & versions != 0) {
                    start = start.max(compute);
                }
                if streams.transfers(PREFETCH, versions) { start.max(prefetch) } else { start }
            }
            Action::Prefetch { value } => {
                let start = streams.now.max(prefetch).max(link);
                if streams.transfers(OFFLOAD, only(value)) { start.max(offload) } else { start }
            }
        }
    }

    /// Returns the time at which the bytes of a value that is given up now are free.
    fn released(&self, streams: &Streams, value: ValueId) -> f64 {
        let mut at = 0.0f64;
        if let Busy::Op(op) = streams.busy[COMPUTE]
            && streams.is_busy(COMPUTE)
        {
            let job = &self.space.jobs[op];
            at = if holds(job.reads | job.writes, value) { streams.free[COMPUTE] } else { at };
        }
        if streams.is_busy(OFFLOAD) && streams.transfers(OFFLOAD, only(value)) {
            at = at.max(streams.free[OFFLOAD]);
        }
        at
    }

    /// Returns the bytes in use at a time no earlier than the last start, with nothing new and these values given up.
    fn in_use(&self, state: &SearchState, given_up: Set, time: f64) -> u64 {
        let streams = &state.streams;
        let waiting = |s: usize| if streams.free[s] > time { streams.leaving[s] } else { 0 };
        let held = set_of(members(given_up).filter(|v| self.released(streams, *v) > time));
        self.space.bytes(state.places.device & !given_up | held) + waiting(COMPUTE) + waiting(OFFLOAD)
    }

    /// Calls `take` with every time and every minimal set of values to give up that make room for this many bytes.
    fn with_room(
        &self,
        state: &SearchState,
        from: f64,
        need: u64,
        replaced: Set,
        candidates: Set,
        take: &mut dyn FnMut(f64, Set),
    ) {
        let streams = &state.streams;
        let mut times = [from, streams.free[COMPUTE].max(from), streams.free[OFFLOAD].max(from)];
        times.sort_by(f64::total_cmp);
        let mut earlier: Vec<Set> = Vec::new();
        for (i, &time) in times.iter().enumerate() {
            if i > 0 && time == times[i - 1] {
                continue;
            }
            let used = self.in_use(state, replaced, time) + need;
            let Some(lacking) = used.checked_sub(self.space.machine.pool).filter(|lacking| *lacking > 0)
            else {
                return take(time, replaced);
            };
            let free: Vec<ValueId> =
                members(candidates).filter(|v| self.released(streams, *v) <= time).collect();
            let Some(covers) = self.space.covers(&free, lacking) else {
                return self.lost.set(true);
            };
            for set in covers {
                if !earlier.contains(&set) {
                    earlier.push(set);
                    take(time, set | replaced);
                }
            }
        }
    }

    /// Returns the state in which a command has just begun, with values given up for it.
    fn begin(&self, at: StateId, action: Action, start: f64, given_up: Set) -> SearchState {
        let mut next = self.states[at].clone();
        (next.step, next.dead) = (Step { parent: at, action, given_up }, false);
        next.streams.now = start;
        for s in [COMPUTE, OFFLOAD] {
            next.streams.leaving[s] = if next.streams.is_busy(s) { next.streams.leaving[s] } else { 0 };
        }
        self.give_up(&mut next, given_up);
        next
    }

    fn give_up(&self, state: &mut SearchState, values: Set) {
        let SearchState { places, streams, .. } = state;
        for v in members(values) {
            let at = self.released(streams, v);
            places.device &= !only(v);
            if at > streams.now {
                let stream = if at == streams.free[COMPUTE] { COMPUTE } else { OFFLOAD };
                streams.leaving[stream] += self.space.values[v].bytes;
            }
        }
    }
}
