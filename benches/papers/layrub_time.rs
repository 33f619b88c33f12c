//! Layrub (Jin et al., TACO 2018) on a K40: performance compared with vDNN (Fig. 13), the part of its transfers that is not
//! hidden (Fig. 14), training to one accuracy at two batches (Fig. 15), and two nodes (Table 8).

use crate::frameworks::of_all;
use crate::layrub::{HYBRID, K40M, NOT_LEGIBLE, Priced, priced};
use crate::plot::Plot;
use crate::scaling::{exchanged, workers};
use crate::subjects::{ALL, Scale, device, peak};
use crate::table::{Table, at_most, cells, claim, gb, in_gb, note, or_dash, percent};
use crate::vdnn::VARIANTS;
use plimsoll::ir::exchange::{Interconnect, Overlap};
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::Policy;
use plimsoll::tuner::exchange::Workers;

/// Images of an epoch of ImageNet.
const IMAGES: f64 = 1_281_167.0;

/// Extra seconds of VGG-16's iteration with Layrub over Caffe (Table 5, 20 iterations each).
const LONGER: f64 = (110.759 - 91.815) / 20.0;

pub fn performance(scale: &Scale) -> Table {
    let plot = Plot::new("Performance over keeping everything, K40", "network (batch)", "share");
    let mut table = Table::new(
        "Layrub §5.3.2, Fig. 13: NVIDIA K40M. Time with everything kept over that of each system, at the least memory of \
         each: layrub-hybrid and plimsoll in its memory of our lowering; vDNN's of networks as its frameworks train them, over \
         the fastest algorithms, as vDNN counts.",
        "network (batch) | layrub-hybrid | published | vdnn-all (m) | published | vdnn-all (p) | plimsoll in layrub's \
         memory",
        plot,
    );
    for row in priced(scale, 6) {
        let vdnn = scale.subject(row.network, None, device("k40", true)).without_reuse();
        let of = vdnn.trace(row.trace.batch);
        let share =
            |at: usize| vdnn.plan(&of, VARIANTS[at].1, ALL).map(|made| of.fastest_seconds() / made.makespan);
        let [lean, fast] = [0, 1].map(share);
        let [layrub, ours] = [row.layrub, row.ours].map(|made| row.over(made).map(|over| 1.0 / over));
        let all = [("layrub-hybrid", layrub), ("vdnn-all (m)", lean), ("vdnn-all (p)", fast)];
        table.plot.over(&row.name, all);
        let x = table.plot.over(&row.name, [("plimsoll in layrub's memory", ours)]);
        let said = row.network == "vgg16";
        if said {
            table.plot.published("layrub-hybrid", x, 0.83);
        }
        let published = |words| if said { words } else { NOT_LEGIBLE };
        let cells = cells![row.name, layrub.map(percent), published("83 %"), lean.map(percent);
            published("below 50 %"), fast.map(percent), ours.map(percent)];
        table.add(cells, !said);
        if let (Some(layrub), Some(lean)) = (layrub, lean) {
            claim!(table.claims; "Layrub is faster than vDNN's memory-optimal policy (§5.3.2)";
                "{} ({} over {})", row.name, percent(layrub), percent(lean); at_most(lean, layrub));
            if said {
                let words = "VGG-16 (64) has 83 % of the performance, and under 50 % with vDNN (m), to 5 points (§5.3.2)";
                let as_said = (layrub - 0.83).abs() <= 0.05 && lean < 0.55;
                claim!(table.claims; words; "{} ({} and {})", row.name, percent(layrub), percent(lean); as_said);
                table.notes.push(geeps(&row));
                let rate = row.subject.link().offload_bytes_per_second.0;
                let blobs = of_all(&row.subject.network, row.trace.batch).data;
                note!(table;
                    "Why {} loses less with Layrub here: the {:.2} s that the paper's iteration takes longer (Table \
                     5) are {:.1} GB at the link's rate, where all blobs, out and back, are {:.1} GB.",
                    row.name, LONGER, in_gb(Bytes((LONGER * rate) as u64)), in_gb(blobs * 2));
            }
        }
        if let (Some(layrub), Some(ours)) = (layrub, ours) {
            table.advantage(row.name, ours / layrub);
        }
    }
    table
}

