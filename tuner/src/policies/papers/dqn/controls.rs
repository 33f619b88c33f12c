//! Searches over the actions of the deep Q-network that learn nothing, to measure the value of learning.
//!
//! They share with it the gaps, the offered actions, the evaluations, addresses, check and clock.

use super::game::{ACTIONS, Game, Position};
use super::{Report, evaluations, search};
use crate::iteration::values::Choice;
use crate::place::realise::Case;
use crate::random::Random;
use crate::request::{Error, Outcome};
use plimsoll_ir::search_log::SearchLog;

/// Temperature at the start of annealing, in mean seconds of an op.
const HEAT: f64 = 1.0;

/// Search that learns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Episode after episode of random actions.
    Random,
    /// Annealing from everything offloaded: one gap is decided anew at a time, a slower plan is accepted with falling
    /// probability, one that does not fit never.
    Annealing,
}

/// Returns the best plan of a control, in as many evaluations as the policy has.
pub(crate) fn decide(case: &Case<'_>, control: Control) -> Result<(Outcome, SearchLog), Error> {
    let mut random = Random::new(case.request.seed);
    search(case, |game, start, report| {
        let evaluations = evaluations(case, &game.graph());
        match control {
            Control::Random => {
                // If everything fits but has no addresses, there is nothing to choose.
                let evaluations = if start.excess > 0.0 { evaluations } else { 0 };
                while game.evaluations < evaluations || report.episodes == 0 {
                    let mut at = start.clone();
                    by_chance(game, &mut at, &mut random);
                    report.episode(game, &at, false, evaluations)?;
                }
                Ok(())
            }
            Control::Annealing => anneal(game, start, report, evaluations, &mut random),
        }
    })
}

fn by_chance(game: &mut Game<'_>, at: &mut Position, random: &mut Random) {
    while !game.is_over(at) {
        let offers = game.offers(at);
        let offered: Vec<usize> = (0..ACTIONS.len()).filter(|action| offers[*action]).collect();
        game.take(at, ACTIONS[offered[random.below(offered.len())]]);
    }
}

fn anneal(
    game: &mut Game<'_>,
    start: &Position,
    report: &mut Report,
    evaluations: u64,
    random: &mut Random,
) -> Result<(), Error> {
    let mut at = start.clone();
    game.finish(&mut at);
    let mut best = at.clone();
    let heat = HEAT * start.seconds / game.values.alternatives.len() as f64;
    // If everything fits but has no addresses, there is nothing to choose.
    let count = if start.excess > 0.0 { evaluations } else { 0 };
    for evaluation in 0..count {
        let gap = game.gaps[random.below(game.gaps.len())];
        let old = at.decisions.choices[gap];
        let other = |choice: &Choice| *choice != old && choice.is_open(&game.values.gaps[gap]);
        let others: Vec<_> = ACTIONS.into_iter().filter(other).collect();
        at.decisions.choices[gap] = others[random.below(others.len())];
        let (seconds, excess) = game.time(&at.decisions);
        let cold = 1.0 - evaluation as f64 / count as f64;
        let most = at.seconds - heat * cold * cold * random.unit().max(f64::MIN_POSITIVE).ln();
        if excess == 0.0 && seconds <= most {
            at.seconds = seconds;
            if seconds < best.seconds {
                best = at.clone();
            }
        } else {
            at.decisions.choices[gap] = old;
        }
    }
    game.evaluations += count;
    report.episode(game, &best, false, evaluations)
}
