//! Inputs of a training: batches of a data set in the drawn order of each epoch.
//!
//! Deliberately does not know where an input goes, or read one before it is requested.

use crate::data::{Batch, Dataset, epoch_order};
use crate::error::Error;
use crate::training_plan::TrainingPlan;

/// Iteration and virtual worker of an input.
pub(super) type Place = (u64, u64);

/// Reader of batches in the order of their epochs.
pub(super) struct Feed {
    seed: u64,
    batch_size: u64,
    virtual_workers: u64,
    batch: Batch,
    /// Iteration and virtual worker of `batch`.
    place: Option<Place>,
    order: Vec<u32>,
    /// Epoch of `order`.
    epoch: Option<u64>,
}

impl Feed {
    pub(super) fn new(data: &dyn Dataset, plan: &TrainingPlan) -> Feed {
        let (batch, order) = (Batch::new(plan.batch, data), Vec::with_capacity(data.len()));
        let TrainingPlan { seed, batch: batch_size, virtual_workers, .. } = *plan;
        Feed { seed, batch_size, virtual_workers, batch, place: None, order, epoch: None }
    }

    /// Batch of an iteration for a virtual worker; reads it unless it was read last.
    fn batch_of(&mut self, place: Place, data: &dyn Dataset, per_epoch: u64) -> Result<&Batch, Error> {
        if self.place != Some(place) {
            let (step, number) = place;
            let epoch = step / per_epoch;
            if self.epoch.replace(epoch) != Some(epoch) {
                epoch_order(data.len(), self.seed, epoch, &mut self.order);
            }
            let first = ((step % per_epoch * self.virtual_workers + number) * self.batch_size) as usize;
            let samples = &self.order[first..first + self.batch_size as usize];
            self.place = None;
            self.batch.fill(data, samples.iter().map(|s| *s as usize))?;
            self.place = Some(place);
        }
        Ok(&self.batch)
    }
}

/// Source of a training's inputs.
pub(super) struct Source<'a> {
    pub(super) feed: &'a mut Feed,
    pub(super) data: &'a dyn Dataset,
    /// Iterations of an epoch.
    pub(super) per_epoch: u64,
}

impl Source<'_> {
    pub(super) fn batch_of(&mut self, place: Place) -> Result<&Batch, Error> {
        self.feed.batch_of(place, self.data, self.per_epoch)
    }
}
