//! A plan changes no bit: parameters, the optimizer's states and running statistics after 20 iterations (5 for the slowest
//! networks) equal those of keeping everything, under every policy and under random valid schedules, on 1 and 2 compute
//! threads, with random delays in the streams and a pool full of NaN before every iteration, in f32 and in bf16. In f32 they
//! also equal those of a program whose batch normalisations absorb nothing.

use plimsoll::ir::check::check as check_schedule;
use plimsoll::ir::network::{NetworkSpec, Shape};
use plimsoll::ir::program::Program;
use plimsoll::ir::schedule::{Link, Schedule};
use plimsoll::ir::{Bytes, BytesPerSecond, Float, Optimizer, Seconds, UpdateRule};
use plimsoll::networks::{LowerOptions, ReluStorage, build, lower};
use plimsoll::runtime::data::synthetic;
use plimsoll::runtime::{
    Checkpoint, Cpu, CpuOptions, Executor, LearningRateSchedule, MemoryLayout, Trainer, TrainingPlan,
};
use plimsoll::tuner::{Outcome, PlanRequest, Policy, plan};
use plimsoll_testing::random_schedule;

/// Iterations, and iterations of slow networks.
const ITERATIONS: u64 = 20;
const FEW: u64 = 5;

/// Network to train, and settings.
struct Case {
    spec: NetworkSpec,
    batch: u64,
    relu: ReluStorage,
    feature_maps: Float,
    optimizer: Optimizer,
    fuse: bool,
    iterations: u64,
    /// Number of random schedules besides those of the policies.
    random: u64,
}

fn case(name: &str, side: u32, batch: u64, relu: ReluStorage, random: u64) -> Case {
    Case {
        spec: NetworkSpec { name: name.into(), image: [side; 2], channels: 2, classes: 5 },
        batch,
        relu,
        feature_maps: Float::F32,
        optimizer: Optimizer::Sgd,
        fuse: true,
        iterations: ITERATIONS,
        random,
    }
}

fn program(case: &Case, threads: u32) -> Program {
    let &Case { relu, feature_maps, optimizer, fuse, .. } = case;
    let device = CpuOptions { threads, feature_maps, ..CpuOptions::default() };
    let alternatives = |call: &_| device.alternatives(call);
    let alternatives = &alternatives;
    let more = LowerOptions::default();
    let options = LowerOptions { relu, optimizer, feature_maps, fuse, alternatives, ..more };
    let mut program = lower(&build(&case.spec).expect("a network"), case.batch, &options).expect("it lowers");
    for op in &mut program.trace.ops {
        op.seconds = Seconds(op.flops as f64 / 2e10 + 2e-6);
    }
    program
}

/// Returns the schedule of a policy at the tightest of some budgets that it fits; `None` if it fits none.
fn schedule(program: &Program, policy: Policy) -> Option<Schedule> {
    let memory = program.trace.memory();
    let (_, peak) = memory.peak().expect("there are ops");
    let (_, floor) = memory.floor().expect("there are ops");
    for share in [0.15, 0.3, 0.5, 0.7, 1.0, 1.3] {
        let budget = Bytes(floor.0 + ((peak.0 - floor.0) as f64 * share) as u64);
        let link = Link::symmetric(BytesPerSecond(5e9));
        let request = PlanRequest::new(budget, link, policy);
        if let Outcome::Planned(plan) = plan(&program.trace, &request).expect("a sound trace") {
            return Some(plan.schedule);
        }
    }
    // The papers' policies may have no plan for a network; ours and the basic ones always have.
    let always = [Policy::Keep, Policy::Naive, Policy::Accudnn { as_printed: false }, Policy::Plimsoll];
    assert!(!always.contains(&policy), "{policy} does not fit 1.3 times what keeping everything takes");
    println!("{policy} has no plan for {}", program.trace.name);
    None
}

