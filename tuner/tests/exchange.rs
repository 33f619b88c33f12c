//! Tests of the workers' exchange on real networks: every gradient travels once, between the op that completes it and the one
//! that waits; overlapping hides as much as possible.

use crate::common::{planned, request};
use plimsoll_ir::exchange::update::{bound, simulate_update};
use plimsoll_ir::exchange::{Exchange, Form, Interconnect, Overlap};
use plimsoll_ir::program::{Access, Operand, Program, Region, Role};
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, Document, OpId, Seconds};
use plimsoll_networks::{LowerOptions, build, lower, usual};
use plimsoll_testing::between;
use plimsoll_tuner::Policy;
use plimsoll_tuner::exchange::{Workers, exchange};

/// Returns a network of the zoo, with times as of a device of 10 TFLOP/s.
fn program(name: &str) -> Program {
    let network = build(&usual(name).expect("it is in the zoo")).expect("it can be built");
    let mut program = lower(&network, 8, &LowerOptions::default()).expect("it can be lowered");
    for op in &mut program.trace.ops {
        op.seconds = Seconds(10e-6 + op.flops as f64 / 10e12);
    }
    program
}

fn workers(overlap: Overlap) -> Workers {
    Workers {
        count: 8,
        interconnect: "2Gbit/s".parse::<Interconnect>().expect("a rate"),
        form: Form::Sharded,
        staged: true,
        passes: 1,
        overlap,
    }
}

const NETWORKS: [&str; 4] = ["resnet20", "densenet121", "gpt-tiny", "lstm"];
const PIECE: Bytes = Bytes(256 << 10);

#[test]
fn every_gradient_travels_once_between_who_completes_it_and_who_waits() {
    for name in NETWORKS {
        let program = program(name);
        for overlap in [Overlap::Nothing, Overlap::Backward(PIECE), Overlap::Forward(PIECE)] {
            let exchange = exchange(&program, &workers(overlap)).expect("it trains");
            exchange.validate().unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert_eq!(Exchange::from_json(&exchange.to_json()).as_ref(), Ok(&exchange), "{name}");
            let pieces = &exchange.pieces;
            assert_eq!(pieces.len() == 1, overlap == Overlap::Nothing, "{name}: {pieces:?}");
            let mut at = 0;
            let is_summed = |role: Role| matches!(role, Role::Gradient | Role::State(_));
            let (mut written, mut updated) = (0, 0);
            let mut summed: Vec<_> = program.resident.iter().filter(|r| is_summed(r.role)).collect();
            summed.sort_by_key(|region| region.role != Role::Gradient);
            for region in summed {
                let (first, end) = (at, at + region.bytes().0);
                at = end;
                let holds =
                    |first_byte: Bytes, bytes: Bytes| first_byte.0 <= first && end <= first_byte.0 + bytes.0;
                let piece = exchange.pieces.iter().find(|piece| holds(piece.first_byte, piece.bytes));
                let piece = piece.unwrap_or_else(|| panic!("{name}: {} is cut in two", region.name));
                for (number, kernel) in program.kernels.iter().enumerate() {
                    let (op, phase) = (OpId::new(number), program.trace.ops[number].phase);
                    for (operand, spec) in kernel.specified() {
                        if operand != Operand::Resident(region.offset) {
                            continue;
                        }
                        let writes = spec.access != Access::Read && phase != Phase::Update;
                        assert!(
                            !writes || op <= piece.ready,
                            "{name}: {region:?} is written after {piece:?}"
                        );
                        written += usize::from(writes);
                        let updates = phase == Phase::Update && !piece.carried();
                        assert!(
                            !updates || op >= piece.needed,
                            "{name}: {region:?} is used before {piece:?}"
                        );
                        updated += usize::from(updates);
                    }
                }
            }
            assert!(written > 0, "{name}: no op writes a gradient");
            assert!(updated > 0 || matches!(overlap, Overlap::Forward(_)), "{name}: no update uses a sum");
            assert_eq!(exchange.bytes, Bytes(at), "{name}");
            // If the next pass waits, all tensors that updates overwrite are kept: parameters and optimizer state.
            let is_overwritten =
                |role: Role| !is_summed(role) && !matches!(role, Role::Hyper | Role::Metrics);
            let overwritten = program.resident.iter().filter(|region| is_overwritten(region.role));
            let waits = matches!(overlap, Overlap::Forward(_));
            let kept: Bytes = overwritten.filter(|_| waits).map(Region::bytes).sum();
            assert_eq!(exchange.pieces.iter().map(|piece| piece.kept).sum::<Bytes>(), kept, "{name}");
        }
    }
}

#[test]
fn the_earlier_a_piece_may_go_and_the_later_it_is_needed_the_more_is_hidden() {
    for name in NETWORKS {
        let program = program(name);
        let trace = &program.trace;
        let budget = between(trace, 1, 2);
        let plan = planned(trace, &request(budget, 12e9, Duplex::Full, Policy::Plimsoll)).expect("it fits");
        let update = |overlap, passes| {
            let workers = Workers { passes, ..workers(overlap) };
            let exchange = exchange(&program, &workers).expect("it trains");
            assert_eq!(exchange.check(trace, &plan.schedule), Ok(()), "{name}");
            let update = simulate_update(trace, &plan.schedule, &exchange);
            let least = bound(trace, &plan.schedule, &exchange);
            assert!(least.0 <= update.seconds.0 * (1.0 + 1e-9), "{name}: {least} and {}", update.seconds);
            println!("{name}, {overlap:?}: {} for at least {least}", update.seconds);
            // If the next iteration waits, the bound requires two iterations together.
            let most = if matches!(overlap, Overlap::Forward(_)) && passes == 1 { 1.6 } else { 1.05 };
            let seconds = update.seconds;
            assert!(seconds.0 <= most * least.0, "{name}, {overlap:?}: {least} and {seconds}");
            seconds
        };
        for passes in [1, 2, 4] {
            let nothing = update(Overlap::Nothing, passes);
            let backward = update(Overlap::Backward(PIECE), passes);
            let forward = update(Overlap::Forward(PIECE), passes);
            // Copies of tensors that will be overwritten use the link that gradients use.
            let most = backward * 1.02;
            assert!(backward < nothing && forward <= most, "{name}: {nothing}, {backward}, {forward}");
        }
    }
}

#[test]
fn an_exchange_is_known_without_overlap_and_among_other_workers() {
    for name in NETWORKS {
        let program = program(name);
        let of = |workers: &Workers| exchange(&program, workers).expect("it trains");
        let (nothing, forward) = (workers(Overlap::Nothing), workers(Overlap::Forward(PIECE)));
        assert_eq!(of(&forward).without_overlap(&program.trace), of(&nothing), "{name}");
        for count in [2, 3, 16] {
            assert_eq!(of(&forward).among(count), of(&Workers { count, ..forward }), "{name} among {count}");
        }
        let alone = of(&forward).among(1);
        assert!(alone.pieces.is_empty() && alone.bytes == Bytes::ZERO, "{name}: {alone:?}");
    }
}
