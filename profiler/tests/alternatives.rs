//! Ops with several alternatives, from the measurement to the plan: on a simulated device whose every alternative takes a
//! known time.

use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::program::{Call, KernelAlternative, Program};
use plimsoll_ir::schedule::{Command, Link};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Document, Optimizer, Seconds};
use plimsoll_networks::{LowerOptions, build, lower};
use plimsoll_profiler::{Effort, ProfileRequest, SubjectError, Watch, machine, profile, schedule_with};
use plimsoll_runtime::Null;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::{Allow, Limits, Outcome, PlanRequest, Policy, Tricks, plan};

const BUDGET: Bytes = Bytes(64 << 20);

/// Workspace of a convolution's fast alternative, per sample; the lean one needs none.
const SCRATCH: u64 = 64 << 10;

/// Smallest batch size at which the hungry alternative's workspace fits no budget here.
const TOO_HUNGRY: u64 = 12;

fn link() -> Link {
    Link::symmetric(BytesPerSecond(1e12))
}

fn is_conv(call: &Call) -> bool {
    matches!(call, Call::ConvForward { .. } | Call::ConvBackwardData { .. } | Call::ConvBackwardFilter { .. })
}

/// Returns the program, with the times that the simulated device takes.
fn program(batch: u64) -> Program {
    let spec = NetworkSpec { name: "lenet".into(), image: [28, 28], channels: 1, classes: 10 };
    let alternative =
        |name: &str, workspace| KernelAlternative { name: name.into(), workspace: Bytes(workspace) };
    let alternatives = |call: &Call| {
        if !is_conv(call) {
            return KernelAlternative::sole(Bytes::ZERO);
        }
        let hungry = if batch >= TOO_HUNGRY { 1 << 40 } else { 2 * SCRATCH * batch };
        vec![alternative("fast", SCRATCH * batch), alternative("lean", 0), alternative("hungry", hungry)]
    };
    let options = LowerOptions { alternatives: &alternatives, ..LowerOptions::default() };
    let mut program = lower(&build(&spec).expect("in the zoo"), batch, &options).expect("lowers");
    for (i, op) in program.trace.ops.iter_mut().enumerate() {
        op.seconds = Seconds(1e-6 * (i + 1) as f64 * batch as f64);
        for (times, alternative) in [1.5, 0.8].into_iter().zip(&mut op.alternatives) {
            alternative.seconds = op.seconds * times;
        }
    }
    program
}

fn request(budget: Bytes, policy: Policy) -> PlanRequest<'static> {
    let limits = Limits { evaluations: Some(300), ..Limits::default() };
    let (allow, without) = (Allow::default(), Tricks::NONE);
    let request = PlanRequest::new(budget, link(), policy);
    PlanRequest { allow, limits, without, ..request }
}

fn measured() -> Profile {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut subject = |batch: u64, alternative: Option<u32>| -> Result<_, SubjectError> {
        let program = program(batch);
        let schedule = schedule_with(&program, alternative, |trace| {
            match plan(trace, &request(BUDGET, Policy::Naive))? {
                Outcome::Planned(plan) => Ok::<_, SubjectError>(Some(plan.schedule)),
                Outcome::Infeasible(_) => Ok(None),
            }
        })?;
        Ok(schedule.map(|schedule| (program, schedule)))
    };
    let device = Box::new(Null::new(link()));
    let request = ProfileRequest {
        network: NetworkSpec { name: "lenet".into(), image: [28, 28], channels: 1, classes: 10 },
        optimizer: Optimizer::Sgd,
        machine: machine(&*device, Some(link()), "test"),
        budget: BUDGET,
        batches: vec![4, 8, 16],
        effort: Effort { at_least: 3, ..Effort::default() },
        journal: folder.path().join("profile.journal.jsonl"),
        fresh: false,
    };
    let mut watch = Watch { stop: &|| false, progress: &mut |_| {}, warn: &mut |_| {} };
    profile(&request, &mut subject, device, &mut watch).expect("measured")
}

/// Returns the number of a plan's ops in each alternative: default, lean, hungry.
fn alternatives_of(trace: &Trace, budget: Bytes) -> Option<[usize; 3]> {
    let outcome = plan(trace, &request(budget, Policy::Plimsoll)).expect("a sound trace");
    let mut alternatives = [0; 3];
    for command in &outcome.plan()?.schedule.commands {
        if let Command::Compute { op, alternative, .. } = command
            && !trace.ops[op.index()].alternatives.is_empty()
        {
            alternatives[alternative.map_or(0, |number| number as usize + 1)] += 1;
        }
    }
    Some(alternatives)
}

#[test]
fn each_way_is_measured_where_it_fits_and_planned_where_it_pays() {
    let profile = measured();
    assert_eq!(Profile::from_json(&profile.to_json()).as_ref(), Ok(&profile));
    let mut convolutions = 0;
    for batch in &profile.batches {
        let program = program(batch.batch);
        for (op, kernel) in batch.ops.iter().zip(&program.kernels) {
            let expected: &[(&str, f64)] = match (is_conv(&kernel.call), batch.batch < TOO_HUNGRY) {
                (false, _) => &[],
                (true, true) => &[("lean", 1.5), ("hungry", 0.8)],
                (true, false) => &[("lean", 1.5)],
            };
            convolutions += usize::from(!expected.is_empty());
            let usual = op.seconds[0];
            assert!(op.seconds.iter().all(|s| (*s / usual - 1.0).abs() < 1e-6), "{op:?}");
            assert_eq!(op.alternatives.len(), expected.len(), "{op:?}");
            for (alternative, (name, times)) in op.alternatives.iter().zip(expected) {
                assert_eq!(&alternative.name, name);
                let all = alternative.seconds.iter().all(|s| (*s / usual / times - 1.0).abs() < 1e-6);
                assert!(alternative.seconds.len() == 3 && all, "{op:?}");
            }
        }
    }
    assert!(convolutions > 9);

    let model = Model::fit(&profile).expect("fits");
    let mut trace = program(11).trace;
    model.fill(&mut trace).expect("all of it was measured");
    for op in trace.ops.iter().filter(|op| !op.alternatives.is_empty()) {
        for (alternative, times) in op.alternatives.iter().zip([1.5, 0.8]) {
            assert!((alternative.seconds / op.seconds / times - 1.0).abs() < 0.02, "{op:?}");
        }
    }
    // With enough room the hungry alternative is the fastest; with little more than ops touch, only the lean one fits.
    let (_, floor) = trace.memory().floor().expect("there are ops");
    let [usual, lean, hungry] = alternatives_of(&trace, BUDGET).expect("it fits");
    assert!(usual == 0 && lean == 0 && hungry >= 3, "{usual} {lean} {hungry}");
    let tight = Bytes(floor.0 + SCRATCH / 4);
    let [usual, lean, hungry] = alternatives_of(&trace, tight).expect("the lean alternatives fit");
    assert!(lean > 0, "{usual} {lean} {hungry}");
}
