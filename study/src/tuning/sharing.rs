//! Updates made of a plan's iterations: those of all workers, and the time that their exchange adds.

use super::Tuner;
use crate::error::{Error, Kind};
use plimsoll_ir::exchange::update::{bound, busy, simulate_update};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::{UpdateOf, WorkersUpdate};
use plimsoll_tuner::search::{Planned, Sharing};

/// Scaling of an update is predicted for at least up to this many workers.
const SCALES_TO: u64 = 64;

impl Tuner<'_> {
    /// Returns a plan with its workers' exchange.
    pub(super) fn shared(&self, trace: Trace, schedule: Schedule) -> Result<Planned, Error> {
        let sharing = match &self.request.cluster {
            None => Sharing::ALONE,
            Some(cluster) => {
                let iterations = (cluster.update_of(trace.batch) / trace.batch).max(1);
                let passes = iterations.div_ceil(cluster.workers);
                let exchange = self.workload.exchange(trace.batch, cluster, passes)?;
                let checked = exchange.check(&trace, &schedule);
                checked.map_err(|unfit| Error::new(Kind::Internal, unfit))?;
                let update = simulate_update(&trace, &schedule, &exchange);
                let makespan = simulate(&trace, &schedule).makespan();
                let exchange = update.exposed;
                let repeated = makespan * passes as f64 + exchange - update.seconds;
                Sharing { iterations, passes, repeated, exchange }
            }
        };
        Ok(Planned::new(trace, schedule, sharing, self.workload.samples()))
    }

    /// Returns the workers' update by a plan, compared with an update without overlap and with other numbers of workers; `None`
    /// for a single worker.
    pub(super) fn workers_update(&self, plan: &Planned) -> Result<Option<WorkersUpdate>, Error> {
        let Some(cluster) = &self.request.cluster else { return Ok(None) };
        let Planned { trace, schedule, candidate, .. } = plan;
        let exchange = self.workload.exchange(trace.batch, cluster, candidate.sharing.passes)?;
        let seconds = |exchange| simulate_update(trace, schedule, &exchange).seconds;
        let doubled = (0..u64::BITS).map(|bits| 1 << bits);
        let most = SCALES_TO.max(2 * cluster.workers);
        let mut all: Vec<u64> = doubled.take_while(|workers| *workers <= most).collect();
        if let Err(place) = all.binary_search(&cluster.workers) {
            all.insert(place, cluster.workers);
        }
        let of = |workers| UpdateOf { workers, seconds: seconds(exchange.among(workers)) };
        Ok(Some(WorkersUpdate {
            busy: busy(trace, schedule, &exchange),
            bound_seconds: bound(trace, schedule, &exchange),
            without_overlap_seconds: seconds(exchange.without_overlap(trace)),
            scaling: all.into_iter().map(of).collect(),
        }))
    }
}
