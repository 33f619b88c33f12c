//! Departure of a worker before the end of a training: all workers pause after the same update.
//!
//! Deliberately does not save the state. Worker 0 does, before it leaves or once another worker has left.

use super::Trainer;
use super::share::LEAVES;
use crate::error::RuntimeError;

impl Trainer {
    /// Notifies the other workers that this one leaves before the end, so that they also pause. Does nothing if it shares
    /// nothing, or if the workers have not met.
    pub fn leave(&mut self) -> Result<(), RuntimeError> {
        let step = self.step;
        match &mut self.share {
            Some(share) if share.met => {
                share.agree(step, LEAVES, &[])?;
                // The other workers also forget.
                share.group.forget();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