/// Explains why the figure's third system is missing, and what the text's remark on its memory means for a network.
fn geeps(row: &Priced) -> String {
    let resident = row.trace.resident_bytes;
    let doubled = row.layrub.map(|made| resident + (made.memory - resident) * 2);
    format!(
        "GeePS, which the figure shows as well, is not here: the text gives neither its times nor what it moves when, but only \
         that its pool is twice as large as the activation data's place (§5.3.1); twice that of layrub-hybrid would be {} of \
         {}, which fits the device here, where the paper's GeePS ran out of memory.",
        or_dash(doubled, |bytes| format!("{} GB", gb(bytes))),
        row.name
    )
}

pub fn unhidden(scale: &Scale) -> Table {
    let plot = Plot::new("Time over a common baseline, K40", "network (batch)", "time over the baseline's");
    let mut table = Table::new(
        "Layrub §5.3.2, Fig. 14: NVIDIA K40M, the plans of [Table 5](layrub-table5.md). Time of an iteration over that with \
         nothing moved and nothing recomputed; and what share of the transfers, out and back, runs beside computing.",
        "network (batch) | layrub-hybrid | published | its transfers alone | hidden | memonger | published (MXNet) | \
         plimsoll in layrub's memory",
        plot,
    );
    for row in priced(scale, 8) {
        let [layrub, memonger, ours] = [row.layrub, row.memonger, row.ours].map(|made| row.over(made));
        table.plot.over(&row.name, [("layrub-hybrid", layrub), ("memonger", memonger), ("plimsoll", ours)]);
        let moving = row.moving();
        let hidden = layrub.zip(moving).map(|(over, moving)| 1.0 - (over - 1.0) / moving);
        let number = |value: f64| format!("{value:.3}");
        let [theirs, mxnet] = row.published.map(|share| share.map(|share| number(1.0 + share)));
        let cells = cells![row.name, layrub.map(number), theirs, moving.map(number), hidden.map(percent);
            memonger.map(number), mxnet, ours.map(number)];
        table.add(cells, theirs.is_none());
        row.advantage(&mut table);
    }
    note!(table;
        "Published are the ratios of Table 5; the figure itself is not legible in the text. Memonger moves nothing: all \
         that it takes longer is recomputed.");
    table
}

/// §5.5, Fig. 15: AlexNet's batches and the epochs to the same accuracy, by Caffe and by Layrub.
const TRAINED: [(u64, f64); 2] = [(128, 53.0), (1024, 31.0)];

pub fn end_to_end(scale: &Scale) -> Table {
    let plot = Plot::new("Training AlexNet to one accuracy, K40", "system (batch)", "hours");
    let mut table = Table::new(
        "Layrub §5.5, Fig. 15: AlexNet, ImageNet, NVIDIA K40M with 11580 MB. Epochs are the paper's: nothing was trained \
         here. Times of an epoch are the model's: with everything kept at the usual batch, with each policy at the large one.",
        "system | batch | epochs (published) | an epoch | training | over Caffe's | published",
        plot,
    );
    let subject = scale.subject("alexnet", None, device("k40", false));
    let [(usual, epochs), (large, fewer)] = TRAINED;
    let budget = if scale.small { peak(&subject.trace(16)) } else { K40M };
    let (usual, large) = if scale.small { (8, 16) } else { (usual, large) };
    let rows = [
        ("keep (Caffe)", Policy::Keep, usual, epochs, Some(1.0)),
        ("layrub-hybrid", HYBRID, large, fewer, Some(1.4)),
        ("plimsoll", Policy::Plimsoll, large, fewer, None),
    ];
    let mut base = None;
    for (system, policy, batch, epochs, published) in rows {
        let trace = subject.trace(batch);
        let Some(made) = subject.plan(&trace, policy, budget) else { continue };
        let epoch = made.makespan.0 * IMAGES / batch as f64;
        let training = epoch * epochs;
        let faster = base.get_or_insert(training).max(f64::MIN_POSITIVE) / training;
        table.plot.over(&format!("{system} ({batch})"), [("training", Some(training / 3600.0))]);
        let cells = cells![system, batch, format!("{epochs:.0}"), format!("{epoch:.0} s");
            format!("{:.1} h", training / 3600.0), format!("{faster:.2}");
            published.map(|times| format!("{times:.1}"))];
        table.add(cells, published.is_none());
        if policy == HYBRID {
            claim!(table.claims;
                "Layrub trains AlexNet 1.4 times as fast as Caffe by its larger batch, to 0.2 (§5.5)";
                "batch {batch} ({faster:.2})"; (faster - 1.4).abs() <= 0.2);
        }
    }
    note!(table;
        "ResNet-56, the figure's other network, has neither batches nor epochs in the text, which says that its results \
         are similar; what an epoch of it takes at the usual and at the largest batch is in [Table 7](layrub-table7.md).");
    table
}

