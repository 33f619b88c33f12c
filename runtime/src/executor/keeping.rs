//! Iterations that copy a training's state to the host, for a program that was loaded to keep it.
//!
//! The copies are ordinary transfers of the iteration (`../state.rs` lists them): the schedule's own commands stay unchanged
//! and in order, and commands that change the state wait for its copy.
//!
//! Deliberately does not decide when a state is copied, or how a copy is used; the trainer does.

use super::feeding::trains;
use super::{Builder, Enqueued, Executor, Loaded, Step, same_length, unused};
use crate::device::{EventId, MemoryLayout};
use crate::error::RuntimeError;
use crate::state::{Half, StateCopies};
use plimsoll_ir::CommandId;
use plimsoll_ir::program::{Program, Region};
use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::trace::Phase;

/// Iterations that copy the state, for each half that it can go to.
#[derive(Clone, Debug)]
pub(super) struct Keeping {
    copies: StateCopies,
    /// With the schedule's commands; if there are slots for inputs, also with the next input from the slot of that half.
    beside: [Enqueued; 2],
    /// Without them.
    alone: [Enqueued; 2],
}

impl Keeping {
    /// Iterations of a schedule whose state is copied before this offload, or after all commands.
    fn new(
        executor: &mut Executor,
        builder: &Builder,
        copies: StateCopies,
        before: Option<CommandId>,
    ) -> Keeping {
        let beside = Half::BOTH.map(|half| {
            let steps = builder.steps_beside(Beside { copies: &copies, half, before });
            executor.enqueued(false, steps)
        });
        let alone = Half::BOTH.map(|half| {
            let steps = copies.first(half).chain(copies.rest(half)).map(Step::Copy).collect();
            executor.enqueued(false, steps)
        });
        Keeping { copies, beside, alone }
    }

    /// All its command sequences.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Enqueued> {
        self.beside.iter().chain(&self.alone)
    }
}

impl Executor {
    /// Loads a program as [`Executor::load`] does; if the memory has room ([`MemoryLayout::keeping_state`]), a
    /// [`crate::Trainer`] then keeps its state on the host. The state is copied before this offload, or after all commands.
    pub fn load_keeping_state(
        &mut self,
        program: &Program,
        schedule: &Schedule,
        before: Option<CommandId>,
    ) -> Result<Loaded, RuntimeError> {
        if !trains(program) {
            return Err(RuntimeError::mismatch(
                "program whose state is kept",
                "one that trains",
                "no update",
            ));
        }
        let (needed, there) = (MemoryLayout::default().keeping_state(program).state, self.layout.state);
        if there < needed {
            return Err(RuntimeError::mismatch("host memory for copies of the state", needed, there));
        }
        let copies = StateCopies::of(program, self.layout);
        self.load_with(program, schedule, |executor, builder| {
            Ok((Some(Keeping::new(executor, builder, copies, before)), None))
        })
    }

    /// Starts an iteration as [`Executor::start`] does, with a copy of the state to a half.
    pub(crate) fn start_copying(&mut self, loaded: &Loaded, half: Half) {
        self.enqueue(loaded, &loaded.keeping().beside[half as usize]);
    }

    /// Runs one iteration with a copy of the state, as a trainer does, so that callers can measure its cost.
    ///
    /// Panics if the program was loaded without ([`Executor::load_keeping_state`]).
    pub fn run_copying(&mut self, loaded: &Loaded) -> Result<(), RuntimeError> {
        self.start_copying(loaded, Half::First);
        self.finish()
    }

    /// Runs one iteration as a trainer does, so that callers can measure training. Meanwhile the state is copied, the input
    /// of the next iteration comes from its slot, and the host fills the other slot with `images` and `labels`: the
    /// iteration after the next trains on them.
    ///
    /// `iteration` counts from 0. Iteration 0 trains on the data of [`Executor::write_images`] and
    /// [`Executor::write_labels`], iteration 1 on the data given to iteration 0.
    ///
    /// Errors: an input that is longer than the program's, a device that fails. Panics if the program was loaded without
    /// room for inputs ([`MemoryLayout::feeding`]).
    pub fn run_feeding(
        &mut self,
        loaded: &Loaded,
        iteration: u64,
        images: &[u8],
        labels: &[u8],
    ) -> Result<(), RuntimeError> {
        let half = Half::BOTH[(iteration % 2) as usize];
        if iteration == 0 {
            self.fill_slot(loaded, half, images, labels)?;
        }
        self.start_copying(loaded, half);
        let filled = self.fill_slot(loaded, half.next(), images, labels);
        self.finish()?;
        filled
    }

