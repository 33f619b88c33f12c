//! Whole training iterations on the real device `cuda`: every schedule gives the bits of keeping everything, with graphs
//! and without, for any delay of a stream.
//!
//! `super::Place` is the stand-in, or a GPU. It opens devices, and delays their streams; nothing else here
//! depends on it.

use super::Place;
use super::support::{self, advance, drawn, everything, keep, naive, spoilt, zoo};
use plimsoll_ir::network::Network;
use plimsoll_ir::program::{Call, Program, Region};
use plimsoll_ir::schedule::{Link, Schedule, Stream};
use plimsoll_ir::{Bytes, BytesPerSecond, CommandId, Float, Optimizer, Precision, Seconds};
use plimsoll_networks::{LowerOptions, lower};
use plimsoll_runtime::group::{alone, threads};
use plimsoll_runtime::{
    Checkpoint, Cpu, CpuOptions, CudaDevice, Device, Error, Executor, Group, MemoryLayout, Trainer,
    TrainingPlan,
};
use plimsoll_testing::{between, random_schedule};
use plimsoll_tuner::{Limits, Outcome, PlanRequest, Policy, plan};
use std::collections::BTreeMap;

pub const BATCH: u64 = 4;
const ITERATIONS: u64 = 5;

/// The device, and an iteration on it of a network with every kind of layer.
pub struct Case {
    pub place: Place,
    pub network: Network,
    pub program: Program,
}

impl Case {
    /// Opens the device; `None`, with a message, if it cannot be there.
    pub fn open() -> Option<Case> {
        let (place, network) = (Place::open()?, everything());
        let program = program(&place, &network);
        Some(Case { place, network, program })
    }

    /// Contents of a device after some iterations.
    pub fn train(&self, schedule: &Schedule, device: Box<dyn Device>) -> Result<Checkpoint, Error> {
        train(&self.network, &self.program, schedule, device)
    }

    /// A trainer that keeps its state on the host, copied before this offload or after all; with `feeds`, its iterations
    /// copy the next one's input.
    pub fn keeping(
        &self,
        feeds: bool,
        schedule: &Schedule,
        before: Option<CommandId>,
        device: Box<dyn Device>,
    ) -> Trainer {
        let layout = MemoryLayout::of(&self.program, schedule).keeping_state(&self.program);
        let layout = if feeds { layout.feeding(&self.program) } else { layout };
        let mut executor = Executor::new(device, layout).expect("it is small");
        let loaded = executor.load_keeping_state(&self.program, schedule, before).expect("there is room");
        Trainer::new(executor, loaded, None, support::plan(&self.network, BATCH)).expect("the plan fits")
    }

    /// A plan of this many passes for an update.
    pub fn plan(&self, virtual_workers: u64) -> TrainingPlan {
        TrainingPlan { virtual_workers, ..support::plan(&self.network, BATCH) }
    }
}

/// One training iteration with exactly the scratch that the device `cuda` needs.
pub fn program(place: &Place, network: &Network) -> Program {
    program_with(&place.device(false), network)
}

/// The same for an open device, in its precision.
pub fn program_with(device: &dyn Device, network: &Network) -> Program {
    program_by(Optimizer::Sgd, device, network)
}

/// The same with this optimizer.
pub fn program_by(optimizer: Optimizer, device: &dyn Device, network: &Network) -> Program {
    let alternatives = |call: &Call| device.alternatives(call);
    let feature_maps = device.facts().precision.feature_maps();
    let (alternatives, fuse, more) = (&alternatives, true, LowerOptions::default());
    let options = LowerOptions { alternatives, optimizer, feature_maps, fuse, ..more };
    let mut program = lower(network, BATCH, &options).expect("a small network can be lowered");
    for op in &mut program.trace.ops {
        op.seconds = Seconds(op.flops as f64 / 2e10 + 2e-6);
    }
    program
}

