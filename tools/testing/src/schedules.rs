//! Random valid schedules: a walk over the trace that swaps and recomputes tensors at random.
//!
//! Each tensor is cut into cells, permanently. A transfer moves a run of cells; a buffer holds one. A tensor may only be
//! dropped when it can surely be restored: from the host, or by its op, whose reads are then kept restorable for as long
//! (`secure`).

use crate::Random;
use crate::place::{Clocks, Draft, place};
use plimsoll_ir::ids::{CommandId, OpId, TensorId};
use plimsoll_ir::program::STORAGE_ALIGNMENT;
use plimsoll_ir::schedule::{Buffer, Command, Duplex, Holds, Link, Schedule, ScheduleKind, alternative_of};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::units::{Bytes, BytesPerSecond, Seconds};
use std::ops::Range;

/// Returns a valid schedule for a trace: the same for the same seed. It swaps whole tensors and pieces, in any gap and
/// several times, fetches clean copies back without a second offload, recomputes, picks alternatives, on a random link.
pub fn random_schedule(trace: &Trace, seed: u64) -> Schedule {
    let mut walk = Walk::new(trace, seed);
    for op in 0..trace.ops.len() {
        walk.disturb(op);
        walk.run(op);
        walk.bury(op);
    }
    walk.into_schedule()
}

/// The state of one tensor.
struct TensorState {
    /// Starts of its cells, and the end of the last; no cells if it has 0 bytes.
    cuts: Vec<u64>,
    /// Number of ops that have written it so far.
    version: u32,
    /// Version on the device.
    held: u32,
    /// Draft that holds each cell.
    device: Vec<Option<usize>>,
    group: usize,
    /// Drafts of that group so far.
    in_group: Vec<usize>,
    /// Version of each cell on the host, and the offload that copied it.
    host: Vec<Option<(u32, usize)>>,
    /// Last prefetch of each cell.
    fetched: Vec<Option<usize>>,
    last_offload: Option<usize>,
    last_update: Option<usize>,
    /// Op just before which it may be needed last.
    until: usize,
}

impl TensorState {
    fn whole(&self, version: u32) -> bool {
        self.device.iter().all(Option::is_some) && (self.held == version || self.device.is_empty())
    }

    fn on_host(&self, cell: usize, version: u32) -> bool {
        self.host[cell].is_some_and(|(held, _)| held == version)
    }
}

/// The uses of tensors in the trace.
struct Uses {
    /// Versions that each op finds of its reads and of its writes.
    found: Vec<(Vec<u32>, Vec<u32>)>,
    /// Ops that write each tensor.
    writers: Vec<Vec<usize>>,
    /// Ops that touch each tensor.
    touches: Vec<Vec<usize>>,
}

impl Uses {
    fn of(trace: &Trace) -> Uses {
        let none = vec![Vec::new(); trace.tensors.len()];
        let mut uses =
            Uses { found: Vec::with_capacity(trace.ops.len()), writers: none.clone(), touches: none };
        for (i, op) in trace.ops.iter().enumerate() {
            let at =
                |tensors: &[TensorId]| tensors.iter().map(|t| uses.writers[t.index()].len() as u32).collect();
            uses.found.push((at(&op.reads), at(&op.writes)));
            op.writes.iter().for_each(|t| uses.writers[t.index()].push(i));
            op.touches().for_each(|t| uses.touches[t.index()].push(i));
        }
        uses
    }
}

struct Walk<'a> {
    trace: &'a Trace,
    random: Random,
    commands: Vec<Command>,
    clocks: Clocks,
    drafts: Vec<Draft>,
    groups: usize,
    states: Vec<TensorState>,
    uses: Uses,
    /// Tensors that may be freed after each op.
    dying: Vec<Vec<usize>>,
    alive: Vec<usize>,
    alignment: u64,
}

