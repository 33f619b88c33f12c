//! What is tuned: an iteration at any batch size, and something that measures and runs it.
//!
//! The search asks nothing else. [`NetworkWorkload`](crate::NetworkWorkload) is a network of the house on one of its devices;
//! whatever else gives traces and runs schedules, such as a training step of another framework, is tuned by the same search.

use crate::error::{Error, Iteration, WorkloadError};
use crate::folder::Study;
use crate::request::ClusterRequest;
use crate::watch::Watch;
use plimsoll_ir::exchange::Exchange;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{BatchSamples, Profile};
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Optimizer, Precision, Seconds};
use plimsoll_tuner::search::largest;
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, plan_with_log};

/// Where a schedule only has to fit it is planned for a link of this rate, before the link was measured; the order of naive
/// swapping's commands is the same for every rate.
pub const UNMEASURED: BytesPerSecond = BytesPerSecond(1e10);

/// What a workload is, as configs and reports tell it.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// The network.
    pub network: NetworkSpec,
    /// Where the data are from, as [`DataSource`](crate::data::DataSource) is written, where that is known.
    pub data: Option<String>,
    /// The data in words, with their shape and number.
    pub data_in_words: String,
    /// The device.
    pub device: String,
    /// Threads of the processor that compute; 1 where a GPU does.
    pub threads: u32,
    /// The pace of the link; none for as fast as it goes.
    pub paced: Option<Link>,
    /// On a GPU: whether every call has one kernel, which gives the same bits each time.
    pub deterministic: bool,
    /// In what convolutions and matrix products multiply.
    pub precision: Precision,
    /// Who updates the parameters.
    pub optimizer: Optimizer,
    /// Of a device that is modelled, by how much nine of ten times are off at most, as a share.
    pub modelled_error: Option<f64>,
}

/// Of the parameters and of the order of the data while a plan is run to be measured.
pub(crate) const SEED: u64 = 1;

/// What a plan was measured to take.
pub struct Confirmed {
    /// An iteration that nothing disturbs.
    pub iteration: Seconds,
    /// How far single iterations are off their median, typically, as a share of it.
    pub scatter: f64,
    /// The median time between two.
    pub between: Seconds,
    /// What would mend the model.
    pub samples: BatchSamples,
    /// A typical iteration that was timed.
    pub timeline: Timeline,
    /// Resident bytes and pool that were allocated.
    pub peak: Bytes,
    /// The share of the measured iterations for which others had the processors.
    pub taken_by_others: f64,
}

/// What is tuned. The methods that are given follow from the others.
pub trait Workload {
    /// What it is.
    fn about(&self) -> Result<About, Error>;

    /// Samples to train on.
    fn samples(&self) -> u64;

    /// The largest batch to consider: what is asked for, but no more than there are samples, nor than can be run.
    fn most(&self, asked: Option<u64>) -> Result<u64, Error>;

    /// The training iteration at a batch size; its seconds are 0.
    fn trace(&self, batch: u64) -> Result<Trace, Error>;

    /// The pace of the link, where that is known before anything is measured.
    fn pace(&self) -> Option<Link>;

    /// What swapped tensors may take of the host's memory, where that was said.
    fn host_memory(&self) -> Option<Bytes>;

    /// What swapped tensors may take of the host's memory; none for any number of bytes.
    fn host_limit(&self) -> Option<Bytes>;

    /// Measures ops and link at these batch sizes, and keeps that in the study; goes on from what the study holds, unless all
    /// is to be `fresh`.
    fn measure(
        &self,
        batches: &[u64],
        budget: Bytes,
        study: &Study,
        fresh: bool,
        watch: &Watch<'_>,
    ) -> Result<Profile, Error>;

