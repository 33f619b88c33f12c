//! The measuring rounds: the order of batch sizes, and the stopping rule.
//!
//! A turn begins with iterations that do not count, until they are steady: they refill the caches after the turn of a
//! different batch size and, in the first turn, do everything that first iterations do once. Then come [`TURN`] pairs of one
//! batch size: an iteration as in training, and one whose ops are timed. A round gives a turn to each batch size that is not
//! done; every other round goes from the largest to the smallest.

use crate::bench::Bench;
use crate::error::ProfileError;
use crate::journal::{Entry, Journal};
use crate::statistics::{Centre, centre};
use crate::steady::Settling;
use crate::{Effort, Watch};
use plimsoll_ir::Seconds;
use plimsoll_ir::health::Health;
use plimsoll_ir::profile::{BatchSamples, LinkSamples, alone};
use plimsoll_runtime::Whole;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Pairs in a turn.
const TURN: usize = 3;

/// Successive iterations that must be no faster than those before them, for steadiness: in the first turn of a batch size,
/// and in later turns.
const STEADY: [usize; 2] = [3, 1];

/// Timed iterations of each batch size in each alternative, which only need to be compared.
const IN_A_WAY: usize = 3;

/// The stage of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Transfers.
    Link,
    /// Iterations of a batch size.
    Iterations {
        /// Batch size.
        batch: u64,
    },
    /// Iterations of a batch size with ops by an alternative that is not the default.
    Alternatives {
        /// Batch size.
        batch: u64,
    },
}

/// The progress of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Stage of the last measurement.
    pub stage: Stage,
    /// Completed steps of the stage.
    pub done: usize,
    /// Minimum steps of the stage; more follow if the machine is noisy.
    pub of: usize,
}

/// All measurements so far.
pub(crate) struct Measured {
    pub overhead: Option<Seconds>,
    pub link: Option<LinkSamples>,
    /// Health over all observations so far.
    pub health: Option<Health>,
    /// Samples of each batch size, without ops before its first turn.
    pub batches: Vec<BatchSamples>,
    /// Iterations by batch size and number of the alternatives.
    pub alternatives: BTreeMap<(u64, u32), usize>,
    /// `true` if an earlier run found the measurements sufficient.
    pub done: bool,
}

impl Measured {
    /// Returns no samples, of these batches.
    pub fn new(batches: &[u64]) -> Measured {
        Measured {
            overhead: None,
            link: None,
            health: None,
            batches: batches.iter().copied().map(BatchSamples::none).collect(),
            alternatives: BTreeMap::new(),
            done: false,
        }
    }

    /// Adds one entry of the journal. The error is the difference of a round from those before it, in words.
    pub fn add(&mut self, entry: Entry) -> Result<(), String> {
        match entry {
            Entry::Overhead(seconds) => self.overhead = Some(seconds),
            Entry::Link(link) => self.link = Some(link),
            Entry::Health(now) => self.health = Some(self.health.take().unwrap_or_default().then(now)),
            Entry::Done => self.done = true,
            Entry::Round(round) => extend(self.of(round.batch)?, round)?,
            Entry::Alternative(number, round) => {
                *self.alternatives.entry((round.batch, number)).or_default() += repetitions(&round);
                extend(self.of(round.batch)?, round)?;
            }
        }
        Ok(())
    }

    fn of(&mut self, batch: u64) -> Result<&mut BatchSamples, String> {
        let found = self.batches.iter_mut().find(|b| b.batch == batch);
        found.ok_or_else(|| format!("it holds batch {batch}, which is not measured"))
    }

    /// Returns the error of a batch size that is too noisy to decide anything, if there is one.
    pub fn judge(&self, bad: f64) -> Result<(), ProfileError> {
        for batch in &self.batches {
            let spread = uncertainty(batch);
            if spread > bad {
                let deviation = |op: &[Seconds]| centre(op).map_or(0.0, |c: Centre| c.deviation.0);
                let worst = batch
                    .ops
                    .iter()
                    .max_by(|a, b| deviation(a.usual_or_most()).total_cmp(&deviation(b.usual_or_most())));
                return Err(ProfileError::Noisy {
                    batch: batch.batch,
                    op: worst.map(|op| op.name.clone()).unwrap_or_default(),
                    spread,
                    samples: batch.iteration_seconds.len(),
                });
            }
        }
        Ok(())
    }
}

