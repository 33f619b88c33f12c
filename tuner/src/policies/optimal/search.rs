//! Best first through all orders of commands.
//!
//! # The states
//!
//! A schedule is a list of commands in order of their starts. For a given order it costs nothing to start each command as
//! early as the streams, its data and the memory let it, no earlier than the command before it: all that comes later can
//! only gain. So the search appends commands one by one; a [`State`] is what matters of a list: the stage, what is on the
//! device, what the host has, what each stream is busy with and until when. What lies on the device and is not read by the
//! command that wants room may be given up at that moment, as far as it is on the host or can be recomputed; its bytes
//! were free since its last use, so that nothing is lost by deciding late.
//!
//! # What is left out, and why nothing is lost
//!
//! - A state for which another stands ([`Trick::Dominance`]): with the same values on the device, no less on the host, and,
//!   where the host is short, nothing offloaded that the other did not, all streams are free no later. Whatever follows the
//!   one can follow the other.
//! - An offload that could have started before the command before it ([`Trick::Prompt`]): it needs no room, so that the
//!   list in which it does start earlier is as good and is looked at as well. So it starts just when its stream becomes free
//!   or its value is made. (Prefetches take room, and are tried at all times.)
//! - A state from which no end within the least known is possible ([`Trick::Bounds`]): compute that is left, prefetches
//!   that must come, offloads that must end before an op fits, and what [`super::space::Press`] says of the time after it.
//! - A value that was fetched is not given up before it is read, nor is an op recomputed of which nothing is read in its batch.
//! - Of what may be given up for room, sets of which a part would do.

use super::space::{Set, Space, members};
use crate::request::{Trick, Tricks};
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

const COMPUTE: usize = 0;
const OFFLOAD: usize = 1;
const PREFETCH: usize = 2;

/// Nothing runs on a stream.
const IDLE: u8 = u8::MAX;

/// What sums of floats in another order may differ by, as a share.
const HAIR: f64 = 1e-12;

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The start of the iteration.
    Begin,
    Run {
        op: u8,
        again: bool,
        alternative: u8,
    },
    Offload {
        value: u8,
    },
    Prefetch {
        value: u8,
    },
}

/// A command, when it starts, and what was given up for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub action: Action,
    pub start: f64,
    pub end: f64,
    pub given_up: Set,
}

/// What a search found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// The commands of a fastest iteration.
    Fastest(Vec<Timed>),
    /// There is none within the time that was asked for.
    Nothing,
    /// No more states were allowed, or time was up: no iteration takes less time than this.
    Late { bound: f64 },
}

#[derive(Clone, Debug)]
struct State {
    parent: u32,
    action: Action,
    given_up: Set,
    stage: u8,
    /// The ops before this one are not recomputed in this batch any more.
    after: u8,
    dead: bool,
    /// The state before it that has the same key.
    next: u32,
    device: Set,
    host: Set,
    /// What was ever offloaded, where the host is short.
    placed: Set,
    /// Fetched and not read yet.
    unread: Set,
    /// The start of the last command.
    now: f64,
    /// By stream: when it has ended what it does, and what that is: an op or a value.
    free: [f64; 3],
    busy: [u8; 3],
    /// Bytes that are free again when compute has ended, and when the offload has; none wait for a prefetch.
    leaving: [u64; 3],
    /// By op: whether it was recomputed in this batch and nothing has read yet what it made.
    idle: u32,
    bound: f64,
}

/// What must agree for one state to stand for another.
type Key = (u8, u8, Set);

/// A hash that is quick for a few numbers.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

/// No state.
const NONE: u32 = u32::MAX;

impl State {
    fn is_busy(&self, stream: usize) -> bool {
        self.free[stream] > self.now
    }

    fn key(&self) -> Key {
        (self.stage, self.after, self.device)
    }

