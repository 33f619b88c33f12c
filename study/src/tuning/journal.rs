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
use plimsoll_tuner::search::Planned;
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
    known: BTreeMap<u64, Noted>,
}

/// The planner's answer at a batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    /// Digest of all inputs of the plan.
    made_for: String,
    batch: u64,
    pub planning_seconds: Seconds,
    /// `true` if it was made from the plan of a different batch size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub carried: bool,
    /// `None` if no plan fits.
    pub schedule: Option<Schedule>,
    pub search: SearchLog,
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
        let lines = entries.filter_map(|entry| serde_json::from_slice::<Noted>(entry).ok());
        let known: BTreeMap<u64, Noted> =
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
        let noted = self.known.get(&trace.batch)?;
        let valid = noted.schedule.as_ref().is_none_or(|schedule| check(trace, schedule).is_ok());
        valid.then(|| noted.clone())
    }

    /// Records the plan of a batch size, `carried` from a different one; `None` if no plan fits.
    pub fn note(&self, batch: u64, carried: bool, plan: Option<&Planned>) -> Result<(), Error> {
        let noted = Noted {
            made_for: self.made_for.clone(),
            batch,
            planning_seconds: plan.map_or(Seconds::ZERO, |plan| plan.planning),
            carried,
            schedule: plan.map(|plan| plan.schedule.clone()),
            search: plan.map(|plan| plan.log.clone()).unwrap_or_default(),
        };
        let text = serde_json::to_string(&noted).expect("a schedule has finite numbers and string keys");
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
    use plimsoll_tuner::search::Sharing;
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
        let tried = open(10);
        assert_eq!(tried.known(&trace), None);
        let mut log = SearchLog::default();
        log.add("whole tensors, round 1", Some(Seconds(1.0)), StepResult::NoFaster);
        let planned = Planned::new(trace.clone(), made.clone(), Sharing::ALONE, 10);
        let planned = Planned { log: log.clone(), planning: Seconds(2.0), ..planned };
        tried.note(1, true, Some(&planned)).expect("it can be written");
        tried.note(7, false, None).expect("it can be written");
        let known = open(10).known(&trace).expect("it was noted");
        assert_eq!((known.schedule, known.search, known.carried), (Some(made), log, true));
        assert_eq!(known.planning_seconds, Seconds(2.0));
        let none = open(10).known(&Trace { batch: 7, ..trace.clone() }).expect("it was noted");
        assert_eq!((none.schedule, none.carried), (None, false));
        // A schedule that is invalid for the trace is ignored.
        let other = Trace { name: "another".into(), ..trace.clone() };
        assert_eq!(open(10).known(&other), None);
        // A line that was cut off is ignored too.
        let text = fs::read_to_string(&path).expect("the file");
        fs::write(&path, &text[..text.len() - 5]).expect("it can be written");
        let tried = open(10);
        assert_eq!(tried.known(&Trace { batch: 7, ..trace.clone() }), None);
        tried.note(7, false, None).expect("it can be written");
        assert!(open(10).known(&Trace { batch: 7, ..trace.clone() }).is_some());
        assert_eq!(open(11).known(&trace), None);
        assert!(!path.exists(), "what was made for another budget is gone");
        open(10).forget().expect("nothing is there, and that is fine");
    }
}
