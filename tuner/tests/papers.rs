//! Tests of the papers' policies on small chains on which their decisions are known by hand.
//!
//! A chain has layers 0 to n-1. Layer i reads x_i and writes x_(i+1) in 1 s; its backward op reads x_i and the gradient y_(i+1),
//! and writes y_i. Every tensor has 100 bytes; the link takes 2 s for it, each way, unless stated otherwise. A further test
//! checks the finding of Euro-Par'20 on its program for the chains of real networks.

use crate::common::{planned, request};
use plimsoll_ir::schedule::{Command, Duplex};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace};
use plimsoll_ir::{Bytes, Document, Seconds, TensorId};
use plimsoll_testing::{floor_and_peak, hand};
use plimsoll_tuner::{Algorithms, Allow, Layers, Layrub, Limits, Plan, PlanRequest, Policy, Witness};

const RATE: f64 = 50.0;

fn op(kind: &str, layer: usize, phase: Phase, reads: &[usize], writes: &[usize]) -> Op {
    let layer = format!("layer{layer}");
    let op = hand::op(&format!("{kind}.{layer}.{phase:?}"), phase, reads, writes);
    Op { layer, kind: kind.to_owned(), recomputable: true, ..op }
}

/// Returns a chain of layers of these kinds: x_i is tensor i, y_i is tensor n + 1 + i.
fn chain(kinds: &[&str]) -> Trace {
    let n = kinds.len();
    let mut ops: Vec<Op> = Vec::new();
    for (i, kind) in kinds.iter().enumerate() {
        ops.push(op(kind, i, Phase::Forward, &[i], &[i + 1]));
    }
    for (i, kind) in kinds.iter().enumerate().rev() {
        let above = if i + 1 == n { n } else { n + 2 + i };
        ops.push(op(kind, i, Phase::Backward, &[i, above], &[n + 1 + i]));
    }
    let mut trace = hand::trace(vec![100; 2 * n + 1], ops);
    trace.tensors[0].kind = TensorKind::Input;
    trace.tensors[n + 1..].iter_mut().for_each(|tensor| tensor.kind = TensorKind::Gradient);
    trace
}

fn peak(trace: &Trace) -> Bytes {
    floor_and_peak(trace).1
}

const fn vdnn(layers: Layers, algorithms: Algorithms) -> Policy {
    Policy::Vdnn { layers, algorithms }
}

const VDNN_ALL: Policy = vdnn(Layers::All, Algorithms::FastestThatFit);
const VDNN_CONV: Policy = vdnn(Layers::Conv, Algorithms::FastestThatFit);

#[track_caller]
fn plan(trace: &Trace, budget: Bytes, policy: Policy) -> Plan {
    planned(trace, &request(budget, RATE, Duplex::Full, policy)).expect("it fits")
}

/// Checks that at its peak a trace takes this long under a policy, which offloads just these tensors, in this order.
#[track_caller]
fn check(trace: &Trace, policy: Policy, seconds: f64, offloaded: &[u32]) {
    let plan = plan(trace, peak(trace), policy);
    assert_eq!(offloads(&plan), offloaded, "{policy}");
    assert!((plan.makespan.0 - seconds).abs() < 1e-9, "{policy}: {}", plan.makespan);
}

fn offloads(plan: &Plan) -> Vec<u32> {
    let offload = |c: &Command| if let Command::Offload { tensor, .. } = c { Some(tensor.0) } else { None };
    plan.schedule.commands.iter().filter_map(offload).collect()
}

fn run_again(plan: &Plan) -> Vec<u32> {
    let again =
        |c: &Command| if let Command::Compute { op, again: true, .. } = c { Some(op.0) } else { None };
    plan.schedule.commands.iter().filter_map(again).collect()
}

