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
//! The last pass of a worker completes its sums part by part, from the end of the network to its beginning. Each part is sent
//! as soon as it is complete, while the pass goes on; then workers say how it went, and all parts are finished.
//!
//! Each pass also leaves the square norm of its gradient, and so does the update: from both follows how much a gradient of so
//! many samples is noise (`noise.rs`). They change nothing.
//!
//! What it deliberately does not do: measure times.

use super::{Metrics, Observation, Outcome, Place, Source, Trainer};
use crate::checkpoint::numbers;
use crate::error::RuntimeError;
use crate::executor::{Executor, Loaded, Part};
use crate::group::{self, Group, GroupError, Node, Piece, TreeSum};
use crate::noise::{GradientNorms, square_norm};
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::program::{Region, Role};
use plimsoll_ir::{Bytes, Seconds};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Keeps the draws of virtual workers' seeds apart from those of parameters, orders and dropout.
const WORKER_STREAM: u32 = 0x574f_524b;

/// What a worker says of its iteration in an agreement: that it goes on, and that it leaves.
const GOES_ON: u32 = 1;
const LEAVES: u32 = 2;

/// What it says that in: the word, and the iteration.
const SAID: usize = 3;

/// How often one whose device computes looks whether a part is complete, and what the others have sent.
const LOOK: Duration = Duration::from_micros(100);

/// A worker's share of a training.
pub(super) struct Share {
    pub(super) group: Box<dyn Group>,
    /// Its virtual workers.
    mine: Range<u64>,
    /// Running statistics.
    statistics: Vec<Region>,
    /// Gradients and running statistics, in the order in which a pass completes them.
    sums: Vec<Sum>,
    /// Room for a region as the device has it.
    bytes: Vec<u8>,
    /// Whether the workers have met: all have worker 0's state.
    pub(super) met: bool,
}

/// A part of what is summed.
struct Sum {
    part: Part,
    /// Each with its owner.
    pieces: Vec<Piece>,
    /// Over this worker's virtual workers.
    mine: TreeSum,
    /// Over all of them.
    whole: Vec<f32>,
}

impl Sum {
    /// Divides the sums: gradients by the share of labels that count, statistics by the number of virtual workers. Notes the
    /// squares of the gradients.
    fn divide(&mut self, of_labels: f32, of_workers: f32, squares: &mut Squares) {
        let mut rest = self.whole.as_mut_slice();
        for region in &self.part.regions {
            let (own, others) = rest.split_at_mut(region.elements() as usize);
            rest = others;
            let is_gradient = region.role == Role::Gradient;
            let by = if is_gradient { of_labels } else { of_workers };
            own.iter_mut().for_each(|number| *number *= by);
            if is_gradient {
                squares.note(region, own);
            }
        }
    }
}

/// The square norms of regions, with where these are.
#[derive(Default)]
struct Squares(Vec<(Bytes, f64)>);

impl Squares {
    fn note(&mut self, region: &Region, numbers: &[f32]) {
        self.0.push((region.offset, square_norm(numbers)));
    }

    /// Their sum, which does not depend on the order in which parts are complete.
    fn sum(mut self) -> f64 {
        self.0.sort_unstable_by_key(|(offset, _)| *offset);
        self.0.iter().map(|(_, square)| square).sum()
    }
}

/// What a pass leaves besides what is summed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Passed {
    metrics: Metrics,
    /// The square norm of its gradient, a mean over its labels that count.
    square: f64,
}

impl Passed {
    /// Words of an agreement for each.
    const WORDS: usize = 5;

    fn words(&self) -> [u32; Passed::WORDS] {
        let (Metrics { loss, correct, counted }, square) = (self.metrics, self.square.to_bits());
        let [loss, correct, counted] = [loss, correct, counted].map(f32::to_bits);
        [loss, correct, counted, square as u32, (square >> 32) as u32]
    }

    fn of([loss, correct, counted, low, high]: [u32; Passed::WORDS]) -> Passed {
        let [loss, correct, counted] = [loss, correct, counted].map(f32::from_bits);
        let square = f64::from_bits(u64::from(high) << 32 | u64::from(low));
        Passed { metrics: Metrics { loss, correct, counted }, square }
    }
}

