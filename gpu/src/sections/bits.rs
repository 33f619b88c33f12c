//! Does a plan change a bit? Parameters, momentum and running statistics after 20 iterations, under every policy, with graphs
//! and without, beside those of keeping everything.

use super::{Section, Target, numbers};
use crate::bench::{budget, cuda, keeping, plan, task, unmeasured};
use crate::ground::Ground;
use crate::row::{Row, Verdict};
use plimsoll::failure::Failure;
use plimsoll::study::NetworkWorkload;
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::{Precision, Seconds, UpdateRule};
use plimsoll_networks::Mode;
use plimsoll_runtime::{Checkpoint, CudaOptions, LearningRateSchedule, Trainer, TrainingPlan};
use plimsoll_tuner::{Algorithms, Layers, Policy};
use serde_json::json;

/// The section.
pub const SECTION: Section = Section {
    name: "bits",
    asks: "does a plan, or a graph, change a bit of what is learned?",
    seconds: 40,
    by_name_only: false,
    run,
    targets: &[Target {
        what: "parameters after 20 deterministic iterations are bit for bit those of keeping everything, under every \
               policy and under graph replay",
        verifies: true,
        judge,
    }],
};

/// What is multiplied and stored in; the tests have the others.
const PRECISION: Precision = Precision::F32;

/// Iterations of a run, and of one in tiny sizes: the third is the first replay.
const ITERATIONS: u64 = 20;
const FEW: u64 = 4;

/// Network, image side, batch, policies.
type Case = (&'static str, u32, u64, &'static [Policy]);

/// Networks with many parameters take long to start and to compare, and have fewer policies.
const SOME: &[Policy] = &[
    Policy::Naive,
    Policy::Accudnn { as_printed: false },
    Policy::Vdnn { layers: Layers::All, algorithms: Algorithms::FastestThatFit },
    Policy::SuperNeurons,
    Policy::Plimsoll,
];
const CASES: &[Case] = &[
    ("resnet20", 32, 32, &Policy::ALL),
    ("resnet56", 32, 16, &Policy::ALL),
    ("resnet50", 64, 16, SOME),
    ("vgg16", 32, 16, &[Policy::Naive, Policy::Plimsoll]),
    ("alexnet", 96, 16, &[Policy::Naive, Policy::Plimsoll]),
];
const SMALL: &[Case] = &[("resnet20", 8, 2, &[Policy::Keep, Policy::Naive, Policy::Plimsoll])];

/// Budgets that a policy is asked for, tightest first: shares of the way from the floor to keeping everything.
const BUDGETS: [f64; 5] = [0.2, 0.4, 0.7, 1.0, 1.3];

fn run(ground: &Ground) -> Result<(), Failure> {
    for case in ground.pick(CASES, SMALL) {
        let (network, side, batch, policies) = *case;
        let on =
            |graphs| task(network, side, 10, &CudaOptions { graphs, deterministic: true, ..cuda(PRECISION) });
        let (plain, graphs) = (on(false)?, on(true)?);
        let mut program = plain.program(batch, Mode::Train)?;
        for op in &mut program.trace.ops {
            op.seconds = Seconds(op.flops as f64 / 2e13 + 2e-6);
        }
        let iterations = ground.pick(ITERATIONS, FEW);
        let kept = train(&plain, &program, &keeping(&program.trace)?.schedule, iterations)?;
        for policy in policies {
            let row = |plans: usize, differs: &[&str]| {
                ground.row(&json!({
                    "network": network,
                    "precision": PRECISION.name(),
                    "policy": policy.name(),
                    "plans": plans,
                    "equal": plans - differs.len(),
                    "differs": differs.join(", "),
                }));
            };
            let Some(schedule) = planned(&program, *policy)? else {
                row(0, &[]);
                continue;
            };
            let mut differs = Vec::new();
            for (how, task) in [("one by one", &plain), ("as a graph", &graphs)] {
                if train(task, &program, &schedule, iterations)? != kept {
                    differs.push(how);
                }
            }
            row(2, &differs);
        }
    }
    Ok(())
}

/// A policy's schedule at the tightest budget for which it has one.
fn planned(program: &Program, policy: Policy) -> Result<Option<Schedule>, Failure> {
    for share in BUDGETS {
        let within = budget(&program.trace, share);
        if let Some(plan) = plan(&program.trace, policy, within, unmeasured(), 1.0)? {
            return Ok(Some(plan.schedule));
        }
    }
    Ok(None)
}

/// All that training depends on, after some iterations that learn.
fn train(
    task: &NetworkWorkload,
    program: &Program,
    schedule: &Schedule,
    iterations: u64,
) -> Result<Checkpoint, Failure> {
    let (executor, mut loaded) = task.executor(&[(program, schedule)])?;
    let plan = TrainingPlan {
        network: task.network.spec.clone(),
        batch: program.trace.batch,
        virtual_workers: 1,
        seed: 7,
        rate: LearningRateSchedule::constant(1e-3),
        update: UpdateRule::Sgd { momentum: 0.9, weight_decay: 1e-4 },
        weights: None,
    };
    let mut trainer = Trainer::new(executor, loaded.remove(0), None, plan)?;
    trainer.train(&*task.data.train, iterations, &mut |_| {}, &|| false)?;
    Ok(trainer.checkpoint()?)
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let sum = |name| numbers(rows, name).iter().sum::<f64>();
    let (plans, equal) = (sum("plans"), sum("equal"));
    let measured = format!("{equal} of {plans} runs equal");
    (plans > 0.0).then_some(Verdict { measured, met: Some(equal == plans) })
}