#[test]
fn vdnn_synchronises_at_the_end_of_every_layer() {
    // Every layer but the last takes the 2 s of its transfer; x_3 is used again at once.
    check(&chain(&["conv", "pool", "pool", "conv"]), VDNN_ALL, 14.0, &[0, 1, 2]);
    // Only layer 0 waits, and only the backward op of layer 3, from which the window reaches layer 0.
    check(&chain(&["conv", "pool", "pool", "conv"]), VDNN_CONV, 10.0, &[0]);
    check(&chain(&["pool", "pool", "pool"]), VDNN_CONV, 6.0, &[]);
}

#[test]
fn vdnn_prefetches_no_farther_than_the_next_convolution() {
    // Layer 2 updates its input in place, so that it offloads nothing and ends the window of layer 3.
    let mut trace = chain(&["conv", "conv", "conv", "fc"]);
    trace.ops[2].reads = vec![TensorId(2)];
    trace.ops[2].writes = vec![TensorId(2)];
    trace.ops[3].reads = vec![TensorId(2)];
    trace.ops[3].writes = vec![TensorId(4)];
    trace.ops[4].reads = vec![TensorId(2), TensorId(4)];
    // Forward 2 + 2 + 1 + 1; backward of 3 fetches nothing, of 2 fetches x_1, of 1 fetches x_0.
    check(&trace, VDNN_ALL, 6.0 + 1.0 + 2.0 + 2.0 + 1.0, &[0, 1]);
}

#[test]
fn vdnn_dyn_takes_the_first_pass_that_fits() {
    let mut trace = chain(&["conv", "conv", "pool", "pool"]);
    let keep = plan(&trace, peak(&trace), Policy::VdnnDyn);
    assert_eq!((keep.makespan, offloads(&keep)), (Seconds(8.0), vec![]));
    let conv = plan(&trace, peak(&trace) - Bytes(1), Policy::VdnnDyn);
    assert_eq!((conv.makespan, offloads(&conv)), (Seconds(12.0), vec![0, 1]));
    // The backward op of layer 3 touches three tensors, in addition to the one that is prefetched during it. In 400 bytes only
    // all layers suffice, and the op of layer 1 is downgraded to the algorithm that fits next to its 200.
    let lean = Alternative { name: "lean".into(), seconds: Seconds(3.0), workspace_bytes: Bytes(50) };
    let leanest = Alternative { name: "leanest".into(), seconds: Seconds(9.0), workspace_bytes: Bytes::ZERO };
    trace.ops[1].alternatives = vec![leanest, lean];
    trace.ops[1].workspace_bytes = Bytes(900);
    let all = plan(&trace, Bytes(400), Policy::VdnnDyn);
    assert_eq!((all.makespan, offloads(&all)), (Seconds(15.0), vec![0, 1, 2]));
    assert!(all.schedule.commands.iter().any(|c| matches!(c, Command::Compute { alternative: Some(1), .. })));
}

#[test]
fn vdnn_takes_the_fastest_algorithms_or_the_leanest() {
    let mut trace = chain(&["conv", "pool", "pool", "conv"]);
    // The op of layer 0 by itself: 1 s with a workspace; or 5 s without.
    trace.ops[0].workspace_bytes = Bytes(500);
    trace.ops[0].alternatives =
        vec![Alternative { name: "lean".into(), seconds: Seconds(5.0), workspace_bytes: Bytes::ZERO }];
    let of = |policy, budget| {
        let found = plimsoll_tuner::plan(&trace, &request(budget, RATE, Duplex::Full, policy));
        found.expect("a sound request").plan().map(|plan| plan.makespan.0)
    };
    // The fastest as in `vdnn_synchronises_at_the_end_of_every_layer`; of layer 0 the transfer hides 2 s of the 5.
    let wide = Bytes(700);
    for (policy, fastest, leanest) in [
        (vdnn(Layers::All, Algorithms::Fastest), Some(14.0), None),
        (vdnn(Layers::All, Algorithms::Leanest), Some(17.0), Some(17.0)),
        (VDNN_ALL, Some(14.0), Some(17.0)),
        (vdnn(Layers::Conv, Algorithms::Fastest), Some(10.0), None),
        (vdnn(Layers::Conv, Algorithms::Leanest), Some(13.0), Some(13.0)),
        (VDNN_CONV, Some(10.0), Some(13.0)),
    ] {
        assert_eq!((of(policy, wide), of(policy, wide - Bytes(1))), (fastest, leanest), "{policy}");
    }
}