/// The schedule of a policy at the tightest of some budgets that it fits; `None` if it has no plan for the network.
pub fn planned(program: &Program, policy: Policy) -> Option<Schedule> {
    let fits = |share: u64| {
        let (budget, link) = (between(&program.trace, share, 10), Link::symmetric(BytesPerSecond(5e9)));
        let limits = Limits { evaluations: Some(200), ..Limits::default() };
        let request = PlanRequest { limits, seed: 1, ..PlanRequest::new(budget, link, policy) };
        match plan(&program.trace, &request).expect("a sound trace") {
            Outcome::Planned(plan) => Some(plan.schedule),
            Outcome::Infeasible(_) => None,
        }
    };
    [2, 4, 7, 10, 13].into_iter().find_map(fits)
}

/// Contents of a device after some iterations.
pub fn train(
    network: &Network,
    program: &Program,
    schedule: &Schedule,
    device: Box<dyn Device>,
) -> Result<Checkpoint, Error> {
    let mut executor = Executor::new(device, MemoryLayout::of(program, schedule))?;
    let loaded = executor.load(program, schedule)?;
    let optimizer = Region::optimizer_of(&program.resident);
    let mut trainer = Trainer::new(executor, loaded, None, support::plan_by(optimizer, network, BATCH))?;
    advance(&mut trainer, ITERATIONS)?;
    trainer.checkpoint()
}

/// Every number of a checkpoint, by region.
pub fn numbers(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<f32>> {
    let region = |name: &str| checkpoint.region(name).expect("it has its regions");
    checkpoint.names().map(|name| (name.to_owned(), region(name))).collect()
}

/// The bits of every number of a checkpoint, by region.
pub fn bits(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<u32>> {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect();
    numbers(checkpoint).into_iter().map(|(name, numbers)| (name, bits(numbers))).collect()
}

/// Largest difference between numbers of two checkpoints, which must not be NaN.
pub fn apart(a: &Checkpoint, b: &Checkpoint) -> f32 {
    let (a, b) = (numbers(a), numbers(b));
    let pairs = a.iter().flat_map(|(name, values)| values.iter().zip(&b[name]));
    pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most: f32, off| if most.is_nan() || off <= most { most } else { off })
}

fn check(place: &Place, network: &Network, program: &Program, schedules: &[(String, Schedule)]) {
    let kept = train(network, program, &keep(&program.trace), Box::new(place.device(false)));
    let kept = numbers(&kept.expect("it trains"));
    let its_own = support::training(network, BATCH);
    let on_cpu = train(network, &its_own, &keep(&its_own.trace), Box::new(support::cpu()));
    assert_near(kept.clone(), numbers(&on_cpu.expect("it trains")), 1e-3);
    for (n, (name, schedule)) in (0..).zip(schedules) {
        for graphs in [false, true] {
            for pace in place.paces(n) {
                place.set(&pace);
                let found = train(network, program, schedule, place.watched(graphs)).expect("it trains");
                for (region, found) in numbers(&found) {
                    let same = found.iter().zip(&kept[&region]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "`{region}` differs: {name}, graphs {graphs}, {pace:?}");
                }
            }
        }
    }
}

/// Asserts that numbers are about those that the device `cpu` computes.
fn assert_near(found: BTreeMap<String, Vec<f32>>, on_cpu: BTreeMap<String, Vec<f32>>, share: f32) {
    for ((name, found), (_, expected)) in found.into_iter().zip(on_cpu) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < share);
        assert!(near, "`{name}` is not what the device cpu computes");
    }
}

fn schedules(program: &Program, policies: &[Policy], random: u64) -> Vec<(String, Schedule)> {
    let mut plans = Vec::new();
    for policy in policies {
        match planned(program, *policy) {
            Some(schedule) => plans.push((policy.to_string(), schedule)),
            None => println!("{policy} has no plan for {}", program.trace.name),
        }
    }
    assert!(plans.len() * 2 >= policies.len(), "most policies have a plan for it");
    let random = (0..random).map(|seed| (format!("random {seed}"), random_schedule(&program.trace, seed)));
    let own = [("keep", keep(&program.trace)), ("naive", naive(&program.trace))];
    own.map(|(name, schedule)| (name.to_owned(), schedule)).into_iter().chain(plans).chain(random).collect()
}

