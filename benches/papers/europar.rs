//! Euro-Par'20 (Beaumont, Eyraud-Dubois, Shilova) on a V100: makespan over the paper's lower bound, over memory limits.
//!
//! The paper measured its chains with PyTorch; here our lowering gives the ops, the device's model their times, and the
//! policies that need a chain group the trace into one (`tuner/src/policies/chain.rs`). The link carries one transfer at a
//! time (assumption B).

use crate::plot::Plot;
use crate::subjects::{ALL, MOVING, Scale, Subject, device, floor, peak};
use crate::table::{Table, or_dash};
use plimsoll::ir::schedule::{Duplex, Link};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::bound::least_moved;
use plimsoll::tuner::{PlanRequest, Policy};

/// Network, side, batch.
type Case = (&'static str, u32, u64);

/// The policies of the paper's figures; its own are the first two.
const POLICIES: [Policy; 5] =
    [Policy::Greedy, Policy::DynProg, Policy::VdnnRatio, Policy::Tflms, Policy::AutoSwap];

/// Memory limits between the least that any plan needs (0) and keeping everything (1).
const LIMITS: [f64; 3] = [0.25, 0.5, 0.75];

fn cases(figure: u32) -> (&'static str, &'static [Case]) {
    match figure {
        5 => (
            "a selection, 224x224, batch 32",
            &[
                ("resnet50", 224, 32),
                ("resnet101", 224, 32),
                ("densenet121", 224, 32),
                ("inception_v3", 299, 32),
            ],
        ),
        6 => (
            "ResNet, 224x224, batch 32",
            &[
                ("resnet18", 224, 32),
                ("resnet34", 224, 32),
                ("resnet50", 224, 32),
                ("resnet101", 224, 32),
                ("resnet152", 224, 32),
            ],
        ),
        7 => (
            "ResNet, 500x500, batch 16",
            &[("resnet18", 500, 16), ("resnet50", 500, 16), ("resnet101", 500, 16)],
        ),
        8 => (
            "ResNet, 1000x1000, batch 4",
            &[("resnet18", 1000, 4), ("resnet50", 1000, 4), ("resnet101", 1000, 4)],
        ),
        9 => (
            "DenseNet, 224x224, batch 32",
            &[
                ("densenet121", 224, 32),
                ("densenet161", 224, 32),
                ("densenet169", 224, 32),
                ("densenet201", 224, 32),
            ],
        ),
        10 => ("DenseNet, 500x500, batch 8", &[("densenet121", 500, 8), ("densenet161", 500, 8)]),
        11 => ("DenseNet, 1000x1000, batch 4", &[("densenet121", 1000, 4), ("densenet161", 1000, 4)]),
        _ => (
            "Inception v3, 299x299, 500x500 and 1000x1000",
            &[("inception_v3", 299, 32), ("inception_v3", 500, 16), ("inception_v3", 1000, 4)],
        ),
    }
}

/// LB of Proposition 3: max(all ops, 2 (M_peak - M) / β).
fn lower_bound(trace: &Trace, budget: Bytes, link: &Link) -> Seconds {
    let moving = least_moved(trace, budget).0 as f64 / link.offload_bytes_per_second.0;
    Seconds(moving).max(trace.fastest_seconds())
}

pub fn figure(scale: &Scale, figure: u32) -> Table {
    let (what, cases) = cases(figure);
    let plot = Plot::new(
        &format!("Euro-Par'20, Fig. {figure}: {what}, V100"),
        "memory limit between floor (0) and peak (1)",
        "makespan over lower bound, geometric mean",
    );
    let mut table = Table::new(
        format!(
            "Euro-Par'20 §6, Fig. {figure}: {what}; NVIDIA V100 PCIe, 12.2 GB/s, one transfer at a time. Makespan over the \
             paper's lower bound (Proposition 3) at memory limits f: 0 is the least that any plan needs, 1 is M_peak. \
             `plimsoll, moving` may not run ops again, which the bound supposes; with it, plimsoll may go below the bound."
        ),
        &[
            "network, side (batch)",
            "f",
            "greedy",
            "dynprog",
            "vdnn-ratio",
            "tflms",
            "autoswap",
            "plimsoll, moving",
            "plimsoll",
        ],
        plot,
    );
    let limits = scale.pick(&LIMITS, 2);
    let mut ratios: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); limits.len()]; POLICIES.len() + 2];
    for (name, side, batch) in scale.pick(cases, 1) {
        let Some(subject) = scale.subject(name, Some(*side), device("v100", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let trace = subject.trace(*batch);
        let link = Link { duplex: Duplex::Half, ..subject.link() };
        for (at, f) in limits.iter().enumerate() {
            let (floor, peak) = (floor(&trace), peak(&trace));
            let budget = floor + Bytes((f * (peak - floor).0 as f64) as u64);
            let bound = lower_bound(&trace, budget, &link);
            let ratio = |request: PlanRequest<'static>| {
                over(&subject, &trace, PlanRequest { link, ..request }, bound)
            };
            let mut all: Vec<Option<f64>> =
                POLICIES.iter().map(|policy| ratio(subject.request(*policy, budget))).collect();
            let ours = subject.request(Policy::Plimsoll, budget);
            all.push(ratio(PlanRequest { allow: MOVING, ..ours }));
            all.push(ratio(ours));
            let cells = all.iter().map(|ratio| or_dash(*ratio, |ratio| format!("{ratio:.3}")));
            table
                .row([format!("{name}, {side} ({batch})"), f.to_string()].into_iter().chain(cells).collect());
            for (ratio, kept) in all.iter().zip(&mut ratios) {
                kept[at].extend(*ratio);
            }
            let best = all[..2].iter().flatten().copied().reduce(f64::min);
            if let (Some(best), Some(moving), Some(both)) =
                (best, all[POLICIES.len()], all[POLICIES.len() + 1])
            {
                let of = format!("{name}, {side}, f = {f}");
                table.advantage(format!("{of}, moving"), best / moving);
                table.advantage(of, best / both);
            }
        }
    }
    let names = POLICIES.iter().map(|policy| policy.name()).chain(["plimsoll, moving", "plimsoll"]);
    for (name, by_limit) in names.zip(&ratios) {
        for (f, found) in limits.iter().zip(by_limit).filter(|(_, found)| !found.is_empty()) {
            let mean = (found.iter().map(|ratio| ratio.ln()).sum::<f64>() / found.len() as f64).exp();
            table.plot.add(name, *f, mean);
        }
    }
    table.note(
        "Published: the figures are not legible in the text; it says that DynProg is \"consistently\" below 1.2 of the \
         bound, Greedy and DynProg are below VDNN everywhere, TFLMS reaches the bound at the highest limits only, and \
         DynProg is almost optimal on DenseNet (§6.2).",
    );
    table.note("The plot has, of each policy, the geometric mean over the networks for which it has a plan at that limit.");
    table.note("`-`: no plan within the limit; the paper's 0 % is what the chain needs, which is more than the floor here.");
    table
}

/// The makespan of a plan over a bound; none where there is no plan.
fn over(subject: &Subject, trace: &Trace, request: PlanRequest<'static>, bound: Seconds) -> Option<f64> {
    assert!(request.budget < ALL);
    subject.outcome(trace, &request).ok().map(|made| made.makespan / bound)
}
