//! An iteration of several virtual workers: this worker's passes (`passes.rs`), the sum over all of them, and the update
//! (`updates.rs`).
//!
//! Everything is defined over virtual workers, so that their assignment to workers does not matter. Each starts from the
//! running statistics of the last update, has its own k samples of the epoch's order and its own dropout seed, and leaves a
//! gradient that is a mean over its labels. The sum is over that gradient, weighted by the share of labels that count, and
//! the running statistics; the result written back is the gradient over all labels, and the mean of the statistics.
//!
//! An iteration is reported once its update is applied. If training stops, a decided update is applied first.
//!
//! If the workers' devices sum by themselves, nothing comes to the host (`on_devices.rs`).
//!
//! Deliberately does not measure times.

use super::before::Befores;
use super::passes::LEAVES;
use super::updates::Pending;
use super::{Observation, Outcome, Place, Source, Trainer, sums};
use crate::error::{Error, Kind};
use crate::executor::{Executor, Loaded, Part};
use crate::group::{self, Group, GroupError, Piece, TreeSum};
use crate::state::{of_regions, of_regions_mut};
use crate::training_plan::TrainingPlan;
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_ir::Seconds;
use plimsoll_ir::program::{Region, Role};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

/// A worker's share of a training.
pub(super) struct Share {
    pub(super) group: Box<dyn Group>,
    /// Its virtual workers, once the workers have met.
    pub(super) mine: Range<u64>,
    /// Duration of one of its passes, if known.
    pub(super) pass_seconds: Option<Seconds>,
    pub(super) statistics: Vec<Region>,
    /// Gradients and running statistics, in the order in which a pass completes them.
    pub(super) sums: Vec<Sum>,
    /// `true` if the workers' devices sum by themselves.
    pub(super) on_devices: bool,
    /// Last decided update, if it is not applied yet.
    pub(super) pending: Option<Pending>,
    /// Data that updates have overwritten.
    pub(super) befores: Befores,
    /// Report on the last update that was applied.
    pub(super) applied: Option<Observation>,
    /// `true` once the workers have met: all have worker 0's state.
    pub(super) met: bool,
    /// `true` once they have met for the first time, so that each has a state of this training.
    pub(super) has_begun: bool,
}

/// A part of the numbers that are summed.
pub(super) struct Sum {
    pub(super) part: Part,
    /// Pieces, each with its owner.
    pub(super) pieces: Vec<Piece>,
    /// Sum over this worker's virtual workers.
    pub(super) mine: TreeSum,
    /// Sum over all virtual workers.
    pub(super) whole: Vec<f32>,
    /// `true` if the pending update is applied to this part.
    pub(super) is_applied: bool,
}

impl Sum {
    /// Waits for the sum over all virtual workers.
    pub(super) fn finish(&mut self, group: &mut dyn Group) -> Result<(), GroupError> {
        self.pieces.iter().try_for_each(|piece| group.finish(piece, &mut self.whole[piece.elements.clone()]))
    }

    pub(super) fn is_of_statistics(&self) -> bool {
        self.part.regions.iter().all(|region| region.role != Role::Gradient)
    }

    /// Divides the sums: gradients by the share of labels that count, statistics by the number of virtual workers.
    pub(super) fn divide(&mut self, of_labels: f32) {
        let of_workers = (1.0 / self.mine.leaves() as f64) as f32;
        for (region, numbers) in of_regions_mut(&self.part.regions, &mut self.whole) {
            scale(numbers, if region.role == Role::Gradient { of_labels } else { of_workers });
        }
    }
}

/// Multiplies numbers.
pub(super) fn scale(numbers: &mut [f32], by: f32) {
    numbers.iter_mut().for_each(|number| *number *= by);
}

/// Reads the numbers of regions, concatenated.
pub(super) fn read(executor: &mut Executor, regions: &[Region]) -> Result<Vec<f32>, Error> {
    let mut found = vec![0.0; regions.iter().map(|region| region.elements() as usize).sum()];
    of_regions_mut(regions, &mut found)
        .try_for_each(|(region, numbers)| executor.read_region(region, cast_slice_mut(numbers)))?;
    Ok(found)
}

/// Writes concatenated numbers to regions.
pub(super) fn write(executor: &mut Executor, regions: &[Region], numbers: &[f32]) -> Result<(), Error> {
    of_regions(regions, numbers)
        .try_for_each(|(region, numbers)| executor.write_region(region, cast_slice(numbers)))
}

