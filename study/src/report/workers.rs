//! The workers that a study was tuned for, in its report: their update, the resources it uses, what overlap hides, and how
//! it scales.
//!
//! Efficiency has two definitions, and both are given. AccUDNN's (its Table 2: 7.7 of 8) compares the workers with one worker
//! that trains by the user's own setting, so that it includes the gain of the larger batch. The other compares them with as
//! many workers of the same batch that exchange nothing.

use super::data::{ResourceShare, Scaled, Single, Workers};
use plimsoll_ir::config::{Cluster, Config, Figures};
use plimsoll_ir::exchange::update::Busy;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::tuning::{Tuning, WorkersUpdate};

/// Baseline of one worker: the user's own setting, or the nearest to it.
const SINGLES: [&str; 2] = ["yours", "keeping everything"];

/// Returns the workers of a study; `None` if it was tuned for a single worker, or by an older version.
pub fn workers(config: &Config, tuning: &Tuning) -> Option<Workers> {
    let Cluster { workers, interconnect, nccl, global_batch, passes, exchange_seconds, update_seconds } =
        config.cluster?;
    let WorkersUpdate { busy, bound_seconds, without_overlap_seconds, scaling } = tuning.workers.as_ref()?;
    let predicted = scaling.iter().find(|of| of.workers == workers)?.seconds;
    let samples_per_second = global_batch as f64 / update_seconds.0;
    let one = scaling.first().filter(|of| of.workers == 1)?;
    let scaled = scaling.iter().map(|of| {
        // In the tuned update some workers may make one pass less.
        let is_this = of.workers == workers;
        let samples = if is_this { global_batch } else { of.workers * passes * config.batch };
        Scaled {
            workers: of.workers,
            global_batch: samples,
            update_seconds: of.seconds.0,
            samples_per_second: samples as f64 / of.seconds.0,
            efficiency: one.seconds / of.seconds,
        }
    });
    let Busy { compute, out, back, wire } = *busy;
    let is_half = config.link.duplex == Duplex::Half;
    let of_link: &[_] = if is_half { &[("link", out)] } else { &[("link, out", out), ("link, back", back)] };
    let resources = [&[("compute", compute)], of_link, &[("interconnect", wire)]].concat();
    let share = |(resource, seconds): (&str, plimsoll_ir::Seconds)| ResourceShare {
        resource: resource.to_owned(),
        busy_seconds: seconds.0,
        share: seconds / predicted,
    };
    let exchange = *without_overlap_seconds - one.seconds;
    let hidden = *without_overlap_seconds - predicted;
    Some(Workers {
        workers,
        interconnect: interconnect.to_string(),
        nccl,
        global_batch,
        passes,
        update_seconds: update_seconds.0,
        exchange_seconds: exchange_seconds.0,
        predicted_update_seconds: predicted.0,
        without_overlap_seconds: without_overlap_seconds.0,
        hidden: (exchange.0 > 0.0).then(|| (hidden / exchange).max(0.0)),
        bound_seconds: bound_seconds.0,
        samples_per_second,
        single: SINGLES.iter().find_map(|what| single(tuning, what, samples_per_second)),
        resources: resources.into_iter().map(share).collect(),
        scaling: scaled.collect(),
    })
}

/// Returns a single worker whose way to train was run, or is modelled.
fn single(tuning: &Tuning, what: &str, together: f64) -> Option<Single> {
    let run = tuning.runs.iter().find(|run| run.what == what)?;
    let known = if tuning.machine.modelled { run.predicted } else { run.measured }?;
    let rate = |of: Figures| run.batch as f64 / (of.iteration_seconds + of.between_seconds).0;
    let samples_per_second = rate(known);
    Some(Single {
        predicted_samples_per_second: run.predicted.map(rate),
        what: what.to_owned(),
        batch: run.batch,
        samples_per_second,
        times: together / samples_per_second,
    })
}
