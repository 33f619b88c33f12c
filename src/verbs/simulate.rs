//! `simulate`: duration and stalls of a schedule, and the contents of the pool.

use crate::args::SimulateArgs;
use crate::files::{can_be_made, not_the_same, read_valid};
use crate::output::{Cell, Table};
use crate::verbs::trace::of_a_model;
use plimsoll_ir::schedule::{Schedule, Stream};
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_study::Error;
use plimsoll_study::trace_events::{TraceEvents, cause, describe};

/// Number of stalls of the compute stream listed, longest first.
const STALLS_SHOWN: usize = 10;

/// Runs the verb.
pub fn run(args: &SimulateArgs) -> Result<Vec<Table>, Error> {
    let (trace, schedule) = read_valid(&args.trace, &args.schedule)?;
    of_a_model(&trace).inspect(|words| tracing::warn!("{words}"));
    let timeline = simulate(&trace, &schedule);
    if let Some(output) = &args.trace_out {
        for input in [&args.trace, &args.schedule] {
            not_the_same(input, output)?;
        }
        can_be_made(output)?;
    }
    if let Some(path) = &args.trace_out {
        let mut events = TraceEvents::default();
        events.add("predicted", &trace, &schedule, &timeline);
        events.write(path)?;
        tracing::info!("{} opens in ui.perfetto.dev", path.display());
        if timeline.makespan() == Seconds::ZERO {
            tracing::warn!(
                "it shows nothing: all ops of the trace take 0 s; `trace --profile` fills in those of a profile"
            );
        }
    }
    let mut tables = vec![totals(&trace, &schedule, &timeline), stalls(&trace, &schedule, &timeline)];
    if args.commands {
        tables.push(commands(&trace, &schedule, &timeline));
    }
    Ok(tables)
}

fn totals(trace: &Trace, schedule: &Schedule, timeline: &Timeline) -> Table {
    let totals = timeline.totals(trace, schedule);
    let [compute, offload, prefetch] = Stream::ALL.map(Stream::index);
    let peak = timeline.peak(trace, schedule);
    let fragmentation = |peak: Bytes| Cell::Number(schedule.pool_bytes.0 as f64 / peak.0 as f64, 4);
    Table::facts(
        "simulation",
        vec![
            ("makespan_seconds", "makespan", timeline.makespan().into()),
            ("compute_seconds", "computing", totals.busy[compute].into()),
            ("recomputed_seconds", "of it recomputing", totals.recomputed.into()),
            ("stalled_seconds", "stalled", totals.stalled[compute].into()),
            ("tail_seconds", "after the last kernel", totals.idle[compute].into()),
            ("offload_seconds", "offloading", totals.busy[offload].into()),
            ("prefetch_seconds", "prefetching", totals.busy[prefetch].into()),
            ("offloaded_bytes", "offloaded", totals.offloaded.into()),
            ("prefetched_bytes", "prefetched", totals.prefetched.into()),
            ("recomputed_bytes", "recomputed", totals.recomputed_bytes.into()),
            ("pool_bytes", "pool", schedule.pool_bytes.into()),
            ("open_bytes", "most bytes in open buffers", peak.into()),
            (
                "fragmentation",
                "pool / most bytes open",
                if peak.0 > 0 { fragmentation(peak) } else { Cell::None },
            ),
        ],
    )
}

fn stalls(trace: &Trace, schedule: &Schedule, timeline: &Timeline) -> Table {
    let mut table = Table::new(
        "stalls",
        &[("op", "stalled op"), ("seconds", "for"), ("from", "from"), ("cause", "waited for")],
    );
    let mut stalls: Vec<_> =
        timeline.stalls(schedule).into_iter().filter(|s| s.stream == Stream::Compute).collect();
    stalls.sort_by(|a, b| b.span.seconds().0.total_cmp(&a.span.seconds().0));
    for stall in stalls.iter().take(STALLS_SHOWN) {
        let cause = cause(trace, schedule, stall.cause);
        let op = describe(trace, &schedule.commands[stall.command.index()]);
        table.rows.push(vec![op.into(), stall.span.seconds().into(), stall.span.start.into(), cause.into()]);
    }
    table
}

fn commands(trace: &Trace, schedule: &Schedule, timeline: &Timeline) -> Table {
    let mut table = Table::new(
        "commands",
        &[
            ("stream", "stream"),
            ("what", "what"),
            ("command", "command"),
            ("start", "start"),
            ("seconds", "takes"),
        ],
    );
    for ((id, command), span) in schedule.numbered_commands().zip(&timeline.spans) {
        let stream = format!("{:?}", command.stream()).to_lowercase();
        let seconds: Seconds = span.seconds();
        let what = describe(trace, command);
        table.rows.push(vec![
            stream.into(),
            what.into(),
            u64::from(id.0).into(),
            span.start.into(),
            seconds.into(),
        ]);
    }
    table
}
