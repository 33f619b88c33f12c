//! The subject of tuning: an iteration at any batch size, and a way to measure and run it.
//!
//! The search needs nothing else. [`NetworkWorkload`](crate::NetworkWorkload) is one of Plimsoll's networks on one of its
//! devices. Anything else that provides traces and runs schedules, such as a training step of a different framework, is tuned
//! by the same search.

use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::request::ClusterRequest;
use crate::watch::Watch;
use plimsoll_ir::exchange::Exchange;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Optimizer, Precision};
use plimsoll_tuner::search::{Confirmed, largest};
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, Shortage, Witness, plan_with_log};

/// Link rate for schedules that only have to fit, before the link is measured; the order of naive swapping's commands is the
/// same for every rate.
pub const UNMEASURED: BytesPerSecond = BytesPerSecond(1e10);

/// Description of a workload in configs and reports.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    pub network: NetworkSpec,
    /// Source of the data, as [`DataSource`](crate::data::DataSource) is written, if known.
    pub data: Option<String>,
    /// Description of the data, with their shape and number.
    pub data_in_words: String,
    pub device: String,
    /// Processor threads that compute; 1 if a GPU computes.
    pub threads: u32,
    /// Pace of the link; `None` means unpaced.
    pub paced: Option<Link>,
    /// For a GPU, `true` if every call has one kernel, which gives the same bits each time.
    pub deterministic: bool,
    /// Precision of convolutions and matrix products.
    pub precision: Precision,
    /// Optimizer that updates the parameters.
    pub optimizer: Optimizer,
    /// For a modelled device, the error that nine of ten times do not exceed, as a share.
    pub modelled_error: Option<f64>,
}

/// Seed of the parameters and the order of the data while a plan is run to be measured.
pub(crate) const SEED: u64 = 1;

/// The subject of tuning. The provided methods follow from the required ones.
pub trait Workload {
    /// Returns the workload's description.
    fn about(&self) -> Result<About, Error>;

    /// Returns the number of training samples.
    fn samples(&self) -> u64;

    /// Returns the largest batch to consider: the requested one, limited by the number of samples and by the device.
    fn most(&self, asked: Option<u64>) -> Result<u64, Error>;

    /// Returns the training iteration at a batch size; its seconds are 0.
    fn trace(&self, batch: u64) -> Result<Trace, Error>;

    /// Returns the pace of the link, if known before anything is measured.
    fn pace(&self) -> Option<Link>;

    /// Returns the requested host memory limit for swapped tensors, if given.
    fn host_memory(&self) -> Option<Bytes>;

    /// Returns the host memory limit for swapped tensors; `None` means unlimited.
    fn host_limit(&self) -> Option<Bytes>;

    /// Measures ops and link at these batch sizes, and keeps the measurements in the study; continues from those that the study
    /// holds, unless `fresh`.
    fn measure(
        &self,
        batches: &[u64],
        budget: Bytes,
        study: &Study,
        fresh: bool,
        watch: &Watch<'_>,
    ) -> Result<Profile, Error>;