#[test]
fn layrub_offloads_all_that_no_layer_refers_to_any_more() {
    let mut trace = chain(&["conv", "pool", "pool", "conv"]);
    check(&trace, Policy::Layrub(Layrub::Inter), 14.0, &[0, 1, 2]);
    check(&trace, Policy::Layrub(Layrub::Intra), 8.0, &[]);
    // A mask that only its own layer uses leaves after its op, behind x_1: layer 1 takes 4 s. It returns, with x_1, during
    // the backward op of layer 2: 4 s again. vDNN leaves it where it is.
    trace.tensors.push(Tensor { name: "mask".into(), bytes: Bytes(100), kind: TensorKind::Other });
    trace.ops[1].writes.push(TensorId(9));
    trace.ops[6].reads.push(TensorId(9));
    check(&trace, Policy::Layrub(Layrub::Hybrid), 18.0, &[0, 1, 9, 2]);
    check(&trace, VDNN_ALL, 14.0, &[0, 1, 2]);
}

const CONVS: [&str; 6] = ["conv"; 6];

#[test]
fn greedy_offloads_the_first_and_dynprog_what_fits_best() {
    let mut trace = chain(&CONVS);
    trace.tensors[0].bytes = Bytes(10);
    // At the peak, 95 bytes have to go: x_0 and x_1 for the eager one. The 5 to 100 are more than the loss of rounding to slots.
    let budget = peak(&trace) - Bytes(95);
    let greedy = plan(&trace, budget, Policy::Greedy);
    assert_eq!(offloads(&greedy), [0, 1]);
    let dynprog = plan(&trace, budget, Policy::DynProg);
    assert_eq!(offloads(&dynprog).len(), 1);
    assert_ne!(offloads(&dynprog), [0]);
    assert!(dynprog.makespan <= greedy.makespan);
    // If it gains nothing, nothing is offloaded, except by rounding to slots.
    for policy in [Policy::Greedy, Policy::VdnnRatio, Policy::Tflms, Policy::AutoSwap] {
        check(&trace, policy, 12.0, &[]);
    }
}

/// As in U-Net, x_1 to x_4 of 12 layers are read again by layers 10 to 7, so that they are last read by late stages, and first
/// used by the backward parts of early ones.
#[test]
fn dynprog_chooses_where_a_chain_has_long_skips() {
    let mut trace = chain(&["conv"; 12]);
    for skipped in 1..5 {
        trace.ops[11 - skipped].reads.push(TensorId::new(skipped));
    }
    for budget in [900, 1000, 1100].map(Bytes) {
        let [dynprog, greedy] = [Policy::DynProg, Policy::Greedy].map(|policy| plan(&trace, budget, policy));
        let count = offloads(&dynprog).len();
        assert!(count < 11, "{budget}: all is offloaded");
        assert!(dynprog.makespan.0 <= 1.01 * greedy.makespan.0, "{budget}: {}", dynprog.makespan);
    }
}

#[test]
fn the_baselines_choose_by_their_scores() {
    let mut trace = chain(&CONVS);
    trace.ops[3].seconds = Seconds(5.0);
    let budget = peak(&trace) - Bytes(100);
    // Stage 3 has the most seconds for its bytes, and of 3 and 0 the half is 0: both go without a stall.
    let ratio = plan(&trace, budget, Policy::VdnnRatio);
    assert!([[0], [3]].iter().any(|one| offloads(&ratio) == one) && ratio.makespan == Seconds(16.0));
    // x_0 is away for longest; the first is the first.
    assert_eq!(offloads(&plan(&trace, budget, Policy::AutoSwap)), [0]);
    assert_eq!(offloads(&plan(&trace, budget, Policy::Tflms)), [0]);
    // Ten times as slow a link frees nothing before the peak. Only TFLMS cannot wait for it.
    let slow = |policy| planned(&trace, &request(budget, RATE / 10.0, Duplex::Full, policy));
    assert!(slow(Policy::Greedy).is_ok() && slow(Policy::AutoSwap).is_ok());
    assert!(slow(Policy::Tflms).is_err());
}

