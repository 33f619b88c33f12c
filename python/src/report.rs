//! The house's report of a step: its plan as it was predicted, beside what PyTorch measured of it.

use crate::errors::BadInput;
use crate::schedule::Schedule;
use crate::signals::Signals;
use crate::transfers::Spans;
use plimsoll_study::report::scheduled::{Known, of_schedule};
use pyo3::prelude::*;
use std::time::Duration;

/// The report of a schedule as a page. `known` is what is known of it besides, as JSON; `spans` has start and end of every
/// compute, swap-out and swap-in command as they were measured, in seconds from the start of the iteration, or three empty
/// lists. No further policy is planned beside the schedule after `seconds`.
#[pyfunction]
pub fn report_page(
    py: Python<'_>,
    schedule: &Schedule,
    spans: [Spans; 3],
    known: &str,
    seconds: f64,
) -> PyResult<String> {
    let known: Known = serde_json::from_str(known)
        .map_err(|error| BadInput::new_err(format!("what is known of the step cannot be used: {error}")))?;
    let known = Known { timeline: schedule.timeline(spans)?, ..known };
    let limit = Duration::try_from_secs_f64(seconds)
        .map_err(|error| BadInput::new_err(format!("the time limit: {error}")))?;
    let (page, interrupted) = py.detach(|| {
        let signals = Signals::default();
        let report = of_schedule(schedule.trace(), schedule.inner(), known, limit, &|| signals.came());
        (report.map(|report| report.html()), signals.into_error())
    });
    match interrupted {
        Some(interrupted) => Err(interrupted),
        None => page.map_err(|error| BadInput::new_err(error.to_string())),
    }
}