    /// Runs a schedule for as many iterations as measuring takes, at a learning rate of 0, so that nothing is learnt and
    /// nothing diverges. Returns `None` for a modelled device, where nothing can run.
    fn run(&self, batch: u64, schedule: &Schedule, watch: &Watch<'_>) -> Result<Option<Confirmed>, Error>;

    /// Returns the smallest batch that can be lowered: 1, or 2 if batch normalisation would see a single position.
    fn smallest_batch(&self) -> u64 {
        if self.trace(1).is_ok() { 1 } else { 2 }
    }

    /// Returns `true` if the host has memory for the bytes that a schedule offloads.
    fn fits_host(&self, trace: &Trace, schedule: &Schedule) -> bool {
        self.host_limit().is_none_or(|room| schedule.host_bytes(trace) <= room)
    }

    /// Returns the exchange of workers during an update of `passes` iterations of a batch: piece by piece during the last
    /// backward pass, as in [`crate::training`].
    fn exchange(&self, batch: u64, cluster: &ClusterRequest, passes: u64) -> Result<Exchange, Error>;

    /// Returns the planner's request for a trace.
    fn plan_request<'r>(
        &self,
        policy: Policy,
        budget: Bytes,
        link: Link,
        watch: &Watch<'r>,
    ) -> PlanRequest<'r> {
        // The other policies take no time worth stopping, and a plan stopped early may miss one that fits.
        let searches = matches!(policy, Policy::Plimsoll | Policy::Optimal);
        let limits = Limits { evaluations: None, expired: searches.then_some(watch.stop) };
        let allow = Allow { host: self.host_limit(), ..Allow::ALL };
        PlanRequest { limits, allow, ..PlanRequest::new(budget, link, policy) }
    }

    /// Runs a policy on a trace, and returns its outcome and the log of its search.
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

    /// Returns a policy's plan.
    ///
    /// # Errors
    ///
    /// The part that does not fit, and the batch that would.
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
                let largest = self.largest_batch(policy, budget, trace.batch, watch)?;
                let raise = match witness.why.is_of_host() && self.host_memory().is_some() {
                    true => "raise --budget or --host-memory",
                    false => "raise --budget",
                };
                Err(no_plan(trace, budget, &witness).help(match largest {
                    None => format!("no batch fits; {raise}"),
                    Some(batch) => format!("the largest batch that fits is {batch}; or {raise}"),
                }))
            }
        }
    }

    /// Returns the largest batch, up to `limit`, at which a policy finds a plan that the host has memory for; `None` if
    /// no plan is found for one sample.
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
            // One position of one sample has no variance; a batch of two shows if the network can be trained.
            let batch = batch.max(least);
            let trace = self.trace(batch)?;
            let (outcome, _) = self.outcome(&trace, policy, budget, link, watch)?;
            Ok::<_, Error>(outcome.plan().is_some_and(|plan| self.fits_host(&trace, &plan.schedule)))
        })?;
        Ok(found.map(|batch| batch.max(least)))
    }

    /// Returns the largest batch, up to `limit`, that can be trained with everything kept or everything swapped; if the host's
    /// memory limits swapping, by recomputing.
    fn largest_trainable(&self, budget: Bytes, limit: u64, watch: &Watch<'_>) -> Result<Option<u64>, Error> {
        // If the host has less memory than the device, keeping may allow a larger batch than swapping.
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
        Ok(self.largest_batch(Policy::Memonger { searched: false }, budget, limit, watch)?.max(most))
    }
}

/// Returns the error that no plan fits, or that none was found. A trace knows only its own batch; non-resident bytes
/// are assumed proportional to it.
pub fn no_plan(trace: &Trace, budget: Bytes, witness: &Witness) -> Error {
    let Trace { name, batch, resident_bytes: resident, .. } = trace;
    let proved = witness.why.is_proved();
    let message = if proved || witness.why == Shortage::Policy {
        format!("no plan for {name} at batch {batch} fits a budget of {budget}: {witness}")
    } else {
        format!("no plan for {name} at batch {batch} was found within a budget of {budget}: {witness}")
    };
    let room = budget.saturating_sub(*resident).0 as f64;
    let needs = witness.needs.saturating_sub(*resident).0 as f64;
    let fits = (*batch as f64 * room / needs) as u64;
    Error::new(Kind::NoPlan, message).help(if witness.why.is_of_host() {
        raise_host_memory(witness)
    } else if budget <= *resident {
        format!("raise --budget: {resident} stay on the device at any batch")
    } else if fits == 0 && proved {
        "raise --budget: not even one sample fits".to_owned()
    } else if fits == 0 {
        "raise --budget: no plan was found for one sample, which does not prove that there is none".to_owned()
    } else {
        format!("raise --budget, or lower the batch to about {fits}")
    })
}

/// Advice if the host has too little memory.
pub fn raise_host_memory(witness: &Witness) -> String {
    let about = if witness.why.is_proved() { "at least" } else { "about" };
    let needs = witness.needs;
    format!(
        "raise --host-memory to {about} {needs}, or raise --budget or lower the batch, so that less is swapped"
    )
}
