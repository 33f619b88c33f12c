//! Steps of an iteration: those of a schedule's commands, and extra ones between them.
//!
//! Copies of the state (`keeping.rs`), the next input (`feeding.rs`), the exchange of several workers (`apart.rs`) and time
//! stamps (`timing.rs`) are lists of extra steps, each with its place. The schedule's own commands stay unchanged and in
//! order.

use super::Input;
use super::feeding::Slots;
use crate::device::{EventId, Launch, Transfer};
use crate::host::HostSlab;
use plimsoll_ir::check::Places;
use plimsoll_ir::program::{Operand, Program};
use plimsoll_ir::schedule::{Command, Holds, Schedule, Stream, alternative_of, moved};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId, OpId, Seconds, TensorId};
use std::ffi::CString;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Compute(Arc<Launch>),
    Copy(Transfer),
    Record(Stream, EventId),
    Wait(Stream, EventId),
    /// Point of a pass up to which this part must be updated; nothing is enqueued.
    Update(usize),
}

impl Step {
    pub(super) fn launch(&self) -> Option<&Launch> {
        if let Step::Compute(launch) = self { Some(launch) } else { None }
    }
}

/// Place of an extra step at a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    /// Before the command's waits.
    Waits,
    /// Between its waits and the command.
    Command,
    /// After the command and the event of its end.
    End,
}

/// Extra steps, each with its place; those of one place in their order.
pub(super) type Extra = Vec<((CommandId, At), Step)>;

/// Place after all commands.
pub(super) const LAST: (CommandId, At) = (CommandId(u32::MAX), At::End);

/// Numbers of free events that each kind of extra steps uses, from the first free one on.
pub(super) const EVENTS_OF_STATE: u32 = 0;
pub(super) const EVENTS_OF_INPUT: u32 = 2;
pub(super) const EVENTS_OF_PARTS: u32 = 4;

pub(super) struct Builder<'a> {
    pub(super) program: &'a Program,
    pub(super) schedule: &'a Schedule,
    pub(super) places: &'a Places,
    pub(super) slab: &'a HostSlab,
    pub(super) waits: &'a [Vec<CommandId>],
    pub(super) resident: Bytes,
    pub(super) slots: Option<Slots>,
}

impl Builder<'_> {
    /// By command: the event of its end, if another stream waits for it.
    pub(super) fn events(&self) -> Vec<Option<EventId>> {
        let mut events: Vec<Option<EventId>> = vec![None; self.schedule.commands.len()];
        self.waits.iter().flatten().for_each(|w| events[w.index()] = Some(EventId(0)));
        events.iter_mut().flatten().zip(0..).for_each(|(event, number)| *event = EventId(number));
        events
    }

    /// A free event.
    pub(super) fn free_event(&self, number: u32) -> EventId {
        EventId(self.events().iter().flatten().count() as u32 + number)
    }

    /// Steps of all commands, and extra ones.
    pub(super) fn plain_steps(&self, extra: Extra) -> Vec<Step> {
        self.steps(&self.events(), |_| true, extra)
    }

    /// Steps of some commands, and extra ones. Before a command stand its waits, and after it the event of its end, if it
    /// has one.
    pub(super) fn steps(
        &self,
        events: &[Option<EventId>],
        takes: impl Fn(&Command) -> bool,
        mut extra: Extra,
    ) -> Vec<Step> {
        extra.sort_by_key(|(place, _)| *place);
        let mut extra = extra.into_iter().peekable();
        let mut steps = Vec::new();
        for (id, command) in self.schedule.numbered_commands().filter(|(_, command)| takes(command)) {
            let mut up_to = |at, steps: &mut Vec<Step>| {
                while let Some((_, step)) = extra.next_if(|(place, _)| *place <= (id, at)) {
                    steps.push(step);
                }
            };
            up_to(At::Waits, &mut steps);
            for wait in &self.waits[id.index()] {
                let event = events[wait.index()].expect("whatever is waited for has an event");
                steps.push(Step::Wait(command.stream(), event));
            }
            up_to(At::Command, &mut steps);
            steps.push(self.step(id, command));
            steps.extend(events[id.index()].map(|event| Step::Record(command.stream(), event)));
            up_to(At::End, &mut steps);
        }
        steps.extend(extra.map(|(_, step)| step));
        steps
    }

    /// First command that computes one of these ops.
    pub(super) fn first_of(&self, is_one: impl Fn(OpId) -> bool) -> Option<CommandId> {
        let computes = |command: &Command| matches!(command, Command::Compute { op, .. } if is_one(*op));
        self.schedule.numbered_commands().find(|(_, command)| computes(command)).map(|(id, _)| id)
    }

    pub(super) fn is_update(&self, op: OpId) -> bool {
        self.program.trace.ops[op.index()].phase == Phase::Update
    }

    pub(super) fn step(&self, id: CommandId, command: &Command) -> Step {
        let Command::Compute { op, alternative, .. } = command else {
            let (tensor, piece) =
                moved(&self.program.trace, command).expect("a checked transfer stays in its tensor");
            let host = self.slab.place(tensor, &piece).expect("a checked prefetch brings what was offloaded");
            let (stream, device) = (command.stream(), self.address(id, tensor));
            return Step::Copy(Transfer { stream, device, host, bytes: Bytes(piece.end - piece.start) });
        };
        let kernel = &self.program.kernels[op.index()];
        let (seconds, workspace_bytes) = self.cost(command);
        let offset = |operand: &Operand| match operand {
            Operand::Resident(offset) => *offset,
            Operand::Tensor(tensor) => self.address(id, *tensor),
        };
        let name = &self.program.trace.ops[op.index()].name;
        Step::Compute(Arc::new(Launch {
            op: *op,
            // A name with a zero byte is cut there.
            name: CString::new(name.split('\0').next().unwrap_or_default())
                .expect("what stands before the first zero byte has none"),
            call: kernel.call,
            alternative: alternative.map_or(0, |k| k + 1),
            offsets: kernel.operands.iter().map(offset).collect(),
            workspace: self.places.workspace(id).map_or(Bytes::ZERO, |w| self.resident + w),
            workspace_bytes,
            seconds,
        }))
    }

    /// Predicted seconds and scratch of a compute command; nothing for a transfer.
    pub(super) fn cost(&self, command: &Command) -> (Seconds, Bytes) {
        let Command::Compute { op, alternative, .. } = command else { return Default::default() };
        alternative_of(&self.program.trace.ops[op.index()], *alternative)
            .expect("a checked command names an alternative that is there")
    }

    /// Address of a tensor, or of the piece that is moved, for a command; a tensor of no bytes may have any address.
    fn address(&self, id: CommandId, tensor: TensorId) -> Bytes {
        let mut places = self.places.tensors(id).iter();
        self.resident + places.find(|(t, _)| *t == tensor).map_or(Bytes::ZERO, |(_, offset)| *offset)
    }

    /// Pieces of a tensor that is there from the start.
    pub(super) fn input(&self, tensor: TensorId) -> Input {
        let whole = self.program.trace.tensors[tensor.index()].bytes;
        let pieces = self.schedule.buffers.iter().filter(|b| b.opens.is_none()).filter_map(|buffer| {
            match buffer.holds {
                Holds::Tensor { tensor: held, first_byte, bytes } if held == tensor => {
                    let first = first_byte.unwrap_or_default();
                    Some((self.resident + buffer.offset, first, bytes.unwrap_or(whole - first)))
                }
                _ => None,
            }
        });
        Input { bytes: whole, rounds: false, pieces: pieces.collect() }
    }
}