    /// Runs a schedule for as many iterations as tell what one takes, at a learning rate of 0, so that nothing is learnt and
    /// nothing diverges; none where nothing can run, since the device is modelled.
    fn run(&self, batch: u64, schedule: &Schedule, watch: &Watch<'_>) -> Result<Option<Confirmed>, Error>;

    /// The smallest batch that can be lowered: 1, or 2 where batch normalisation sees a single position.
    fn smallest_batch(&self) -> u64 {
        if self.trace(1).is_ok() { 1 } else { 2 }
    }

    /// Whether there is the memory on the host for what a schedule offloads.
    fn fits_host(&self, trace: &Trace, schedule: &Schedule) -> bool {
        self.host_limit().is_none_or(|room| schedule.host_bytes(trace) <= room)
    }

    /// What workers exchange beside an iteration of a batch, `passes` of them for an update: piece by piece while the last
    /// backward pass goes on, as [`crate::training`] does it.
    fn exchange(&self, batch: u64, cluster: &ClusterRequest, passes: u64) -> Result<Exchange, Error>;

    /// What a plan is asked for with.
    fn plan_request<'r>(
        &self,
        policy: Policy,
        budget: Bytes,
        link: Link,
        watch: &Watch<'r>,
    ) -> PlanRequest<'r> {
        // The others take no time worth stopping, and what is stopped early may miss what fits.
        let searches = matches!(policy, Policy::Plimsoll | Policy::Optimal);
        let limits = Limits { evaluations: None, expired: searches.then_some(watch.stop) };
        let allow = Allow { host: self.host_limit(), ..Allow::ALL };
        PlanRequest { limits, allow, ..PlanRequest::new(budget, link, policy) }
    }

    /// What a policy makes of a trace, and how it searched.
    fn outcome(
        &self,
        trace: &Trace,
        policy: Policy,
        budget: Bytes,
        link: Link,
        watch: &Watch<'_>,
    ) -> Result<(Outcome, SearchLog), Error> {
        Ok(plan_with_log(trace, &self.plan_request(policy, budget, link, watch))?)
    }

    /// The plan of a policy.
    ///
    /// # Errors
    ///
    /// [`WorkloadError::NoPlan`] says what does not fit, and which batch would.
    fn plan(
        &self,
        trace: &Trace,
        policy: Policy,
        budget: Bytes,
        link: Link,
        watch: &Watch<'_>,
    ) -> Result<Plan, Error> {
        match self.outcome(trace, policy, budget, link, watch)?.0 {
            Outcome::Planned(plan) => Ok(plan),
            Outcome::Infeasible(witness) => {
                let largest = Some(self.largest_batch(policy, budget, trace.batch, watch)?);
                let (trace, host_limited) = (Iteration::of(trace), self.host_memory().is_some());
                Err(WorkloadError::NoPlan { trace, budget, witness, largest, host_limited }.into())
            }
        }
    }

    /// The largest batch, up to `limit`, at which a policy finds a plan that the host has memory for; none where it finds none
    /// for one sample.
    fn largest_batch(
        &self,
        policy: Policy,
        budget: Bytes,
        limit: u64,
        watch: &Watch<'_>,
    ) -> Result<Option<u64>, Error> {
        let link = self.pace().unwrap_or(Link::symmetric(UNMEASURED));
        let least = self.smallest_batch();
        let found = largest(limit, &mut |batch: u64| {
            // One position of one sample has no variance; a batch of two tells whether the network can be trained.
            let batch = batch.max(least);
            let trace = self.trace(batch)?;
            let (outcome, _) = self.outcome(&trace, policy, budget, link, watch)?;
            Ok::<_, Error>(outcome.plan().is_some_and(|plan| self.fits_host(&trace, &plan.schedule)))
        })?;
        Ok(found.map(|batch| batch.max(least)))
    }

    /// The largest batch, up to `limit`, that can be trained with everything kept or everything swapped; where that ends at the
    /// host's memory, or by recomputing.
    fn largest_trainable(&self, budget: Bytes, limit: u64, watch: &Watch<'_>) -> Result<Option<u64>, Error> {
        // Where the host has less memory than the device, keeping may go further than swapping.
        let kept = self.largest_batch(Policy::Keep, budget, limit, watch)?;
        let most = self.largest_batch(Policy::Naive, budget, limit, watch)?.max(kept);
        let next = most.map_or(self.smallest_batch(), |most| most + 1);
        if next > limit {
            return Ok(most);
        }
        let link = Link::symmetric(UNMEASURED);
        let (beyond, _) = self.outcome(&self.trace(next)?, Policy::Naive, budget, link, watch)?;
        if !matches!(beyond, Outcome::Infeasible(witness) if witness.why.is_of_host()) {
            return Ok(most);
        }
        Ok(self.largest_batch(Policy::Memonger, budget, limit, watch)?.max(most))
    }
}