/// An update, as it is told.
struct Updated {
    loss: f32,
    accuracy: f32,
    norms: Option<GradientNorms>,
}

/// Writes numbers to regions, one behind the other.
fn write(
    executor: &mut Executor,
    regions: &[Region],
    numbers: &[f32],
    bytes: &mut Vec<u8>,
) -> Result<(), RuntimeError> {
    let mut rest = numbers;
    for region in regions {
        let (own, others) = rest.split_at(region.elements() as usize);
        rest = others;
        bytes.clear();
        bytes.extend(own.iter().flat_map(|number| number.to_le_bytes()));
        executor.write_region(region, bytes)?;
    }
    Ok(())
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
        let is_state = |region: &&Region| matches!(region.role, Role::State(_));
        let statistics = train.resident().iter().filter(is_state).cloned().collect();
        let mut free = 0..;
        let sums = train.parts().iter().map(|part| {
            let elements = part.regions.iter().map(|region| region.elements() as usize).sum();
            let mut pieces = group::equal_pieces(facts, elements);
            pieces.iter_mut().zip(&mut free).for_each(|(piece, number)| piece.number = number);
            let (mine, whole) = (TreeSum::over(virtual_workers), vec![0.0; elements]);
            Sum { part: part.clone(), pieces, mine, whole }
        });
        Ok(Share {
            mine: group::share(facts, virtual_workers),
            sums: sums.collect(),
            statistics,
            bytes: Vec::new(),
            met: false,
            group,
        })
    }

    /// The running statistics as they are.
    fn read_statistics(&mut self, executor: &mut Executor) -> Result<Vec<f32>, RuntimeError> {
        let mut found = Vec::new();
        for region in &self.statistics {
            self.bytes.resize(region.bytes().0 as usize, 0);
            executor.read_region(region, &mut self.bytes)?;
            found.extend(numbers(&self.bytes));
        }
        Ok(found)
    }

    fn write_statistics(&mut self, executor: &mut Executor, numbers: &[f32]) -> Result<(), RuntimeError> {
        write(executor, &self.statistics, numbers, &mut self.bytes)
    }

    /// Takes what a pass leaves for this virtual worker, each part as soon as it is complete; that of the last pass is sent.
    /// Gradients count by the labels that do. Gives the square norm of the gradient by itself.
    fn take(&mut self, executor: &mut Executor, train: &Loaded, number: u64) -> Result<f64, RuntimeError> {
        let Share { group, sums, bytes, mine, .. } = self;
        let (mut weight, mut squares) = (None, Squares::default());
        for sum in sums {
            let mut found = sum.mine.room();
            for region in &sum.part.regions {
                bytes.resize(region.bytes().0 as usize, 0);
                while !executor.read_of_part(&sum.part, region, bytes)? {
                    group.advance()?;
                    std::thread::sleep(LOOK);
                }
                if region.role != Role::Gradient {
                    found.extend(numbers(bytes));
                    continue;
                }
                if weight.is_none() {
                    // Where a gradient is complete, the loss is.
                    let mut words = [0; Metrics::BYTES];
                    executor.read_of_part(&sum.part, train.metrics(), &mut words)?;
                    weight = Some(Metrics::of(&words).counted / train.label_count() as f32);
                }
                let weight = weight.expect("it was read");
                let before = found.len();
                found.extend(numbers(bytes).map(|gradient| gradient * weight));
                squares.note(region, &found[before..]);
            }
            sum.mine.push(Node::leaf(number), found);
            if number + 1 == mine.end {
                sum.pieces.iter().try_for_each(|piece| group.start(piece, &sum.mine))?;
            }
        }
        let weight = weight.map_or(0.0, f64::from);
        Ok(if weight > 0.0 { squares.sum() / (weight * weight) } else { 0.0 })
    }

    /// The first of its virtual workers.
    pub(super) fn first(&self) -> u64 {
        self.mine.start
    }

    /// The pass of this worker after a pass.
    fn after(&self, (step, number): Place) -> Place {
        if number + 1 < self.mine.end { (step, number + 1) } else { (step + 1, self.mine.start) }
    }

    /// The workers have to meet again.
    pub(super) fn part(&mut self) {
        self.met = false;
    }

    /// Tells all how an iteration went here, and hears how it went elsewhere: what the passes of all virtual workers left, in
    /// their order, or none where a worker leaves.
    fn agree(&mut self, step: u64, word: u32, mine: &[Passed]) -> Result<Option<Vec<Passed>>, RuntimeError> {
        let mut words = vec![word, step as u32, (step >> 32) as u32];
        words.extend(mine.iter().flat_map(Passed::words));
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
            all.extend(said[SAID..].as_chunks().0.iter().copied().map(Passed::of));
        }
        Ok(Some(all))
    }

    fn elsewhere(&self, rank: usize, there: String, step: u64) -> RuntimeError {
        let (me, here) = (self.group.facts().rank, format!("iteration {step}"));
        GroupError::OutOfStep { rank, me, there, here }.into()
    }

    /// Waits for the sums over all virtual workers, and divides them. Gives the square norm of the gradient.
    fn finish(&mut self, labels: u64, counted: f64) -> Result<f64, RuntimeError> {
        let of_labels = (labels as f64 / counted.max(1.0)) as f32;
        let mut squares = Squares::default();
        for sum in &mut self.sums {
            for piece in &sum.pieces {
                self.group.finish(piece, &mut sum.whole[piece.elements.clone()])?;
            }
            let of_workers = (1.0 / sum.mine.leaves() as f64) as f32;
            sum.divide(of_labels, of_workers, &mut squares);
        }
        Ok(squares.sum())
    }
}

