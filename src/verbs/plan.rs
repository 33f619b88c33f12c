//! `plan`: one trace and one link, at one budget; or the frontier of time over memory for a sweep of budgets. Exit
//! code 3 if nothing fits.
//!
//! Standard output has the answer, and `--output` the schedule; with `--output -` standard output has only the
//! schedule, so that the next command of a pipe can read it.
//!
//! With `--from` the plan is made from an earlier schedule. A damaged schedule, or one for a different trace, is
//! refused before planning.
//!
//! Over a sweep, more budget never takes longer: if the search finds less for a budget than for a smaller one, the
//! larger takes the smaller's plan ([`plimsoll_tuner::frontier`]).

use crate::args::PlanArgs;
use crate::output::{Cell, Facts, Format, Table, print};
use crate::settings::nearest;
use crate::verbs::planning::{PlanRun, carry, table, timeless};
use crate::verbs::trace::of_a_model;
use crate::{files, interrupt, progress};
use plimsoll_ir::Document;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_study::error::{Error, Kind};
use plimsoll_study::workload::no_plan;
use plimsoll_tuner::search::moved;
use plimsoll_tuner::{Earlier, Outcome, Plan, Policy, Shortage, Witness};
use std::path::{Path, PathBuf};

/// Runs the verb. An outcome without a plan, or a partial sweep on Ctrl-C, is printed before the verb ends.
pub fn run(args: &PlanArgs, format: Format) -> Result<Vec<Table>, Error> {
    let trace: Trace = files::read(&args.planning.trace)?;
    let policy = parse_policy(&args.policy)?;
    if args.from.is_some() && policy != Policy::Plimsoll {
        let message = format!("policy {policy} makes no plan from another one");
        return Err(Error::usage(message).help("leave --from out, or --policy"));
    }
    timeless(&trace).inspect(|words| tracing::warn!("{words}"));
    of_a_model(&trace).inspect(|words| tracing::warn!("{words}"));
    if args.planning.sweep.is_some() {
        sweep(args, format, &trace, policy)
    } else {
        one(args, format, &trace, policy)
    }
}

/// Plans at one budget. Prints the answer; or the schedule, if that goes to standard output.
fn one(args: &PlanArgs, format: Format, trace: &Trace, policy: Policy) -> Result<Vec<Table>, Error> {
    let output = args.output.as_deref();
    let to_stdout = output.is_some_and(files::is_standard);
    if let Some(file) = output.filter(|_| !to_stdout) {
        let inputs = [Some(&args.planning.trace), args.from.as_ref(), args.from_trace.as_ref()];
        inputs.into_iter().flatten().try_for_each(|input| files::not_the_same(input, file))?;
        files::can_be_made(file)?;
    }
    let budget = args.planning.budgets(trace, 1)[0];
    let from = earlier(args, trace)?;
    let tried = args.planning.plan(trace, policy, budget, None, from.as_ref())?;
    let answer = |table: Table| if to_stdout { Vec::new() } else { vec![table] };
    match &tried.outcome {
        Outcome::Planned(made) => {
            output.map_or(Ok(()), |output| files::write(output, &made.schedule))?;
            let tables = answer(planned(trace, made, &tried, output));
            if interrupt::pressed() {
                print(format, &tables)?;
                let place = match output {
                    Some(_) if to_stdout => "on standard output".to_owned(),
                    Some(file) => format!("in {}", file.display()),
                    None => "shown, and written to no file".to_owned(),
                };
                let saved =
                    format!("stopped while planning; the best plan so far ({}) is {place}", made.makespan);
                return Err(Error::new(Kind::Interrupted, saved));
            }
            if output.is_none() {
                tracing::info!(
                    "the schedule is written nowhere: add `-o FILE`, or `-o -` for standard output"
                );
            }
            Ok(tables)
        }
        Outcome::Infeasible(_) if interrupt::pressed() => Err(Error::new(
            Kind::Interrupted,
            "stopped while planning, before a plan was found; nothing was written",
        )),
        Outcome::Infeasible(witness) => {
            print(format, &answer(infeasible(trace, witness, &tried)))?;
            Err(no_plan(trace, budget, witness))
        }
    }
}

/// Earlier plan that the new one is made from, if named.
fn earlier(args: &PlanArgs, trace: &Trace) -> Result<Option<Earlier>, Error> {
    let Some(from) = &args.from else { return Ok(None) };
    let schedule: Schedule = files::read(from)?;
    let own: Option<Trace> = args.from_trace.as_deref().map(files::read).transpose()?;
    let earlier = Earlier::new(own.as_ref().unwrap_or(trace), &schedule);
    earlier.map(Some).map_err(|error| {
        let failure = Error::from(error);
        match &args.from_trace {
            Some(_) => failure.help("give --from-trace the trace that the schedule was made for"),
            None => failure.help(
                "name the trace that the schedule was made for: --from-trace TRACE; a schedule that was changed or cut off has \
                 to be made anew",
            ),
        }
    })
}

/// Parses the name of a policy.
pub fn parse_policy(name: &str) -> Result<Policy, Error> {
    name.parse().map_err(|error| {
        let all = Policy::names();
        let names: Vec<&str> = all.split(", ").collect();
        let failure = Error::usage(error);
        nearest(name, &names).map_or(failure.clone(), |help| failure.help(help))
    })
}

/// First facts of both tables.
fn head(trace: &Trace, tried: &PlanRun) -> Facts {
    vec![
        ("trace", "trace", trace.name.clone().into()),
        ("batch", "batch", trace.batch.into()),
        ("policy", "policy", tried.policy.to_string().into()),
        ("status", "status", tried.status().into()),
    ]
}

