//! The end of a tuning: comparisons of the choice with other settings, and the result.

use super::document::{self, Runs};
use super::measured::Ran;
use super::{Found, Tuner};
use crate::error::Error;
use crate::request::Searcher;
use plimsoll_ir::config::Config;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::{Round, Tuning};
use std::rc::Rc;

/// Result of a tuning.
pub struct Tuned {
    /// Config to run.
    pub config: Config,
    /// Schedule to run.
    pub schedule: Schedule,
    /// Iteration that the schedule is for, with the model's seconds.
    pub trace: Trace,
    /// Record of everything that was tried and measured.
    pub tuning: Tuning,
}

impl Tuned {
    /// Returns how often the model was refitted with the choice's measured times.
    pub fn refits(&self) -> u64 {
        self.tuning.rounds.iter().filter(|round| round.refit).count() as u64
    }
}

impl Tuner<'_> {
    /// Measures the user's own setting and the other search's answer, compares them with the choice and with keeping
    /// everything, takes the best, and records the result.
    pub(super) fn finish(
        &mut self,
        profile: &Profile,
        found: Found,
        kept: Option<Ran>,
        rounds: Vec<Round>,
    ) -> Result<Tuned, Error> {
        let Found { mut why, other, chosen, .. } = found;
        let mut best = Rc::new(chosen);
        let other = match other {
            Some(plan) if plan.schedule == best.plan.schedule => Some(best.clone()),
            Some(plan) => Some(Rc::new(self.measure(plan)?)),
            None => None,
        };
        let (base, least) = (self.request.rate.base_batch, self.request.min_batch);
        // AccUDNN's answer was requested unchanged.
        let may_change = |batch| self.request.search == Searcher::Plimsoll && batch >= least;
        let [narrow, wide] = self.request.within();
        let keeper = self.keeps_all.map(|_| kept.map_or(best.clone(), Rc::new));
        if let Some(ran) = keeper.as_ref().filter(|ran| !Rc::ptr_eq(ran, &best) && may_change(ran.batch())) {
            let within = ran.scatter().max(best.scatter()).clamp(narrow, wide);
            if let Some(words) = ran.better_than(&best, within) {
                (why, best) = (words, ran.clone());
            }
        }
        let is_base = |ran: &&Rc<Ran>| ran.batch() == base && ran.keeps_everything();
        let known = [Some(&best), keeper.as_ref()].into_iter().flatten().find(is_base).cloned();
        let fits = self.workload.smallest_batch()..=self.keeps_all.unwrap_or(0);
        let yours = match known {
            None if fits.contains(&base) && self.request.takes(base) => {
                let plan = self.kept(base)?;
                Some(Rc::new(self.measure(plan)?))
            }
            known => known,
        };
        if let Some(ran) = yours.as_ref().filter(|ran| ran.batch() != best.batch() && may_change(base))
            && let Some(words) = ran.no_slower(&best, narrow)
        {
            (why, best) = (words, ran.clone());
        }
        let ways = self.plain_ways(keeper.as_deref())?;
        let (keeper, yours, other) = (keeper.as_deref(), yours.as_deref(), other.as_deref());
        let runs = Runs { best: &best, keeper, yours, ways, other };
        let tuning = document::tuning(self, profile, runs, rounds, why)?;
        let config = document::config(self, &best)?;
        let (schedule, trace) = (best.plan.schedule.clone(), best.plan.trace.clone());
        Ok(Tuned { config, schedule, trace, tuning })
    }
}
