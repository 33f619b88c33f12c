//! Whole training iterations on the device `cuda` as it is, with the stand-in for its driver: every schedule gives the bits of
//! keeping everything, with graphs and without, however late a stream is; and a device with a fault does not.

mod calls;
mod faults;
mod faulty;
mod library;
#[path = "../../../runtime/tests/support/mod.rs"]
mod support;

use faulty::{Fault, Faulty, Planted};
use library::StandIn;
use plimsoll_ir::network::Network;
use plimsoll_ir::program::{Program, Way};
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::testing::random_schedule;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_networks::{LowerOptions, Mode, ReluStorage, lower};
use plimsoll_runtime::cuda::workspace_bytes;
use plimsoll_runtime::{Checkpoint, Cpu, CpuOptions, Device, Executor, MemoryLayout, RuntimeError, Trainer};
use plimsoll_tuner::{Allow, Limits, Outcome, PlanRequest, Policy, Tricks, plan};
use std::collections::BTreeMap;
use support::{advance, everything, keep, naive, zoo};

const BATCH: u64 = 4;
const ITERATIONS: u64 = 5;

/// One training iteration with the scratch that the device `cuda` needs, and no byte more.
fn program(network: &Network) -> Program {
    let ways = |call: &_| Way::sole(workspace_bytes(call));
    let options = LowerOptions { mode: Mode::Train, relu: ReluStorage::Auto, ways: &ways };
    let mut program = lower(network, BATCH, &options).expect("a small network can be lowered");
    for op in &mut program.trace.ops {
        op.seconds = Seconds(op.flops as f64 / 2e10 + 2e-6);
    }
    program
}

/// The schedule of a policy at the tightest of some budgets that it fits; none where it has no plan for the network.
fn planned(program: &Program, policy: Policy) -> Option<Schedule> {
    let memory = program.trace.memory();
    let (_, peak) = memory.peak().expect("there are ops");
    let (_, floor) = memory.floor().expect("there are ops");
    let fits = |share: f64| {
        let request = PlanRequest {
            budget: Bytes(floor.0 + ((peak.0 - floor.0) as f64 * share) as u64),
            link: Link::symmetric(BytesPerSecond(5e9)),
            policy,
            allow: Allow::default(),
            limits: Limits { evaluations: Some(200), ..Limits::default() },
            seed: 1,
            without: Tricks::NONE,
        };
        match plan(&program.trace, &request).expect("a sound trace") {
            Outcome::Planned(plan) => Some(plan.schedule),
            Outcome::Infeasible(_) => None,
        }
    };
    [0.2, 0.4, 0.7, 1.0, 1.3].into_iter().find_map(fits)
}

/// What a device has after some iterations.
fn train(
    network: &Network,
    program: &Program,
    schedule: &Schedule,
    device: impl Device + 'static,
) -> Result<Checkpoint, RuntimeError> {
    let mut executor = Executor::new(Box::new(device), MemoryLayout::of(program, schedule))?;
    let loaded = executor.load(program, schedule)?;
    let mut trainer = Trainer::new(executor, loaded, None, support::plan(network, BATCH))?;
    advance(&mut trainer, ITERATIONS)?;
    trainer.checkpoint()
}

/// Every number of a checkpoint, by region.
fn numbers(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<f32>> {
    let region = |name: &str| checkpoint.region(name).expect("it has its regions");
    checkpoint.names().map(|name| (name.to_owned(), region(name))).collect()
}

fn bits(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<u32>> {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect();
    numbers(checkpoint).into_iter().map(|(name, numbers)| (name, bits(numbers))).collect()
}

/// How streams run.
#[derive(Clone, Copy, Debug)]
enum Late {
    /// By themselves, as late as a seed makes them.
    Delays(u64),
    /// By turns, in a fixed order or a drawn one.
    Order(u64),
}

impl Late {
    fn set(self, library: &StandIn) {
        let (seed, order) = match self {
            Late::Delays(seed) => (seed, 0),
            Late::Order(order) => (0, order),
        };
        library.delays(seed);
        library.order(order);
    }
}

fn check(network: &Network, schedules: &[(String, Schedule)]) {
    let Some(library) = StandIn::open() else { return };
    let program = program(network);
    let kept = train(network, &program, &keep(&program.trace), library.device(false)).expect("it trains");
    let its_own = support::training(network, BATCH);
    let on_cpu = train(network, &its_own, &keep(&its_own.trace), Cpu::new(CpuOptions::default()));
    let on_cpu = numbers(&on_cpu.expect("it trains"));
    for (name, found) in numbers(&kept) {
        let near = found.iter().zip(&on_cpu[&name]).all(|(a, b)| (a - b).abs() < 1e-3);
        assert!(near, "`{name}` is not what the device cpu computes");
    }
    let kept = bits(&kept);
    for (n, (name, schedule)) in (0..).zip(schedules) {
        for graphs in [false, true] {
            for late in [Late::Delays(n % 4), Late::Order(1 + n % 6), Late::Order(7 + n)] {
                late.set(&library);
                let device =
                    Faulty::new(library.device(graphs), Fault::None, &Planted::default(), library.busy());
                let found = train(network, &program, schedule, device).expect("it trains");
                for (region, bits) in bits(&found) {
                    assert!(bits == kept[&region], "`{region}` differs: {name}, graphs {graphs}, {late:?}");
                }
            }
        }
    }
}

fn schedules(network: &Network, policies: &[Policy], random: u64) -> Vec<(String, Schedule)> {
    let program = program(network);
    let mut plans = Vec::new();
    for policy in policies {
        match planned(&program, *policy) {
            Some(schedule) => plans.push((policy.to_string(), schedule)),
            None => println!("{policy} has no plan for {}", program.trace.name),
        }
    }
    assert!(plans.len() >= policies.len() / 2, "most policies have a plan for it");
    let random = (0..random).map(|seed| (format!("random {seed}"), random_schedule(&program.trace, seed)));
    let own = [("keep", keep(&program.trace)), ("naive", naive(&program.trace))];
    own.map(|(name, schedule)| (name.to_owned(), schedule)).into_iter().chain(plans).chain(random).collect()
}

#[test]
fn a_network_of_every_kind_of_layer_trains_to_the_same_bits() {
    let network = everything();
    check(&network, &schedules(&network, &Policy::ALL, 6));
}

#[test]
fn resnet20_trains_to_the_same_bits() {
    let network = zoo("resnet20");
    check(&network, &schedules(&network, &[Policy::Plimsoll], 0));
}
