//! Updates made of a plan's iterations: those of all workers, and the time that their exchange adds. If a noise scale weighs
//! samples, each worker makes as many passes in an update as give the highest goodput; a single worker makes one.

use super::Tuner;
use crate::error::{Error, Kind};
use crate::request::ClusterRequest;
use plimsoll_ir::Seconds;
use plimsoll_ir::exchange::update::{bound, busy, simulate_update};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::{UpdateOf, WorkersUpdate};
use plimsoll_tuner::goodput::best_passes;
use plimsoll_tuner::search::{Planned, Sharing};

/// Scaling of an update is predicted for at least up to this many workers.
const SCALES_TO: u64 = 64;

impl Tuner<'_> {
    /// Returns a plan with its workers' exchange and the worth of its updates' samples.
    pub(super) fn shared(&self, trace: Trace, schedule: Schedule, log: SearchLog) -> Result<Planned, Error> {
        let makespan = simulate(&trace, &schedule).makespan();
        let (batch, request) = (trace.batch, self.request);
        let sharing = match (&request.cluster, request.goodput) {
            (None, _) => Sharing::ALONE,
            (Some(cluster), None) => {
                let iterations = (cluster.update_of(batch) / batch).max(1);
                self.update(cluster, iterations, &trace, &schedule, makespan)?
            }
            (Some(cluster), Some(goodput)) => {
                let of_pass = cluster.workers * batch;
                let update =
                    |passes: u64| self.update(cluster, cluster.workers * passes, &trace, &schedule, makespan);
                let seconds = |passes| Ok::<_, Error>(update(passes)?.update(makespan));
                let seconds = [seconds(1)?, seconds(2)?, seconds(4)?];
                let most = (self.workload.samples() / of_pass).max(1);
                let best = best_passes(goodput.noise_scale, of_pass, seconds, most);
                // Passes that form a whole subtree of the sums are sent as one node.
                let (below, above) = (1 << best.ilog2(), best.next_power_of_two().min(most));
                let worth = |sharing: &Sharing| {
                    let efficiency = request.efficiency(sharing.iterations * batch);
                    Sharing { efficiency, ..*sharing }.goodput(batch, makespan)
                };
                let [best, others @ ..] = [update(best)?, update(below)?, update(above)?];
                others.into_iter().fold(best, |a, b| if worth(&b) > worth(&a) { b } else { a })
            }
        };
        let efficiency = request.efficiency(sharing.iterations * batch);
        let sharing = Sharing { efficiency, ..sharing };
        Ok(Planned { trace, schedule, makespan, log, sharing, carried: false })
    }

    /// Returns the workers' update by a plan, compared with an update without overlap and with other numbers of workers; `None`
    /// for a single worker.
    pub(super) fn workers_update(&self, plan: &Planned) -> Result<Option<WorkersUpdate>, Error> {
        let Some(cluster) = &self.request.cluster else { return Ok(None) };
        let Planned { trace, schedule, sharing, .. } = plan;
        let exchange = self.workload.exchange(trace.batch, cluster, sharing.passes)?;
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

    /// Returns an update of `iterations` iterations of workers, each of which takes `makespan` without exchange.
    fn update(
        &self,
        cluster: &ClusterRequest,
        iterations: u64,
        trace: &Trace,
        schedule: &Schedule,
        makespan: Seconds,
    ) -> Result<Sharing, Error> {
        let passes = iterations.div_ceil(cluster.workers);
        let exchange = self.workload.exchange(trace.batch, cluster, passes)?;
        let checked = exchange.check(trace, schedule);
        checked.map_err(|unfit| Error::new(Kind::Internal, unfit))?;
        let update = simulate_update(trace, schedule, &exchange);
        let exchange = update.exposed;
        let repeated = makespan * passes as f64 + exchange - update.seconds;
        Ok(Sharing { iterations, passes, repeated, exchange, ..Sharing::ALONE })
    }
}
