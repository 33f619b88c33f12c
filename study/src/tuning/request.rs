//! Batches that a request for a tuning allows.

use crate::error::Error;
use crate::measure::largest;
use crate::request::{ClusterRequest, Objective, RateRequest, Searcher, TuneRequest};
use crate::watch::Watch;
use crate::workload::Workload;
use plimsoll_tuner::Policy;
use plimsoll_tuner::rate::learning_rate;
use plimsoll_tuner::search::EQUAL;

impl TuneRequest {
    /// Returns the least and most share by which an epoch may exceed the shortest and count as equal.
    pub(crate) fn within(&self) -> [f64; 2] {
        match self.objective {
            Objective::Frugal => EQUAL,
            Objective::Fastest => [0.0; 2],
        }
    }

    /// Returns the largest batch to consider. Fails if the request contradicts itself, before anything is measured.
    pub fn limit(&self, workload: &dyn Workload) -> Result<u64, Error> {
        let RateRequest { base_batch, base_rate, rule } = self.rate;
        learning_rate(rule, base_batch, base_rate, base_batch)?;
        let samples = workload.samples();
        let limit = workload.most(self.max_batch)?;
        if limit < self.min_batch {
            let least = self.min_batch;
            return Err(Error::usage(format_args!(
                "no batch is at least {least} and at most {limit} ({samples} samples to train on)"
            ))
            .help("lower --min-batch, which is the base batch by default, or raise --max-batch"));
        }
        let Some(cluster) = &self.cluster else { return Ok(limit) };
        let least = self.min_batch.max(workload.smallest_batch());
        let (workers, update) = (cluster.workers, cluster.update_of(least));
        if update > samples {
            return Err(Error::usage(format_args!(
                "an update of {workers} workers takes {update} samples, and there are {samples} to train on"
            ))
            .help("lower --global-batch, --workers or --min-batch, or choose other --data"));
        }
        self.takes_one(least, limit)?;
        Ok(cluster.global_batch.map_or(limit.min(samples / workers), |global| limit.min(global / workers)))
    }

    /// Returns the largest requested batch that can be trained.
    pub(crate) fn largest(&self, workload: &dyn Workload, watch: &Watch<'_>) -> Result<u64, Error> {
        let batches = self.min_batch..=self.limit(workload)?;
        let largest = largest(workload, self.budget, &batches, watch)?;
        self.takes_one(self.min_batch.max(workload.smallest_batch()), largest)?;
        Ok(largest)
    }

    /// Returns `true` if this batch can be chosen.
    pub(crate) fn takes(&self, batch: u64) -> bool {
        self.cluster.is_none_or(|cluster| cluster.takes(batch))
    }

    /// Checks that a range contains a batch that can be chosen.
    fn takes_one(&self, least: u64, most: u64) -> Result<(), Error> {
        match self.cluster {
            Some(ClusterRequest { workers, global_batch: Some(global), .. })
                if !(least..=most.min(global / workers)).any(|batch| self.takes(batch)) =>
            {
                Err(Error::usage(format_args!(
                    "no batch from {least} to {most} divides a global batch of {global} into at least {workers} parts"
                ))
                .help("choose a --global-batch with more divisors, fewer --workers, or another --min-batch or --max-batch"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the policy that plans the chosen batch.
    pub fn policy(&self) -> Policy {
        match self.search {
            Searcher::Plimsoll => Policy::Plimsoll,
            Searcher::Accudnn => Policy::Accudnn { as_printed: false },
        }
    }
}
