//! `check`: proves a schedule free of races and within its budget; exit 6 where it is not.

use crate::args::CheckArgs;
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output::Table;
use plimsoll_ir::check::check;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use std::path::Path;

/// Runs the verb.
pub fn run(args: &CheckArgs) -> Result<Vec<Table>, Failure> {
    let (trace, schedule) = read_valid(&args.trace, &args.schedule)?;
    Ok(vec![Table::facts(
        "check",
        vec![
            ("verdict", "verdict", "valid".into()),
            ("trace", "trace", trace.name.into()),
            ("batch", "batch", trace.batch.into()),
            ("commands", "commands", (schedule.commands.len() as u64).into()),
            ("buffers", "buffers", (schedule.buffers.len() as u64).into()),
            ("resident_bytes", "resident", trace.resident_bytes.into()),
            ("pool_bytes", "pool", schedule.pool_bytes.into()),
            ("budget_bytes", "budget", schedule.budget_bytes.into()),
        ],
    )])
}

/// Reads a trace and a schedule that is valid for it.
pub fn read_valid(trace: &Path, schedule: &Path) -> Result<(Trace, Schedule), Failure> {
    let (at, trace) = (schedule, files::read::<Trace>(trace)?);
    let schedule: Schedule = files::read(at)?;
    check_valid(at, &trace, &schedule)?;
    Ok((trace, schedule))
}

/// Fails where a schedule, which stands at this path, is not valid for a trace.
pub fn check_valid(at: &Path, trace: &Trace, schedule: &Schedule) -> Result<(), Failure> {
    check(trace, schedule).map_err(|violation| {
        Failure::new(Exit::Verification, format_args!("{} is not valid: {violation}", at.display()))
    })
}
