//! The report of a step: its plan as predicted, compared with PyTorch's measurements.

use crate::errors::BadInput;
use crate::schedule::Schedule;
use crate::signals::Signals;
use crate::transfers::Spans;
use plimsoll_study::report::scheduled::{Known, of_schedule};
use pyo3::prelude::*;
use std::time::Duration;

/// Report of a schedule as a page. `known` has other known facts, as JSON; `spans` has the measured start and end of every
/// compute, swap-out and swap-in command, in seconds from the start of the iteration, or three empty lists. After `seconds`, no
/// further policy is planned for comparison.
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
