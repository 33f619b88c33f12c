//! Iterations that copy a training's state to the host, for a program that was loaded to keep it.
//!
//! The copies are ordinary transfers of the iteration (`../state.rs` lists them): the schedule's own commands stay unchanged
//! and in order, and commands that change the state wait for its copy.
//!
//! Deliberately does not decide when a state is copied, or how a copy is used; the trainer does.

use super::feeding::trains;
use super::steps::{At, Builder, EVENTS_OF_STATE, Extra, Step};
use super::{Executor, Iteration, Loaded, same_length};
use crate::device::MemoryLayout;
use crate::error::Error;
use crate::state::{Half, StateCopies};
use plimsoll_ir::CommandId;
use plimsoll_ir::program::{Program, Region};
use plimsoll_ir::schedule::{Schedule, Stream};

impl Executor {
    /// Loads a program as [`Executor::load`] does; if the memory has room ([`MemoryLayout::keeping_state`]), a
    /// [`crate::Trainer`] then keeps its state on the host. The state is copied before this offload, or after all commands.
    pub fn load_keeping_state(
        &mut self,
        program: &Program,
        schedule: &Schedule,
        before: Option<CommandId>,
    ) -> Result<Loaded, Error> {
        let what = "program whose state is kept";
        Error::unless(trains(program), what, "one that trains", "no update")?;
        let (needed, there) = (MemoryLayout::default().keeping_state(program).state, self.layout.state);
        Error::unless(there >= needed, "host memory for copies of the state", needed, there)?;
        let copies = StateCopies::of(program, self.layout);
        let mut loaded = self.load_with(program, schedule, |builder| {
            let of_half = |half| {
                let copied = builder.copies_of_state(&copies, half, before);
                let with_input = copied.into_iter().chain(builder.next_input(half)).collect();
                let alone = copies.first(half).chain(copies.rest(half)).map(Step::Copy).collect();
                [
                    (Iteration::Copying(half), builder.plain_steps(with_input)),
                    (Iteration::StateAlone(half), alone),
                ]
            };
            Ok(Half::BOTH.into_iter().flat_map(of_half).collect())
        })?;
        loaded.copies = Some(copies);
        Ok(loaded)
    }

    /// Runs one iteration with a copy of the state, as a trainer does, so that callers can measure its cost.
    ///
    /// Panics if the program was loaded without ([`Executor::load_keeping_state`]).
    pub fn run_copying(&mut self, loaded: &Loaded) -> Result<(), Error> {
        self.start_as(loaded, Iteration::Copying(Half::First));
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
    ) -> Result<(), Error> {
        let half = Half::BOTH[(iteration % 2) as usize];
        if iteration == 0 {
            self.fill_slot(loaded, half, images, labels)?;
        }
        self.start_as(loaded, Iteration::Copying(half));
        let filled = self.fill_slot(loaded, half.next(), images, labels);
        self.finish()?;
        filled
    }

    /// Returns `true` if the last copy to a half, in an iteration with these hyperparameters, is whole, even if the
    /// iteration failed.
    pub(crate) fn is_whole(&mut self, loaded: &Loaded, half: Half, hyper: &[u8]) -> Result<bool, Error> {
        let (offset, bytes) = loaded.copies().stamp(half);
        Ok(self.device.host(offset, bytes)? == hyper)
    }

    /// Marks the copy in a half as not whole.
    pub(crate) fn forget_copy(&mut self, loaded: &Loaded, half: Half) -> Result<(), Error> {
        let (offset, bytes) = loaded.copies().stamp(half);
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
    ) -> Result<(), Error> {
        same_length(region, data.len())?;
        let place = loaded.copies().place(half, region).expect("a region of the state");
        data.copy_from_slice(self.device.host(place, region.bytes())?);
        Ok(())
    }
}

impl Loaded {
    /// Returns `true` if its state is kept on the host.
    pub(crate) fn keeps_state(&self) -> bool {
        self.copies.is_some()
    }

    fn copies(&self) -> &StateCopies {
        self.copies.as_ref().expect("it was loaded to keep its state")
    }
}

impl Builder<'_> {
    /// Extra steps that copy the state to a half before this offload, at the latest before the update, and make commands
    /// that change the state wait for its copy.
    fn copies_of_state(&self, copies: &StateCopies, half: Half, before: Option<CommandId>) -> Extra {
        let [first, rest] = [0, 1].map(|number| self.free_event(EVENTS_OF_STATE + number));
        let update = self.first_of(|op| self.is_update(op)).expect("it trains");
        let changes = self.first_of(|op| copies.changes_first(&self.program.kernels[op.index()]));
        let begin = (CommandId(0), At::Waits);
        let of_rest = (before.map_or(update, |before| before.min(update)), At::Waits);
        let mut extra: Extra = copies.first(half).map(|transfer| (begin, Step::Copy(transfer))).collect();
        extra.push((begin, Step::Record(Stream::Offload, first)));
        extra.extend(changes.map(|id| ((id, At::Waits), Step::Wait(Stream::Compute, first))));
        extra.extend(copies.rest(half).map(|transfer| (of_rest, Step::Copy(transfer))));
        extra.push((of_rest, Step::Record(Stream::Offload, rest)));
        extra.push(((update, At::Waits), Step::Wait(Stream::Compute, rest)));
        extra
    }
}