/// The metrics of an update: means over all labels that count, in the order of the virtual workers.
fn together(all: &[Passed]) -> (f32, f64, f64) {
    let (mut loss, mut correct, mut counted) = (0.0, 0.0, 0.0);
    for Passed { metrics, .. } in all {
        loss += f64::from(metrics.loss) * f64::from(metrics.counted);
        correct += f64::from(metrics.correct);
        counted += f64::from(metrics.counted);
    }
    ((loss / counted.max(1.0)) as f32, correct, counted)
}

/// The norms of an update of so many samples, whose gradient has this square norm; none where no two passes can be compared.
/// Those with more labels that count have less noise and count more, so that the mean is what passes of equal labels would
/// show.
fn norms(all: &[Passed], samples: f64, mean: f64) -> Option<GradientNorms> {
    let counted: f64 = all.iter().map(|passed| f64::from(passed.metrics.counted)).sum();
    let own: f64 = all.iter().map(|passed| f64::from(passed.metrics.counted) * passed.square).sum();
    let compared = all.iter().filter(|passed| passed.metrics.counted > 0.0).count();
    let own_samples = samples / compared as f64;
    (compared > 1).then_some(GradientNorms { own_samples, samples, own: own / counted, mean })
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
        source: &mut Source<'_>,
        until: u64,
        observe: &mut dyn FnMut(&Observation),
        pause: &dyn Fn() -> bool,
    ) -> Result<Outcome, RuntimeError> {
        self.meet(share, source.data)?;
        share.group.at(self.step);
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
            let Some(updated) = self.iterate(share, source)? else { return Ok(Outcome::Paused) };
            let end = Instant::now();
            self.step += 1;
            share.group.at(self.step);
            observe(&Observation {
                step,
                epoch: step / source.per_epoch,
                learning_rate: self.plan.rate.at(step),
                loss: updated.loss,
                accuracy: updated.accuracy,
                norms: updated.norms,
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
            Some(share) if share.met => {
                share.agree(self.step, LEAVES, &[])?;
                // As the others do.
                share.group.forget();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// One iteration with its update; none where a worker leaves.
    fn iterate(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
    ) -> Result<Option<Updated>, RuntimeError> {
        let before = share.read_statistics(&mut self.executor)?;
        let summed = self.sum(share, source, &before);
        if !matches!(summed, Ok(Some(_))) {
            share.group.forget();
            let put_back = share.write_statistics(&mut self.executor, &before);
            // What went wrong first is told.
            return summed.and_then(|left| put_back.map(|()| left));
        }
        for Sum { part, whole, .. } in &share.sums {
            write(&mut self.executor, &part.regions, whole, &mut share.bytes)?;
        }
        self.executor.run_update(&self.train)?;
        summed
    }

    /// The passes of this worker, and the sum over all. Running statistics are as the passes leave them.
    fn sum(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        before: &[f32],
    ) -> Result<Option<Updated>, RuntimeError> {
        let (step, labels) = (self.step, self.train.label_count());
        let mut mine = Vec::new();
        share.sums.iter_mut().for_each(|sum| sum.mine.clear());
        for number in share.mine.clone() {
            if number != share.mine.start {
                share.write_statistics(&mut self.executor, before)?;
            }
            mine.push(self.pass(share, source, (step, number))?);
        }
        let Some(all) = share.agree(step, GOES_ON, &mine)? else { return Ok(None) };
        let (loss, correct, counted) = together(&all);
        if !loss.is_finite() {
            return Err(RuntimeError::Diverged { step, loss });
        }
        let square = share.finish(labels, counted)?;
        let norms = norms(&all, self.plan.samples_of_update() as f64, square);
        Ok(Some(Updated { loss, accuracy: (correct / counted.max(1.0)) as f32, norms }))
    }

    /// The pass of a virtual worker, and what it leaves; the next input is read beside it.
    fn pass(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        place: Place,
    ) -> Result<Passed, RuntimeError> {
        let (step, number) = place;
        let (rate, seed) = (self.plan.rate.at(step), seed_of(self.plan.seed, number));
        self.write_input(source, place, rate, seed)?;
        let next = share.after(place);
        let slot = self.next_slot(source, next, None)?;
        self.executor.start_pass(&self.train, slot);
        let prepared = self.read_ahead(source, slot, [next, share.after(next)]);
        if std::mem::take(&mut self.look) {
            self.seen = self.executor.device().health();
        }
        let taken = share.take(&mut self.executor, &self.train, number);
        // What failed on the device is told first.
        self.executor.finish()?;
        let square = taken?;
        prepared?;
        self.fed = slot.map(|_| next);
        Ok(Passed { metrics: self.metrics()?, square })
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
        let passed = |loss, correct, counted| passed([loss, correct, counted], 0.0);
        let all = [passed(1.0, 2.0, 2.0), passed(4.0, 0.0, 1.0), passed(0.0, 0.0, 0.0)];
        assert_eq!(together(&all), (2.0, 2.0, 3.0));
        assert_eq!(together(&[passed(0.1, 1.0, 3.0)]).0, 0.1, "of one it is its own");
        assert_eq!(together(&[passed(0.0, 0.0, 0.0)]), (0.0, 0.0, 0.0));
    }

    fn passed([loss, correct, counted]: [f32; 3], square: f64) -> Passed {
        Passed { metrics: Metrics { loss, correct, counted }, square }
    }

    #[test]
    fn what_a_pass_left_is_heard_as_it_was_told() {
        let told = passed([0.25, 7.0, 9.0], 1.0 + f64::EPSILON);
        assert_eq!(Passed::of(told.words()), told);
    }

    #[test]
    fn norms_count_by_labels_and_need_two_passes() {
        let of = |counted, square| passed([0.0, 0.0, counted], square);
        let found = norms(&[of(1.0, 8.0), of(3.0, 4.0), of(0.0, 0.0)], 12.0, 2.0);
        assert_eq!(found, Some(GradientNorms { own_samples: 6.0, samples: 12.0, own: 5.0, mean: 2.0 }));
        assert_eq!(norms(&[of(4.0, 8.0)], 4.0, 8.0), None);
        assert_eq!(norms(&[of(4.0, 8.0), of(0.0, 0.0)], 8.0, 8.0), None);
    }
}
