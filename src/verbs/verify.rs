//! `verify`: trains the same iterations twice, under a plan and keeping everything, and compares every parameter,
//! optimizer state and running statistic bit for bit. Exit code 6 if one differs.

use crate::args::VerifyArgs;
use crate::interrupt;
use crate::output::{Cell, Table};
use crate::progress::watched;
use crate::verbs::plan::parse_policy;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::{Bytes, UpdateRule};
use plimsoll_networks::Mode;
use plimsoll_runtime::{Checkpoint, LearningRateSchedule, Observation, Outcome, Trainer, TrainingPlan};
use plimsoll_study::error::{Error, Kind};
use plimsoll_study::values::DeviceChoice;
use plimsoll_study::watch::Step;
use plimsoll_study::{NetworkWorkload, Watch, Workload};
use plimsoll_tuner::Policy;
use plimsoll_tuner::search::moved;

/// Learning rate: low enough that every network stays finite for a few iterations.
const RATE: f64 = 0.01;

/// Runs the verb.
pub fn run(args: &VerifyArgs, quiet: bool) -> Result<Vec<Table>, Error> {
    watched(quiet, |watch| run_watched(args, watch))
}

fn run_watched(args: &VerifyArgs, watch: &Watch<'_>) -> Result<Vec<Table>, Error> {
    let mut task = args.task.clone();
    let device = &mut task.device;
    if let DeviceChoice::Modelled(sheet) = device.device {
        return Err(Error::nothing_runs(sheet.product));
    }
    // Only deterministic kernels can show that a plan changes no bit.
    device.kernels.deterministic |= matches!(device.device, DeviceChoice::Cuda(_));
    let task = task.open(interrupt::hurry(), watch)?;
    let policy = parse_policy(&args.policy)?;
    let trace = task.trace(args.batch)?;
    let memory = trace.memory();
    let bytes = |of: Option<(plimsoll_ir::OpId, Bytes)>| of.map_or(Bytes::ZERO, |(_, bytes)| bytes);
    let (peak, floor) = (bytes(memory.peak()), bytes(memory.floor()));
    let budget = args.budget.map_or(Bytes((floor.0 + peak.0) / 2), |size| size.of(peak));
    let link = task.setup.link().unwrap_or(Link::symmetric(plimsoll_ir::BytesPerSecond(1e10)));
    let planning = watch.step("plan", None);
    let plan = task.plan(&trace, policy, budget, link, watch)?;
    let keep = task.plan(&trace, Policy::Keep, Bytes(u64::MAX >> 2), link, watch)?;
    drop(planning);
    let step = watch.step("verify", Some(2 * args.iterations));
    let planned = train(&task, args, ("as planned", &plan.schedule), (&step, 0), watch)?;
    let kept = train(&task, args, ("keeping everything", &keep.schedule), (&step, args.iterations), watch)?;
    drop(step);
    if let Some(name) = first_difference(&planned, &kept) {
        let message =
            format!("after {} iterations `{name}` differs from keeping everything", args.iterations);
        return Err(Error::new(Kind::Verification, message)
            .help("this is a bug: report it with the command that you ran"));
    }
    let moves = moved(&trace, &plan.schedule);
    Ok(vec![Table::facts(
        "verification",
        vec![
            ("verdict", "verdict", "equal, bit for bit".into()),
            ("network", "network", trace.name.clone().into()),
            ("precision", "precision", task.setup.precision().to_string().into()),
            ("optimizer", "optimizer", task.optimizer.to_string().into()),
            ("batch", "batch", args.batch.into()),
            ("policy", "policy", policy.to_string().into()),
            ("iterations", "iterations", args.iterations.into()),
            ("threads", "compute threads", u64::from(task.setup.threads()).into()),
            ("regions", "regions compared", (kept.names().count() as u64).into()),
            ("keep_bytes", "keeping everything takes", peak.into()),
            ("peak_bytes", "planned", (trace.resident_bytes + plan.schedule.pool_bytes).into()),
            ("offloaded_bytes", "swapped in an iteration", moves.offloaded.into()),
            ("recomputed_bytes", "recomputed in an iteration", moves.recomputed.into()),
            ("recomputed_ops", "recomputed ops", Cell::Count(moves.recomputed_ops)),
        ],
    )])
}

fn train(
    task: &NetworkWorkload,
    args: &VerifyArgs,
    (how, schedule): (&str, &Schedule),
    (step, done): (&Step<'_>, u64),
    watch: &Watch<'_>,
) -> Result<Checkpoint, Error> {
    let program = task.program(args.batch, Mode::Train)?;
    let (executor, mut loaded) = task.executor(&[(&program, schedule)])?;
    let plan = TrainingPlan {
        network: task.network.spec.clone(),
        batch: args.batch,
        virtual_workers: 1,
        seed: args.seed,
        rate: LearningRateSchedule::constant(RATE),
        update: UpdateRule::usual(task.optimizer),
        weights: None,
    };
    let mut trainer = Trainer::new(executor, loaded.remove(0), None, plan)?;
    let mut observe = |observation: &Observation| step.done(done + observation.step + 1);
    match trainer.train(&*task.data.train, args.iterations, &mut observe, watch.stop)? {
        Outcome::Finished => Ok(trainer.checkpoint()?),
        Outcome::Paused => Err(Error::new(
            Kind::Interrupted,
            format_args!(
                "stopped while training {how}, after {} of {} iterations; nothing was compared",
                trainer.step(),
                args.iterations
            ),
        )),
    }
}

/// First region whose bits differ.
fn first_difference(a: &Checkpoint, b: &Checkpoint) -> Option<String> {
    let bits = |of: &Checkpoint, name: &str| {
        of.region(name).map(|r| r.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    a.names().chain(b.names()).find(|name| bits(a, name) != bits(b, name)).map(str::to_owned)
}
