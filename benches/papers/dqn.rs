//! DQN (Chen, "GPU memory management for neural networks using deep Q-network") on a GTX 1080 Ti: overhead over memory
//! reduction.
//!
//! Its own policy is not built yet; what it compares with is, and so is plimsoll.

use crate::plot::Plot;
use crate::subjects::{Made, Scale, device, peak};
use crate::table::{Table, or_dash, percent};
use plimsoll::ir::Bytes;
use plimsoll::tuner::Policy;

/// Network on CIFAR-10's images, batch. The paper names ResNet and VGG of two depths each, and no batch.
const NETWORKS: [(&str, u64); 6] =
    [("resnet56", 256), ("resnet110", 256), ("vgg16", 1024), ("vgg116", 256), ("unet", 8), ("lstm", 64)];

/// What of the memory of keeping everything is saved, parameters and what belongs to them aside.
const REDUCTIONS: [f64; 6] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7];

/// The network of the plot.
const PLOTTED: &str = "resnet110";

const POLICIES: [Policy; 3] = [Policy::Memonger, Policy::SuperNeurons, Policy::Tflms];

pub fn overheads(scale: &Scale) -> Table {
    let plot = Plot::new(
        "Overhead over memory reduction, ResNet-110 at batch 256, GTX 1080 Ti",
        "memory saved of what is not resident, %",
        "% longer than keeping everything",
    );
    let mut table = Table::new(
        "DQN §5.1, Fig. 5: NVIDIA GTX 1080 Ti, CIFAR-10's images. Time over keeping everything, within the peak less what is \
         saved of what is not resident: none of these moves parameters.",
        &["network (batch)", "saved", "memonger", "superneurons", "tflms", "dqn", "published", "plimsoll"],
        plot,
    );
    let reductions = scale.pick(&REDUCTIONS, 2);
    for (name, batch) in scale.pick(&NETWORKS, 1) {
        let side = (name.starts_with("resnet") || name.starts_with("vgg")).then_some(32);
        let Some(subject) = scale.subject(name, side, device("gtx1080ti", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let trace = subject.trace(*batch);
        let compute = trace.fastest_seconds();
        let plotted = scale.small || *name == PLOTTED;
        for saved in reductions {
            let resident = trace.resident_bytes;
            let moving = (peak(&trace) - resident).0 as f64;
            let budget = resident + Bytes((moving * (1.0 - saved)) as u64);
            let longer = |made: &Made| made.makespan / compute - 1.0;
            let of = |policy| subject.plan(&trace, policy, budget);
            let theirs: Vec<Option<Made>> = POLICIES.iter().map(|policy| of(*policy)).collect();
            let ours = of(Policy::Plimsoll);
            let names = POLICIES.iter().map(|policy| policy.name()).chain(["plimsoll"]);
            for (made, policy) in theirs.iter().chain([&ours]).zip(names).filter(|_| plotted) {
                made.iter().for_each(|made| table.plot.add(policy, 100.0 * saved, 100.0 * longer(made)));
            }
            let cell = |made: &Option<Made>| or_dash(made.as_ref(), |made| percent(longer(made)));
            let mut row = vec![format!("{name} ({batch})"), percent(*saved)];
            row.extend(theirs.iter().map(cell));
            row.extend(["not built yet".to_owned(), "not legible (figure)".to_owned(), cell(&ours)]);
            table.row(row);
            let best = theirs.iter().flatten().map(|made| made.makespan.0).reduce(f64::min);
            if let (Some(best), Some(ours)) = (best, &ours) {
                table.advantage(
                    format!("{name}, {} saved, over the best baseline", percent(*saved)),
                    best / ours.makespan.0,
                );
            }
        }
    }
    table.note(
        "Fig. 5 is not legible in the text; it says that DQN takes less time and saves more memory than these three (§5.1). \
         The comparison here is with the best of them.",
    );
    table.note("`-`: the policy has no plan in that memory.");
    table
}
