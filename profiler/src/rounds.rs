//! The measuring rounds: which batch size runs next, and when enough is known.
//!
//! A turn is one warm-up (it brings back what the turn of another batch size pushed out of the caches) and [`TURN`] timed
//! iterations of one batch size. A round gives a turn to each batch size that is not done; every other round goes from the largest
//! to the smallest.

use crate::bench::Bench;
use crate::error::ProfileError;
use crate::journal::{Entry, Journal};
use crate::statistics::{Centre, centre};
use crate::{Effort, Watch};
use plimsoll_ir::Seconds;
use plimsoll_ir::health::Health;
use plimsoll_ir::profile::{BatchSamples, LinkSamples};
use std::time::Instant;

/// Timed iterations in a turn.
const TURN: usize = 3;

/// What is measured just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Transfers.
    Link,
    /// Iterations of a batch size.
    Iterations {
        /// Which.
        batch: u64,
    },
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What was measured last.
    pub stage: Stage,
    /// Steps of the stage that are done.
    pub done: usize,
    /// Steps that the stage takes at least; more follow where the machine is noisy.
    pub of: usize,
}

/// All that was measured so far.
pub(crate) struct Measured {
    pub overhead: Option<Seconds>,
    pub link: Option<LinkSamples>,
    /// Of all looks at the device so far.
    pub health: Option<Health>,
    /// One for each batch size, without ops before its first turn.
    pub batches: Vec<BatchSamples>,
    /// An earlier run found it to be enough.
    pub done: bool,
}

impl Measured {
    pub fn new(batches: &[u64]) -> Measured {
        let empty =
            |batch: &u64| BatchSamples { batch: *batch, iteration_seconds: Vec::new(), ops: Vec::new() };
        Measured {
            overhead: None,
            link: None,
            health: None,
            batches: batches.iter().map(empty).collect(),
            done: false,
        }
    }

    /// Takes in one entry of the journal. What a round does not share with those before it, in words, is the error.
    pub fn add(&mut self, entry: Entry) -> Result<(), String> {
        match entry {
            Entry::Overhead(seconds) => self.overhead = Some(seconds),
            Entry::Link(link) => self.link = Some(link),
            Entry::Health(now) => self.health = Some(self.health.take().unwrap_or_default().then(now)),
            Entry::Done => self.done = true,
            Entry::Round(round) => match self.batches.iter_mut().find(|b| b.batch == round.batch) {
                Some(all) => extend(all, round)?,
                None => return Err(format!("it holds batch {}, which is not measured", round.batch)),
            },
        }
        Ok(())
    }

    /// Says which batch size is too noisy to decide anything, if one is.
    pub fn judge(&self, bad: f64) -> Result<(), ProfileError> {
        for batch in &self.batches {
            let spread = uncertainty(batch);
            if spread > bad {
                let deviation = |op: &[Seconds]| centre(op).map_or(0.0, |c: Centre| c.deviation.0);
                let worst =
                    batch.ops.iter().max_by(|a, b| deviation(&a.seconds).total_cmp(&deviation(&b.seconds)));
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
    for (op, more) in all.ops.iter_mut().zip(round.ops) {
        op.seconds.extend(more.seconds);
    }
    Ok(())
}

/// The relative standard error of the median over the repetitions of the sum over all ops. The sum, because it
/// is what is planned with: an op's noise counts by its share. Stalls, which the schedule makes, are not in it.
fn uncertainty(batch: &BatchSamples) -> f64 {
    let repetitions = batch.ops.iter().map(|op| op.seconds.len()).min().unwrap_or(0);
    let total = |r: usize| batch.ops.iter().map(|op| op.seconds[r]).sum::<Seconds>();
    let totals: Vec<Seconds> = (0..repetitions).map(total).collect();
    centre(&totals).map_or(f64::INFINITY, |c| c.relative_error)
}

/// Measures until every batch size is done. Every turn is in the journal before the next begins, and what there is of one that
/// is interrupted too.
pub(crate) fn measure(
    effort: &Effort,
    bench: &mut dyn Bench,
    journal: &mut Journal,
    measured: &mut Measured,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let begun = Instant::now();
    let mut round = 0;
    loop {
        let time_is_up = begun.elapsed().as_secs_f64() > effort.time.0;
        let done = |batch: &BatchSamples| {
            let samples = batch.iteration_seconds.len();
            let enough = samples >= effort.at_least.max(1);
            enough && (time_is_up || samples >= effort.at_most || uncertainty(batch) <= effort.good)
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
            let (samples, end) = turn(effort, bench, position, measured, watch);
            if let Some(samples) = samples {
                let entry = Entry::Round(samples);
                measured.add(entry.clone()).map_err(|differs| journal.other_study(differs))?;
                journal.append(&entry)?;
            }
            end?;
            look(bench, journal, measured, watch)?;
        }
        round += 1;
    }
}

/// Looks how the device is, and says what is new and makes the times doubtful.
pub(crate) fn look(
    bench: &mut dyn Bench,
    journal: &mut Journal,
    measured: &mut Measured,
    watch: &mut Watch<'_>,
) -> Result<(), ProfileError> {
    let Some(now) = bench.health() else { return Ok(()) };
    now.warnings(&measured.health.clone().unwrap_or_default())
        .iter()
        .for_each(|warning| (watch.warn)(warning));
    let entry = Entry::Health(now);
    measured.add(entry.clone()).map_err(|differs| journal.other_study(differs))?;
    journal.append(&entry)
}

/// One warm-up and [`TURN`] timed iterations of one batch size: what was measured, and how it ended.
fn turn(
    effort: &Effort,
    bench: &mut dyn Bench,
    position: usize,
    measured: &Measured,
    watch: &mut Watch<'_>,
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
        let sample = match bench.iterate(position) {
            Ok(sample) => sample,
            Err(error) => return (samples, Err(error)),
        };
        if repetition == 0 {
            continue;
        }
        let all = samples.get_or_insert_with(|| BatchSamples {
            batch: before.batch,
            iteration_seconds: vec![],
            ops: vec![],
        });
        extend(all, sample).expect("one loaded program has the same ops in every iteration");
        let stage = Stage::Iterations { batch: before.batch };
        (watch.progress)(Progress { stage, done: in_all + repetition.min(left), of });
    }
    (samples, Ok(()))
}
