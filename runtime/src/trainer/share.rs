//! An iteration of several virtual workers: this worker's passes, the sum over all of them, and the update.
//!
//! Everything is defined over virtual workers, so that it does not matter who has which of them. Each starts from the running
//! statistics of the last update, has its own k samples of the epoch's order and its own seed of dropout, and leaves a
//! gradient that is a mean over its labels. What is summed is that gradient, weighted by the share of labels that count, and
//! the running statistics; what is written back is the gradient over all labels, and the mean of the statistics.
//!
//! Nothing of an iteration is left where it does not come to its update: the statistics are put back, so that a checkpoint
//! is the state after the last one.
//!
//! What it deliberately does not do: exchange pieces while the backward pass runs, or measure anything.

use super::{Feed, Metrics, Observation, Outcome, Trainer};
use crate::data::Dataset;
use crate::error::RuntimeError;
use crate::executor::{Executor, Loaded};
use crate::group::{self, Group, GroupError, Node, Piece, TreeSum};
use plimsoll_ir::Seconds;
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::program::{Region, Role};
use std::ops::Range;
use std::time::Instant;

/// Keeps the draws of virtual workers' seeds apart from those of parameters, orders and dropout.
const WORKER_STREAM: u32 = 0x574f_524b;

/// What a worker says of its iteration in an agreement: that it goes on, and that it leaves.
const GOES_ON: u32 = 1;
const LEAVES: u32 = 2;

/// What it says that in: the word, and the iteration.
const SAID: usize = 3;

/// A worker's part of a training.
pub(super) struct Share {
    pub(super) group: Box<dyn Group>,
    /// Its virtual workers.
    mine: Range<u64>,
    /// Gradients.
    gradients: Numbers,
    /// Running statistics, behind the gradients in what is summed.
    statistics: Numbers,
    pieces: Vec<Piece>,
    sums: TreeSum,
    /// The sum over all virtual workers.
    whole: Vec<f32>,
    /// Whether the workers have met: all have worker 0's state.
    pub(super) met: bool,
}

/// Regions whose numbers are read and written one behind the other.
struct Numbers {
    regions: Vec<Region>,
    elements: usize,
    /// Room for a region as the device has it.
    bytes: Vec<u8>,
}

impl Numbers {
    fn of(loaded: &Loaded, wanted: impl Fn(Role) -> bool) -> Numbers {
        let regions: Vec<Region> = loaded.resident().iter().filter(|r| wanted(r.role)).cloned().collect();
        let elements = regions.iter().map(|region| region.elements() as usize).sum();
        Numbers { regions, elements, bytes: Vec::new() }
    }

    /// Adds them to the end of what is there.
    fn read(&mut self, executor: &mut Executor, numbers: &mut Vec<f32>) -> Result<(), RuntimeError> {
        for region in &self.regions {
            self.bytes.resize(region.bytes().0 as usize, 0);
            executor.read_region(region, &mut self.bytes)?;
            let words = self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            numbers.extend(words);
        }
        Ok(())
    }

    fn write(&mut self, executor: &mut Executor, numbers: &[f32]) -> Result<(), RuntimeError> {
        let mut rest = numbers;
        for region in &self.regions {
            let (own, others) = rest.split_at(region.elements() as usize);
            rest = others;
            self.bytes.clear();
            self.bytes.extend(own.iter().flat_map(|number| number.to_le_bytes()));
            executor.write_region(region, &self.bytes)?;
        }
        Ok(())
    }
}

impl Share {
    pub(super) fn new(
        group: Box<dyn Group>,
        train: &Loaded,
        virtual_workers: u64,
    ) -> Result<Share, RuntimeError> {
        let facts = group.facts();
        if virtual_workers < facts.workers as u64 {
            let expected = format!("at least the {} workers", facts.workers);
            return Err(RuntimeError::mismatch("virtual workers", expected, virtual_workers));
        }
        if !train.is_apart() {
            let expected = "one that was loaded in two parts";
            return Err(RuntimeError::mismatch("program of a worker", expected, "one in one part"));
        }
        let gradients = Numbers::of(train, |role| role == Role::Gradient);
        let statistics = Numbers::of(train, |role| matches!(role, Role::State(_)));
        let elements = gradients.elements + statistics.elements;
        Ok(Share {
            mine: group::share(facts, virtual_workers),
            pieces: group::equal_pieces(facts, elements),
            sums: TreeSum::over(virtual_workers),
            whole: vec![0.0; elements],
            met: false,
            gradients,
            statistics,
            group,
        })
    }

