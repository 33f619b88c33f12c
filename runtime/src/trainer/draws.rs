//! Iterations of single draws of stochastic depth, each with its own ops and schedule, made while the previous one runs.
//!
//! Deliberately does not make them. That needs a planner, which the runtime does not know.

use super::Trainer;
use crate::device::Device;
use crate::error::{Kind, RuntimeError};
use crate::executor::{Executor, Loaded};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::Schedule;

/// Iteration of a draw: the ops that it leaves, and their schedule; `None` to run the iteration for all draws.
pub type Drawn = Option<(Program, Schedule)>;

/// Function that makes the iteration of a draw, by its number, for a device; an error is a message.
pub type Draws = Box<dyn FnMut(u64, &dyn Device) -> Result<Drawn, String> + Send>;

/// Source of a trainer's iterations of single draws.
pub(super) struct PerDraw {
    draws: Draws,
    /// The next one, with its number.
    ahead: Option<(u64, Drawn)>,
    /// Number of those that were run.
    run: u64,
}

impl PerDraw {
    fn make(&mut self, step: u64, device: &dyn Device) -> Result<Drawn, RuntimeError> {
        (self.draws)(step, device).map_err(|why| {
            let message = format!("the draw of iteration {step} has no iteration of its own: {why}");
            RuntimeError::new(Kind::Internal, message)
        })
    }

    /// Makes the next iteration, unless it is ready.
    pub(super) fn prepare(&mut self, step: u64, device: &dyn Device) -> Result<(), RuntimeError> {
        if self.ahead.as_ref().is_none_or(|(ahead, _)| *ahead != step) {
            self.ahead = Some((step, self.make(step, device)?));
        }
        Ok(())
    }

    /// Loads the iteration of a draw.
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
    /// Makes each iteration run only the ops that its draw of stochastic depth leaves, as `draws` makes it: within the
    /// trainer's memory, and on the same resident regions. The results of an iteration do not change.
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

    /// Number of iterations of single draws that were run; `None` if [`Trainer::per_draw`] was not called.
    pub fn drawn(&self) -> Option<u64> {
        self.per_draw.as_ref().map(|per_draw| per_draw.run)
    }
}