/// Appends the samples of a round, which must have the same ops as those before it.
fn extend(all: &mut BatchSamples, round: BatchSamples) -> Result<(), String> {
    if all.ops.is_empty() {
        *all = round;
        return Ok(());
    }
    let names = |batch: &BatchSamples| batch.ops.iter().map(|op| op.name.clone()).collect::<Vec<_>>();
    if names(all) != names(&round) {
        return Err(format!("the ops at batch {} are others there than now", all.batch));
    }
    all.iteration_seconds.extend(round.iteration_seconds);
    all.other_seconds.extend(round.other_seconds);
    all.whole_seconds.extend(round.whole_seconds);
    all.waited_seconds.extend(round.waited_seconds);
    all.offloaded_bytes = round.offloaded_bytes.or(all.offloaded_bytes);
    all.ops.iter_mut().zip(round.ops).for_each(|(op, more)| op.take_in(more));
    Ok(())
}

/// Returns the iterations in a round of an alternative.
fn repetitions(round: &BatchSamples) -> usize {
    round.ops.iter().map(|op| op.usual_or_most().len()).max().unwrap_or(0)
}

/// Returns the relative standard error of the median over whole iterations, each without the processor time of other
/// programs, so that a shared machine is measured too. Ops divide an iteration's time between them, and an op's noise counts
/// by its share.
fn uncertainty(batch: &BatchSamples) -> f64 {
    let whole: Vec<Seconds> = batch.alone_seconds().collect();
    centre(&whole).map_or(f64::INFINITY, |c| c.relative_error)
}

/// Measures until every batch size is done. Every turn is in the journal before the next begins, including the samples of an
/// interrupted turn.
pub(crate) fn measure(
    effort: &Effort,
    bench: &mut dyn Bench,
    journal: &mut Journal,
    measured: &mut Measured,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let begun = Instant::now();
    let mut round = 0;
    // A batch size that an earlier run has given up gets `at_most` further iterations: the machine may be calmer now.
    let given_up = |batch: &BatchSamples| uncertainty(batch) > effort.bad;
    let counted = |batch: &BatchSamples| if given_up(batch) { batch.iteration_seconds.len() } else { 0 };
    let before: BTreeMap<u64, usize> = measured.batches.iter().map(|b| (b.batch, counted(b))).collect();
    loop {
        let elapsed = begun.elapsed().as_secs_f64();
        let (lasted, time_is_up) = (elapsed >= effort.lasting.0, elapsed > effort.time.0);
        let done = |batch: &BatchSamples| {
            let samples = batch.iteration_seconds.len();
            let enough = samples >= effort.at_least.max(1);
            let most = before[&batch.batch] + effort.at_most;
            enough && (time_is_up || samples >= most || lasted && uncertainty(batch) <= effort.good)
        };
        let mut open: Vec<usize> =
            (0..measured.batches.len()).filter(|i| !done(&measured.batches[*i])).collect();
        if open.is_empty() {
            return Ok(());
        }
        if round % 2 == 1 {
            open.reverse();
        }
        for position in open {
            let mut seen = None;
            let (samples, end) = turn(effort, bench, position, measured, watch, &mut seen);
            if let Some(samples) = samples {
                let entry = Entry::Round(samples);
                measured.add(entry.clone()).map_err(|differs| journal.other_study(&differs))?;
                journal.append(&entry)?;
            }
            end?;
            note(seen, journal, measured, watch)?;
        }
        round += 1;
    }
}

/// Records the device's health, and warns of new causes of doubtful times.
fn note(
    seen: Option<Health>,
    journal: &mut Journal,
    measured: &mut Measured,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let Some(now) = seen else { return Ok(()) };
    now.warnings(&measured.health.clone().unwrap_or_default())
        .iter()
        .for_each(|warning| (watch.warn)(&warning.to_string()));
    let entry = Entry::Health(now);
    measured.add(entry.clone()).map_err(|differs| journal.other_study(&differs))?;
    journal.append(&entry)
}

/// Runs iterations that do not count, until they are steady.
fn settle(
    bench: &mut dyn Bench,
    position: usize,
    in_a_row: usize,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let mut settling = Settling::after(in_a_row);
    loop {
        if (watch.stop)() {
            return Err(ProfileError::Interrupted);
        }
        let Whole { seconds, waited } = bench.whole(position)?;
        if settling.is_steady_with(alone(seconds, waited)) {
            return Ok(());
        }
    }
}

/// Runs an iteration as in training, and one whose ops are timed.
fn pair(bench: &mut dyn Bench, position: usize) -> Result<BatchSamples, ProfileError> {
    let Whole { seconds, waited } = bench.whole(position)?;
    let timed = bench.iterate(position, None)?;
    Ok(BatchSamples { whole_seconds: vec![seconds], waited_seconds: vec![waited], ..timed })
}

