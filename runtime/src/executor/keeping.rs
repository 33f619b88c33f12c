//! Iterations that copy a training's state to the host, for a program that was loaded to keep it.
//!
//! The copies are transfers of the iteration like any other (`../state.rs` says which): the schedule's own commands stay as
//! they are, in their order, and those that change the state wait for its copy.
//!
//! What it deliberately does not do: decide when a state is copied, or what becomes of a copy; the trainer does.

use super::feeding::trains;
use super::{Builder, Enqueued, Executor, Loaded, Step, same_length, unused};
use crate::device::{EventId, MemoryLayout};
use crate::error::RuntimeError;
use crate::state::{Half, StateCopies};
use plimsoll_ir::CommandId;
use plimsoll_ir::program::{Program, Region};
use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::trace::Phase;

/// The iterations that copy the state, for each half of where it goes.
#[derive(Clone, Debug)]
pub(super) struct Keeping {
    copies: StateCopies,
    /// Beside the schedule's commands; where there are slots for inputs, with the next input from the slot of that half.
    beside: [Enqueued; 2],
    /// And nothing else.
    alone: [Enqueued; 2],
}

impl Keeping {
    /// Of a schedule whose state is copied before this offload, or behind all.
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

    /// All of its sequences of commands.
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Enqueued> {
        self.beside.iter().chain(&self.alone)
    }
}

impl Executor {
    /// As [`Executor::load`], of a program whose state a [`crate::Trainer`] then keeps on the host, where the memory has room
    /// for that ([`MemoryLayout::keeping_state`]); it is copied before this offload, or behind all.
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

    /// As [`Executor::start`], with a copy of the state beside the iteration, which goes to a half.
    pub(crate) fn start_copying(&mut self, loaded: &Loaded, half: Half) {
        self.enqueue(loaded, &loaded.keeping().beside[half as usize]);
    }

    /// Runs one iteration with a copy of the state beside it, as a trainer does: for whoever measures what that takes.
    ///
    /// Panics where the program was loaded without ([`Executor::load_keeping_state`]).
    pub fn run_copying(&mut self, loaded: &Loaded) -> Result<(), RuntimeError> {
        self.start_copying(loaded, Half::First);
        self.finish()
    }

    /// Runs one iteration as a trainer does, for whoever measures training. Beside it the state is copied, the input of the
    /// next iteration comes from its slot, and the host fills the other slot with `images` and `labels`: the iteration after
    /// the next trains on them.
    ///
    /// `iteration` counts from 0. Iteration 0 trains on what [`Executor::write_images`] and [`Executor::write_labels`] wrote,
    /// iteration 1 on what is given to iteration 0.
    ///
    /// Errors: an input that is longer than the program's, a device that fails. Panics where the program was loaded without
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

    /// Copies the state to a half, and nothing else.
    pub(crate) fn copy_state(&mut self, loaded: &Loaded, half: Half) -> Result<(), RuntimeError> {
        self.enqueue(loaded, &loaded.keeping().alone[half as usize]);
        self.finish()
    }

    /// Whether the last copy to a half, in an iteration with these hyperparameters, is whole; also where the iteration failed.
    pub(crate) fn is_whole(
        &mut self,
        loaded: &Loaded,
        half: Half,
        hyper: &[u8],
    ) -> Result<bool, RuntimeError> {
        let (offset, bytes) = loaded.keeping().copies.stamp(half);
        Ok(self.device.host(offset, bytes)? == hyper)
    }

    /// Forgets what was copied to a half.
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
    /// Whether its state is kept on the host.
    pub(crate) fn keeps_state(&self) -> bool {
        self.keeping.is_some()
    }

    fn keeping(&self) -> &Keeping {
        self.keeping.as_ref().expect("it was loaded to keep its state")
    }
}

/// A copy of the state beside an iteration.
#[derive(Clone, Copy)]
struct Beside<'a> {
    copies: &'a StateCopies,
    half: Half,
    /// The offload that comes behind it; none where it comes behind all.
    before: Option<CommandId>,
}

impl Builder<'_> {
    /// The steps of an iteration, and a copy of the state beside them, which they wait for before they change it; behind them
    /// the next input from the slot of that half, where there are slots.
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

/// A copy of the state while it is put among an iteration's steps.
struct Inserting<'a> {
    beside: Beside<'a>,
    /// What is copied first is out, and the rest is; each until the compute stream was made to wait for it.
    events: [Option<EventId>; 2],
    /// The event of the rest, until that was enqueued.
    rest: Option<EventId>,
}

impl<'a> Inserting<'a> {
    /// Begins with what changes first; events from this number on are free.
    fn new(beside: Beside<'a>, unused: u32, steps: &mut Vec<Step>) -> Inserting<'a> {
        let [first, rest] = [EventId(unused), EventId(unused + 1)];
        steps.extend(beside.copies.first(beside.half).map(Step::Copy));
        steps.push(Step::Record(Stream::Offload, first));
        Inserting { beside, events: [Some(first), Some(rest)], rest: Some(rest) }
    }

    /// What has to stand before a command.
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

    /// The rest of the state, at the latest before the update.
    fn enqueue_rest(&mut self, steps: &mut Vec<Step>) {
        if let Some(event) = self.rest.take() {
            let Beside { copies, half, .. } = self.beside;
            steps.extend(copies.rest(half).map(Step::Copy));
            steps.push(Step::Record(Stream::Offload, event));
        }
    }
}
