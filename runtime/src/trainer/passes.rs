//! Passes of an iteration of several virtual workers, and the agreement on its update.
//!
//! The last pass of a worker completes its sums part by part, from the end of the network to its beginning. Each part is
//! sent as soon as it is complete, while the pass continues; then workers report their results, and the update is decided.
//!
//! Deliberately does not update anything.

use super::share::{Share, Sum, scale, write};
use super::{Metrics, Place, Source, Trainer, mean_loss};
use crate::error::Error;
use crate::executor::{Executor, Loaded};
use crate::group::{GroupError, Node};
use crate::state::of_regions_mut;
use bytemuck::cast_slice_mut;
use plimsoll_ir::Seconds;
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::program::Role;
use std::time::Duration;

/// Separates the draws of virtual workers' seeds from those of parameters, orders and dropout.
const WORKER_STREAM: u32 = 0x574f_524b;

/// A worker's word in an agreement: it goes on, or it leaves.
pub(super) const GOES_ON: u32 = 1;
pub(super) const LEAVES: u32 = 2;

/// Words before the passes in an agreement: that word, and the iteration in two words.
const SAID: usize = 3;

/// Interval at which a worker whose device computes checks for a complete part and for messages.
pub(super) const LOOK: Duration = Duration::from_micros(100);

impl Share {
    /// Takes the results of a pass for this virtual worker, each part as soon as it is complete; those of the last pass are
    /// sent. Gradients are weighted by their labels that count.
    fn take(&mut self, executor: &mut Executor, train: &Loaded, number: u64) -> Result<(), Error> {
        let mut weight = 0.0;
        let first_gradient = self.first_gradient();
        for part in 0..self.sums.len() {
            self.wait_for_part(executor, part)?;
            if part == first_gradient {
                weight = self.metrics(executor, train)?.counted() / train.program().label_count() as f32;
            }
            self.add_part(executor, (part, number), weight)?;
            if number + 1 == self.mine.end {
                let Share { group, sums, .. } = self;
                sums[part].pieces.iter().try_for_each(|piece| group.start(piece, &sums[part].mine))?;
            }
        }
        Ok(())
    }

