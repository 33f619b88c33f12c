//! Iterations of single draws of stochastic depth, each with ops and a schedule of its own, made while the one before runs.
//!
//! What it deliberately does not do: make them. That takes a planner, which the runtime does not know.

use super::Trainer;
use crate::device::Device;
use crate::error::RuntimeError;
use crate::executor::{Executor, Loaded};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::Schedule;

/// The iteration of a draw: the ops that it leaves, and their schedule. None where the one for all draws is to run.
pub type Drawn = Option<(Program, Schedule)>;

/// Makes the iteration of a draw, named by its number, for a device. What fails is told in words.
pub type Draws = Box<dyn FnMut(u64, &dyn Device) -> Result<Drawn, String> + Send>;

/// Where a trainer's iterations of single draws come from.
pub(super) struct PerDraw {
    draws: Draws,
    /// The next one, with its number.
    ahead: Option<(u64, Drawn)>,
    /// How many were run.
    run: u64,
}

impl PerDraw {
    fn make(&mut self, step: u64, device: &dyn Device) -> Result<Drawn, RuntimeError> {
        (self.draws)(step, device).map_err(|why| RuntimeError::Draw { step, why })
    }

    /// Makes the iteration that comes next, unless it is there.
    pub(super) fn prepare(&mut self, step: u64, device: &dyn Device) -> Result<(), RuntimeError> {
        if self.ahead.as_ref().is_none_or(|(ahead, _)| *ahead != step) {
            self.ahead = Some((step, self.make(step, device)?));
        }
        Ok(())
    }

    /// The iteration of a draw, ready to run.
    pub(super) fn load(
        &mut self,
        step: u64,
        executor: &mut Executor,
        all: &Loaded,
    ) -> Result<Option<Loaded>, RuntimeError> {
        self.prepare(step, executor.device())?;
        let Some((_, Some((program, schedule)))) = self.ahead.take() else {
            return Ok(None);
        };
        let loaded = executor.load(&program, &schedule)?;
        if loaded.resident() != all.resident() {
            let (expected, found) = (all.resident().len(), loaded.resident().len());
            return Err(RuntimeError::mismatch("resident part of a draw", expected, found));
        }
        self.run += 1;
        Ok(Some(loaded))
    }
}

impl Trainer {
    /// Has each iteration run what its draw of stochastic depth leaves, as `draws` makes it: within the memory that the trainer
    /// has, and on the same resident regions. Which numbers an iteration gives does not change.
    ///
    /// Errors: the trainer shares its updates with other workers, or keeps its state on the host, whose copy is part of one
    /// schedule.
    pub fn per_draw(&mut self, draws: Draws) -> Result<(), RuntimeError> {
        if self.share.is_some() || self.train.keeps_state() {
            let found = if self.share.is_some() { "several virtual workers" } else { "copies of the state" };
            return Err(RuntimeError::mismatch("trainer of single draws", "a plain one", found));
        }
        self.per_draw = Some(PerDraw { draws, ahead: None, run: 0 });
        Ok(())
    }

    /// How many iterations of single draws were run; none of a trainer without.
    pub fn drawn(&self) -> Option<u64> {
        self.per_draw.as_ref().map(|per_draw| per_draw.run)
    }
}
