//! Updates of several virtual workers: decided, then applied between two passes or during the next one, or undone.
//!
//! A decided update is pending until its sums arrive. On a device that the host can write to meanwhile, the next pass runs
//! until it needs a part of the update, which is applied there, so that sums are exchanged during the next forward pass; on
//! other devices, and where training stops, the update is applied whole before anything else.
//!
//! An update that is not applied whole leaves no trace: overwritten data and the statistics are restored, so that a
//! checkpoint is the state after the last update applied whole (`before.rs`).
//!
//! Deliberately does not decide on an update.

use super::share::{Share, Sum, write};
use super::{Observation, Trainer};
use crate::error::Error;
use crate::executor::{Executor, Iteration};
use crate::group::GroupError;
use crate::state::Half;
use plimsoll_ir::Seconds;
use plimsoll_ir::program::Hyper;
use std::time::Instant;

/// A decided update: every worker has made its passes, and the sums are on their way.
pub(super) struct Pending {
    /// Its report.
    pub(super) observation: Observation,
    /// Factor that turns the sums of gradients into means over all labels that count.
    pub(super) of_labels: f32,
}

impl Share {
    /// Waits for the sums of a part that the pending update needs.
    fn finish(&mut self, part: usize) -> Result<(), GroupError> {
        let Share { group, sums, pending, .. } = self;
        sums[part].finish(&mut **group)?;
        sums[part].divide(pending.as_ref().expect("an update is decided").of_labels);
        Ok(())
    }

    /// Waits for the sums of the running statistics over all virtual workers, and writes their means to the device.
    pub(super) fn finish_statistics(&mut self, executor: &mut Executor) -> Result<(), Error> {
        let Share { group, sums, .. } = self;
        for sum in sums.iter_mut().filter(|sum| sum.is_of_statistics()) {
            sum.finish(&mut **group)?;
            sum.divide(0.0);
            write(executor, &sum.part.regions, &sum.whole)?;
        }
        Ok(())
    }

    /// Notes that the pending update, if there is one, is applied, and took this many more seconds.
    pub(super) fn note_applied(&mut self, seconds: Seconds) {
        let Some(Pending { mut observation, .. }) = self.pending.take() else { return };
        if self.sums.iter().any(|sum| sum.is_applied) {
            self.befores.end();
        }
        observation.seconds += seconds;
        self.sums.iter_mut().for_each(|sum| sum.is_applied = false);
        self.group.at(observation.step + 1);
        self.applied = Some(observation);
    }
}

impl Trainer {
    /// Applies the pending update, if there is one, between two passes.
    pub(super) fn apply_whole(&mut self, share: &mut Share) -> Result<(), Error> {
        let Some(pending) = &share.pending else { return Ok(()) };
        let (begun, Observation { step, learning_rate, .. }) = (Instant::now(), pending.observation);
        // Devices sum in place, where the update reads.
        let is_awaited = |sum: &Sum| !sum.is_of_statistics() && !share.on_devices;
        let awaited: Vec<usize> =
            (0..share.sums.len()).filter(|part| is_awaited(&share.sums[*part])).collect();
        awaited.iter().try_for_each(|part| share.finish(*part))?;
        for Sum { part, whole, .. } in awaited.iter().map(|part| &share.sums[*part]) {
            write(&mut self.executor, &part.regions, whole)?;
        }
        let hyper = self.hyper(step, learning_rate, self.plan.seed);
        self.executor.write_region(self.train.hyper(), &hyper)?;
        self.executor.run_as(&self.train, Iteration::Update)?;
        share.note_applied(Seconds(begun.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Undoes an update that is not applied whole.
    pub(super) fn undo(&mut self, share: &mut Share) -> Result<(), Error> {
        let Some(Pending { observation, .. }) = share.pending.take() else { return Ok(()) };
        share.group.forget();
        self.step = observation.step;
        let before = share.befores.current();
        for ((number, sum), overwritten) in share.sums.iter_mut().enumerate().zip(&before.parts) {
            if std::mem::take(&mut sum.is_applied) {
                self.executor.undo_part(&self.train, number, overwritten)?;
            }
        }
        write(&mut self.executor, &share.statistics, &before.statistics)
    }

    /// Starts a pass, during which the pending update is applied, if there is one.
    pub(super) fn start_pass(
        &mut self,
        share: &mut Share,
        slot: Option<Half>,
        hyper: [u8; Hyper::BYTES],
    ) -> Result<(), Error> {
        let Some(pending) = &share.pending else {
            self.executor.start_as(&self.train, Iteration::Pass(slot));
            return Ok(());
        };
        let Observation { step, learning_rate, .. } = pending.observation;
        let hypers = [self.hyper(step, learning_rate, self.plan.seed), hyper];
        let train = &self.train;
        self.executor.start_updating(train, slot, |executor, part| {
            share.finish(part)?;
            let sum = &mut share.sums[part];
            let before = &mut share.befores.current().parts[part];
            executor.update_part(train, part, &sum.whole, &hypers, before)?;
            sum.is_applied = true;
            Ok(())
        })
    }
}