    /// Whether whatever follows the other can follow this, no later.
    fn stands_for(&self, other: &State) -> bool {
        let slack = HAIR * other.now;
        let now = other.now + slack;
        let stream = |s: usize| {
            self.free[s] <= now
                || self.busy[s] == other.busy[s]
                    && self.free[s] <= other.free[s] + slack
                    && self.leaving[s] <= other.leaving[s]
        };
        self.now <= now
            && (0..3).all(stream)
            && other.host & !self.host == 0
            && self.placed & !other.placed == 0
            && self.unread & !other.unread == 0
            && self.idle & !other.idle == 0
    }

    fn end(&self) -> f64 {
        self.free.iter().copied().fold(0.0, f64::max)
    }
}

/// A state in the queue: the least bound first, of equal ones the most advanced.
#[derive(PartialEq)]
struct Entry(f64, u8, u32);

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        let of = |entry: &Entry| (entry.1, entry.2);
        other.0.total_cmp(&self.0).then_with(|| of(self).cmp(&of(other)))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The fastest list of commands that takes no longer than `within`, by keeping so many states at most; and how many were
/// looked at.
pub(super) fn fastest(
    space: &Space,
    within: f64,
    most_states: usize,
    expired: &dyn Fn() -> bool,
    without: Tricks,
) -> (Found, usize) {
    let mut search = Search {
        space,
        within,
        without,
        states: Vec::new(),
        lost: Cell::new(false),
        queue: BinaryHeap::new(),
        known: HashMap::default(),
    };
    search.offer(search.root());
    let mut looked = 0;
    while let Some(Entry(bound, _, at)) = search.queue.pop() {
        let state = &search.states[at as usize];
        if state.dead {
            continue;
        }
        if usize::from(state.stage) == space.jobs.len() {
            return (Found::Fastest(search.commands(at)), looked);
        }
        looked += 1;
        if search.states.len() > most_states || looked % 64 == 0 && expired() {
            return (Found::Late { bound }, looked);
        }
        let children = search.children(at);
        if search.lost.get() {
            return (Found::Late { bound }, looked);
        }
        for child in children {
            search.offer(child);
        }
    }
    (Found::Nothing, looked)
}

struct Search<'a> {
    space: &'a Space,
    within: f64,
    without: Tricks,
    states: Vec<State>,
    /// There were too many ways to make room to look at all of them.
    lost: Cell<bool>,
    queue: BinaryHeap<Entry>,
    /// By key: the last state that has it; each knows the one before.
    known: HashMap<Key, u32, BuildHasherDefault<Mix>>,
}

