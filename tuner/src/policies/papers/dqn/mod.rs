//! DQN (Chen, "GPU memory management for neural networks using deep Q-network", 2019): a deep Q-network, trained on the planned
//! iteration itself, chooses the values that are offloaded and recomputed.
//!
//! - `graph.rs`: the nodes and edges of memory ops, and the features of nodes (§4.2, §4.4).
//! - `network.rs`: equations (1) to (3) and their gradients.
//! - `game.rs`: actions and transitions (§4.5 to §4.8); the simulator is Plimsoll's own walk and clock.
//! - `learner.rs`: replay, falling epsilon, equations (4) and (5).
//! - `controls.rs`: other searches over the same actions, to measure the value of learning.
//!
//! Algorithm 1 returns the actions of the last episode, figure 3 the best found. Here the schedule is that of the best plan, and
//! the log has the makespan of the last policy's, which acts without chance.
//!
//! In equation (3) ReLU is taken of the concatenation of the graph's state and the action's, and then their weighted sum: the
//! graph's state adds the same to the value of every action, and so never changes which is best. Only the states of the action's
//! node and of its neighbours distinguish actions.
//!
//! This module deliberately takes no part in [`Policy::Plimsoll`](crate::Policy::Plimsoll)'s search. It is a paper's policy, and
//! takes longer for worse plans.

mod controls;
mod game;
mod graph;
mod learner;
mod network;
#[cfg(test)]
mod tests;

pub use controls::Control;
pub(crate) use controls::decide as decide_by_control;

use super::keep::keep;
use crate::iteration::values::Decisions;
use crate::place::realise::{Case, FULL, Fitting, GIVEN, LIGHT, Packing, Realised};
use crate::request::{Error, Outcome, Status};
use game::{Game, Position};
use graph::Graph;
use learner::Learner;
use plimsoll_ir::search_log::{SearchLog, StepResult};
use plimsoll_ir::{OpId, Seconds};
use typed_index_collections::TiVec;

/// Product of actions and nodes: some two seconds.
const WORK: u64 = 5_000_000;
const FEWEST: u64 = 500;
const MOST: u64 = 20_000;

/// Maximum number of steps in the log for episodes.
const LOGGED: u64 = 38;

/// Number of times that bytes are left free for decisions without addresses, before all is offloaded.
const ROUNDS: u32 = 6;

/// Prefix of the last policy's step in the log.
const LAST: &str = "last policy";

/// Returns the seconds of an iteration by the last policy, which acts without chance; `None` if it leads to no valid schedule, or
/// the log is of a different policy.
pub fn last_policy(log: &SearchLog) -> Option<Seconds> {
    let step = log.steps.iter().find(|step| step.tried.starts_with(LAST))?;
    match step.result {
        StepResult::Planned { makespan_seconds, .. } => Some(makespan_seconds),
        _ => None,
    }
}

/// Trains on this iteration, and returns the best plan found.
pub(crate) fn decide(case: &Case<'_>) -> Result<(Outcome, SearchLog), Error> {
    search(case, |game, start, report| {
        let graph = game.graph();
        let evaluations = evaluations(case, &graph);
        let mut learner = Learner::new(graph, case.request.seed);
        let (fastest, excess) = (start.seconds, start.excess);
        let mut best = f64::INFINITY;
        loop {
            // If everything fits but has no addresses, there is nothing to choose.
            let enough = game.evaluations >= evaluations || excess == 0.0 || report.is_done(case);
            let last = best.is_finite() && enough;
            let left = (1.0 - game.evaluations as f64 / evaluations.max(1) as f64).max(0.0);
            let epsilon = if last { 0.0 } else { left * left };
            learner.begin();
            let mut at = start.clone();
            while !game.is_over(&at) {
                if case.request.limits.is_expired() {
                    game.finish(&mut at);
                    return report.episode(game, &at, last, evaluations);
                }
                let gap = at.next;
                let offers = game.offers(&mut at);
                let choice = learner.choose(gap, offers, epsilon);
                let effect = game.take(&mut at, choice);
                learner.keep(gap, offers, choice, effect);
            }
            best = best.min(at.seconds - fastest);
            learner.end(best, excess);
            report.episode(game, &at, last, evaluations)?;
            if last {
                return Ok(());
            }
        }
    })
}

/// Returns the number of actions of a search: the request's limit, else a number suggested by the size of the problem.
fn evaluations(case: &Case<'_>, graph: &Graph) -> u64 {
    let suggested = (WORK / graph.len().max(1) as u64).clamp(FEWEST, MOST);
    case.request.limits.evaluations.unwrap_or(suggested)
}

