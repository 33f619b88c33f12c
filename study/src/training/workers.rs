//! Workers that train together: the size of their updates, and the threads that they run on.
//!
//! An update is made of a whole number of the config's batches, one for each virtual worker; their distribution among workers
//! changes no bit of the result. Worker 0 tests, saves and reports; the others only train. If one of them ends, all end, and
//! worker 0's state is kept.
//!
//! Worker processes get the size of an update from worker 0: only worker 0 reads the training that continues.
//!
//! This file deliberately chooses no number of workers, and starts no processes.

use crate::device::cores;
use crate::error::{Cause, Error, Kind};
use crate::export::nearest;
use crate::folder::Study;
use crate::network_workload::NetworkWorkload;
use crate::request::{TrainRequest, Workers};
use crate::watch::Watch;
use crate::workload::Workload;
use plimsoll_ir::config::{Config, LearningRate};
use plimsoll_runtime::data::Dataset;
use plimsoll_runtime::{Checkpoint, Error as RuntimeError, Group, Kind as Fault, Trainer};
use plimsoll_tuner::rate::{caution, learning_rate, warmup_iterations};

/// Size of an update, and the settings that follow from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Update {
    /// Batches in an update.
    pub(super) virtual_workers: u64,
    /// Updates in an epoch.
    pub(super) per_epoch: u64,
    /// Learning rate before its decay.
    pub(super) rate: f64,
    /// Updates in which the rate rises.
    pub(super) warmup_iterations: u64,
}

impl Update {
    /// Returns the update that the request asks for, else that of the training that continues. `here` is the number of workers
    /// in this process.
    pub(super) fn of(
        task: &NetworkWorkload,
        config: &Config,
        (request, here): (&TrainRequest, usize),
        saved: Option<&Checkpoint>,
        watch: &Watch<'_>,
    ) -> Result<Update, Error> {
        let workers = request.workers;
        let plan = saved.map(|saved| &saved.progress.plan).filter(|plan| plan.batch == config.batch);
        let earlier = plan.map(|plan| plan.virtual_workers).or_else(|| tuned_for(config, workers.count));
        let virtual_workers = virtual_workers(workers, config.batch, earlier)?;
        let (samples, data) = (task.samples(), task.data.train.name());
        let global = config.batch.checked_mul(virtual_workers).filter(|global| *global <= samples);
        let Some(global) = global else {
            let batch = config.batch.saturating_mul(virtual_workers);
            let message = format!("{data} has {samples} samples, fewer than the batch of {batch}");
            return Err(Error::usage(message).help(
                "choose other --data, lower --global-batch or --workers, or tune anew for these data",
            ));
        };
        warn_of_cores(here, task.setup.threads(), watch);
        let per_epoch = samples / global;
        let LearningRate { rate, warmup_iterations: warmup, rule, base_batch, base_rate } =
            config.learning_rate;
        if virtual_workers == 1 {
            return Ok(Update { virtual_workers, per_epoch, rate, warmup_iterations: warmup });
        }
        if let Some(words) = caution(&config.learning_rate, global) {
            watch.warn(format_args!("an update of {global} samples is {words}"));
        }
        let same = plan.filter(|plan| plan.virtual_workers == virtual_workers);
        // More epochs do not lengthen a finished warm-up.
        let warmup_iterations = same.map_or_else(
            || warmup_iterations(base_batch, global, per_epoch, request.epochs),
            |plan| plan.rate.warmup_iterations,
        );
        let rate = learning_rate(rule, base_batch, base_rate, global)?;
        Ok(Update { virtual_workers, per_epoch, rate, warmup_iterations })
    }

    /// Sends the update to the other processes, with the folder in which worker 0 keeps the training.
    pub(super) fn tell(&self, group: &mut dyn Group, study: &Study) -> Result<(), Error> {
        let Update { virtual_workers, per_epoch, rate, warmup_iterations } = *self;
        let all = [virtual_workers, per_epoch, rate.to_bits(), warmup_iterations];
        let mut words = all.iter().flat_map(|number| [*number as u32, (*number >> 32) as u32]).collect();
        group.broadcast(&mut words).map_err(RuntimeError::from)?;
        Ok(group.broadcast(&mut folder_in_words(study)).map_err(RuntimeError::from)?)
    }

    /// Receives the update from worker 0; the `bool` is `true` if this worker's study has the same path.
    pub(super) fn told(group: &mut dyn Group, study: &Study) -> Result<(Update, bool), Error> {
        let mut words = Vec::new();
        group.broadcast(&mut words).map_err(RuntimeError::from)?;
        let all: Vec<u64> =
            words.chunks_exact(2).map(|two| u64::from(two[1]) << 32 | u64::from(two[0])).collect();
        let [virtual_workers, per_epoch, rate, warmup_iterations] = all[..] else {
            let message = format!("worker 0 told {} words of an update", words.len());
            return Err(Error::new(Kind::Internal, message));
        };
        let mut folder = Vec::new();
        group.broadcast(&mut folder).map_err(RuntimeError::from)?;
        let update = Update { virtual_workers, per_epoch, rate: f64::from_bits(rate), warmup_iterations };
        Ok((update, folder == folder_in_words(study)))
    }
}

/// Encodes the path of a study's folder, one byte in each word.
fn folder_in_words(study: &Study) -> Vec<u32> {
    let folder = study.folder();
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.as_os_str().as_encoded_bytes().iter().map(|byte| u32::from(*byte)).collect()
}