    /// The first of its virtual workers.
    pub(super) fn first(&self) -> u64 {
        self.mine.start
    }

    /// The workers have to meet again.
    pub(super) fn part(&mut self) {
        self.met = false;
    }

    /// Tells all how an iteration went here, and hears how it went elsewhere: the metrics of all virtual workers in their
    /// order, or none where a worker leaves.
    fn agree(
        &mut self,
        step: u64,
        word: u32,
        mine: &[Metrics],
    ) -> Result<Option<Vec<Metrics>>, RuntimeError> {
        let mut words = vec![word, step as u32, (step >> 32) as u32];
        words.extend(mine.iter().flat_map(|m| [m.loss, m.correct, m.counted]).map(f32::to_bits));
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
            all.extend(said[SAID..].chunks_exact(3).map(|words| {
                let [loss, correct, counted] = [words[0], words[1], words[2]].map(f32::from_bits);
                Metrics { loss, correct, counted }
            }));
        }
        Ok(Some(all))
    }

    fn elsewhere(&self, rank: usize, there: String, step: u64) -> RuntimeError {
        let (me, here) = (self.group.facts().rank, format!("iteration {step}"));
        GroupError::OutOfStep { rank, me, there, here }.into()
    }

    /// Sums over all virtual workers, and divides: the gradients by the share of labels that count, the statistics by the
    /// number of virtual workers.
    fn exchange(&mut self, labels: u64, counted: f64) -> Result<(), RuntimeError> {
        for piece in &self.pieces {
            self.group.start(piece, &self.sums)?;
        }
        for piece in &self.pieces {
            self.group.finish(piece, &mut self.whole[piece.elements.clone()])?;
        }
        let of_labels = (labels as f64 / counted.max(1.0)) as f32;
        let of_workers = (1.0 / self.sums.leaves() as f64) as f32;
        let (gradients, statistics) = self.whole.split_at_mut(self.gradients.elements);
        gradients.iter_mut().for_each(|number| *number *= of_labels);
        statistics.iter_mut().for_each(|number| *number *= of_workers);
        Ok(())
    }
}

/// The metrics of an update: means over all labels that count, in the order of the virtual workers.
fn together(all: &[Metrics]) -> (f32, f64, f64) {
    let (mut loss, mut correct, mut counted) = (0.0, 0.0, 0.0);
    for metrics in all {
        loss += f64::from(metrics.loss) * f64::from(metrics.counted);
        correct += f64::from(metrics.correct);
        counted += f64::from(metrics.counted);
    }
    ((loss / counted.max(1.0)) as f32, correct, counted)
}

/// The seed of a virtual worker's dropout: that of the first is the training's own.
fn seed_of(seed: u64, number: u64) -> u64 {
    if number == 0 {
        return seed;
    }
    let [low, high, ..] = philox4x32(seed, [number as u32, (number >> 32) as u32, 0, WORKER_STREAM]);
    u64::from(high) << 32 | u64::from(low)
}

impl Trainer {
    /// As `train_from`, of a worker of a group.
    pub(super) fn train_sharing(
        &mut self,
        share: &mut Share,
        feed: &mut Feed,
        data: &dyn Dataset,
        until: u64,
        observe: &mut dyn FnMut(&Observation),
        pause: &dyn Fn() -> bool,
    ) -> Result<Outcome, RuntimeError> {
        self.meet(share, data)?;
        share.group.at(self.step);
        let per_epoch = self.iterations_per_epoch(data.len());
        let mut last_end = Instant::now();
        loop {
            if self.step >= until {
                return Ok(Outcome::Finished);
            }
            if pause() {
                return Ok(Outcome::Paused);
            }
            let (step, waited) = (self.step, self.executor.device().waited());
            let start = Instant::now();
            let Some(all) = self.iterate(share, feed, data, per_epoch)? else { return Ok(Outcome::Paused) };
            let end = Instant::now();
            self.step += 1;
            share.group.at(self.step);
            let (loss, correct, counted) = together(&all);
            observe(&Observation {
                step,
                epoch: step / per_epoch,
                learning_rate: self.plan.rate.at(step),
                loss,
                accuracy: (correct / counted.max(1.0)) as f32,
                seconds: Seconds((end - start).as_secs_f64()),
                between: Seconds((start - last_end).as_secs_f64()),
                waited: self.executor.waited_since(waited),
            });
            last_end = end;
        }
    }