#[test]
fn memonger_makes_segments_of_sqrt_n_layers_again() {
    // Segments 0 to 2, 3 to 5, 6 to 8. The last stays, x_3 and x_6 are boundaries.
    let trace = chain(&["conv"; 9]);
    let made = plan(&trace, peak(&trace), Policy::Memonger { searched: false });
    assert_eq!((run_again(&made), offloads(&made)), (vec![3, 4, 0, 1], vec![]));
    assert_eq!(made.makespan, Seconds(18.0 + 4.0));
    // At the first backward op: x_0, x_3, x_6 to x_9 and a gradient. During that of layer 5: x_0, x_3 to x_6, two gradients.
    assert_eq!(simulate(&trace, &made.schedule).peak(&trace, &made.schedule), Bytes(700));
}

#[test]
fn memonger_search_takes_the_fastest_segments_that_fit() {
    let mut trace = chain(&["conv"; 9]);
    assert!(run_again(&plan(&trace, peak(&trace), Policy::Memonger { searched: true })).is_empty());
    // For b of half of all outputs: segments 0 to 4, and 5 to 8, which stays.
    let halved = plan(&trace, peak(&trace) - Bytes(1), Policy::Memonger { searched: true });
    assert_eq!((run_again(&halved), offloads(&halved)), (vec![0, 1, 2, 3], vec![]));
    // x_3 is large: as a boundary of even segments it stays, while 0 to 3 in one segment give it up.
    trace.tensors[3].bytes = Bytes(1000);
    let of = |policy, budget| planned(&trace, &request(budget, RATE, Duplex::Full, policy));
    let [even, searched] = [false, true].map(|searched| Policy::Memonger { searched });
    assert!(of(even, Bytes(1599)).is_err() && of(even, Bytes(1600)).is_ok());
    assert_eq!(run_again(&of(searched, Bytes(1500)).expect("it fits")), [0, 1, 2]);
    // With less, pairs: x_0, x_2, x_3 and two gradients at the backward op of layer 3.
    assert_eq!(run_again(&of(searched, Bytes(1400)).expect("it fits")), [6, 4, 2, 0]);
    assert_eq!(of(searched, Bytes(1399)).expect_err("no segments need less").needs, Bytes(1400));
}

#[test]
fn superneurons_makes_cheap_layers_again_and_swaps_the_rest() {
    let mut trace = chain(&["conv", "relu", "conv", "relu", "conv", "relu"]);
    let kept = plan(&trace, peak(&trace), Policy::SuperNeurons);
    assert_eq!((run_again(&kept), offloads(&kept)), (vec![], vec![]));
    let again = plan(&trace, peak(&trace) - Bytes(1), Policy::SuperNeurons);
    assert_eq!((run_again(&again), offloads(&again)), (vec![3, 1], vec![]));
    // Two fewer than the 8 that the peak has: for 500 bytes one of the checkpoints leaves, the first.
    let swapped = plan(&trace, Bytes(500), Policy::SuperNeurons);
    assert_eq!((run_again(&swapped), offloads(&swapped)), (vec![3, 1], vec![0]));
    // Either alone: recomputing needs 600 bytes, and swapping also takes all tensors that recomputing would have given up.
    let alone = |budget, swap, recompute| {
        let allow = Allow { swap, recompute, ..Allow::ALL };
        let request = request(Bytes(budget), RATE, Duplex::Full, Policy::SuperNeurons);
        planned(&trace, &PlanRequest { allow, ..request }).map(|plan| (run_again(&plan), offloads(&plan)))
    };
    assert_eq!(alone(600, false, true), Ok((vec![3, 1], vec![])));
    assert_eq!(alone(599, false, true).expect_err("too little").needs, Bytes(600));
    assert_eq!(alone(500, true, false), Ok((vec![], vec![0, 1, 2])));
    // Tensors that cannot be recomputed stay.
    trace.ops[1].recomputable = false;
    let again = plan(&trace, peak(&trace) - Bytes(1), Policy::SuperNeurons);
    assert_eq!(run_again(&again), [3]);
}