/// Returns the batches in an update.
fn virtual_workers(workers: Workers, batch: u64, earlier: Option<u64>) -> Result<u64, Error> {
    let Workers { count, global_batch } = workers;
    let virtual_workers = match global_batch {
        Some(global) if !global.is_multiple_of(batch) => {
            return Err(Error::usage(format_args!(
                "a global batch of {global} is no multiple of the batch of {batch}, which a virtual worker has"
            ))
            .help(format_args!("the nearest that are: {}", nearest(global, batch))));
        }
        Some(global) => global / batch,
        None => earlier.unwrap_or(count as u64),
    };
    if virtual_workers < count as u64 {
        let global = virtual_workers.saturating_mul(batch);
        let batches =
            if virtual_workers == 1 { "one batch".to_owned() } else { format!("{virtual_workers} batches") };
        return Err(Error::usage(format_args!(
            "{count} workers are more than the {batches} in an update of {global} samples"
        ))
        .help(match global_batch {
            None => "the training that goes on has updates of that size: lower --workers, or start anew with --fresh",
            Some(_) => "lower --workers, or raise --global-batch",
        }));
    }
    Ok(virtual_workers)
}

/// Returns the virtual workers that a config was chosen for, if they are enough for this number of workers.
fn tuned_for(config: &Config, workers: usize) -> Option<u64> {
    let virtual_workers = config.cluster?.global_batch / config.batch;
    (virtual_workers >= workers as u64).then_some(virtual_workers)
}

fn warn_of_cores(workers: usize, threads: u32, watch: &Watch<'_>) {
    let (all, cores) = (workers as u64 * u64::from(threads), u64::from(cores()));
    if workers > 1 && all > cores {
        watch.warn(format_args!(
            "{workers} workers compute on {all} threads together, and this process may use {cores} cores: an iteration takes \
             longer than that of one worker"
        ));
    }
}

/// Runs worker 0's closure while the others train, until `until` updates are done or worker 0 ends.
pub(super) fn beside<T>(
    others: Vec<Trainer>,
    data: &dyn Dataset,
    until: u64,
    first: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    if others.is_empty() {
        return first();
    }
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, mut trainer) in (1..).zip(others) {
            let work = move || trainer.train(data, until, &mut |_| {}, &|| false);
            match std::thread::Builder::new().name(format!("worker {rank}")).spawn_scoped(scope, work) {
                Ok(thread) => threads.push((rank, thread)),
                Err(error) => {
                    // Without worker 0 the workers already started end.
                    drop(first);
                    let message = format!("there is no thread for worker {rank}: {error}");
                    return Err(Error::new(Kind::Device, message).help("lower --workers"));
                }
            }
        }
        let outcome = first();
        let mut failed = None;
        for (rank, thread) in threads {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // An error that only reports the end of a different worker adds nothing.
            if let Err(own) = ended
                && !matches!(own.kind, Fault::Group(_))
            {
                failed.get_or_insert((rank, own));
            }
        }
        outcome.map_err(|error| by_whom(error, failed))
    })
}

/// Returns the error of worker 0, or that of the worker whose failure stopped worker 0.
fn by_whom(error: Error, failed: Option<(usize, RuntimeError)>) -> Error {
    match (error.cause.as_deref(), failed) {
        (Some(Cause::Group(_)), Some((rank, source))) => {
            let own = of_worker(rank, source);
            Error { help: error.help.or(own.help), ..own }
        }
        _ => error,
    }
}

/// Returns the error of a worker, with its name; messages of workers about each other already have one.
pub(super) fn of_worker(rank: usize, source: RuntimeError) -> Error {
    let error = Error::from(source);
    match error.cause.as_deref() {
        Some(Cause::Group(_)) => error,
        _ => Error { message: format!("worker {rank}: {}", error.message), ..error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_runtime::GroupError;

    #[test]
    fn an_update_is_what_is_asked_for_or_what_goes_on_or_a_batch_each() {
        let check = |count, global_batch, earlier, expected: Result<u64, &str>| {
            let found = virtual_workers(Workers { count, global_batch }, 32, earlier);
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{count} {global_batch:?} {earlier:?}");
        };
        check(1, None, None, Ok(1));
        check(3, None, None, Ok(3));
        check(1, Some(128), None, Ok(4));
        check(3, Some(128), Some(1), Ok(4));
        check(2, None, Some(4), Ok(4));
        check(1, None, Some(4), Ok(4));
        let not_shared =
            "a global batch of 100 is no multiple of the batch of 32, which a virtual worker has";
        check(1, Some(100), None, Err(not_shared));
        check(3, Some(64), None, Err("3 workers are more than the 2 batches in an update of 64 samples"));
        check(2, None, Some(1), Err("2 workers are more than the one batch in an update of 32 samples"));
    }

    #[test]
    fn the_worker_that_failed_is_named_with_its_own_error() {
        let lost = |rank| RuntimeError::from(GroupError::Lost { rank });
        let of_first = || of_worker(1, lost(1)).help("go on");
        assert_eq!(by_whom(of_first(), None).to_string(), "worker 1 has ended");
        let own = RuntimeError::device("the driver refused cuLaunch; see to it");
        let error = by_whom(of_first(), Some((2, own)));
        assert_eq!(error.message, "worker 2: the driver refused cuLaunch; see to it");
        assert_eq!(error.help.as_deref(), Some("go on"));
        let stopped = Error::new(Kind::Internal, "something else");
        assert_eq!(by_whom(stopped, Some((2, lost(1)))).to_string(), "something else");
    }
}