impl<'a> Walk<'a> {
    fn new(trace: &'a Trace, seed: u64) -> Walk<'a> {
        let count = trace.tensors.len();
        let alignment = if trace.tensors.iter().all(|t| t.bytes.0 % STORAGE_ALIGNMENT == 0) {
            STORAGE_ALIGNMENT
        } else {
            1
        };
        let mut walk = Walk {
            trace,
            random: Random::new(seed),
            commands: Vec::new(),
            clocks: Clocks::default(),
            drafts: Vec::new(),
            groups: 0,
            states: Vec::with_capacity(count),
            uses: Uses::of(trace),
            dying: vec![Vec::new(); trace.ops.len()],
            alive: Vec::new(),
            alignment,
        };
        for t in 0..count {
            let cuts = walk.cuts(trace.tensors[t].bytes.0);
            let cells = cuts.len().saturating_sub(1);
            let (device, host, fetched) = (vec![None; cells], vec![None; cells], vec![None; cells]);
            let (version, held, group, in_group, last_offload, last_update, until) =
                (0, 0, 0, Vec::new(), None, None, 0);
            walk.states.push(TensorState {
                cuts,
                version,
                held,
                device,
                group,
                in_group,
                host,
                fetched,
                last_offload,
                last_update,
                until,
            });
        }
        walk.start();
        walk
    }

    /// Places the tensors that are on the device from the start, and notes when each may be freed.
    fn start(&mut self) {
        for (t, life) in self.trace.lives().iter().enumerate() {
            let Some(life) = life else { continue };
            self.dying[life.dies.index()].push(t);
            if life.born.is_none() {
                self.alive.push(t);
                self.fill_new(t, 0, None);
            }
        }
    }

    /// Cuts one to three cells.
    fn cuts(&mut self, bytes: u64) -> Vec<u64> {
        if bytes == 0 {
            return Vec::new();
        }
        let mut cuts = vec![0, bytes];
        if self.random.percent(40) {
            for _ in 0..2 {
                cuts.push(self.random.below(bytes) / self.alignment * self.alignment);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    fn emit(&mut self, mut command: Command, mut waits: Vec<usize>) -> usize {
        let stream = command.stream().index();
        // Unnecessary waits: they let memory be used again, and give different orders.
        let other = self.random.below(3) as usize;
        if other != stream && self.random.percent(if stream == 0 { 30 } else { 70 }) {
            waits.extend(self.clocks.last(other));
        }
        let waits = self.clocks.add(stream, waits, &mut self.random);
        *command.waits_mut() = waits.into_iter().map(CommandId::new).collect();
        self.commands.push(command);
        self.commands.len() - 1
    }

    /// Adds a buffer for a run of cells, in the tensor's present group.
    fn draft(&mut self, t: usize, cells: Range<usize>, opens: Option<usize>) {
        let state = &mut self.states[t];
        let (first, end) = (state.cuts[cells.start], state.cuts[cells.end]);
        state.device[cells].fill(Some(self.drafts.len()));
        state.in_group.push(self.drafts.len());
        let users = opens.into_iter().collect();
        let (tensor, group) = (Some(t), state.group);
        self.drafts.push(Draft { tensor, first, bytes: end - first, group, opens, users, writer: opens });
    }

    /// Starts a new group, for a different place of the tensor.
    fn new_group(&mut self, t: usize, version: u32) {
        self.groups += 1;
        let state = &mut self.states[t];
        (state.group, state.held) = (self.groups, version);
        state.in_group.clear();
    }

    /// Adds a new place for a whole tensor, in one buffer or several.
    fn fill_new(&mut self, t: usize, version: u32, opens: Option<usize>) {
        self.new_group(t, version);
        let cells = self.states[t].device.len();
        let mut first = 0;
        for end in 1..=cells {
            if end == cells || self.random.percent(60) {
                self.draft(t, first..end, opens);
                first = end;
            }
        }
    }

    /// Returns the drafts that hold a run of cells, each once.
    fn holding(&self, t: usize, cells: Range<usize>) -> Vec<usize> {
        let mut drafts: Vec<usize> = self.states[t].device[cells].iter().flatten().copied().collect();
        drafts.dedup();
        drafts
    }

    /// Frees a draft.
    fn close(&mut self, t: usize, draft: usize) {
        self.states[t].device.iter_mut().filter(|cell| **cell == Some(draft)).for_each(|cell| *cell = None);
        if self.random.percent(10) {
            let last = self.clocks.last(0);
            self.drafts[draft].users.extend(last);
        }
    }

    fn close_all(&mut self, t: usize) {
        for draft in self.holding(t, 0..self.states[t].device.len()) {
            self.close(t, draft);
        }
    }

    /// Copies a run of cells, all on the device, to the host.
    fn offload(&mut self, t: usize, cells: Range<usize>) {
        let state = &self.states[t];
        let drafts = self.holding(t, cells.clone());
        let mut waits: Vec<usize> = drafts.iter().filter_map(|d| self.drafts[*d].writer).collect();
        waits.extend(state.last_update.iter().chain(state.fetched[cells.clone()].iter().flatten()));
        let (tensor, first_byte, bytes) = self.moved(t, &cells);
        let c = self.emit(Command::Offload { tensor, first_byte, bytes, waits: Vec::new() }, waits);
        drafts.iter().for_each(|d| self.drafts[*d].users.push(c));
        let state = &mut self.states[t];
        state.last_offload = Some(c);
        let held = state.held;
        state.host[cells].fill(Some((held, c)));
    }

    /// Returns a transfer's name of a run of cells, sometimes in the short form.
    fn moved(&mut self, t: usize, cells: &Range<usize>) -> (TensorId, Option<Bytes>, Option<Bytes>) {
        let cuts = &self.states[t].cuts;
        let (first, end, whole) = (cuts[cells.start], cuts[cells.end], cuts[cuts.len() - 1]);
        let first_byte = (first > 0 || self.random.percent(30)).then_some(Bytes(first));
        let bytes = (end < whole || self.random.percent(30)).then_some(Bytes(end - first));
        (TensorId::new(t), first_byte, bytes)
    }

    /// Fetches the missing cells back from the host, in runs.
    fn fetch(&mut self, t: usize, version: u32) {
        if self.states[t].device.iter().all(Option::is_none) {
            self.new_group(t, version);
        }
        let cells = self.states[t].device.len();
        let mut first = 0;
        while first < cells {
            let missing = |cell: usize| self.states[t].device[cell].is_none();
            if !missing(first) {
                first += 1;
                continue;
            }
            let mut end = first + 1;
            while end < cells && self.states[t].device[end].is_none() && self.random.percent(50) {
                end += 1;
            }
            self.prefetch(t, first..end);
            first = end;
        }
    }

    fn prefetch(&mut self, t: usize, cells: Range<usize>) {
        let state = &self.states[t];
        let mut waits: Vec<usize> = state.host[cells.clone()].iter().flatten().map(|(_, c)| *c).collect();
        let (first, end) = (state.cuts[cells.start], state.cuts[cells.end]);
        // It returns to its own place, so every command that used that place as this tensor must have ended.
        if state.device.iter().any(Option::is_some) {
            let earlier = state.in_group.iter().map(|d| &self.drafts[*d]);
            let earlier = earlier.filter(|d| d.first < end && d.first + d.bytes > first);
            waits.extend(earlier.flat_map(|d| d.users.iter()));
        }
        let (tensor, first_byte, bytes) = self.moved(t, &cells);
        let c = self.emit(Command::Prefetch { tensor, first_byte, bytes, waits: Vec::new() }, waits);
        self.draft(t, cells.clone(), Some(c));
        self.states[t].fetched[cells].fill(Some(c));
    }

    /// Brings a version of a whole tensor onto the device: it is there, on the host, or can be recomputed.
    fn obtain(&mut self, t: usize, version: u32) {
        let state = &self.states[t];
        if state.whole(version) {
            return;
        }
        let missing = |cell: &usize| state.device[*cell].is_none();
        if (0..state.device.len()).filter(missing).all(|cell| state.on_host(cell, version)) {
            self.fetch(t, version);
        } else {
            self.close_all(t);
            let op = self.uses.writers[t][version as usize - 1];
            self.compute(op, Some(t));
        }
    }

    /// Runs an op for the first time.
    fn run(&mut self, op: usize) {
        self.compute(op, None);
        for t in &self.trace.ops[op].writes {
            self.states[t.index()].version += 1;
        }
        for t in self.trace.ops[op].touches() {
            if !self.alive.contains(&t.index()) {
                self.alive.push(t.index());
            }
        }
    }

    /// Runs an op; `again_for` names the tensor that a recompute is for. Its other writes are freed at once.
    fn compute(&mut self, op: usize, again_for: Option<usize>) {
        let (reads, writes) = self.uses.found[op].clone();
        let ids = |ids: &[TensorId]| ids.iter().map(|t| t.index()).collect::<Vec<usize>>();
        let (read_ids, write_ids) = (ids(&self.trace.ops[op].reads), ids(&self.trace.ops[op].writes));
        for (&t, &version) in read_ids.iter().zip(&reads) {
            self.obtain(t, version);
        }
        let mut stands: Vec<usize> = read_ids.clone();
        for (&t, &version) in write_ids.iter().zip(&writes).filter(|(t, _)| !read_ids.contains(t)) {
            let alive = version > 0 || self.alive.contains(&t);
            let there = again_for.is_none() && alive && self.states[t].whole(version);
            if there && self.random.percent(60) {
                stands.push(t);
            }
        }
        stands.retain(|t| !self.states[*t].device.is_empty());
        let c = self.launch(op, again_for.is_some(), &stands, &write_ids);
        for (&t, &version) in write_ids.iter().zip(&writes) {
            if stands.contains(&t) {
                self.states[t].held = version + 1;
                self.states[t].last_update = Some(c);
            } else if again_for.is_none_or(|wanted| wanted == t) {
                self.close_all(t);
                self.fill_new(t, version + 1, Some(c));
            } else if !self.states[t].device.is_empty() {
                self.scrap(t, c);
            }
        }
    }

    /// Adds the command on tensors that are on the device, and its workspace.
    fn launch(&mut self, op: usize, again: bool, stands: &[usize], writes: &[usize]) -> usize {
        let touched: Vec<usize> =
            stands.iter().flat_map(|t| self.holding(*t, 0..self.states[*t].device.len())).collect();
        let mut waits: Vec<usize> = touched.iter().filter_map(|d| self.drafts[*d].writer).collect();
        waits.extend(
            stands.iter().filter(|t| writes.contains(t)).filter_map(|t| self.states[*t].last_offload),
        );
        let alternatives = self.trace.ops[op].alternatives.len() as u64;
        let alternative = self.random.below(alternatives + 1).checked_sub(1).map(|k| k as u32);
        let command = Command::Compute { op: OpId::new(op), again, alternative, waits: Vec::new() };
        let c = self.emit(command, waits);
        for d in touched {
            let draft = &mut self.drafts[d];
            draft.users.push(c);
            if draft.tensor.is_some_and(|t| writes.contains(&t)) {
                draft.writer = Some(c);
            }
        }
        let workspace =
            alternative_of(&self.trace.ops[op], alternative).map_or(0, |(_, workspace)| workspace.0);
        if workspace > 0 {
            self.groups += 1;
            let (group, opens) = (self.groups, Some(c));
            self.drafts.push(Draft {
                tensor: None,
                first: 0,
                bytes: workspace,
                group,
                opens,
                users: vec![c],
                writer: None,
            });
        }
        c
    }

    /// Adds a place for an unneeded by-product.
    fn scrap(&mut self, t: usize, c: usize) {
        self.groups += 1;
        let (tensor, bytes, group) = (Some(t), self.trace.tensors[t].bytes.0, self.groups);
        self.drafts.push(Draft {
            tensor,
            first: 0,
            bytes,
            group,
            opens: Some(c),
            users: vec![c],
            writer: Some(c),
        });
    }

    /// Frees tensors that are not needed again.
    fn bury(&mut self, op: usize) {
        for t in std::mem::take(&mut self.dying[op]) {
            let until = self.states[t].until;
            if until > op {
                self.dying[until].push(t);
            } else {
                self.close_all(t);
                self.alive.retain(|other| *other != t);
            }
        }
    }

    /// Evicts some tensors before an op, and fetches some back.
    fn disturb(&mut self, op: usize) {
        for _ in 0..self.random.below(4) {
            let Some(t) = self.random.pick(&self.alive) else { return };
            if self.states[t].device.is_empty() || self.needed(t, op).is_none() {
                continue;
            }
            let whole = self.states[t].whole(self.states[t].version);
            match self.random.below(10) {
                0..=2 if whole => self.drop_tensor(t, op),
                3 if whole => self.offload(t, 0..self.states[t].device.len()),
                0..=7 => self.evict(t),
                _ => self.obtain(t, self.states[t].version),
            }
        }
    }

    /// Returns the last op before which a tensor's present version is needed.
    fn needed(&self, t: usize, op: usize) -> Option<usize> {
        let at = self.uses.touches[t].partition_point(|touch| *touch < op);
        self.uses.touches[t].get(at).copied().max(Some(self.states[t].until).filter(|until| *until > op))
    }

    /// Swaps some of a tensor's buffers out.
    fn evict(&mut self, t: usize) {
        let everything = self.random.percent(50);
        let cells = self.states[t].device.len();
        if everything && self.states[t].device.iter().all(Option::is_some) && self.random.percent(50) {
            let held = self.states[t].held;
            if !(0..cells).all(|cell| self.states[t].on_host(cell, held)) {
                self.offload(t, 0..cells);
            }
        }
        for draft in self.holding(t, 0..cells) {
            if !everything && self.random.percent(50) {
                continue;
            }
            let state = &self.states[t];
            let own: Vec<usize> = (0..cells).filter(|cell| state.device[*cell] == Some(draft)).collect();
            if let (Some(first), Some(last)) = (own.first(), own.last())
                && !own.iter().all(|cell| state.on_host(*cell, state.held))
            {
                self.offload(t, *first..last + 1);
            }
            self.close(t, draft);
        }
    }

    /// Frees a tensor without a copy on the host, if it can be recomputed.
    fn drop_tensor(&mut self, t: usize, op: usize) {
        if let Some(until) = self.needed(t, op)
            && self.recoverable(t, op, until, 0)
        {
            self.states[t].until = self.states[t].until.max(until);
            self.close_all(t);
        }
    }

    /// Returns `true` if a tensor's present version can be restored until just before op `until`; if so it is kept that long.
    fn secure(&mut self, t: usize, op: usize, until: usize, depth: usize) -> bool {
        let at = self.uses.writers[t].partition_point(|writer| *writer < op);
        if self.uses.writers[t].get(at).is_some_and(|writer| *writer < until) || !self.alive.contains(&t) {
            return false;
        }
        let state = &self.states[t];
        let there = |cell: usize| state.device[cell].is_some() || state.on_host(cell, state.version);
        let sure = (0..state.device.len()).all(there) || self.recoverable(t, op, until, depth);
        if sure {
            self.states[t].until = self.states[t].until.max(until);
        }
        sure
    }

    /// Returns `true` if a tensor's present version could be recomputed until just before op `until`.
    fn recoverable(&mut self, t: usize, op: usize, until: usize, depth: usize) -> bool {
        let version = self.states[t].version;
        let at = self.uses.writers[t].partition_point(|writer| *writer < op);
        if version == 0 || depth > 5 || self.uses.writers[t].get(at).is_some_and(|writer| *writer < until) {
            return false;
        }
        let writer = self.uses.writers[t][version as usize - 1];
        let found = self.uses.found[writer].0.clone();
        let maker = &self.trace.ops[writer];
        let others_in_place = maker.writes.iter().any(|w| w.index() != t && maker.reads.contains(w));
        if !maker.recomputable || others_in_place {
            return false;
        }
        maker.reads.iter().zip(found).all(|(z, found)| {
            let state = &self.states[z.index()];
            if z.index() == t {
                (0..state.device.len()).all(|cell| state.on_host(cell, found))
            } else {
                state.version == found && self.secure(z.index(), op, until, depth + 1)
            }
        })
    }

    /// Gives the drafts their `closes` and their places.
    fn into_schedule(mut self) -> Schedule {
        for draft in &mut self.drafts {
            draft.users.sort_unstable();
            draft.users.dedup();
            if self.random.percent(60) {
                let all = draft.users.clone();
                draft.users.retain(|user| !all.iter().any(|later| self.clocks.is_before(*user, *later)));
            }
        }
        let (offsets, pool) = place(&self.drafts, &self.clocks, self.alignment, &mut self.random);
        let mut buffers: Vec<Buffer> =
            self.drafts.iter().zip(offsets).map(|(d, offset)| buffer(d, offset)).collect();
        for buffer in &mut buffers {
            let Holds::Tensor { tensor, first_byte: Some(Bytes(0)), bytes } = buffer.holds else { continue };
            if bytes == Some(self.trace.tensors[tensor.index()].bytes) && self.random.percent(60) {
                buffer.holds = Holds::Tensor { tensor, first_byte: None, bytes: None };
            }
        }
        let link = link(&mut self.random);
        let pool = Bytes(pool);
        let budget_bytes = self.trace.resident_bytes + pool + Bytes(self.random.below(3) * 1000);
        let (trace, batch) = (self.trace.name.clone(), self.trace.batch);
        let commands = self.commands;
        Schedule { kind: ScheduleKind, trace, batch, budget_bytes, pool_bytes: pool, link, commands, buffers }
    }
}

fn buffer(draft: &Draft, offset: u64) -> Buffer {
    let ids = |ids: &[usize]| ids.iter().copied().map(CommandId::new).collect();
    let holds = match (draft.tensor, draft.opens) {
        (None, Some(command)) => Holds::Workspace { command: CommandId::new(command) },
        (tensor, _) => Holds::Tensor {
            tensor: TensorId::new(tensor.unwrap_or_default()),
            first_byte: Some(Bytes(draft.first)),
            bytes: Some(Bytes(draft.bytes)),
        },
    };
    Buffer { holds, offset: Bytes(offset), opens: draft.opens.map(CommandId::new), closes: ids(&draft.users) }
}

/// Returns any link: fast or slow, lopsided, half or full duplex, with or without latency.
fn link(random: &mut Random) -> Link {
    let mut rate = || BytesPerSecond((1 + random.below(1_000_000)) as f64 * 0.37);
    let (offload_bytes_per_second, prefetch_bytes_per_second) = (rate(), rate());
    let latency_seconds = Seconds(if random.percent(50) { 0.0 } else { random.below(1000) as f64 * 1e-6 });
    let duplex = if random.percent(50) { Duplex::Half } else { Duplex::Full };
    Link { offload_bytes_per_second, prefetch_bytes_per_second, latency_seconds, duplex }
}
