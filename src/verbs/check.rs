//! `check`: proves a schedule free of races and within its budget; exit code 6 if it is not.

use crate::args::CheckArgs;
use crate::files::read_valid;
use crate::output::Table;
use plimsoll_study::Error;

/// Runs the verb.
pub fn run(args: &CheckArgs) -> Result<Vec<Table>, Error> {
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