/// Facts of a plan, one per line.
fn planned(trace: &Trace, made: &Plan, tried: &PlanRun, output: Option<&Path>) -> Table {
    let schedule = &made.schedule;
    let moves = moved(trace, schedule);
    let mut facts = head(trace, tried);
    facts.push(("makespan_seconds", "makespan", made.makespan.into()));
    let last = tried.last_policy;
    facts.extend(last.map(|last| ("last_policy_seconds", "makespan of the last policy", last.into())));
    facts.extend([
        ("bound_seconds", "lower bound", tried.bound.into()),
        ("gap", "gap", tried.gap().map_or(Cell::None, Cell::Share)),
        ("ratio_to_bound", "makespan / bound", tried.ratio(tried.bound)),
        ("ratio_to_compute", "makespan / compute", tried.ratio(Some(trace.fastest_seconds()))),
        ("offloaded_bytes", "swapped", moves.offloaded.into()),
        ("swapping_seconds", "swapping", moves.swapping.into()),
        ("recomputed_bytes", "recomputed", moves.recomputed.into()),
        ("recomputed_seconds", "recomputing", moves.recomputing.into()),
        ("at_peak_bytes", "feature maps at the peak", moves.at_peak.into()),
        ("host_bytes", "host memory", schedule.host_bytes(trace).into()),
        ("pool_bytes", "pool", schedule.pool_bytes.into()),
        ("peak_bytes", "resident + pool", (trace.resident_bytes + schedule.pool_bytes).into()),
        ("budget_bytes", "budget", schedule.budget_bytes.into()),
        ("planning_seconds", "planning time", tried.planning.into()),
        ("schedule", "schedule", output.map(|file| file.display().to_string()).into()),
    ]);
    Table::facts("plan", facts)
}

/// Reasons for having no plan, one per line.
fn infeasible(trace: &Trace, witness: &Witness, tried: &PlanRun) -> Table {
    let shortage = match witness.why {
        Shortage::Floor => "what the op touches",
        Shortage::Start => "what is on the device at the start",
        Shortage::Policy => "what the policy leaves on the device",
        Shortage::Tried => "what the leanest plan that was tried leaves on the device",
        Shortage::Addresses => "addresses",
        Shortage::Host => "host memory for what the op leaves no room for",
        Shortage::HostTried => "host memory for the nearest plan that was found",
    };
    let mut facts = head(trace, tried);
    facts.extend([
        ("op", "op", u64::from(witness.op.0).into()),
        ("op_name", "its name", witness.name.clone().into()),
        ("shortage", "short of", shortage.into()),
        ("needs_bytes", "needs", witness.needs.into()),
        ("short_by_bytes", "short by", witness.short_by.into()),
        ("bound_seconds", "lower bound", tried.bound.into()),
        ("budget_bytes", "budget", tried.budget.into()),
        ("planning_seconds", "planning time", tried.planning.into()),
    ]);
    Table::facts("plan", facts)
}

/// Columns of the frontier.
const COLUMNS: [&str; 13] = [
    "budget_bytes",
    "status",
    "makespan_seconds",
    "bound_seconds",
    "gap",
    "ratio_to_compute",
    "moved_bytes",
    "recomputed_bytes",
    "recomputed_seconds",
    "host_bytes",
    "pool_bytes",
    "planning_seconds",
    "why_not",
];

/// Plans at every budget of the sweep.
fn sweep(args: &PlanArgs, format: Format, trace: &Trace, policy: Policy) -> Result<Vec<Table>, Error> {
    if args.output.as_deref().is_some_and(files::is_standard) {
        return Err(Error::usage("with --sweep --output is a folder, and `-` is none")
            .help("name a folder, or plan one --budget"));
    }
    let mut tried = Vec::new();
    let budgets = args.planning.budgets(trace, 1);
    let asked = budgets.len();
    let bar = progress::bar("plan", Some(budgets.len() as u64), false);
    for budget in budgets {
        tried.push(args.planning.plan(trace, policy, budget, None, None)?);
        bar.inc(1);
        if interrupt::pressed() {
            // A plan that was cut short is not a point of the frontier.
            tried.pop();
            break;
        }
    }
    drop(bar);
    let tried = carry(trace, &args.planning, tried)?;
    if let Some(folder) = &args.output {
        write_all(trace, &tried, &args.planning.trace, folder)?;
    }
    let table = table("frontier", &COLUMNS, trace, &tried);
    if interrupt::pressed() {
        print(format, &[table])?;
        let message = format!("stopped while planning: {} of {asked} budgets were planned", tried.len());
        return Err(Error::new(Kind::Interrupted, message));
    }
    match tried.last().map(|one| (&one.outcome, one.budget)) {
        Some((Outcome::Infeasible(witness), budget)) => {
            print(format, &[table])?;
            Err(no_plan(trace, budget, witness))
        }
        _ => Ok(vec![table]),
    }
}

/// Writes the schedule of every budget to a folder, named after the trace's file and the budget in bytes.
fn write_all(trace: &Trace, tried: &[PlanRun], input: &Path, folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, "create", &error))?;
    let name = input.file_name().map_or(trace.name.clone().into(), |name| name.to_string_lossy());
    let name = name.trim_end_matches(".json").trim_end_matches(".trace");
    for (one, made) in tried.iter().filter_map(|one| Some((one, one.outcome.plan()?))) {
        let file: PathBuf = folder.join(format!("{name}.{}.schedule.json", one.budget.0));
        files::write_text(&file, &made.schedule.to_json())?;
    }
    Ok(())
}