    /// Copies the state to a half, and does nothing else.
    pub(crate) fn copy_state(&mut self, loaded: &Loaded, half: Half) -> Result<(), RuntimeError> {
        self.enqueue(loaded, &loaded.keeping().alone[half as usize]);
        self.finish()
    }

    /// Returns `true` if the last copy to a half, in an iteration with these hyperparameters, is whole, even if the
    /// iteration failed.
    pub(crate) fn is_whole(
        &mut self,
        loaded: &Loaded,
        half: Half,
        hyper: &[u8],
    ) -> Result<bool, RuntimeError> {
        let (offset, bytes) = loaded.keeping().copies.stamp(half);
        Ok(self.device.host(offset, bytes)? == hyper)
    }

    /// Marks the copy in a half as not whole.
    pub(crate) fn forget_copy(&mut self, loaded: &Loaded, half: Half) -> Result<(), RuntimeError> {
        let (offset, bytes) = loaded.keeping().copies.stamp(half);
        self.device.host(offset, bytes)?.fill(0);
        Ok(())
    }

    /// Reads a region of the state from its copy; the data must have the region's length.
    pub(crate) fn read_copied(
        &mut self,
        loaded: &Loaded,
        half: Half,
        region: &Region,
        data: &mut [u8],
    ) -> Result<(), RuntimeError> {
        same_length(region, data.len())?;
        let place = loaded.keeping().copies.place(half, region).expect("a region of the state");
        data.copy_from_slice(self.device.host(place, region.bytes())?);
        Ok(())
    }
}

impl Loaded {
    /// Returns `true` if its state is kept on the host.
    pub(crate) fn keeps_state(&self) -> bool {
        self.keeping.is_some()
    }

    fn keeping(&self) -> &Keeping {
        self.keeping.as_ref().expect("it was loaded to keep its state")
    }
}

/// A copy of the state made during an iteration.
#[derive(Clone, Copy)]
struct Beside<'a> {
    copies: &'a StateCopies,
    half: Half,
    /// Offload that follows the copy; `None` if the copy follows all commands.
    before: Option<CommandId>,
}

impl Builder<'_> {
    /// Steps of an iteration that also copies the state, and waits for the copy before it changes the state; they are
    /// followed by the next input from the slot of that half, if there are slots.
    fn steps_beside(&self, beside: Beside) -> Vec<Step> {
        let events = self.events();
        let unused = unused(&events);
        let mut first = Vec::new();
        let mut copy = Inserting::new(beside, unused, &mut first);
        let feeding = self.feeding(Some(beside.half), unused + 2);
        self.steps(&events, &|_| false, first, feeding, |id, command, steps| {
            copy.before(self.program, id, command, steps);
        })
    }
}

/// A copy of the state while it is inserted among an iteration's steps.
struct Inserting<'a> {
    beside: Beside<'a>,
    /// Events of the first pieces and of the rest; each until the compute stream was made to wait for it.
    events: [Option<EventId>; 2],
    /// Event of the rest, until the rest is enqueued.
    rest: Option<EventId>,
}

impl<'a> Inserting<'a> {
    /// Begins with the pieces that change first; events from `unused` on are free.
    fn new(beside: Beside<'a>, unused: u32, steps: &mut Vec<Step>) -> Inserting<'a> {
        let [first, rest] = [EventId(unused), EventId(unused + 1)];
        steps.extend(beside.copies.first(beside.half).map(Step::Copy));
        steps.push(Step::Record(Stream::Offload, first));
        Inserting { beside, events: [Some(first), Some(rest)], rest: Some(rest) }
    }

    /// Adds the steps that must precede a command.
    fn before(&mut self, program: &Program, id: CommandId, command: &Command, steps: &mut Vec<Step>) {
        if self.beside.before == Some(id) {
            self.enqueue_rest(steps);
        }
        let Command::Compute { op, .. } = command else { return };
        if self.beside.copies.changes_first(&program.kernels[op.index()]) {
            steps.extend(self.events[0].take().map(|event| Step::Wait(Stream::Compute, event)));
        }
        if program.trace.ops[op.index()].phase == Phase::Update {
            self.enqueue_rest(steps);
            steps.extend(self.events[1].take().map(|event| Step::Wait(Stream::Compute, event)));
        }
    }

    /// Enqueues the rest of the state, at the latest before the update.
    fn enqueue_rest(&mut self, steps: &mut Vec<Step>) {
        if let Some(event) = self.rest.take() {
            let Beside { copies, half, .. } = self.beside;
            steps.extend(copies.rest(half).map(Step::Copy));
            steps.push(Step::Record(Stream::Offload, event));
        }
    }
}
