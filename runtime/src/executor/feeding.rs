//! Iterations that bring the input of the next one to the device.
//!
//! Two slots of host memory hold inputs in turn: while an iteration copies one to the device, the host fills the other. The
//! input's own place on the device is free for that as soon as nothing of the running iteration touches its bytes any more,
//! neither the input nor data that the plan puts there later; so the copy needs no byte of the budget. It is the last
//! prefetch, and waits for the last compute command and the last offload that touch these bytes.
//!
//! Deliberately does not fill a slot, or know which input is in which slot; the trainer does.

use super::steps::{At, Builder, EVENTS_OF_INPUT, Extra, LAST, Step};
use super::{Executor, Input, Loaded};
use crate::device::{MemoryLayout, Transfer};
use crate::error::Error;
use crate::state::Half;
use plimsoll_ir::program::{Program, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::Stream;
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
    /// Puts the input of a later iteration into a slot that no command of the running iteration touches.
    pub(crate) fn fill_slot(
        &mut self,
        loaded: &Loaded,
        slot: Half,
        images: &[u8],
        labels: &[u8],
    ) -> Result<(), Error> {
        let slots = loaded.slots.expect("it was loaded with slots");
        let inputs = [("images", &loaded.images, images), ("labels", &loaded.labels, labels)];
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

impl Builder<'_> {
    /// Extra steps that bring the next input from a slot; none if there are no slots.
    pub(super) fn next_input(&self, slot: Half) -> Extra {
        let Some(slots) = self.slots else { return Extra::new() };
        let inputs = [self.program.images, self.program.labels].map(|tensor| self.input(tensor));
        let mut extra = Extra::new();
        for (stream, event) in [Stream::Compute, Stream::Offload].into_iter().zip(EVENTS_OF_INPUT..) {
            let touching = self.schedule.numbered_commands().filter(|(id, command)| {
                command.stream() == stream && inputs.iter().any(|input| self.touches(*id, input))
            });
            if let Some((last, _)) = touching.last() {
                let event = self.free_event(event);
                extra.push(((last, At::End), Step::Record(stream, event)));
                extra.push((LAST, Step::Wait(Stream::Prefetch, event)));
            }
        }
        for (input, start) in inputs.iter().zip(slots.starts(slot)) {
            for (device, first, bytes) in input.pieces.iter().filter(|(.., bytes)| *bytes > Bytes::ZERO) {
                let (stream, host) = (Stream::Prefetch, start + *first);
                let transfer = Transfer { stream, device: *device, host, bytes: *bytes };
                extra.push((LAST, Step::Copy(transfer)));
            }
        }
        extra
    }

    /// Returns `true` if a command touches a byte where an input lies, through a tensor, taken as whole, or through scratch.
    fn touches(&self, id: CommandId, input: &Input) -> bool {
        let trace = &self.program.trace;
        let tensors = self.places.tensors(id).iter();
        let of_tensors = tensors.map(|(tensor, offset)| (*offset, trace.tensors[tensor.index()].bytes));
        let scratch = self.cost(&self.schedule.commands[id.index()]).1;
        let scratch = self.places.workspace(id).map(|offset| (offset, scratch));
        of_tensors.chain(scratch).any(|(offset, bytes)| {
            let (start, end) = (self.resident + offset, self.resident + offset + bytes);
            input.pieces.iter().any(|(first, _, length)| *first < end && start < *first + *length)
        })
    }
}
