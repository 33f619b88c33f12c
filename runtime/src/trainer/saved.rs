//! Contents of a training's checkpoint, read from the device or the host, and resumption from one.

use super::{Copied, Trainer};
use crate::checkpoint::{Checkpoint, Progress, SavedRegion};
use crate::error::Error;
use crate::state::{Half, saved_name};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::Region;
use std::collections::HashMap;
use std::path::Path;

impl Trainer {
    /// Bytes of the training's state in a checkpoint file.
    pub fn saved_bytes(&self) -> Bytes {
        self.saved().iter().map(|(_, region)| region.bytes()).sum()
    }

    /// Regions saved in a file, with their names there.
    pub(super) fn saved(&self) -> Vec<(String, Region)> {
        let all = self.train.resident().iter().cloned();
        all.filter_map(|region| Some((saved_name(&region)?, region))).collect()
    }

    /// State on the device: everything that the next iteration depends on.
    ///
    /// Errors: the device cannot be read.
    pub fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        let (wanted, executor) = (self.saved(), &mut self.executor);
        let read = |region: &Region, data: &mut [u8]| executor.read_region(region, data);
        let regions = saved_regions(wanted, None, read)?;
        Ok(Checkpoint::new(self.progress(self.step), regions))
    }

    /// Returns `true` if this worker must keep the state because all before it are lost: the workers had begun to train
    /// together, and this one is the first that is left.
    pub fn is_first_left(&mut self) -> bool {
        self.share.as_mut().is_some_and(|share| share.has_begun && share.group.is_first_left())
    }

    /// Position of a training after this many iterations.
    pub(super) fn progress(&self, step: u64) -> Progress {
        let (data, per_epoch) = self.data.clone().map_or((None, 1), |(name, n)| (Some(name), n));
        Progress::new(step, per_epoch, self.plan.clone(), data)
    }

    /// The state after the last finished iteration, from its copy on the host, which is available even after the device is
    /// lost. `None` if no iteration was finished yet, or if the program was loaded without
    /// ([`crate::Executor::load_keeping_state`]).
    ///
    /// For one of several workers it is the state before the last update that was made during a pass, or before the previous
    /// one.
    ///
    /// `earlier` is a checkpoint of this training that is no longer needed; its memory is reused.
    pub fn last_finished(&mut self, earlier: Option<Checkpoint>) -> Result<Option<Checkpoint>, Error> {
        if let Some((step, regions)) = self.share.as_ref().and_then(|share| share.newest()) {
            let read = |region: &Region, data: &mut [u8]| {
                let kept = regions.get(&region.offset.0).copied().unwrap_or_default();
                // Loading a program in two parts checks that all of its state is in them.
                data.copy_from_slice(kept);
                Ok(())
            };
            let regions = saved_regions(self.saved(), earlier, read)?;
            return Ok(Some(Checkpoint::new(self.progress(step), regions)));
        }
        // An iteration that failed may have finished the previous one.
        if let Some((copy, stamp)) = self.copying.take()
            && self.executor.is_whole(&self.train, copy.half, &stamp)?
        {
            self.copied = Some(copy);
        }
        let Some(Copied { half, step }) = self.copied else { return Ok(None) };
        let (wanted, executor, train) = (self.saved(), &mut self.executor, &self.train);
        let read = |region: &Region, data: &mut [u8]| executor.read_copied(train, half, region, data);
        let regions = saved_regions(wanted, earlier, read)?;
        Ok(Some(Checkpoint::new(self.progress(step), regions)))
    }

    /// Iterations done in the newest whole copy of the state on the host, if no iteration has failed since.
    pub fn copied_step(&self) -> Option<u64> {
        let of_share = self.share.as_ref().and_then(|share| share.newest());
        of_share.map(|(step, _)| step).or(self.copied.map(|copied| copied.step))
    }

    /// Continues from a checkpoint with the same results as if training had never been interrupted. If the decay of the
    /// learning rate has the checkpoint's shape but is spread over more or fewer iterations, the iterations from here on
    /// have the rates of the new plan. `path` is the checkpoint's file, for errors.
    ///
    /// Of several workers only worker 0 resumes and sends its state to the others.
    ///
    /// Errors: it has a different network, batch, seed or rate (the message names the difference).
    pub fn resume(&mut self, checkpoint: &Checkpoint, path: &Path) -> Result<(), Error> {
        let fault = |why: String| Err(Error::checkpoint(path, why));
        let progress = &checkpoint.progress;
        if let Some(difference) = progress.plan.difference(&self.plan) {
            return fault(format!("is of another training run: {difference}"));
        }
        let wanted = self.saved();
        for (name, region) in &wanted {
            let Some(saved) = checkpoint.regions.iter().find(|r| r.name == *name) else {
                return fault(format!("has no `{name}`; it is of another network"));
            };
            if !saved.shape.iter().map(|d| *d as u64).eq(region.shape.iter().copied()) {
                let shapes = format!("{:?} in it and {:?} in the network", saved.shape, region.shape);
                return fault(format!("has another shape of `{name}`: {shapes}"));
            }
        }
        if let Some(extra) =
            checkpoint.regions.iter().find(|r| wanted.iter().all(|(name, _)| *name != r.name))
        {
            return fault(format!("has `{}`, which the network has not", extra.name));
        }
        for (name, region) in wanted {
            let saved = checkpoint.regions.iter().find(|r| r.name == name).expect("it was found just now");
            self.executor.write_region(&region, &saved.data)?;
        }
        self.step = progress.step;
        (self.copied, self.copying) = (None, None);
        if self.train.keeps_state() {
            // A stamp of an earlier training would mark an unfinished copy as whole.
            Half::BOTH.into_iter().try_for_each(|half| self.executor.forget_copy(&self.train, half))?;
        }
        // An input that was read ahead may belong to different data.
        (self.feed, self.fed, self.filled) = (None, None, None);
        self.data = progress.data.clone().map(|data| {
            let per_epoch = data.samples / self.plan.samples_of_update();
            (data, per_epoch)
        });
        if let Some(share) = &mut self.share {
            share.part();
        }
        Ok(())
    }
}

/// Contents of a checkpoint, region by region with its name, in the memory of an earlier one: fresh memory takes as much
/// time as the copy.
fn saved_regions(
    wanted: Vec<(String, Region)>,
    earlier: Option<Checkpoint>,
    mut read: impl FnMut(&Region, &mut [u8]) -> Result<(), Error>,
) -> Result<Vec<SavedRegion>, Error> {
    let mut earlier: HashMap<String, Vec<u8>> =
        earlier.into_iter().flat_map(|e| e.regions).map(|r| (r.name, r.data)).collect();
    let mut regions = Vec::new();
    for (name, region) in wanted {
        let mut data = earlier.remove(&name).unwrap_or_default();
        data.resize(region.bytes().0 as usize, 0);
        read(&region, &mut data)?;
        let shape = region.shape.iter().map(|d| *d as usize).collect();
        regions.push(SavedRegion { name, shape, data });
    }
    Ok(regions)
}