/// Checks a network under several policies and random schedules.
fn trains_to_the_same_bits(network: &Network, policies: &[Policy], random: u64) {
    let Some(place) = Place::open() else { return };
    let program = program(&place, network);
    check(&place, network, &program, &schedules(&program, policies, random));
}

#[test]
fn a_network_of_every_kind_of_layer_trains_to_the_same_bits() {
    trains_to_the_same_bits(&everything(), &Policy::ALL, 6);
}

#[test]
fn resnet20_trains_to_the_same_bits() {
    trains_to_the_same_bits(&zoo("resnet20"), &[Policy::Plimsoll], 0);
}

#[test]
fn the_state_of_the_last_finished_iteration_is_kept_beside_the_next() {
    let Some(case) = Case::open() else { return };
    let Case { place, program, .. } = &case;
    let mut reference = case.keeping(false, &keep(&program.trace), None, Box::new(place.device(false)));
    for finished in 1..8 {
        advance(&mut reference, finished).expect("it trains");
        let expected = reference.checkpoint().expect("it works");
        for (n, (name, schedule)) in (0..).zip(schedules(program, &[Policy::Plimsoll], 1)) {
            // Among the offloads, and after them.
            let offloads = schedule.numbered_commands().filter(|(_, c)| c.stream() == Stream::Offload);
            let before = offloads.map(|(id, _)| id).nth(n as usize).filter(|_| finished % 2 == 1);
            // In each half, the first iteration is enqueued, the second captured, and later ones replayed.
            for graphs in [false, true] {
                for pace in place.paces(n + finished) {
                    place.set(&pace);
                    let mut trainer = case.keeping(true, &schedule, before, place.watched(graphs));
                    let found = spoilt::last_finished(&mut trainer, finished);
                    let found = found.expect("the next is spoilt").expect("iterations were finished");
                    assert_eq!(found.progress, expected.progress);
                    assert!(bits(&found) == bits(&expected), "{finished}: {name}, graphs {graphs}, {pace:?}");
                }
            }
        }
    }
}

/// A worker of a group, on a device whose passes are separate iterations.
pub fn sharing(
    program: &Program,
    schedule: &Schedule,
    plan: &TrainingPlan,
    group: Box<dyn Group>,
    device: CudaDevice,
) -> Trainer {
    let layout = MemoryLayout::of(program, schedule).feeding(program);
    let mut executor = Executor::new(Box::new(device), layout).expect("it is small");
    let loaded = executor.load_apart(program, schedule, Bytes(1 << 10)).expect("the schedule is valid");
    Trainer::sharing(executor, loaded, None, plan.clone(), group).expect("the plan fits")
}

/// Contents of the first worker after some updates: of one worker that accumulates, whose passes may be graphs, or of
/// several, each with a separate device.
pub fn shared(
    program: &Program,
    schedule: &Schedule,
    plan: &TrainingPlan,
    groups: Vec<Box<dyn Group>>,
    device: impl Fn() -> CudaDevice,
) -> Checkpoint {
    let digits = plimsoll_runtime::data::digits();
    let trainer = |group| sharing(program, schedule, plan, group, device());
    let trainers: Vec<Trainer> = groups.into_iter().map(trainer).collect();
    let mut trained = support::side_by_side(trainers, |mut trainer| {
        trainer.train(&*digits.train, ITERATIONS, &mut |_| {}, &|| false).expect("it trains");
        trainer
    });
    trained[0].checkpoint().expect("it works")
}

