//! The steps of a planner on its way to a plan, with their results.

use crate::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The steps of a search, in order. A policy that does not search has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SearchLog {
    pub steps: Vec<SearchStep>,
}

/// One step of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchStep {
    /// Name of the step: `whole tensors, round 2`, `policy greedy`, `swapping alone: parts of tensors, round 1`.
    pub tried: String,
    /// An iteration by the decisions of annealing, before they had addresses; `None` if nothing was annealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_seconds: Option<Seconds>,
    pub result: StepResult,
}

/// The result of one step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StepResult {
    /// A valid schedule.
    Planned {
        /// One iteration of the schedule.
        makespan_seconds: Seconds,
        /// Bytes moved over the link, both directions together.
        moved_bytes: Bytes,
    },
    /// Nothing faster than the best so far, so no schedule was made.
    NoFaster,
    /// Decisions by which some op needs too many bytes of the pool, or the swapped tensors too many of the host.
    OverPool {
        /// Bytes over the limit.
        over_bytes: Bytes,
    },
    /// No addresses in the pool, or no decisions that fit.
    Short {
        /// Budget, or host memory, that would suffice.
        needs_bytes: Bytes,
    },
}

impl SearchLog {
    /// Adds a step.
    pub fn add(&mut self, tried: impl Into<String>, decided_seconds: Option<Seconds>, result: StepResult) {
        self.steps.push(SearchStep { tried: tried.into(), decided_seconds, result });
    }

    /// Adds the steps of a search within this one, named `name`.
    pub fn add_all(&mut self, name: &str, inner: SearchLog) {
        let named = |step: SearchStep| SearchStep { tried: format!("{name}: {}", step.tried), ..step };
        self.steps.extend(inner.steps.into_iter().map(named));
    }
}

impl fmt::Display for SearchStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.tried)?;
        if let Some(seconds) = self.decided_seconds {
            write!(f, "decisions for {seconds}, ")?;
        }
        write!(f, "{}", self.result)
    }
}

impl fmt::Display for StepResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepResult::Planned { makespan_seconds, moved_bytes } => {
                write!(f, "a plan of {makespan_seconds} that moves {moved_bytes}")
            }
            StepResult::NoFaster => write!(f, "no faster"),
            StepResult::OverPool { over_bytes } => write!(f, "{over_bytes} over the memory"),
            StepResult::Short { needs_bytes } => write!(f, "no plan below {needs_bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let mut log = SearchLog::default();
        let planned = StepResult::Planned { makespan_seconds: Seconds(0.5), moved_bytes: Bytes(64) };
        log.add("whole tensors, round 1", Some(Seconds(0.4)), planned);
        log.add("policy greedy", None, StepResult::NoFaster);
        let mut outer = SearchLog::default();
        outer.add_all("swapping alone", log);
        let text = serde_json::to_string(&outer).expect("a log has finite numbers");
        assert_eq!(serde_json::from_str::<SearchLog>(&text).expect("as it was written"), outer);
        assert_eq!(outer.steps[1].to_string(), "swapping alone: policy greedy: no faster");
    }
}