/// Euro-Par'20's assumption (B), one transfer at a time, and its LB = max(compute, 2 (peak - limit) / rate) (Proposition 3): at
/// these shares of the way from the least memory in which the chain runs to the peak, `dynprog` stays within 1.2 of LB, as §6.2
/// found, and `plimsoll` is no slower. Returns the number of shares at which it is faster.
#[track_caller]
fn check_finding(trace: &Trace, rate: f64, shares: &[f64]) -> usize {
    let planned = |budget, policy| {
        let allow = Allow { recompute: false, ..Allow::default() };
        let limits = Limits { evaluations: Some(3000), expired: None };
        planned(trace, &PlanRequest { allow, limits, ..request(budget, rate, Duplex::Half, policy) })
    };
    let (mut least, peak) = floor_and_peak(trace);
    while let Err(Witness { needs, .. }) = planned(least, Policy::DynProg) {
        least = needs;
    }
    let mut faster = 0;
    for &share in shares {
        let limit = least + Bytes((share * (peak - least).0 as f64) as u64);
        let bound = trace.compute_seconds().0.max(2.0 * (peak - limit).0 as f64 / rate);
        let makespan = |policy| planned(limit, policy).expect("it fits").makespan.0;
        let (theirs, ours) = (makespan(Policy::DynProg), makespan(Policy::Plimsoll));
        let what = format!("{} at {share}", trace.name);
        assert!(theirs <= 1.2 * bound, "{what}: dynprog is {:.4} of the bound", theirs / bound);
        assert!(ours <= theirs * (1.0 + 1e-6), "{what}: {ours} against {theirs}");
        faster += usize::from(ours < theirs * (1.0 - 1e-4));
    }
    faster
}

#[test]
fn dynprog_is_within_1_2_of_the_bound_on_a_chain_and_plimsoll_is_no_slower() {
    // As in a ResNet, features halve every eight layers, and layers take longer the larger their features are.
    let mut trace = chain(&["conv"; 32]);
    for (t, tensor) in trace.tensors.iter_mut().enumerate() {
        let layer = if t <= 32 { t } else { t - 33 };
        tensor.bytes = Bytes((640 >> (layer / 8)) + (layer as u64 * 37) % 50);
    }
    for op in &mut trace.ops {
        op.seconds = Seconds(0.4 + trace.tensors[op.reads[0].index()].bytes.0 as f64 / 400.0);
    }
    // In the least memory only two of the largest features fit, so that nothing overlaps; likewise with a link half as fast, on
    // which features pile up as they are made.
    check_finding(&trace, 300.0, &[0.2, 0.3, 0.5, 0.7, 0.9, 1.0]);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn dynprog_is_within_1_2_of_the_bound_on_chains_of_resnet_and_densenet_and_plimsoll_beats_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces");
    let shares = [0.01, 0.15, 0.3, 0.5, 0.7, 0.9, 1.0];
    for name in ["resnet50-224-b64-v100", "densenet121-224-b64-v100-fn"] {
        match std::fs::read_to_string(format!("{folder}/{name}.trace.json")) {
            Ok(text) => {
                let trace = Trace::from_json(&text).expect("a valid trace");
                let faster = check_finding(&trace, 12.2e9, &shares);
                assert!(faster > 2, "{name}: plimsoll beats dynprog {faster} times only");
            }
            Err(_) => println!("skipped: there is no {name} at {folder}"),
        }
    }
}