/// Keeps everything if that fits; else plays episodes, and returns the best plan found.
fn search(
    case: &Case<'_>,
    play: impl FnOnce(&mut Game<'_>, &Position, &mut Report) -> Result<(), Error>,
) -> Result<(Outcome, SearchLog), Error> {
    let kept = keep(case, case.thorough())?;
    if matches!(kept, Realised::Fits(_)) {
        return Ok((case.outcome(kept, Status::Feasible), SearchLog::default()));
    }
    let values = case.values();
    let mut game = Game::new(case, &values);
    let mut report = Report::default();
    if let Some(start) = game.start() {
        play(&mut game, &start, &mut report)?;
    }
    let realised = report.choose(&mut game)?;
    let status = if case.request.limits.is_expired() { Status::OutOfTime } else { Status::Feasible };
    Ok((case.outcome(realised, status), report.log))
}

/// Results of the episodes.
#[derive(Default)]
struct Report {
    log: SearchLog,
    /// Episodes so far, and the number of them in the log.
    episodes: u64,
    logged: u64,
    /// Best decisions so far with their seconds; and those of the episodes that are not in the log yet.
    best: Option<(f64, Decisions)>,
    recent: Option<(f64, Decisions)>,
    /// Best plan with addresses.
    fitting: Option<Fitting>,
    packing: Packing,
}

impl Report {
    /// Returns `true` if nothing can be faster.
    fn is_done(&self, case: &Case<'_>) -> bool {
        self.best.as_ref().is_some_and(|best| best.0 <= case.bound.0 * (1.0 + 1e-9))
    }

    /// Records the end of an episode. The best of several gets addresses, and a step in the log.
    fn episode(
        &mut self,
        game: &mut Game<'_>,
        at: &Position,
        last: bool,
        evaluations: u64,
    ) -> Result<(), Error> {
        self.episodes += 1;
        let found = || Some((at.seconds, at.decisions.clone()));
        let better = |than: &Option<(f64, Decisions)>| than.as_ref().is_none_or(|than| at.seconds < than.0);
        if better(&self.best) {
            self.best = found();
        }
        if better(&self.recent) {
            self.recent = found();
        }
        let share = game.evaluations.min(evaluations) * LOGGED / evaluations.max(1);
        if last {
            let realised = self.realise(game, &at.decisions)?;
            let tried = format!("{LAST}, after {} episodes", self.episodes - 1);
            self.offer(tried, at.seconds, realised);
        } else if share >= self.logged {
            self.logged = share + 1;
            let (seconds, decisions) = self.recent.take().expect("this episode is one");
            let fastest = self.fitting.as_ref().map_or(f64::INFINITY, |fitting| fitting.makespan.0);
            let realised = if seconds < fastest {
                let margins: TiVec<OpId, u64> = vec![0; game.case.trace.ops.len()].into();
                game.case.realise_decisions(game.values, &decisions, &margins, LIGHT, &mut self.packing)?.0
            } else {
                Realised::Slow
            };
            self.offer(format!("best up to episode {}", self.episodes), seconds, realised);
        }
        Ok(())
    }

    fn offer(&mut self, tried: String, seconds: f64, realised: Realised) {
        self.log.add(tried, Some(Seconds(seconds)), realised.step_result());
        if let Realised::Fits(fitting) = realised
            && self.fitting.as_ref().is_none_or(|best| fitting.makespan < best.makespan)
        {
            self.fitting = Some(fitting);
        }
    }

    /// Returns the schedule of decisions. If they have no addresses, more is offloaded at the ops that are too high.
    fn realise(&mut self, game: &mut Game<'_>, decisions: &Decisions) -> Result<Realised, Error> {
        let case = game.case;
        let mut margins: TiVec<OpId, u64> = vec![0; case.trace.ops.len()].into();
        for round in 0.. {
            let leaving = game.leave(decisions.clone(), &margins);
            let (realised, excess) =
                case.realise_decisions(game.values, &leaving, &margins, FULL, &mut self.packing)?;
            if matches!(realised, Realised::Fits(_)) || round == ROUNDS || case.request.limits.is_expired() {
                return Ok(realised);
            }
            for ((margin, excess), spare) in margins.iter_mut().zip(excess).zip(case.spare()) {
                *margin = margin.saturating_add(excess.saturating_mul(1 << round)).min(spare);
            }
        }
        unreachable!("it returns in the last round")
    }

    /// Returns the best plan; if none has addresses, every value that can be offloaded is.
    fn choose(&mut self, game: &mut Game<'_>) -> Result<Realised, Error> {
        let fastest = self.fitting.as_ref().map_or(f64::INFINITY, |fitting| fitting.makespan.0);
        if let Some((seconds, decisions)) = self.best.take().filter(|best| best.0 < fastest) {
            let realised = self.realise(game, &decisions)?;
            self.offer("best of all episodes".to_owned(), seconds, realised);
        }
        match self.fitting.take() {
            Some(fitting) => Ok(Realised::Fits(game.case.settle(fitting)?)),
            None => {
                let gaps = game.case.gaps();
                game.case.realise(&gaps, &gaps.all(), &GIVEN)
            }
        }
    }
}