    /// Tells the other workers that this one leaves before the end, so that theirs is a pause, too. Nothing where it shares
    /// nothing, or where the workers have not met.
    pub fn leave(&mut self) -> Result<(), RuntimeError> {
        match &mut self.share {
            Some(share) if share.met => share.agree(self.step, LEAVES, &[]).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// One iteration with its update; none where a worker leaves.
    fn iterate(
        &mut self,
        share: &mut Share,
        feed: &mut Feed,
        data: &dyn Dataset,
        per_epoch: u64,
    ) -> Result<Option<Vec<Metrics>>, RuntimeError> {
        let mut before = Vec::with_capacity(share.statistics.elements);
        share.statistics.read(&mut self.executor, &mut before)?;
        let summed = self.sum(share, feed, data, per_epoch, &before);
        if !matches!(summed, Ok(Some(_))) {
            let put_back = share.statistics.write(&mut self.executor, &before);
            // What went wrong first is told.
            return summed.and_then(|left| put_back.map(|()| left));
        }
        let (gradients, statistics) = share.whole.split_at(share.gradients.elements);
        share.gradients.write(&mut self.executor, gradients)?;
        share.statistics.write(&mut self.executor, statistics)?;
        self.executor.run_update(&self.train)?;
        summed
    }

    /// The passes of this worker, and the sum over all. Running statistics are as the passes leave them.
    fn sum(
        &mut self,
        share: &mut Share,
        feed: &mut Feed,
        data: &dyn Dataset,
        per_epoch: u64,
        before: &[f32],
    ) -> Result<Option<Vec<Metrics>>, RuntimeError> {
        let (step, labels) = (self.step, self.train.label_count());
        let mut mine = Vec::new();
        share.sums.clear();
        for number in share.mine.clone() {
            if number != share.mine.start {
                share.statistics.write(&mut self.executor, before)?;
            }
            let metrics = self.pass(share, feed, (step, number), data, per_epoch)?;
            let mut numbers = share.sums.room();
            share.gradients.read(&mut self.executor, &mut numbers)?;
            let weight = metrics.counted / labels as f32;
            numbers.iter_mut().for_each(|gradient| *gradient *= weight);
            share.statistics.read(&mut self.executor, &mut numbers)?;
            share.sums.push(Node::leaf(number), numbers);
            mine.push(metrics);
        }
        let Some(all) = share.agree(step, GOES_ON, &mine)? else { return Ok(None) };
        let (loss, _, counted) = together(&all);
        if !loss.is_finite() {
            return Err(RuntimeError::Diverged { step, loss });
        }
        share.exchange(labels, counted)?;
        Ok(Some(all))
    }

    /// The pass of a virtual worker; the next batch is read beside it.
    fn pass(
        &mut self,
        share: &Share,
        feed: &mut Feed,
        (step, number): (u64, u64),
        data: &dyn Dataset,
        per_epoch: u64,
    ) -> Result<Metrics, RuntimeError> {
        let (rate, seed) = (self.plan.rate.at(step), seed_of(self.plan.seed, number));
        self.write_input(feed.batch_of((step, number), data, per_epoch), rate, seed)?;
        self.executor.start_pass(&self.train);
        let next =
            if number + 1 < share.mine.end { (step, number + 1) } else { (step + 1, share.mine.start) };
        feed.batch_of(next, data, per_epoch);
        if std::mem::take(&mut self.look) {
            self.seen = self.executor.device().health();
        }
        self.executor.finish()?;
        self.metrics()
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

    #[test]
    fn a_loss_is_the_mean_over_the_labels_that_count() {
        let metrics = |loss, correct, counted| Metrics { loss, correct, counted };
        let all = [metrics(1.0, 2.0, 2.0), metrics(4.0, 0.0, 1.0), metrics(0.0, 0.0, 0.0)];
        assert_eq!(together(&all), (2.0, 2.0, 3.0));
        assert_eq!(together(&[metrics(0.1, 1.0, 3.0)]).0, 0.1, "of one it is its own");
        assert_eq!(together(&[metrics(0.0, 0.0, 0.0)]), (0.0, 0.0, 0.0));
    }
}