fn train(
    case: &Case,
    program: &Program,
    schedule: &Schedule,
    threads: u32,
    delays: Option<u64>,
) -> Checkpoint {
    check_schedule(&program.trace, schedule).expect("a valid schedule");
    let feature_maps = case.feature_maps;
    let options = CpuOptions { threads, feature_maps, delays, poison: true, ..CpuOptions::default() };
    let layout = MemoryLayout::of(program, schedule);
    let mut executor = Executor::new(Box::new(Cpu::new(options)), layout).expect("memory");
    let loaded = executor.load(program, schedule).expect("it loads");
    let rate = match case.optimizer {
        Optimizer::Sgd => 0.02,
        Optimizer::Adamw => 1e-3,
    };
    let rate = LearningRateSchedule::constant(rate);
    let network = case.spec.clone();
    let how = TrainingPlan {
        network,
        batch: case.batch,
        virtual_workers: 1,
        seed: 3,
        rate,
        update: UpdateRule::usual(case.optimizer),
        weights: None,
    };
    let mut trainer = Trainer::new(executor, loaded, None, how).expect("the plan fits the program");
    let NetworkSpec { image: [height, width], channels, classes, .. } = case.spec;
    let data = synthetic(Shape { height, width, channels }, classes, 4 * case.batch as usize, 7);
    trainer.train(&*data, case.iterations, &mut |_| {}, &|| false).expect("it trains");
    trainer.checkpoint().expect("it can be saved")
}

fn bits(checkpoint: &Checkpoint) -> Vec<(String, Vec<u32>)> {
    let bits = |name: &str| {
        checkpoint.region(name).expect("it has its regions").into_iter().map(f32::to_bits).collect()
    };
    checkpoint.names().map(|name| (name.to_owned(), bits(name))).collect()
}

fn check(case: &Case) {
    std::thread::scope(|scope| {
        for threads in [1, 2] {
            scope.spawn(move || check_on(case, threads));
        }
    });
}

fn check_on(case: &Case, threads: u32) {
    let program = program(case, threads);
    let keep = schedule(&program, Policy::Keep).expect("keeping everything fits");
    let kept = bits(&train(case, &program, &keep, threads, None));
    assert!(kept.iter().flat_map(|(_, bits)| bits).all(|b| f32::from_bits(*b).is_finite()));
    if case.fuse && case.feature_maps == Float::F32 {
        let unfused = Case { spec: case.spec.clone(), fuse: false, ..*case };
        let one_by_one = self::program(&unfused, threads);
        let keep = schedule(&one_by_one, Policy::Keep).expect("keeping everything fits");
        let found = bits(&train(&unfused, &one_by_one, &keep, threads, None));
        assert!(kept == found, "{} differs where nothing is fused", case.spec.name);
    }
    let planned =
        Policy::ALL.into_iter().filter_map(|policy| Some((policy.to_string(), schedule(&program, policy)?)));
    let random =
        (0..case.random).map(|seed| (format!("random {seed}"), random_schedule(&program.trace, seed)));
    for (name, schedule) in planned.chain(random) {
        let delayed = train(case, &program, &schedule, threads, Some(11));
        let found = bits(&delayed);
        for (a, b) in kept.iter().zip(&found) {
            assert!(a == b, "{}: `{}` differs under {name} on {threads} threads", case.spec.name, a.0);
        }
        assert_eq!(kept.len(), found.len());
    }
}

#[test]
fn residual_networks_with_batch_norm() {
    check(&case("resnet20", 8, 6, ReluStorage::Auto, 3));
}

/// ReLUs that save masks, ReLUs with a ceiling, and sums without any.
#[test]
#[ignore = "minutes: CI runs it"]
fn what_batch_norm_takes_over() {
    check(&case("resnet20", 8, 6, ReluStorage::Mask, 2));
    check(&Case { iterations: FEW, ..case("mobilenet_v2", 32, 8, ReluStorage::Auto, 1) });
}

/// A network whose layers are separate ops, as on modelled devices.
#[test]
#[ignore = "minutes: CI runs it"]
fn batch_norm_that_takes_nothing_over() {
    check(&Case { fuse: false, ..case("resnet20", 8, 6, ReluStorage::Auto, 2) });
}

#[test]
fn plain_convolutions_and_masks() {
    check(&case("lenet", 16, 8, ReluStorage::Mask, 3));
}

#[test]
#[ignore = "minutes: CI runs it"]
fn feature_maps_in_bf16() {
    for case in [case("resnet20", 8, 6, ReluStorage::Auto, 2), case("lenet", 16, 8, ReluStorage::Mask, 2)] {
        check(&Case { feature_maps: Float::Bf16, ..case });
    }
}

#[test]
#[ignore = "minutes: CI runs it"]
fn both_moments_of_adamw() {
    for case in [case("resnet20", 8, 6, ReluStorage::Auto, 2), case("lenet", 16, 8, ReluStorage::Mask, 2)] {
        check(&Case { optimizer: Optimizer::Adamw, ..case });
    }
}

#[test]
#[ignore = "minutes: CI runs it"]
fn local_response_normalisation_groups_and_dropout() {
    check(&Case { iterations: FEW, ..case("alexnet", 63, 2, ReluStorage::Output, 1) });
}