/// Reads results of a worker's pass while the pass runs, and writes the next one's inputs; the next input may come after
/// everything.
#[test]
fn workers_train_to_the_bits_of_one() {
    let Some(case) = Case::open() else { return };
    let (plan, Case { place, program, .. }) = (case.plan(3), case);
    for (n, (name, schedule)) in (0..).zip(schedules(&program, &[Policy::Plimsoll], 0)) {
        let one = |graphs| shared(&program, &schedule, &plan, vec![alone()], || place.device(graphs));
        let expected = bits(&one(true));
        for pace in place.paces(n) {
            place.set(&pace);
            let device = || place.device(true).without_graphs().expect("there is memory");
            let several = || shared(&program, &schedule, &plan, threads(2), device);
            let mut found = BTreeMap::new();
            let calls = place.counted(|| found = bits(&several()));
            assert!(found == expected, "{name}, {pace:?}");
            if let Some(calls) = calls {
                // A graph's events say nothing while it runs.
                let has = |call: &str| calls.contains_key(call);
                assert!(has("cuEventQuery") && !has("cuGraphLaunch"), "{name}: {calls:?}");
            }
        }
        assert!(bits(&one(false)) == expected, "{name}");
    }
}

/// With a single worker, NCCL leaves its numbers as they are, times 1.
#[test]
fn a_worker_alone_trains_by_nccl_to_the_bits_without() {
    let Some(case) = Case::open() else { return };
    let Case { place, program, .. } = &case;
    let schedule = keep(&program.trace);
    for virtual_workers in [1, 3] {
        let plan = case.plan(virtual_workers);
        let device = || place.device(true).without_graphs().expect("there is memory");
        if let Err(error) = device().with_nccl(&place.options().libraries) {
            return println!("skipped: {error}");
        }
        let by_nccl = || device().with_nccl(&place.options().libraries).expect("it was found");
        let found = shared(program, &schedule, &plan, vec![alone()], by_nccl);
        let expected = shared(program, &schedule, &plan, vec![alone()], device);
        assert!(bits(&found) == bits(&expected), "{virtual_workers} passes");
    }
}

/// Networks of tokens and of maps, on random inputs, in f32 and in bf16, in which the reference is the device cpu in bf16.
#[test]
fn networks_of_tokens_and_maps_train_to_the_same_bits() {
    let Some(place) = Place::open() else { return };
    for (network, feature_maps) in
        [drawn::text(), drawn::maps()].iter().flat_map(|of| [(of, Float::F32), (of, Float::Bf16)])
    {
        let (device, policies, near) = match feature_maps {
            Float::F32 => (place.device(true), &Policy::ALL[..], 1e-3),
            Float::Bf16 => (place.device_in(Precision::Bf16), &[Policy::Plimsoll, Policy::Naive][..], 2e-2),
        };
        let program = program_with(&device, network);
        assert_eq!(program.feature_maps, feature_maps);
        let train = |program: &Program, schedule: &Schedule, device| {
            drawn::train(network, program, schedule, device, ITERATIONS as u32).expect("it trains")
        };
        let another = || Box::new(device.another().expect("it shares what is open"));
        let kept = train(&program, &keep(&program.trace), another());
        let its_own = support::training_in(feature_maps, network, BATCH);
        let cpu = Cpu::new(CpuOptions { feature_maps, ..CpuOptions::default() });
        let on_cpu = train(&its_own, &keep(&its_own.trace), Box::new(cpu));
        let numbers =
            |of: &drawn::Outcome| drawn::numbers(of).map(|(name, of)| (name.to_owned(), of)).collect();
        assert_near(numbers(&kept), numbers(&on_cpu), near);
        for (n, (name, schedule)) in (0..).zip(schedules(&program, policies, 3)) {
            for pace in place.paces(n) {
                place.set(&pace);
                let watched = feature_maps == Float::F32;
                let found =
                    train(&program, &schedule, if watched { place.watched(n % 2 == 0) } else { another() });
                assert!(found == kept, "{}: {name}, {pace:?}, {feature_maps:?}", network.spec.name);
            }
        }
    }
}