/// Table 8: network, batch, minutes of an epoch of one node and of two, and the speedup.
const NODES: [(&str, u64, f64, f64, f64); 3] = [
    ("alexnet", 256, 107.0, 54.0, 1.98),
    ("resnet50", 32, 3196.0, 1614.0, 1.98),
    ("resnet1001-imagenet", 32, 23725.0, 12063.0, 1.97),
];

/// The paper's network between its nodes (§5.1).
const ETHERNET: &str = "1Gbit/s,50us";

pub fn nodes(scale: &Scale) -> Table {
    let plot =
        Plot::new("Two nodes over 1 Gb/s, K40", "network (batch)", "times as fast as one node").log_y();
    let mut table = Table::new(
        format!(
            "Layrub §5.6, Table 8: two nodes with a K40M each, {ETHERNET} Ethernet between them, layrub-hybrid within 11580 \
             MB, an epoch of ImageNet. Gradients are exchanged during the backward pass, in pieces of 16 MiB. `enough` is the \
             network at which two nodes would be as many times as fast as the paper says."
        ),
        "network (batch) | one node: min | published | two nodes: min | published | times | published | enough",
        plot,
    );
    for (name, batch, one, two, times) in scale.pick(&NODES, 1) {
        let subject = scale.subject(name, None, device("k40", false));
        let batch = if scale.small { 8 } else { *batch };
        let program = subject.program(batch);
        let budget = if scale.small { peak(&program.trace) } else { K40M };
        let request = subject.request(HYBRID, budget);
        let Ok((made, schedule)) = subject.scheduled(&program.trace, &request) else { continue };
        let update = |interconnect: Interconnect| {
            let overlap = Overlap::Backward(Bytes(16 << 20));
            exchanged(&program, &schedule, Workers { overlap, ..workers(2, interconnect) }).0
        };
        let faster = |update: Seconds| 2.0 * (made.makespan / update);
        let rates = ["1Gbit/s", "10Gbit/s", "25Gbit/s", "100Gbit/s"];
        let enough = rates.into_iter().find(|rate| {
            let interconnect = format!("{rate},50us").parse().expect("a rate and a latency");
            faster(update(interconnect)) >= times - 0.005
        });
        let two_nodes = update(ETHERNET.parse().expect("a rate and a latency"));
        let minutes = |update: Seconds, nodes: f64| update.0 * IMAGES / (nodes * batch as f64) / 60.0;
        let row = format!("{name} ({batch})");
        let x = table.plot.over(&row, [("two nodes", Some(faster(two_nodes)))]);
        table.plot.published("two nodes", x, *times);
        table.row(cells![row, format!("{:.0}", minutes(made.makespan, 1.0)), format!("{one:.0}");
            format!("{:.0}", minutes(two_nodes, 2.0)), format!("{two:.0}");
            format!("{:.2}", faster(two_nodes)), format!("{times:.2}"), enough.unwrap_or("-")]);
        claim!(table.claims; "Two nodes are at least 1.97 times as fast as one (§5.6)"; "{row} ({:.2})",
            faster(two_nodes); faster(two_nodes) >= 1.965);
        let gradients = 4.0 * subject.network.all_parameters() as f64;
        note!(table;
            "{row}: gradients of {:.0} MB take {:.1} s over 1 Gb/s one way; an iteration of the paper's took {:.1} s.",
            gradients / 1e6, gradients / 125e6, one * 60.0 * batch as f64 / IMAGES);
    }
    note!(table;
        "Why ours are slower: the paper does not say how Caffe-MPI exchanges; a sum of all gradients in each iteration \
         does not get through the network that it names in the time that it says.");
    table
}