    /// Waits until a running pass has completed a part.
    pub(super) fn wait_for_part(&mut self, executor: &mut Executor, part: usize) -> Result<(), Error> {
        while !executor.has_completed(&self.sums[part].part)? {
            self.group.advance()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Gradient part that a pass completes first; statistics may be complete earlier.
    pub(super) fn first_gradient(&self) -> usize {
        self.sums.iter().position(|sum| !sum.is_of_statistics()).expect("what trains has gradients")
    }

    /// Metrics of a running pass that has completed a gradient: the loss is known then.
    pub(super) fn metrics(&self, executor: &mut Executor, train: &Loaded) -> Result<Metrics, Error> {
        let part = &self.sums[self.first_gradient()].part;
        Metrics::read(|words| executor.read_of_part(part, train.metrics(), words).map(drop))
    }

    /// Adds a part of a pass for this virtual worker, gradients times their weight.
    pub(super) fn add_part(
        &mut self,
        executor: &mut Executor,
        (part, number): (usize, u64),
        weight: f32,
    ) -> Result<(), Error> {
        let Sum { part, mine, whole, .. } = &mut self.sums[part];
        let mut found = mine.room(whole.len());
        for (region, numbers) in of_regions_mut(&part.regions, &mut found) {
            executor.read_of_part(part, region, cast_slice_mut(numbers))?;
            if region.role == Role::Gradient {
                scale(numbers, weight);
            }
        }
        mine.push(Node::leaf(number), found);
        Ok(())
    }

    /// Sends the results of this worker's iteration to all, and receives theirs: the results of the passes of all virtual
    /// workers, in their order, or `None` if a worker leaves.
    pub(super) fn agree(
        &mut self,
        step: u64,
        word: u32,
        mine: &[Metrics],
    ) -> Result<Option<Vec<Metrics>>, Error> {
        let mut words = vec![word, step as u32, (step >> 32) as u32];
        words.extend(mine.iter().flat_map(|metrics| metrics.0.map(f32::to_bits)));
        let said = self.group.agree(&words)?;
        let mut all = Vec::new();
        for (rank, said) in said.iter().enumerate() {
            let there = match said.get(..SAID) {
                Some([LEAVES, ..]) => return Ok(None),
                Some([GOES_ON, low, high]) => u64::from(*high) << 32 | u64::from(*low),
                _ => return Err(self.elsewhere(rank, "another agreement".to_owned(), step)),
            };
            if there != step {
                return Err(self.elsewhere(rank, format!("iteration {there}"), step));
            }
            all.extend(said[SAID..].as_chunks().0.iter().map(|words| Metrics(words.map(f32::from_bits))));
        }
        Ok(Some(all))
    }

    fn elsewhere(&self, rank: usize, there: String, step: u64) -> Error {
        let (me, here) = (self.group.facts().rank, format!("iteration {step}"));
        GroupError::OutOfStep { rank, me, there, here }.into()
    }
}

/// Checks that the loss of an update is finite.
pub(super) fn is_finite(step: u64, all: &[Metrics]) -> Result<(), Error> {
    let loss = mean_loss(all);
    if loss.is_finite() { Ok(()) } else { Err(Error::diverged(step, loss)) }
}

/// Seed of a virtual worker's dropout; the first virtual worker uses the training's own seed.
fn seed_of(seed: u64, number: u64) -> u64 {
    if number == 0 {
        return seed;
    }
    let [low, high, ..] = philox4x32(seed, [number as u32, (number >> 32) as u32, 0, WORKER_STREAM]);
    u64::from(high) << 32 | u64::from(low)
}

impl Trainer {
    /// Runs the passes of this worker and agrees on its update: the results of all passes; `None` if a worker leaves.
    /// Running statistics are those that all passes leave; on failure they are undefined.
    pub(super) fn sum(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        before: &[f32],
    ) -> Result<Option<Vec<Metrics>>, Error> {
        let step = self.step;
        let mut mine = Vec::new();
        share.sums.iter_mut().for_each(|sum| sum.mine.clear());
        for number in share.mine.clone() {
            if number != share.mine.start {
                write(&mut self.executor, &share.statistics, before)?;
            }
            if share.on_devices && number + 1 == share.mine.end {
                return self.run_pass(share, source, (step, number), |share, executor, train| {
                    share.sum_on_devices(executor, train, (step, number), mine)
                });
            }
            mine.push(self.pass(share, source, (step, number))?);
        }
        let Some(all) = share.agree(step, GOES_ON, &mine)? else { return Ok(None) };
        is_finite(step, &all)?;
        share.finish_statistics(&mut self.executor)?;
        Ok(Some(all))
    }

    /// Runs the pass of a virtual worker, and returns its results.
    fn pass(&mut self, share: &mut Share, source: &mut Source<'_>, place: Place) -> Result<Metrics, Error> {
        self.run_pass(share, source, place, |share, executor, train| share.take(executor, train, place.1))?;
        self.metrics()
    }

    /// Runs the pass of a virtual worker, and takes its results during it; meanwhile the next input is read.
    fn run_pass<T>(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        place: Place,
        take: impl FnOnce(&mut Share, &mut Executor, &Loaded) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (step, number) = place;
        let (rate, seed) = (self.plan.rate.at(step), seed_of(self.plan.seed, number));
        let hyper = self.write_input(source, place, rate, seed)?;
        let next = share.after(place);
        let slot = self.next_slot(source, next, None)?;
        let started = self.start_pass(share, slot, hyper);
        let is_started = started.is_ok();
        let taken = started.and_then(|()| {
            self.read_ahead(source, slot, [next, share.after(next)])?;
            if std::mem::take(&mut self.look) {
                self.seen = self.executor.device().health();
            }
            take(share, &mut self.executor, &self.train)
        });
        // A failure of the device is reported first.
        self.executor.finish()?;
        if is_started {
            share.note_applied(Seconds::ZERO);
        }
        let taken = taken?;
        self.fed = slot.map(|_| next);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_workers_draw_their_dropout_from_seeds_of_their_own() {
        let mut seeds: Vec<u64> = (0..1000).map(|number| seed_of(7, number)).collect();
        assert_eq!(seeds[0], 7, "one virtual worker is a plain training");
        assert_ne!(seed_of(8, 1), seeds[1]);
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 1000);
    }
}
