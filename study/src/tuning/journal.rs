//! The plans of a search for the batch size, recorded as they are made: an interrupted search continues from them.
//!
//! A plan is valid only for its inputs: the measurements (the model is fitted to nothing else), the budgets, the version of the
//! planner. A line that was written for other inputs, that was cut off or damaged, or whose schedule fails the check is
//! ignored. When the search is over, its results are in the study and the file is removed.

use crate::error::Error;
use plimsoll_ir::check::check;
use plimsoll_ir::checksum::{entry_of, line_of};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The plans of one round of a search.
pub struct PlanJournal {
    path: PathBuf,
    made_for: String,
    known: BTreeMap<u64, Line>,
}

/// The planner's answer at a batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Noted {
    /// Schedule, and the log of its search; `None` if no plan fits.
    pub plan: Option<(Schedule, SearchLog)>,
    /// `true` if it was made from the plan of a different batch size.
    pub carried: bool,
    /// Seconds of planning.
    pub planning: Seconds,
}

/// A line of the journal: one batch size.
#[derive(Serialize, Deserialize)]
struct Line {
    /// Digest of all inputs of the plan.
    made_for: String,
    batch: u64,
    planning_seconds: Seconds,
    /// `true` if it was made from the plan of a different batch size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    carried: bool,
    /// `None` if no plan fits.
    schedule: Option<Schedule>,
    /// Log of the search.
    search: SearchLog,
}

impl PlanJournal {
    /// Opens the journal with the plans that an earlier search left for the same measurements and budgets: the device's, and
    /// the host's if it has one.
    pub fn open(
        path: &Path,
        profile: &Profile,
        budgets: (Bytes, Option<Bytes>),
    ) -> Result<PlanJournal, Error> {
        let mut hasher = DefaultHasher::new();
        (profile.to_json(), budgets, crate::version()).hash(&mut hasher);
        let made_for = format!("{:016x}", hasher.finish());
        let text = match fs::read(path) {
            // A line that is no longer text is ignored, like any other damaged line.
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::io(path, "read", &error)),
        };
        let entries = text.lines().filter_map(|line| entry_of(line.as_bytes()).ok());
        let lines = entries.filter_map(|entry| serde_json::from_slice::<Line>(entry).ok());
        let known: BTreeMap<u64, Line> =
            lines.filter(|line| line.made_for == made_for).map(|line| (line.batch, line)).collect();
        let journal = PlanJournal { path: path.to_owned(), made_for, known };
        if journal.known.is_empty() && !text.is_empty() {
            journal.remove()?;
        } else if !text.is_empty() && !text.ends_with('\n') {
            // End a line that was cut off, so that the next begins a new one.
            journal.append("\n")?;
        }
        if !journal.known.is_empty() {
            tracing::info!(
                "{} batch sizes were planned before the search was interrupted",
                journal.known.len()
            );
        }
        Ok(journal)
    }

    /// Returns an earlier search's answer for this trace.
    pub fn known(&self, trace: &Trace) -> Option<Noted> {
        let line = self.known.get(&trace.batch)?;
        let valid = line.schedule.as_ref().is_none_or(|schedule| check(trace, schedule).is_ok());
        let plan = line.schedule.clone().map(|schedule| (schedule, line.search.clone()));
        valid.then_some(Noted { plan, carried: line.carried, planning: line.planning_seconds })
    }

    /// Records the plan of a batch size.
    pub fn note(&mut self, batch: u64, noted: Noted) -> Result<(), Error> {
        let made_for = self.made_for.clone();
        let Noted { plan, carried, planning: planning_seconds } = noted;
        let (schedule, search) = plan.unzip();
        let search = search.unwrap_or_default();
        let line = Line { made_for, batch, planning_seconds, carried, schedule, search };
        let text = serde_json::to_string(&line).expect("a schedule has finite numbers and string keys");
        self.append(&line_of(&text))
    }

    /// Removes the journal at the end of the search.
    pub fn forget(self) -> Result<(), Error> {
        self.remove()
    }

    fn append(&self, text: &str) -> Result<(), Error> {
        let file = fs::OpenOptions::new().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Error::io(&self.path, "write", &error))
    }

    fn remove(&self) -> Result<(), Error> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&self.path, "remove", &error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::profile::ProfileKind;
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::search_log::StepResult;
    use plimsoll_ir::{BytesPerSecond, network::NetworkSpec};
    use plimsoll_testing::chain_trace;
    use plimsoll_tuner::{Outcome, PlanRequest, Policy, plan};

    fn profile() -> Profile {
        let text = serde_json::json!({
            "plimsoll": "profile/1",
            "network": {"name": "n", "image": [1, 1], "channels": 1, "classes": 1},
            "machine": {"device": "cpu", "threads": 1, "system": "s", "plimsoll": "p", "unix_seconds": 0},
            "budget_bytes": 1, "overhead_seconds": 0.0,
            "link": {"offload_alone": [], "prefetch_alone": [], "offload_together": [], "prefetch_together": []},
            "batches": [],
        });
        let profile: Profile = serde_json::from_value(text).expect("a profile");
        assert_eq!((profile.kind, profile.network.name.as_str()), (ProfileKind, "n"));
        let _: &NetworkSpec = &profile.network;
        profile
    }

    fn schedule(trace: &Trace) -> Schedule {
        let peak = trace.memory().peak().expect("an op").1;
        let request = PlanRequest::new(peak * 2, Link::symmetric(BytesPerSecond(1e9)), Policy::Keep);
        match plan(trace, &request) {
            Ok(Outcome::Planned(plan)) => plan.schedule,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn plans_are_found_again_for_the_same_measurements_and_budget_and_for_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tried.jsonl");
        let (trace, profile) = (chain_trace(4), profile());
        let made = schedule(&trace);
        let open =
            |budget| PlanJournal::open(&path, &profile, (Bytes(budget), None)).expect("it can be read");
        let mut tried = open(10);
        assert_eq!(tried.known(&trace), None);
        let mut log = SearchLog::default();
        log.add("whole tensors, round 1", Some(Seconds(1.0)), StepResult::NoFaster);
        let plan = Noted { plan: Some((made, log)), carried: true, planning: Seconds(2.0) };
        let none = Noted { plan: None, carried: false, planning: Seconds(1.0) };
        tried.note(1, plan.clone()).expect("it can be written");
        tried.note(7, none.clone()).expect("it can be written");
        assert_eq!(open(10).known(&trace), Some(plan));
        assert_eq!(open(10).known(&Trace { batch: 7, ..trace.clone() }), Some(none.clone()));
        // A schedule that is invalid for the trace is ignored.
        let other = Trace { name: "another".into(), ..trace.clone() };
        assert_eq!(open(10).known(&other), None);
        // A line that was cut off is ignored too.
        let text = fs::read_to_string(&path).expect("the file");
        fs::write(&path, &text[..text.len() - 5]).expect("it can be written");
        let mut tried = open(10);
        assert_eq!(tried.known(&Trace { batch: 7, ..trace.clone() }), None);
        tried.note(7, none).expect("it can be written");
        assert!(open(10).known(&Trace { batch: 7, ..trace.clone() }).is_some());
        assert_eq!(open(11).known(&trace), None);
        assert!(!path.exists(), "what was made for another budget is gone");
        open(10).forget().expect("nothing is there, and that is fine");
    }
}
