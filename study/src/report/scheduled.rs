//! The report of a schedule by itself: no study, no search for a batch, whoever made the schedule and wherever it ran.
//!
//! What is known of it besides comes as plain values ([`Known`]), so that `plimsoll report` and the PyTorch front tell what
//! each of them knows, and the page is one.

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

/// The name of the schedule's row among the policies.
const OWN: &str = "this schedule";

/// What is known of a schedule besides itself and its trace. All of it may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Known {
    /// What the network is trained on or with, in words.
    pub data: Option<String>,
    /// The device, in words.
    pub device: Option<String>,
    /// Whether the trace's seconds are those of a modelled device.
    pub modelled: bool,
    /// What else was found out of the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// The command that made the schedule, or the report.
    pub command: Option<String>,
    /// When it was measured, in seconds since 1970.
    pub unix_seconds: Option<u64>,
    /// What to know before one believes the numbers.
    pub warnings: Vec<String>,
    /// When each command ran, where that was measured: a span a command, by its id.
    pub timeline: Option<Timeline>,
    /// The schedule and what it stands beside, such as keeping everything; the schedule first.
    pub settings: Vec<Setting>,
}

/// The report of a valid schedule. All policies but its own are planned beside it, no new one after `limit`. Fails once
/// `stop` says so.
pub fn of_schedule(
    trace: &Trace,
    schedule: &Schedule,
    known: Known,
    limit: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Report, Error> {
    let policies = compare(trace, schedule, (OWN, ""), limit, stop)?;
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
    Ok(Report { settings: known.settings, ..subject.report(policies, about) })
}
