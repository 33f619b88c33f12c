//! An iteration of several virtual workers: this worker's passes, the sum over all of them, and the update.
//!
//! Everything is defined over virtual workers, so that their assignment to workers does not matter. Each starts from the
//! running statistics of the last update, has its own k samples of the epoch's order and its own dropout seed, and leaves a
//! gradient that is a mean over its labels. The sum is over that gradient, weighted by the share of labels that count, and
//! the running statistics; the result written back is the gradient over all labels, and the mean of the statistics.
//!
//! The last pass of a worker completes its sums part by part, from the end of the network to its beginning. Each part is
//! sent as soon as it is complete, while the pass continues; then workers report their results, and the update is decided.
//!
//! A decided update is pending until its sums arrive. On a device that the host can write to meanwhile, the next pass runs
//! until it needs a part of the update, which is applied there, so that sums are exchanged during the next forward pass; on
//! other devices, and where training stops, the update is applied whole before anything else. An iteration is reported once
//! its update is applied.
//!
//! An update that is not applied whole leaves no trace: overwritten data and the statistics are restored, so that a
//! checkpoint is the state after the last update applied whole (`before.rs`).
//!
//! Each pass also leaves the square norm of its gradient, and so does the update: together they show how much of a gradient
//! of this many samples is noise (`noise.rs`). They change nothing.
//!
//! If the workers' devices sum by themselves, nothing comes to the host (`on_devices.rs`).
//!
//! Deliberately does not measure times.

use super::before::Befores;
use super::{Metrics, Observation, Outcome, Place, Source, Trainer};
use crate::error::{Kind, RuntimeError};
use crate::executor::{Executor, Loaded, Part};
use crate::group::{self, Group, GroupError, Node, Piece, TreeSum};
use crate::noise::{GradientNorms, scale};
use crate::state::Half;
use crate::training_plan::TrainingPlan;
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::program::{Hyper, Region, Role};
use plimsoll_ir::{Bytes, Seconds};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Separates the draws of virtual workers' seeds from those of parameters, orders and dropout.
const WORKER_STREAM: u32 = 0x574f_524b;

/// A worker's word in an agreement: it goes on, or it leaves.
pub(super) const GOES_ON: u32 = 1;
pub(super) const LEAVES: u32 = 2;

/// Words before the passes in an agreement: that word, and the iteration in two words.
const SAID: usize = 3;

/// Interval at which a worker whose device computes checks for a complete part and for messages.
pub(super) const LOOK: Duration = Duration::from_micros(100);

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
    pending: Option<Pending>,
    /// Data that updates have overwritten.
    befores: Befores,
    /// Report on the last update that was applied.
    applied: Option<Observation>,
    /// `true` once the workers have met: all have worker 0's state.
    pub(super) met: bool,
    /// `true` once they have met for the first time, so that each has a state of this training.
    pub(super) has_begun: bool,
}

/// A part of the numbers that are summed.
pub(super) struct Sum {
    pub(super) part: Part,
    /// Pieces, each with its owner.
    pieces: Vec<Piece>,
    /// Sum over this worker's virtual workers.
    pub(super) mine: TreeSum,
    /// Sum over all virtual workers.
    pub(super) whole: Vec<f32>,
    /// `true` if the pending update is applied to this part.
    is_applied: bool,
}

/// A decided update: every worker has made its passes, and the sums are on their way.
struct Pending {
    /// Its report, without the norms.
    observation: Observation,
    /// Results of the passes of all virtual workers.
    passed: Vec<Passed>,
    /// Factor that turns the sums of gradients into means over all labels that count.
    of_labels: f32,
    /// Square norms of the parts that have arrived.
    squares: Squares,
}

impl Sum {
    /// Waits for the sum over all virtual workers.
    fn finish(&mut self, group: &mut dyn Group) -> Result<(), GroupError> {
        self.pieces.iter().try_for_each(|piece| group.finish(piece, &mut self.whole[piece.elements.clone()]))
    }

    pub(super) fn is_of_statistics(&self) -> bool {
        self.part.regions.iter().all(|region| region.role != Role::Gradient)
    }

    /// Divides the sums: gradients by the share of labels that count, statistics by the number of virtual workers. Notes the
    /// squares of the gradients.
    fn divide(&mut self, of_labels: f32, squares: &mut Squares) {
        let of_workers = (1.0 / self.mine.leaves() as f64) as f32;
        let mut rest = self.whole.as_mut_slice();
        for region in &self.part.regions {
            let (own, others) = rest.split_at_mut(region.elements() as usize);
            rest = others;
            let is_gradient = region.role == Role::Gradient;
            let square = scale(own, if is_gradient { of_labels } else { of_workers });
            if is_gradient {
                squares.note(region, square);
            }
        }
    }
}

