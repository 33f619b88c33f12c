//! Where a worker leaves before the end of a training: all workers pause after the same update.
//!
//! What it deliberately does not do: save the state. Worker 0 does, before it leaves or once another has left.

use super::Trainer;
use super::share::LEAVES;
use crate::error::RuntimeError;

impl Trainer {
    /// Tells the other workers that this one leaves before the end, so that theirs is a pause, too. Nothing where it shares
    /// nothing, or where the workers have not met.
    pub fn leave(&mut self) -> Result<(), RuntimeError> {
        let step = self.step;
        match &mut self.share {
            Some(share) if share.met => {
                share.agree(step, LEAVES, &[])?;
                // As the others do.
                share.group.forget();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
