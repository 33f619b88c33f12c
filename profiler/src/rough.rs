//! A rough measurement of one batch size: good enough for a plan under which ops can then be measured.
//!
//! Its results deliberately never enter a profile.

use crate::device::{Prepared, initialise};
use crate::error::ProfileError;
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Command, Schedule, Stream, moved};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_runtime::{Device, Executor, MemoryLayout};

/// The result of a few iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct Rough {
    /// Seconds of each op of the trace, in its order.
    pub seconds: Vec<Seconds>,
    /// Rates of the link, out and back; `None` if nothing was moved in that direction.
    pub rates: [Option<BytesPerSecond>; 2],
}

/// Iterations, of which the first does not count.
const ITERATIONS: usize = 3;

/// Runs a program under a schedule for a few iterations on a device that holds nothing yet; the least of each op's times
/// counts.
pub fn rough_seconds(
    device: Box<dyn Device>,
    program: &Program,
    schedule: &Schedule,
) -> Result<Rough, ProfileError> {
    let mut executor = Executor::new(device, MemoryLayout::of(program, schedule))?;
    let loaded = executor.load(program, schedule)?;
    initialise(&mut executor, &loaded)?;
    let prepared = Prepared::new(program, loaded);
    let mut seconds = vec![Seconds(f64::INFINITY); program.trace.ops.len()];
    let mut rates = [None; 2];
    for iteration in 0..ITERATIONS {
        prepared.write_input(&mut executor, &prepared.loaded)?;
        let timeline = executor.run_timed(&prepared.loaded)?;
        if iteration == 0 {
            continue;
        }
        for (id, command) in schedule.numbered_commands() {
            if let Command::Compute { op, again: false, .. } = command {
                let span = timeline.spans[id.index()];
                let least = &mut seconds[op.index()];
                *least = least.min(Seconds((span.end.0 - span.start.0).max(0.0)));
            }
        }
        rates = [Stream::Offload, Stream::Prefetch]
            .map(|direction| rate(program, schedule, &timeline, direction));
    }
    Ok(Rough { seconds, rates })
}

/// Returns all bytes of a direction over all seconds of its transfers.
fn rate(
    program: &Program,
    schedule: &Schedule,
    timeline: &Timeline,
    direction: Stream,
) -> Option<BytesPerSecond> {
    let (mut bytes, mut seconds) = (Bytes::ZERO, 0.0);
    for (id, command) in schedule.numbered_commands().filter(|(_, command)| command.stream() == direction) {
        let span = timeline.spans[id.index()];
        bytes +=
            moved(&program.trace, command).map_or(Bytes::ZERO, |(_, piece)| Bytes(piece.end - piece.start));
        seconds += span.end.0 - span.start.0;
    }
    (bytes > Bytes::ZERO && seconds > 0.0).then(|| BytesPerSecond(bytes.0 as f64 / seconds))
}
