//! Iterations that bring the input of the next one to the device.
//!
//! Two slots of host memory hold inputs in turn: while an iteration copies one to the device, the host fills the other. The
//! input's own place on the device is free for that as soon as nothing of the running iteration touches its bytes any more,
//! neither the input nor data that the plan puts there later; so the copy needs no byte of the budget. It is the last
//! prefetch, and waits for the last compute command and the last offload that touch these bytes.
//!
//! Deliberately does not fill a slot, or know which input is in which slot; the trainer does.

use super::{Builder, Executor, Input, Loaded, Step};
use crate::device::{EventId, MemoryLayout, Transfer};
use crate::error::RuntimeError;
use crate::state::Half;
use plimsoll_ir::program::{Program, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::{Command, Stream, alternative_of};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId};

/// Returns `true` if a program changes parameters.
pub(super) fn trains(program: &Program) -> bool {
    program.trace.ops.iter().any(|op| op.phase == Phase::Update)
}

/// Places of the two slots on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// Offset of the first slot's images.
    start: Bytes,
    /// Distance from a slot's images to its labels.
    labels: Bytes,
    /// Distance from one slot to the other.
    each: Bytes,
}

impl MemoryLayout {
    /// Adds host memory for two inputs of this program, so that each iteration brings the next one's; adds none if the
    /// program does not train.
    pub fn feeding(self, program: &Program) -> MemoryLayout {
        let each = if trains(program) { Slots::of(program, Bytes::ZERO).each } else { Bytes::ZERO };
        MemoryLayout { input: Bytes(2 * each.0), ..self }
    }
}

impl Slots {
    fn of(program: &Program, start: Bytes) -> Slots {
        let [images, labels] = [program.images, program.labels]
            .map(|tensor| program.trace.tensors[tensor.index()].bytes.round_up(STORAGE_ALIGNMENT));
        Slots { start, labels: images, each: images + labels }
    }

    /// Slots of a program; `None` if it does not train, or if the memory has no room for them.
    pub(super) fn within(program: &Program, layout: MemoryLayout) -> Option<Slots> {
        let slots = Slots::of(program, layout.host + layout.state);
        (trains(program) && slots.each > Bytes::ZERO && Bytes(2 * slots.each.0) <= layout.input)
            .then_some(slots)
    }

    /// Offsets of a slot's images and labels.
    fn starts(&self, slot: Half) -> [Bytes; 2] {
        let start = self.start + Bytes(slot as u64 * self.each.0);
        [start, start + self.labels]
    }
}

impl Executor {
    /// Starts an iteration as [`Executor::start`] does; it also brings the next input from a slot.
    pub(crate) fn start_feeding(&mut self, loaded: &Loaded, slot: Half) {
        let fed = loaded.fed.as_ref().expect("it was loaded with slots");
        self.enqueue(loaded, &fed[slot as usize]);
    }

    /// Puts the input of a later iteration into a slot that no command of the running iteration touches.
    pub(crate) fn fill_slot(
        &mut self,
        loaded: &Loaded,
        slot: Half,
        images: &[u8],
        labels: &[u8],
    ) -> Result<(), RuntimeError> {
        let slots = loaded.slots.expect("it was loaded with slots");
        let inputs = [("images", &loaded.inputs.images, images), ("labels", &loaded.inputs.labels, labels)];
        for ((what, input, data), start) in inputs.into_iter().zip(slots.starts(slot)) {
            let bytes = input.fits(what, data)?;
            input.store(data, self.device.host(start, bytes)?);
        }
        Ok(())
    }
}

impl Loaded {
    /// Returns `true` if each iteration brings the next one's input.
    pub(crate) fn feeds(&self) -> bool {
        self.slots.is_some()
    }
}

/// Copies of an input, while they are inserted among an iteration's steps.
pub(super) struct Feeding {
    /// Last command on the compute stream, and on the offload stream, that touches the bytes; `None` once it has passed.
    last: [Option<CommandId>; 2],
    /// Events of these commands.
    events: [EventId; 2],
    transfers: Vec<Transfer>,
}

/// Streams that the copies wait for.
const OTHERS: [Stream; 2] = [Stream::Compute, Stream::Offload];

impl Feeding {
    /// Copies from a slot; events from `unused` on are free.
    fn new(builder: &Builder, slots: Slots, slot: Half, unused: u32) -> Feeding {
        let inputs = [builder.program.images, builder.program.labels].map(|tensor| builder.input(tensor));
        let transfers = inputs.iter().zip(slots.starts(slot)).flat_map(|(input, start)| {
            let pieces = input.pieces.iter().filter(|(_, _, bytes)| *bytes > Bytes::ZERO);
            pieces.map(move |(device, first, bytes)| Transfer {
                stream: Stream::Prefetch,
                device: *device,
                host: start + *first,
                bytes: *bytes,
            })
        });
        let transfers: Vec<Transfer> = transfers.collect();
        let touches = |id: CommandId| inputs.iter().any(|input| builder.touches(id, input));
        let last = OTHERS.map(|stream| {
            let on = builder.schedule.numbered_commands().filter(|(_, command)| command.stream() == stream);
            on.map(|(id, _)| id).filter(|id| touches(*id)).last()
        });
        Feeding { last, events: [EventId(unused), EventId(unused + 1)], transfers }
    }

    /// Adds the steps that must follow a command.
    pub(super) fn behind(&self, id: CommandId, steps: &mut Vec<Step>) {
        for ((last, event), stream) in self.last.iter().zip(self.events).zip(OTHERS) {
            if *last == Some(id) {
                steps.push(Step::Record(stream, event));
            }
        }
    }

    /// Adds the steps that follow all commands.
    pub(super) fn end(self, steps: &mut Vec<Step>) {
        let awaited = self.last.iter().zip(self.events).filter(|(last, _)| last.is_some());
        steps.extend(awaited.map(|(_, event)| Step::Wait(Stream::Prefetch, event)));
        steps.extend(self.transfers.into_iter().map(Step::Copy));
    }
}

impl Builder<'_> {
    /// Copies of the next input from a slot, if there are slots; events from `unused` on are free.
    pub(super) fn feeding(&self, slot: Option<Half>, unused: u32) -> Option<Feeding> {
        Some(Feeding::new(self, self.slots?, slot?, unused))
    }

    /// Returns `true` if a command touches a byte where an input lies, through a tensor, taken as whole, or through scratch.
    fn touches(&self, id: CommandId, input: &Input) -> bool {
        let trace = &self.program.trace;
        let tensors = self.places.tensors(id).iter();
        let of_tensors = tensors.map(|(tensor, offset)| (*offset, trace.tensors[tensor.index()].bytes));
        let scratch = self.places.workspace(id).map(|offset| (offset, self.scratch(id)));
        of_tensors.chain(scratch).any(|(offset, bytes)| {
            let (start, end) = (self.resident + offset, self.resident + offset + bytes);
            input.pieces.iter().any(|(first, _, length)| *first < end && start < *first + *length)
        })
    }

    /// Bytes of scratch of a compute command.
    fn scratch(&self, id: CommandId) -> Bytes {
        let Command::Compute { op, alternative, .. } = &self.schedule.commands[id.index()] else {
            return Bytes::ZERO;
        };
        let of = alternative_of(&self.program.trace.ops[op.index()], *alternative);
        of.map_or(Bytes::ZERO, |(_, bytes)| bytes)
    }
}
