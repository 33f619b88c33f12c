//! Euro-Par'20's policies need a chain: they group every network of the zoo, whatever its graph, into one.

use plimsoll::ir::Bytes;
use plimsoll::ir::check::check;
use plimsoll::networks::{LowerOptions, build, lower, usual};
use plimsoll::tuner::model::devices::{Modelled, sheet};
use plimsoll::tuner::{Outcome, PlanRequest, Policy, plan};

/// Checks that at a budget this far from the floor to the peak, both policies have a plan that moves something.
#[track_caller]
fn check_offered(network: &str, batch: u64, far: f64) {
    let device =
        Modelled { fast_alternatives: false, ..Modelled::new(sheet("v100").expect("a modelled device")) };
    let built = build(&usual(network).expect("in the zoo")).expect("a network");
    let mut program = lower(&built, batch, &LowerOptions::default()).expect("a sound batch");
    device.fill(&mut program);
    let trace = program.trace;
    let memory = trace.memory();
    let [floor, peak] = [memory.floor(), memory.peak()].map(|most| most.expect("there are ops").1);
    let budget = floor + Bytes(((peak - floor).0 as f64 * far) as u64);
    for policy in [Policy::Greedy, Policy::DynProg] {
        match plan(&trace, &PlanRequest::new(budget, device.link(), policy)).expect("a sound request") {
            Outcome::Planned(made) => {
                check(&trace, &made.schedule).expect("a valid schedule");
                assert!(made.moved > Bytes::ZERO, "{network}, {policy}: nothing moves");
            }
            Outcome::Infeasible(witness) => panic!("{network}, {policy}: {witness}"),
        }
    }
}

#[test]
fn every_graph_of_the_zoo_is_grouped_into_a_chain() {
    for (network, batch, far) in [
        ("alexnet", 64, 0.7),
        ("vgg16", 16, 0.95),
        ("resnet18", 16, 0.6),
        ("resnet20", 64, 0.6),
        ("wrn-16-4", 32, 0.6),
        ("googlenet", 16, 0.6),
        ("inception_v3", 8, 0.6),
        ("densenet121", 8, 0.6),
        ("mobilenet_v2", 8, 0.6),
        ("unet", 1, 0.9),
        ("lstm", 64, 0.9),
        ("gpt-tiny", 8, 0.9),
        ("bert", 2, 0.9),
    ] {
        check_offered(network, batch, far);
    }
}
