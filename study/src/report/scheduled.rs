//! The report of a schedule alone, without a study or a search for a batch, whatever made the schedule and ran it.
//!
//! Further facts are plain values ([`Known`]), so that `plimsoll report` and the PyTorch front can each pass the facts that
//! they know, and share one page.

use crate::COMMIT;
use crate::error::Error;
use crate::report::data::{About, Report, Setting};
use crate::report::gather::Subject;
use crate::report::policies::compare;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::Trace;
use serde::Deserialize;
use std::time::Duration;

/// Name of the schedule's row among the policies.
const OWN: &str = "this schedule";

/// Facts about a schedule besides itself and its trace. All of them may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Known {
    /// Description of the training data.
    pub data: Option<String>,
    /// Description of the device.
    pub device: Option<String>,
    /// `true` if the trace's seconds are those of a modelled device.
    pub modelled: bool,
    /// Other facts about the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// Command that made the schedule, or the report.
    pub command: Option<String>,
    /// Time of the measurement, in seconds since 1970.
    pub unix_seconds: Option<u64>,
    /// Warnings about the reliability of the numbers.
    pub warnings: Vec<String>,
    /// Measured times of the commands, if measured: one span per command, by its id.
    pub timeline: Option<Timeline>,
    /// The schedule, and settings to compare it with, such as keeping everything; the schedule first.
    pub settings: Vec<Setting>,
}

/// Returns the report of a valid schedule. All other policies are planned for comparison, no new one after `limit`. Fails once
/// `stop` returns `true`.
pub fn of_schedule(
    trace: &Trace,
    schedule: &Schedule,
    known: Known,
    limit: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Report, Error> {
    let policies = compare(trace, schedule, OWN, limit, stop)?;
    let about = About {
        network: trace.name.clone(),
        data: known.data,
        batch: trace.batch,
        budget_bytes: schedule.budget_bytes.0,
        device: known.device,
        modelled: known.modelled,
        machine: known.machine,
        plimsoll: env!("CARGO_PKG_VERSION").to_owned(),
        commit: COMMIT.map(str::to_owned),
        command: known.command,
        seed: None,
        unix_seconds: known.unix_seconds,
        warnings: known.warnings,
    };
    let subject = Subject { trace, schedule, measured: known.timeline.as_ref() };
    Ok(Report { settings: known.settings, ..subject.report((&policies).into(), about) })
}