impl Search<'_> {
    fn root(&self) -> State {
        State {
            parent: 0,
            action: Action::Begin,
            given_up: 0,
            stage: 0,
            after: 0,
            dead: false,
            next: NONE,
            device: self.space.start,
            host: 0,
            placed: 0,
            unread: 0,
            now: 0.0,
            free: [0.0; 3],
            busy: [IDLE; 3],
            leaving: [0; 3],
            idle: 0,
            bound: 0.0,
        }
    }

    /// The commands that lead to a state.
    fn commands(&self, mut at: u32) -> Vec<Timed> {
        let mut commands = Vec::new();
        loop {
            let state = &self.states[at as usize];
            let stream = match state.action {
                Action::Begin => break,
                Action::Run { .. } => COMPUTE,
                Action::Offload { .. } => OFFLOAD,
                Action::Prefetch { .. } => PREFETCH,
            };
            let (start, end) = (state.now, state.free[stream]);
            commands.push(Timed { action: state.action, start, end, given_up: state.given_up });
            at = state.parent;
        }
        commands.reverse();
        commands
    }

    /// Takes a state into the queue, unless another stands for it or it ends too late.
    fn offer(&mut self, mut state: State) {
        let at = self.states.len() as u32;
        let least =
            if usize::from(state.stage) == self.space.jobs.len() || self.without.contains(Trick::Bounds) {
                state.end()
            } else {
                self.least_end(&state)
            };
        // Sums in another order do not make a state worse.
        if least > state.bound * (1.0 + HAIR) {
            state.bound = least;
        }
        if state.bound > self.within {
            return;
        }
        if !self.without.contains(Trick::Dominance) && !self.is_best(&mut state) {
            return;
        }
        self.queue.push(Entry(state.bound, state.stage, at));
        self.states.push(state);
    }

    /// Whether no state that is known stands for this one. Those for which this one stands are dead then.
    fn is_best(&mut self, state: &mut State) -> bool {
        let key = state.key();
        let mut head = self.known.get(&key).copied().unwrap_or(NONE);
        let (mut at, mut before) = (head, NONE);
        while at != NONE {
            let other = &self.states[at as usize];
            let next = other.next;
            if other.stands_for(state) {
                return false;
            }
            if state.stands_for(other) {
                self.states[at as usize].dead = true;
                if before == NONE {
                    head = next;
                } else {
                    self.states[before as usize].next = next;
                }
            } else {
                before = at;
            }
            at = next;
        }
        state.next = head;
        self.known.insert(key, self.states.len() as u32);
        true
    }

    /// No list that begins like this ends earlier.
    fn least_end(&self, state: &State) -> f64 {
        let space = self.space;
        let clear = |s: usize| state.free[s].max(state.now);
        let (mut ended, left) = (clear(COMPUTE), clear(OFFLOAD));
        // Seconds of prefetches that must come yet.
        let mut fetches = 0.0;
        let mut least = state.end();
        let mut seen = state.device;
        let mut made: u32 = 0;
        for (q, job) in space.jobs.iter().enumerate().skip(usize::from(state.stage)) {
            // What it reads, was made before now and is gone.
            let mut gone = job.reads & !seen;
            while gone != 0 {
                let v = gone.trailing_zeros() as usize;
                gone &= gone - 1;
                seen |= 1 << v;
                if space.values[v].maker.is_some_and(|maker| maker >= usize::from(state.stage)) {
                    continue;
                }
                let again = space.maker_again(v).filter(|_| q < space.final_stage);
                let there = state.host >> v & 1 == 1;
                match (again, there) {
                    (None, true) => fetches += space.values[v].back,
                    (None, false) => return f64::INFINITY,
                    (Some(maker), false) if made >> maker & 1 == 0 => {
                        made |= 1 << maker;
                        ended += space.jobs[maker].alternatives[0].seconds;
                        gone |= space.jobs[maker].reads & !seen;
                    }
                    _ => {}
                }
            }
            // On a half-duplex link what comes and what goes add up.
            let before = clear(PREFETCH) + fetches;
            let start = if fetches > 0.0 { ended.max(before) } else { ended };
            let from = if space.half && fetches > 0.0 { left.max(before) } else { left };
            let seconds = job.alternatives[0].seconds;
            let press = &space.press[q];
            ended = start + seconds;
            if press.away == 0 {
                least = least.max(ended);
                continue;
            }
            // One option is away when it starts, and one, maybe another, when it ends.
            let need =
                press.away.saturating_sub(space.bytes(press.across & (state.host | space.recomputed[q + 1])));
            let need = need as f64 / space.rates[OFFLOAD - 1];
            let out = |swapped: Set| {
                members(swapped & !state.host).map(|v| space.values[v].out).sum::<f64>().max(need)
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

    fn children(&self, at: u32) -> Vec<State> {
        let mut children = Vec::new();
        self.runs(at, &mut children);
        if self.space.swap {
            self.offloads(at, &mut children);
            self.prefetches(at, &mut children);
        }
        children
    }

    /// What may be given up without loss of anything that is needed and cannot be had otherwise.
    fn evictable(&self, state: &State) -> Set {
        let stage = usize::from(state.stage);
        let spare = state.host | !self.space.needed[stage] | self.space.recomputed[stage];
        state.device & spare & !state.unread
    }

    /// The compute command that comes next: the op of the stage, or ops that recompute what it lacks.
    fn runs(&self, at: u32, children: &mut Vec<State>) {
        let space = self.space;
        let state = &self.states[at as usize];
        let stage = usize::from(state.stage);
        if space.jobs[stage].reads & !state.device == 0 {
            for alternative in 0..space.jobs[stage].alternatives.len() {
                self.run(at, stage, false, alternative, children);
            }
            return;
        }
        if stage >= space.final_stage {
            return;
        }
        let mut wanted = space.jobs[stage].reads & !state.device;
        for k in (usize::from(state.after)..stage).rev() {
            let job = &space.jobs[k];
            if !job.again || job.writes & wanted == 0 {
                continue;
            }
            wanted |= job.reads & !state.device;
            if job.reads & !state.device == 0 {
                for alternative in 0..job.alternatives.len() {
                    self.run(at, k, true, alternative, children);
                }
            }
        }
    }

    fn run(&self, at: u32, op: usize, again: bool, alternative: usize, children: &mut Vec<State>) {
        let space = self.space;
        let state = &self.states[at as usize];
        let job = &space.jobs[op];
        let action = Action::Run { op: op as u8, again, alternative: alternative as u8 };
        // What it makes anew takes the place of what was there.
        let replaced = job.writes & state.device;
        let need = job.fresh + job.alternatives[alternative].workspace;
        let candidates = self.evictable(state) & !job.reads & !replaced;
        let from = self.earliest_by_streams(state, action);
        self.with_room(state, from, need, replaced, candidates, &mut |start, given_up| {
            let mut next = self.begin(at, action, start, given_up);
            next.device = next.device & !job.consumed | job.writes;
            next.unread &= !job.reads;
            let used = members(job.reads).filter_map(|v| space.values[v].maker);
            next.idle = used.fold(next.idle, |idle, maker| idle & !(1 << maker)) | u32::from(again) << op;
            if !again && next.idle != 0 {
                return;
            }
            next.free[COMPUTE] = start + job.alternatives[alternative].seconds;
            next.busy[COMPUTE] = op as u8;
            next.leaving[COMPUTE] = job.alternatives[alternative].workspace;
            (next.stage, next.after) = if again { (state.stage, op as u8 + 1) } else { (state.stage + 1, 0) };
            let useless = next.device & !space.useful[usize::from(next.stage)];
            if useless & next.unread != 0 {
                return;
            }
            self.give_up(&mut next, useless);
            children.push(next);
        });
    }

    fn offloads(&self, at: u32, children: &mut Vec<State>) {
        let space = self.space;
        let state = &self.states[at as usize];
        for v in members(state.device & !state.host & space.worthy[usize::from(state.stage)]) {
            // The copy is that of the newest version on the device.
            let newer = space.versions[v] & state.device & !(Set::MAX >> (127 - v));
            let action = Action::Offload { value: v as u8 };
            let start = self.earliest_by_streams(state, action);
            let late = start < state.now;
            if newer != 0 || late && !self.without.contains(Trick::Prompt) {
                continue;
            }
            let placed = if space.host.is_some() { state.placed | 1 << v } else { 0 };
            if space.host.is_some_and(|host| space.on_host(placed) > host) {
                continue;
            }
            let mut next = self.begin(at, action, start.max(state.now), 0);
            // The host keeps one version.
            next.host = next.host & !space.versions[v] | 1 << v;
            next.placed = placed;
            next.free[OFFLOAD] = next.now + space.values[v].out;
            next.busy[OFFLOAD] = v as u8;
            next.leaving[OFFLOAD] = 0;
            children.push(next);
        }
    }

    fn prefetches(&self, at: u32, children: &mut Vec<State>) {
        let space = self.space;
        let state = &self.states[at as usize];
        for v in members(state.host & !state.device & space.useful[usize::from(state.stage)]) {
            let action = Action::Prefetch { value: v as u8 };
            let need = space.values[v].bytes;
            let from = self.earliest_by_streams(state, action);
            self.with_room(state, from, need, 0, self.evictable(state), &mut |start, given_up| {
                let mut next = self.begin(at, action, start, given_up);
                next.device |= 1 << v;
                next.unread |= 1 << v;
                next.free[PREFETCH] = start + space.values[v].back;
                next.busy[PREFETCH] = v as u8;
                children.push(next);
            });
        }
    }

    /// When a command could start if there were room; for all but offloads no earlier than the one before it.
    fn earliest_by_streams(&self, state: &State, action: Action) -> f64 {
        let space = self.space;
        let busy_with =
            |stream: usize, set: Set| state.busy[stream] != IDLE && set >> state.busy[stream] & 1 == 1;
        let [compute, offload, prefetch] = state.free;
        let link = if space.half { offload.max(prefetch) } else { 0.0 };
        match action {
            Action::Begin => 0.0,
            Action::Run { op, .. } => {
                let job = &space.jobs[usize::from(op)];
                let mut start = state.now.max(compute);
                if busy_with(PREFETCH, job.reads) {
                    start = start.max(prefetch);
                }
                let updated = members(job.consumed).fold(0, |set, v| set | space.versions[v]);
                if busy_with(OFFLOAD, updated) { start.max(offload) } else { start }
            }
            Action::Offload { value } => {
                let versions = space.versions[usize::from(value)];
                let mut start = offload.max(link);
                if state.busy[COMPUTE] != IDLE
                    && space.jobs[usize::from(state.busy[COMPUTE])].writes & versions != 0
                {
                    start = start.max(compute);
                }
                if busy_with(PREFETCH, versions) { start.max(prefetch) } else { start }
            }
            Action::Prefetch { value } => {
                let start = state.now.max(prefetch).max(link);
                if busy_with(OFFLOAD, 1 << value) { start.max(offload) } else { start }
            }
        }
    }

    /// When the bytes of a value that is given up now are free.
    fn released(&self, state: &State, value: usize) -> f64 {
        let mut at = 0.0f64;
        if state.is_busy(COMPUTE) {
            let job = &self.space.jobs[usize::from(state.busy[COMPUTE])];
            at = if (job.reads | job.writes) >> value & 1 == 1 { state.free[COMPUTE] } else { at };
        }
        if state.is_busy(OFFLOAD) && usize::from(state.busy[OFFLOAD]) == value {
            at = at.max(state.free[OFFLOAD]);
        }
        at
    }

    /// Bytes in use at a time no earlier than the last start, with nothing new and these values given up.
    fn in_use(&self, state: &State, given_up: Set, time: f64) -> u64 {
        let waiting = |s: usize| if state.free[s] > time { state.leaving[s] } else { 0 };
        let held =
            members(given_up).filter(|v| self.released(state, *v) > time).fold(0, |set, v| set | 1 << v);
        self.space.bytes(state.device & !given_up | held) + waiting(COMPUTE) + waiting(OFFLOAD)
    }

    /// Calls `take` with every time and every least set of values to give up that make room for so many bytes.
    fn with_room(
        &self,
        state: &State,
        from: f64,
        need: u64,
        replaced: Set,
        candidates: Set,
        take: &mut dyn FnMut(f64, Set),
    ) {
        let mut times = [from, state.free[COMPUTE].max(from), state.free[OFFLOAD].max(from)];
        times.sort_by(f64::total_cmp);
        let mut earlier: Vec<Set> = Vec::new();
        for (i, &time) in times.iter().enumerate() {
            if i > 0 && time == times[i - 1] {
                continue;
            }
            let used = self.in_use(state, replaced, time) + need;
            let Some(lacking) = used.checked_sub(self.space.pool).filter(|lacking| *lacking > 0) else {
                return take(time, replaced);
            };
            let free: Vec<usize> = members(candidates).filter(|v| self.released(state, *v) <= time).collect();
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

    /// The state in which a command has just begun, with values given up for it.
    fn begin(&self, at: u32, action: Action, start: f64, given_up: Set) -> State {
        let mut next = self.states[at as usize].clone();
        (next.parent, next.action, next.given_up, next.dead) = (at, action, given_up, false);
        next.now = start;
        for s in [COMPUTE, OFFLOAD] {
            next.leaving[s] = if next.is_busy(s) { next.leaving[s] } else { 0 };
        }
        self.give_up(&mut next, given_up);
        next
    }

    fn give_up(&self, state: &mut State, values: Set) {
        for v in members(values) {
            let at = self.released(state, v);
            state.device &= !(1 << v);
            if at > state.now {
                let stream = if at == state.free[COMPUTE] { COMPUTE } else { OFFLOAD };
                state.leaving[stream] += self.space.values[v].bytes;
            }
        }
    }
}