/// Square norms of regions, with their offsets.
#[derive(Default)]
pub(super) struct Squares(Vec<(Bytes, f64)>);

impl Squares {
    fn note(&mut self, region: &Region, square: f64) {
        self.0.push((region.offset, square));
    }

    /// Their sum, which does not depend on the order in which parts complete.
    fn sum(mut self) -> f64 {
        self.0.sort_unstable_by_key(|(offset, _)| *offset);
        self.0.iter().map(|(_, square)| square).sum()
    }
}

/// Results of a pass, apart from the summed numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Passed {
    pub(super) metrics: Metrics,
    /// Square norm of its gradient, a mean over its labels that count.
    pub(super) square: f64,
}

impl Passed {
    /// Words of one pass in an agreement.
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

/// Reads the numbers of regions, concatenated.
fn read(executor: &mut Executor, regions: &[Region]) -> Result<Vec<f32>, RuntimeError> {
    let elements = |region: &Region| region.elements() as usize;
    let mut found = vec![0.0; regions.iter().map(elements).sum()];
    let mut rest = found.as_mut_slice();
    for region in regions {
        let (own, others) = rest.split_at_mut(elements(region));
        rest = others;
        executor.read_region(region, cast_slice_mut(own))?;
    }
    Ok(found)
}

/// Writes concatenated numbers to regions.
fn write(executor: &mut Executor, regions: &[Region], numbers: &[f32]) -> Result<(), RuntimeError> {
    let mut rest = numbers;
    for region in regions {
        let (own, others) = rest.split_at(region.elements() as usize);
        rest = others;
        executor.write_region(region, cast_slice(own))?;
    }
    Ok(())
}

impl Share {
    pub(super) fn new(
        group: Box<dyn Group>,
        executor: &mut Executor,
        train: &Loaded,
        plan: &TrainingPlan,
    ) -> Result<Share, RuntimeError> {
        let (facts, virtual_workers) = (group.facts(), plan.virtual_workers);
        let (can_be_lost, on_devices) = (executor.device().can_be_lost(), executor.sums_on_devices());
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

    fn write_statistics(&mut self, executor: &mut Executor, numbers: &[f32]) -> Result<(), RuntimeError> {
        write(executor, &self.statistics, numbers)
    }

    /// Takes the results of a pass for this virtual worker, each part as soon as it is complete; those of the last pass are
    /// sent. Gradients are weighted by their labels that count. Returns the square norm of the gradient alone.
    fn take(&mut self, executor: &mut Executor, train: &Loaded, number: u64) -> Result<f64, RuntimeError> {
        let (mut weight, mut squares) = (0.0, Squares::default());
        let first_gradient = self.first_gradient();
        for part in 0..self.sums.len() {
            self.wait_for_part(executor, part)?;
            if part == first_gradient {
                weight = self.metrics(executor, train)?.counted / train.label_count() as f32;
            }
            self.add_part(executor, (part, number), weight, &mut squares)?;
            if number + 1 == self.mine.end {
                let Share { group, sums, .. } = self;
                sums[part].pieces.iter().try_for_each(|piece| group.start(piece, &sums[part].mine))?;
            }
        }
        let weight = f64::from(weight);
        Ok(if weight > 0.0 { squares.sum() / (weight * weight) } else { 0.0 })
    }

    /// Waits until a running pass has completed a part.
    pub(super) fn wait_for_part(&mut self, executor: &mut Executor, part: usize) -> Result<(), RuntimeError> {
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
    pub(super) fn metrics(&self, executor: &mut Executor, train: &Loaded) -> Result<Metrics, RuntimeError> {
        let mut words = [0; Metrics::BYTES];
        executor.read_of_part(&self.sums[self.first_gradient()].part, train.metrics(), &mut words)?;
        Ok(Metrics::of(&words))
    }

    /// Adds a part of a pass for this virtual worker, gradients times their weight, and notes their squares.
    pub(super) fn add_part(
        &mut self,
        executor: &mut Executor,
        (part, number): (usize, u64),
        weight: f32,
        squares: &mut Squares,
    ) -> Result<(), RuntimeError> {
        let Sum { part, mine, whole, .. } = &mut self.sums[part];
        let mut found = mine.room(whole.len());
        let mut rest = found.as_mut_slice();
        for region in &part.regions {
            let (own, others) = rest.split_at_mut(region.elements() as usize);
            rest = others;
            executor.read_of_part(part, region, cast_slice_mut(own))?;
            if region.role == Role::Gradient {
                squares.note(region, scale(own, weight));
            }
        }
        mine.push(Node::leaf(number), found);
        Ok(())
    }

    /// First of its virtual workers.
    pub(super) fn first(&self) -> u64 {
        self.mine.start
    }

    /// Next pass of this worker after a pass.
    fn after(&self, (step, number): Place) -> Place {
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

    /// Sends the results of this worker's iteration to all, and receives theirs: the results of the passes of all virtual
    /// workers, in their order, or `None` if a worker leaves.
    pub(super) fn agree(
        &mut self,
        step: u64,
        word: u32,
        mine: &[Passed],
    ) -> Result<Option<Vec<Passed>>, RuntimeError> {
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

    /// Waits for the sums of a part that the pending update needs.
    fn finish(&mut self, part: usize) -> Result<(), GroupError> {
        let Share { group, sums, pending, .. } = self;
        let (sum, pending) = (&mut sums[part], pending.as_mut().expect("an update is decided"));
        sum.finish(&mut **group)?;
        sum.divide(pending.of_labels, &mut pending.squares);
        Ok(())
    }

    fn elsewhere(&self, rank: usize, there: String, step: u64) -> RuntimeError {
        let (me, here) = (self.group.facts().rank, format!("iteration {step}"));
        GroupError::OutOfStep { rank, me, there, here }.into()
    }

    /// Waits for the sums of the running statistics over all virtual workers, and writes their means to the device.
    fn finish_statistics(&mut self, executor: &mut Executor) -> Result<(), RuntimeError> {
        let Share { group, sums, .. } = self;
        for sum in sums.iter_mut().filter(|sum| sum.is_of_statistics()) {
            sum.finish(&mut **group)?;
            sum.divide(0.0, &mut Squares::default());
            write(executor, &sum.part.regions, &sum.whole)?;
        }
        Ok(())
    }

    /// Notes that the pending update, if there is one, is applied, and took this many more seconds.
    fn note_applied(&mut self, samples: u64, seconds: Seconds) {
        let Some(Pending { mut observation, passed, squares, .. }) = self.pending.take() else { return };
        if self.sums.iter().any(|sum| sum.is_applied) {
            self.befores.end();
        }
        if !self.on_devices {
            observation.norms = norms(&passed, samples as f64, squares.sum());
        }
        observation.seconds += seconds;
        self.sums.iter_mut().for_each(|sum| sum.is_applied = false);
        self.group.at(observation.step + 1);
        self.applied = Some(observation);
    }
}

/// Metrics of an update: means over all labels that count, in the order of the virtual workers.
pub(super) fn together(all: &[Passed]) -> (f32, f64, f64) {
    let (mut loss, mut correct, mut counted) = (0.0, 0.0, 0.0);
    for Passed { metrics, .. } in all {
        loss += f64::from(metrics.loss) * f64::from(metrics.counted);
        correct += f64::from(metrics.correct);
        counted += f64::from(metrics.counted);
    }
    ((loss / counted.max(1.0)) as f32, correct, counted)
}

/// Checks that the loss of an update is finite.
pub(super) fn is_finite(step: u64, all: &[Passed]) -> Result<(), RuntimeError> {
    let (loss, ..) = together(all);
    if loss.is_finite() { Ok(()) } else { Err(RuntimeError::diverged(step, loss)) }
}

/// Norms of an update of this many samples, whose gradient has the square norm `mean`; `None` if no two passes can be
/// compared. Passes with more labels that count have less noise and more weight, so that the mean is that of passes with
/// equal labels.
fn norms(all: &[Passed], samples: f64, mean: f64) -> Option<GradientNorms> {
    let counted: f64 = all.iter().map(|passed| f64::from(passed.metrics.counted)).sum();
    let own: f64 = all.iter().map(|passed| f64::from(passed.metrics.counted) * passed.square).sum();
    let compared = all.iter().filter(|passed| passed.metrics.counted > 0.0).count();
    let own_samples = samples / compared as f64;
    (compared > 1).then_some(GradientNorms { own_samples, samples, own: own / counted, mean })
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
    /// As `train_from`, for a worker of a group.
    pub(super) fn train_sharing(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        until: u64,
        observe: &mut dyn FnMut(&Observation),
        pause: &dyn Fn() -> bool,
    ) -> Result<Outcome, RuntimeError> {
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
    ) -> Result<bool, RuntimeError> {
        let (step, waited, start) = (self.step, self.executor.device().waited(), Instant::now());
        let statistics = read(&mut self.executor, &share.statistics)?;
        let passed = match self.sum(share, source, &statistics) {
            Ok(Some(passed)) => passed,
            other => {
                if other.is_err() {
                    // Nothing writes to the statistics after that.
                    share.abandon_devices(&mut self.executor);
                }
                let put_back = share.write_statistics(&mut self.executor, &statistics);
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
        let (loss, correct, counted) = together(&passed);
        let observation = Observation {
            step,
            epoch: step / source.per_epoch,
            learning_rate: self.plan.rate.at(step),
            loss,
            accuracy: (correct / counted.max(1.0)) as f32,
            norms: None,
            seconds: Seconds(start.elapsed().as_secs_f64()),
            between: Seconds((start - last_end).as_secs_f64()),
            waited: self.executor.waited_since(waited),
        };
        let of_labels = (self.train.label_count() as f64 / counted.max(1.0)) as f32;
        share.pending = Some(Pending { observation, passed, of_labels, squares: Squares::default() });
        share.befores.begin(step, statistics);
        self.step += 1;
        if share.on_devices || !self.executor.updates_within() {
            self.apply_whole(share)?;
        }
        Ok(true)
    }

    /// Runs the passes of this worker and agrees on its update: the results of all passes; `None` if a worker leaves.
    /// Running statistics are those that all passes leave; on failure they are undefined.
    fn sum(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        before: &[f32],
    ) -> Result<Option<Vec<Passed>>, RuntimeError> {
        let step = self.step;
        let mut mine = Vec::new();
        share.sums.iter_mut().for_each(|sum| sum.mine.clear());
        for number in share.mine.clone() {
            if number != share.mine.start {
                share.write_statistics(&mut self.executor, before)?;
            }
            if share.on_devices && number + 1 == share.mine.end {
                return self.pass_on_devices(share, source, (step, number), mine);
            }
            mine.push(self.pass(share, source, (step, number))?);
        }
        let Some(all) = share.agree(step, GOES_ON, &mine)? else { return Ok(None) };
        is_finite(step, &all)?;
        share.finish_statistics(&mut self.executor)?;
        Ok(Some(all))
    }

    /// Applies the pending update, if there is one, between two passes.
    fn apply_whole(&mut self, share: &mut Share) -> Result<(), RuntimeError> {
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
        self.executor.run_update(&self.train)?;
        share.note_applied(self.plan.samples_of_update(), Seconds(begun.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Undoes an update that is not applied whole.
    fn undo(&mut self, share: &mut Share) -> Result<(), RuntimeError> {
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
    fn start_pass(
        &mut self,
        share: &mut Share,
        slot: Option<Half>,
        hyper: [u8; Hyper::BYTES],
    ) -> Result<(), RuntimeError> {
        let Some(pending) = &share.pending else {
            self.executor.start_pass(&self.train, slot);
            return Ok(());
        };
        let Observation { step, learning_rate, .. } = pending.observation;
        let hypers = [self.hyper(step, learning_rate, self.plan.seed), hyper];
        let mut pass = self.executor.begin_pass(&self.train, slot);
        while let Some(part) = self.executor.enqueue_on(&self.train, &mut pass) {
            share.finish(part)?;
            let sum = &mut share.sums[part];
            let before = &mut share.befores.current().parts[part];
            self.executor.update_part(&self.train, part, &sum.whole, &hypers, before)?;
            sum.is_applied = true;
        }
        Ok(())
    }

    /// Runs the pass of a virtual worker, and returns its results.
    fn pass(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        place: Place,
    ) -> Result<Passed, RuntimeError> {
        let square = self
            .run_pass(share, source, place, |share, executor, train| share.take(executor, train, place.1))?;
        Ok(Passed { metrics: self.metrics()?, square })
    }

    /// Runs the pass of a virtual worker, and takes its results during it; meanwhile the next input is read.
    pub(super) fn run_pass<T>(
        &mut self,
        share: &mut Share,
        source: &mut Source<'_>,
        place: Place,
        take: impl FnOnce(&mut Share, &mut Executor, &Loaded) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
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
            share.note_applied(self.plan.samples_of_update(), Seconds::ZERO);
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