/// Runs the iterations that do not count, and [`TURN`] pairs of one batch size; returns the samples, and the outcome.
fn turn(
    effort: &Effort,
    bench: &mut dyn Bench,
    position: usize,
    measured: &Measured,
    watch: &mut Watch<'_>,
    seen: &mut Option<Health>,
) -> (Option<BatchSamples>, Result<(), ProfileError>) {
    let before = &measured.batches[position];
    let of = effort.at_least * measured.batches.len();
    let in_all: usize = measured.batches.iter().map(|b| b.iteration_seconds.len().min(effort.at_least)).sum();
    let left = effort.at_least.saturating_sub(before.iteration_seconds.len());
    let mut samples: Option<BatchSamples> = None;
    for repetition in 0..=TURN {
        if (watch.stop)() {
            return (samples, Err(ProfileError::Interrupted));
        }
        if repetition == 0 {
            let health = bench.warm_up(position, None);
            let in_a_row = STEADY[usize::from(!before.iteration_seconds.is_empty())];
            match health.and_then(|health| settle(bench, position, in_a_row, watch).map(|()| health)) {
                Ok(health) => *seen = health,
                Err(error) => return (samples, Err(error)),
            }
            continue;
        }
        let sample = match pair(bench, position) {
            // The stop may have hurried it.
            Ok(_) if (watch.stop)() => return (samples, Err(ProfileError::Interrupted)),
            Ok(sample) => sample,
            Err(error) => return (samples, Err(error)),
        };
        let all = samples.get_or_insert_with(|| BatchSamples::none(before.batch));
        extend(all, sample).expect("one loaded program has the same ops in every iteration");
        let stage = Stage::Iterations { batch: before.batch };
        (watch.progress)(Progress { stage, done: in_all + repetition.min(left), of });
    }
    (samples, Ok(()))
}

/// Returns the ends and the middle first, then the positions between them.
fn ends_and_middle_first(count: usize) -> Vec<usize> {
    let mut order = vec![0, count / 2, count.saturating_sub(1)];
    order.extend(0..count);
    let mut seen = BTreeSet::new();
    order.retain(|position| *position < count && seen.insert(*position));
    order
}

/// Measures the other alternatives of the ops, each batch size in each, for the missing repetitions. When time is up, it
/// skips the rest, except for the smallest batch size that has other alternatives: some algorithms take many times as long as
/// the default ones.
pub(crate) fn measure_alternatives(
    effort: &Effort,
    bench: &mut dyn Bench,
    journal: &mut Journal,
    measured: &mut Measured,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let begun = Instant::now();
    let pairs =
        |position: usize| bench.alternatives(position).into_iter().map(move |number| (position, number));
    let order = ends_and_middle_first(measured.batches.len());
    let all: Vec<(usize, u32)> = order.into_iter().flat_map(pairs).collect();
    for (done, (position, number)) in all.iter().copied().enumerate() {
        if position != all[0].0 && begun.elapsed().as_secs_f64() > effort.time.0 {
            break;
        }
        let batch = measured.batches[position].batch;
        let known = measured.alternatives.get(&(batch, number)).copied().unwrap_or(0);
        let missing = IN_A_WAY.saturating_sub(known);
        let (mut samples, mut seen) = (None, None);
        let end = if missing == 0 {
            Ok(())
        } else {
            iterate_with(bench, (position, number), missing, watch, &mut samples, &mut seen)
        };
        if let Some(samples) = samples {
            let entry = Entry::Alternative(number, samples);
            measured.add(entry.clone()).map_err(|differs| journal.other_study(&differs))?;
            journal.append(&entry)?;
        }
        end?;
        note(seen, journal, measured, watch)?;
        (watch.progress)(Progress { stage: Stage::Alternatives { batch }, done: done + 1, of: all.len() });
    }
    Ok(())
}

/// Runs one warm-up and this many iterations of a batch size with the ops in their alternatives of a number.
fn iterate_with(
    bench: &mut dyn Bench,
    (position, number): (usize, u32),
    times: usize,
    watch: &mut Watch<'_>,
    samples: &mut Option<BatchSamples>,
    seen: &mut Option<Health>,
) -> Result<(), ProfileError> {
    let go_on = || if (watch.stop)() { Err(ProfileError::Interrupted) } else { Ok(()) };
    go_on()?;
    *seen = bench.warm_up(position, Some(number))?;
    for _ in 0..times {
        go_on()?;
        let sample = bench.iterate(position, Some(number))?;
        go_on()?;
        match samples {
            None => *samples = Some(sample),
            Some(all) => extend(all, sample).expect("one program has the same ops in every iteration"),
        }
    }
    Ok(())
}
