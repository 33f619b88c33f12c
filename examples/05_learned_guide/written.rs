//! A schedule that does what was chosen, one command after the other, in a pool without end. The planner reads the choices off
//! it, as off any earlier plan, and makes them fit.

use super::gaps::{Choice, Gap, Gaps, ValueId};
use plimsoll::ir::schedule::{Buffer, Command, Holds, Schedule, ScheduleKind};
use plimsoll::ir::{Bytes, CommandId, OpId};
use std::collections::HashMap;

/// Where buffers begin.
const ALIGNMENT: u64 = 256;

/// The schedule of one choice for every crowded gap.
pub fn schedule(gaps: &Gaps<'_>, choices: &[Choice]) -> Schedule {
    let chosen = gaps.crowded().zip(choices).map(|(gap, choice)| ((gap.value, gap.end), *choice)).collect();
    let mut writer = Writer {
        gaps,
        chosen,
        held: vec![None; gaps.values().len()],
        commands: Vec::new(),
        buffers: Vec::new(),
        end: 0,
    };
    for (at, value) in gaps.values().iter().enumerate() {
        if value.maker.is_none() {
            writer.open(ValueId(at), None);
        }
    }
    for op in (0..gaps.trace.ops.len()).map(OpId::from) {
        writer.run(op);
    }
    let pool_bytes = Bytes(writer.end);
    Schedule {
        kind: ScheduleKind,
        trace: gaps.trace.name.clone(),
        batch: gaps.trace.batch,
        budget_bytes: gaps.trace.resident_bytes + pool_bytes,
        pool_bytes,
        link: gaps.link(),
        commands: writer.commands,
        buffers: writer.buffers,
    }
}

struct Writer<'g> {
    gaps: &'g Gaps<'g>,
    /// By value and the op at the gap's end.
    chosen: HashMap<(ValueId, OpId), Choice>,
    /// By value: the buffer that it is in.
    held: Vec<Option<usize>>,
    commands: Vec<Command>,
    buffers: Vec<Buffer>,
    /// The first byte of the pool that nothing has lain on.
    end: u64,
}

impl Writer<'_> {
    fn bytes(&self, value: ValueId) -> Bytes {
        self.gaps.trace.tensors[self.gaps.value(value).tensor.index()].bytes
    }

    fn choice(&self, gap: Option<&Gap>) -> Choice {
        gap.and_then(|gap| self.chosen.get(&(gap.value, gap.end)).copied()).unwrap_or(Choice::Keep)
    }

    fn open(&mut self, value: ValueId, opens: Option<CommandId>) {
        let bytes = self.bytes(value);
        if bytes > Bytes::ZERO {
            self.held[value.0] = Some(self.buffers.len());
            let tensor = self.gaps.value(value).tensor;
            self.buffer(Holds::Tensor { tensor, first_byte: None, bytes: None }, bytes, opens);
        }
    }

    fn buffer(&mut self, holds: Holds, bytes: Bytes, opens: Option<CommandId>) {
        self.buffers.push(Buffer { holds, offset: Bytes(self.end), opens, closes: Vec::new() });
        self.end += bytes.0.next_multiple_of(ALIGNMENT);
    }

    /// The buffer of a value closes with the last command.
    fn close(&mut self, value: ValueId) {
        if let Some(buffer) = self.held[value.0].take() {
            let last = self.commands.len() - 1;
            self.buffers[buffer].closes = vec![CommandId::from(last)];
        }
    }

    /// The command that comes next, and what it waits for: the one before.
    fn next(&self) -> (CommandId, Vec<CommandId>) {
        let next = self.commands.len();
        (CommandId::from(next), next.checked_sub(1).map(CommandId::from).into_iter().collect())
    }

    /// Computes an op, the values that it reads being there. Gives the values that were not there before.
    fn compute(&mut self, op: OpId, again: bool) -> Vec<ValueId> {
        let gaps = self.gaps;
        let (id, waits) = self.next();
        self.commands.push(Command::Compute { op, again, alternative: None, waits });
        let workspace = gaps.trace.ops[op.index()].workspace_bytes;
        if workspace > Bytes::ZERO {
            let buffer = self.buffers.len();
            self.buffer(Holds::Workspace { command: id }, workspace, Some(id));
            self.buffers[buffer].closes = vec![id];
        }
        let mut new = Vec::new();
        for &value in gaps.writes(op) {
            let tensor = gaps.value(value).tensor;
            let updated = gaps.reads(op).iter().find(|read| gaps.value(**read).tensor == tensor);
            match (self.held[value.0], updated) {
                // What is there already is written a second time, to nobody's use.
                (Some(kept), _) => {
                    self.open(value, Some(id));
                    self.close(value);
                    self.held[value.0] = Some(kept);
                    continue;
                }
                (None, Some(read)) => self.held[value.0] = self.held[read.0].take(),
                (None, None) => self.open(value, Some(id)),
            }
            new.push(value);
        }
        new
    }

    /// Sees to it that a value is there before an op of the trace; adds what is made for that.
    fn bring(&mut self, value: ValueId, before: OpId, made: &mut Vec<ValueId>) {
        if self.held[value.0].is_some() || self.bytes(value) == Bytes::ZERO {
            return;
        }
        let gaps = self.gaps;
        if self.choice(gaps.around(value, before)) == Choice::Swap {
            let (id, waits) = self.next();
            let tensor = gaps.value(value).tensor;
            self.commands.push(Command::Prefetch { tensor, first_byte: None, bytes: None, waits });
            self.open(value, Some(id));
            return;
        }
        let maker = gaps.value(value).maker.expect("only what can be recomputed is given up");
        gaps.reads(maker).iter().for_each(|read| self.bring(*read, before, made));
        made.extend(self.compute(maker, true));
    }

    fn run(&mut self, op: OpId) {
        let gaps = self.gaps;
        let mut made = Vec::new();
        gaps.reads(op).iter().for_each(|read| self.bring(*read, op, &mut made));
        self.compute(op, false);
        for &value in gaps.reads(op).iter().chain(gaps.writes(op)) {
            if !gaps.is_alive(value, op.next()) {
                self.close(value);
                continue;
            }
            match self.choice(gaps.beginning(value, op)) {
                Choice::Keep => {}
                Choice::Recompute => self.close(value),
                Choice::Swap if self.held[value.0].is_some() => {
                    let (_, waits) = self.next();
                    let tensor = gaps.value(value).tensor;
                    self.commands.push(Command::Offload { tensor, first_byte: None, bytes: None, waits });
                    self.close(value);
                }
                Choice::Swap => {}
            }
        }
        // What was made for this op only, and for none that comes.
        for value in made.into_iter().filter(|value| !gaps.is_alive(*value, op.next())) {
            self.close(value);
        }
    }
}