impl Share {
    pub(super) fn new(
        group: Box<dyn Group>,
        executor: &mut Executor,
        train: &Loaded,
        plan: &TrainingPlan,
    ) -> Result<Share, Error> {
        let (facts, virtual_workers) = (group.facts(), plan.virtual_workers);
        let (can_be_lost, on_devices) = (executor.device().can_be_lost(), executor.sums_on_devices());
        let (enough, expected) =
            (virtual_workers >= facts.workers as u64, format_args!("at least the {} workers", facts.workers));
        Error::unless(enough, "virtual workers", expected, virtual_workers)?;
        let (what, expected) = ("program of a worker", "one that was loaded in two parts");
        Error::unless(train.is_apart(), what, expected, "one in one part")?;
        let is_state = |region: &&Region| matches!(region.role, Role::State(_));
        let statistics = train.resident().iter().filter(is_state).cloned().collect();
        let mut free = 0..;
        let sums = train.parts().iter().map(|part| {
            let elements = part.regions.iter().map(|region| region.elements() as usize).sum();
            let mut pieces = group::equal_pieces(facts, part.needed, elements);
            pieces.iter_mut().zip(&mut free).for_each(|(piece, number)| piece.number = number);
            let (mine, whole) = (TreeSum::over(virtual_workers), vec![0.0; elements]);
            Sum { part: part.clone(), pieces, mine, whole, is_applied: false }
        });
        let sums: Vec<Sum> = sums.collect();
        Ok(Share {
            befores: Befores::new(sums.len(), can_be_lost),
            mine: group::share(facts, virtual_workers),
            pass_seconds: None,
            sums,
            on_devices,
            statistics,
            pending: None,
            applied: None,
            met: false,
            has_begun: false,
            group,
        })
    }

    /// First of its virtual workers.
    pub(super) fn first(&self) -> u64 {
        self.mine.start
    }

    /// Next pass of this worker after a pass.
    pub(super) fn after(&self, (step, number): Place) -> Place {
        if number + 1 < self.mine.end { (step, number + 1) } else { (step + 1, self.mine.start) }
    }

    /// Requires the workers to meet again, and discards the overwritten data.
    pub(super) fn part(&mut self) {
        self.met = false;
        self.befores.forget();
    }

    /// Newest state that is whole on the host: the iterations done in it, and the bytes of its regions, by offset.
    pub(super) fn newest(&self) -> Option<(u64, HashMap<u64, &[u8]>)> {
        let before = self.befores.newest()?;
        let updated = self.sums.iter().map(|sum| sum.part.updated.as_slice());
        Some((before.step, before.regions(updated, &self.statistics)))
    }
}

impl Trainer {
    /// As `train_from`, for a worker of a group.
    pub(super) fn train_sharing(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        until: u64,
        observe: &mut dyn FnMut(&Observation),
        pause: &dyn Fn() -> bool,
    ) -> Result<Outcome, Error> {
        let met = self.meet(share, source.data);
        met.inspect_err(|_| share.abandon_devices(&mut self.executor))?;
        share.group.at(self.step);
        let mut last_end = Instant::now();
        loop {
            let outcome =
                if self.step >= until { Some(Outcome::Finished) } else { pause().then_some(Outcome::Paused) };
            let iterated = match outcome {
                Some(_) => self.apply_whole(share).map(|()| true),
                None => self.iterate(share, source, last_end),
            };
            last_end = Instant::now();
            if let Some(observation) = share.applied.take() {
                observe(&observation);
            }
            match (iterated, outcome) {
                (Ok(true), None) => {}
                (Ok(_), outcome) => return Ok(outcome.unwrap_or(Outcome::Paused)),
                (Err(error), _) => {
                    // The first error is reported.
                    share.abandon_devices(&mut self.executor);
                    let _ = self.undo(share);
                    return Err(error);
                }
            }
        }
    }

    /// Runs one iteration, up to the decision on its update; returns `false` if a worker leaves. Running statistics are
    /// restored if there is no decision.
    fn iterate(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        last_end: Instant,
    ) -> Result<bool, Error> {
        let (step, waited, start) = (self.step, self.executor.device().waited(), Instant::now());
        let statistics = read(&mut self.executor, &share.statistics)?;
        let passed = match self.sum(share, source, &statistics) {
            Ok(Some(passed)) => passed,
            other => {
                if other.is_err() {
                    // Nothing writes to the statistics after that.
                    share.abandon_devices(&mut self.executor);
                }
                let put_back = write(&mut self.executor, &share.statistics, &statistics);
                let is_lost =
                    other.as_ref().is_err_and(|e| e.is_of_device() || matches!(e.kind, Kind::Group(_)));
                if !is_lost && share.sums.iter().all(|sum| !sum.is_applied) {
                    // The others continue from the previous update; an update that is still pending after this is undone.
                    let _ = self.apply_whole(share);
                }
                share.group.forget();
                // The first error is reported.
                return other.and_then(|_| put_back.map(|()| false));
            }
        };
        let observation =
            self.observation(step, source.per_epoch, &passed, [last_end, start, Instant::now()], waited);
        let [.., counted] = sums(&passed);
        let of_labels = (self.train.program().label_count() as f64 / counted.max(1.0)) as f32;
        share.pending = Some(Pending { observation, of_labels });
        share.befores.begin(step, statistics);
        self.step += 1;
        if share.on_devices || !self.executor.updates_within() {
            self.apply_whole(share)?;
        }
        Ok(true)
    }

    /// Notifies the other workers that this one leaves before the end, so that they also pause. Does nothing if it shares
    /// nothing, or if the workers have not met.
    pub fn leave(&mut self) -> Result<(), Error> {
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
