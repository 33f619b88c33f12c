//! Layrub (Jin et al., TACO 2018) on a K40: memory and cost of its strategies, the deepest ResNet and the largest batches.
//!
//! Layrub's intra-layer strategy, in which a gradient takes its activation's place, is a matter of lowering
//! (`tuner/src/policies/papers/layrub.rs` says why): ours has it by default. So *intra* keeps everything of that lowering,
//! *hybrid* is the inter-layer policy on it, and *inter* the same policy on a lowering without that reuse. The baseline is
//! Caffe's allocation (`frameworks.rs`). Its times are in `layrub_time.rs`.

use crate::frameworks::{caffe, of_all};
use crate::plot::Plot;
use crate::subjects::{Made, Scale, Subject, device, floor, peak};
use crate::table::{Table, at_most, gb, in_gb, mb, or_dash, percent};
use plimsoll::ir::Bytes;
use plimsoll::ir::trace::Trace;
use plimsoll::tuner::{Layrub, Policy};

/// Table 4: memory of the K40M.
pub const K40M: Bytes = Bytes(11580 << 20);

/// The text gives only the shares that it names.
pub const NOT_LEGIBLE: &str = "not legible (figure)";

const STRATEGIES: &[&str] = &[
    "network (batch)",
    "Caffe",
    "intra",
    "inter",
    "hybrid",
    "saved: intra, inter, hybrid",
    "published",
    "plimsoll, least",
    "plimsoll in hybrid's memory: time over hybrid's",
];

/// Intermediate data of a network that remain under each strategy.
struct Saving {
    of: String,
    baseline: Bytes,
    intra: Bytes,
    inter: Bytes,
    hybrid: Bytes,
    /// Remainder of the intra-layer strategy if each blob shares one place with its gradient, and with nothing else: the
    /// paper's allocation.
    intra_alone: Bytes,
}

impl Saving {
    /// Returns the share that is saved of Caffe's allocation.
    fn saved(&self, left: Bytes) -> f64 {
        1.0 - left.0 as f64 / self.baseline.0 as f64
    }
}

/// Makes one figure on memory: intermediate data, without resident bytes.
fn strategies(
    scale: &Scale,
    title: &str,
    from: &str,
    networks: &[(&str, Option<u32>, u64, &str)],
    most: usize,
) -> (Table, Vec<Saving>) {
    let plot = Plot::new(title, "network (batch)", "intermediate data, MB").log_y();
    let (mut table, mut savings) = (Table::new(from, STRATEGIES, plot), Vec::new());
    for (name, side, batch, published) in scale.pick(networks, most) {
        let Some(subject) = scale.subject(name, *side, device("k40", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let trace = subject.trace(*batch);
        let pool = |bytes: Bytes| bytes.saturating_sub(trace.resident_bytes);
        let layrub = subject.leanest(&trace, Policy::Layrub(Layrub::Hybrid));
        let ours = layrub.as_ref().and_then(|made| subject.plan(&trace, Policy::Plimsoll, made.memory));
        let least = subject.least_memory(&trace, Policy::Plimsoll);
        let blobs = of_all(&subject.network, *batch);
        let apart = subject.without_reuse();
        let inter = apart.leanest(&apart.trace(*batch), Policy::Layrub(Layrub::Inter));
        let name = format!("{name} ({batch})");
        let saving = layrub.as_ref().zip(inter.as_ref()).map(|(hybrid, inter)| Saving {
            of: name.clone(),
            baseline: caffe(&blobs),
            intra: pool(peak(&trace)),
            inter: pool(inter.memory),
            hybrid: pool(hybrid.memory),
            intra_alone: blobs.data + blobs.masks,
        });
        let x = table.plot.at(&name);
        let of = saving.iter().flat_map(|saving| {
            let Saving { baseline, intra, inter, hybrid, .. } = *saving;
            [("Caffe", baseline), ("intra", intra), ("inter", inter), ("hybrid", hybrid)]
        });
        let least_pool = least.map(|memory| ("plimsoll, least", pool(memory)));
        for (what, bytes) in of.chain(least_pool) {
            table.plot.add(what, x, bytes.0 as f64 / (1u64 << 20) as f64);
        }
        let over = |(a, b): (&Made, &Made)| format!("{:.3}", a.makespan / b.makespan);
        let cell = |of: fn(&Saving) -> Bytes| or_dash(saving.as_ref(), |saving| mb(of(saving)));
        let cells = vec![
            name.clone(),
            cell(|saving| saving.baseline),
            cell(|saving| saving.intra),
            cell(|saving| saving.inter),
            cell(|saving| saving.hybrid),
            or_dash(saving.as_ref(), |saving| {
                [saving.intra, saving.inter, saving.hybrid].map(|left| percent(saving.saved(left))).join(", ")
            }),
            (*published).to_owned(),
            or_dash(least, |memory| mb(pool(memory))),
            or_dash(ours.as_ref().zip(layrub.as_ref()), over),
        ];
        table.add(cells, *published == NOT_LEGIBLE);
        if let Some(saving) = &saving {
            table.claims.hold(
                "The hybrid strategy takes less memory than the inter-layer one in every model (§5.2.1)",
                format!("{name} ({} MB over {})", mb(saving.hybrid), mb(saving.inter)),
                saving.hybrid <= saving.inter,
            );
        }
        savings.extend(saving);
        if let (Some(layrub), Some(ours), Some(least)) = (layrub, ours, least) {
            let times = pool(layrub.memory).0 as f64 / pool(least).0.max(1) as f64;
            table.advantage(format!("{name}, memory"), times);
            table.advantage(format!("{name}, time in layrub's memory"), layrub.makespan / ours.makespan);
        }
    }
    table.note(
        "Megabytes of 2^20 bytes, parameters and what belongs to them left out, as in the paper (§5.1). Caffe allocates each \
         blob and its gradient once, ReLU and dropout in place. `intra` is everything kept by our lowering, `hybrid` \
         layrub-hybrid of it, `inter` layrub-inter of a lowering without intra-layer reuse.",
    );
    (table, savings)
}

pub fn deep(scale: &Scale) -> Table {
    let (mut table, savings) = strategies(
        scale,
        "Memory of strategies, deep networks, K40",
        "Layrub §5.2.1, Fig. 9: NVIDIA K40M, batch 32, ImageNet.",
        &[
            ("resnet34", None, 32, NOT_LEGIBLE),
            ("resnet50", None, 32, "759.5 MB"),
            ("resnet101", None, 32, "759.5 MB"),
            ("resnet152", None, 32, "759.5 MB"),
            ("resnet1001-imagenet", None, 32, "759.5 MB, 98.9 % saved"),
        ],
        1,
    );
    let from_50 = || savings.iter().filter(|saving| !saving.of.starts_with("resnet34"));
    if let Some(first) = from_50().next() {
        for saving in from_50().skip(1) {
            table.claims.hold(
                "From 50 to 1,001 layers the hybrid strategy's memory stays the same, to 5 % (§5.2.1)",
                format!("{} ({} MB over {})", saving.of, mb(saving.hybrid), mb(first.hybrid)),
                (saving.hybrid.0 as f64 / first.hybrid.0 as f64 - 1.0).abs() <= 0.05,
            );
        }
    }
    for saving in savings.iter().filter(|saving| saving.of.starts_with("resnet1001")) {
        hold_share(
            &mut table,
            "ResNet-1001 saves 98.9 %, to 5 points (§5.2.1)",
            &saving.of,
            saving.saved(saving.hybrid),
            0.989,
        );
        // The published 759.5 MB are the 1.1 % that remain after saving 98.9 %.
        let published = 759.5 / (1.0 - 0.989);
        let ours = saving.baseline.0 as f64 / (1u64 << 20) as f64;
        table.claims.hold(
            "ResNet-1001 takes 69,045 MB in Caffe, of which 759.5 MB are 1.1 %, to 5 % (§5.2.1)",
            format!("{} ({ours:.0} MB for {published:.0})", saving.of),
            (ours / published - 1.0).abs() <= 0.05,
        );
    }
    table
}

/// Compares a share with the published one, to 5 points.
fn hold_share(table: &mut Table, words: &str, of: &str, ours: f64, published: f64) {
    let row = format!("{of} ({} for {})", percent(ours), percent(published));
    table.claims.hold(words, row, (ours - published).abs() <= 0.05);
}

pub fn wide(scale: &Scale) -> Table {
    let (mut table, savings) = strategies(
        scale,
        "Memory of strategies, wide networks, K40",
        "Layrub §5.2.2, Fig. 10: NVIDIA K40M, batch 128, CIFAR-10. Published for WRN-8-128 and WRN-8-256: inter-layer saves \
         13.6 % on average, intra-layer close to 50 %.",
        &[
            ("wrn-16-1", None, 128, NOT_LEGIBLE),
            ("wrn-16-10", None, 128, NOT_LEGIBLE),
            ("wrn-16-20", None, 128, NOT_LEGIBLE),
            ("wrn-8-64", None, 128, NOT_LEGIBLE),
            ("wrn-8-128", None, 128, "inter 13.6 % saved (mean of two)"),
            ("wrn-8-256", None, 128, "inter 13.6 % saved (mean of two)"),
        ],
        1,
    );
    let numbered =
        |saving: &&Saving| saving.of.starts_with("wrn-8-128") || saving.of.starts_with("wrn-8-256");
    let numbered: Vec<&Saving> = savings.iter().filter(numbered).collect();
    if !numbered.is_empty() {
        let mean = |of: fn(&Saving) -> Bytes| {
            numbered.iter().map(|one| one.saved(of(one))).sum::<f64>() / numbered.len() as f64
        };
        let words = "The inter-layer strategy saves 13.6 % on WRN-8-128 and WRN-8-256, to 5 points (§5.2.2)";
        hold_share(&mut table, words, "their mean", mean(|saving| saving.inter), 0.136);
        let words = "The intra-layer strategy saves \"close to 50 %\" on WRN-8-128 and WRN-8-256, to 5 points (§5.2.2)";
        hold_share(&mut table, words, "their mean", mean(|saving| saving.intra), 0.5);
        table.note(format!(
            "Why intra saves more here: by address, everything that is dead is anybody's; with a place for each blob and its \
             gradient and nothing else shared, it saves {}.",
            percent(mean(|saving| saving.intra_alone))
        ));
        table.note(
            "Why inter saves more here: at most one block's maps and gradients are alive at once, a fifth of what these \
             networks have; the paper's 86 % that are left would be nearly all blobs of the network, and it does not say which \
             stay.",
        );
    }
    table
}

pub fn well_known(scale: &Scale) -> Table {
    let (mut table, savings) = strategies(
        scale,
        "Memory of strategies, well-known networks, K40",
        "Layrub §5.2.3, Fig. 11: NVIDIA K40M. Published for all: 55 % to 98.9 % saved by the hybrid strategy. \
         LSTM-RNN and LSTM-CNN, whose sizes the paper does not give, are left out.",
        &[
            ("lenet", None, 64, NOT_LEGIBLE),
            ("alexnet", None, 128, NOT_LEGIBLE),
            ("vgg16", None, 64, NOT_LEGIBLE),
            ("googlenet", None, 128, NOT_LEGIBLE),
            ("resnet34", None, 32, NOT_LEGIBLE),
            ("resnet50", None, 32, NOT_LEGIBLE),
            ("wrn-28-10", None, 128, NOT_LEGIBLE),
        ],
        1,
    );
    for saving in savings.iter().filter(|saving| saving.of.starts_with("lenet")) {
        table.claims.hold(
            "The inter-layer strategy falls behind the intra-layer one on LeNet (§5.2.2)",
            format!("{} ({} MB over {})", saving.of, mb(saving.inter), mb(saving.intra)),
            saving.intra <= saving.inter,
        );
    }
    for saving in &savings {
        table.claims.hold(
            "The hybrid strategy saves 55 % to 98.9 % (§5.2.3)",
            format!("{} ({})", saving.of, percent(saving.saved(saving.hybrid))),
            saving.saved(saving.hybrid) >= 0.55,
        );
    }
    table
}

pub fn systems(scale: &Scale) -> Table {
    let networks: &[(&str, u64, &str)] = &[
        ("alexnet", 128, NOT_LEGIBLE),
        ("vgg16", 64, NOT_LEGIBLE),
        ("googlenet", 128, "35.2 % less than MXNet (Layrub)"),
        ("resnet34", 32, "Layrub 1482 MB, GeePS 2705 MB"),
        ("resnet50", 32, "Layrub 1805 MB, MXNet 2195 MB (Table 6)"),
        ("resnet1001-imagenet", 32, "Layrub 7901 MB, MXNet 10104 MB (Table 6)"),
    ];
    let rows =
        scale.pick(networks, 1).iter().map(|(name, batch, published)| (*name, *batch, *published)).collect();
    runtime_memory(
        scale,
        "Memory in all, K40",
        "Layrub §5.3.1, Fig. 12: NVIDIA K40M, memory in all, with parameters, their gradients and momenta. The least \
         of each policy.",
        rows,
    )
}

/// Makes a table of total memory in MB of 2^20 bytes, of Memonger (the paper's MXNet), Layrub and plimsoll.
fn runtime_memory(scale: &Scale, title: &str, from: &str, rows: Vec<(&str, u64, &str)>) -> Table {
    let plot = Plot::new(title, "network", "memory in all, GB").log_y();
    let mut table = Table::new(
        from,
        &["network (batch)", "keep", "memonger", "layrub-hybrid", "published", "plimsoll", "resident"],
        plot,
    );
    for (name, batch, published) in rows {
        let Some(subject) = scale.subject(name, None, device("k40", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let trace = subject.trace(batch);
        let of = |policy| subject.least_memory(&trace, policy);
        let (memonger, layrub, ours) = (
            of(Policy::Memonger { searched: false }),
            of(Policy::Layrub(Layrub::Hybrid)),
            of(Policy::Plimsoll),
        );
        let x = table.plot.at(name);
        table.plot.add("keep", x, in_gb(peak(&trace)));
        for (what, memory) in [("memonger", memonger), ("layrub-hybrid", layrub), ("plimsoll", ours)] {
            memory.into_iter().for_each(|memory| table.plot.add(what, x, in_gb(memory)));
        }
        let figure =
            published.split("Layrub ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        figure.into_iter().for_each(|mb| table.plot.published("layrub-hybrid", x, mb / 1024.0));
        let cells = vec![
            format!("{name} ({batch})"),
            mb(peak(&trace)),
            or_dash(memonger, mb),
            or_dash(layrub, mb),
            published.to_owned(),
            or_dash(ours, mb),
            mb(trace.resident_bytes),
        ];
        table.add(cells, published == NOT_LEGIBLE);
        if let (Some(layrub), Some(memonger)) = (layrub, memonger) {
            table.claims.hold(
                "Layrub takes less memory in all than MXNet with memonger (§5.3.1, §5.4)",
                format!("{name} ({batch}) ({} MB over {})", mb(layrub), mb(memonger)),
                at_most(layrub.0 as f64, memonger.0 as f64),
            );
        }
        if let (Some(layrub), Some(ours)) = (layrub, ours) {
            table.advantage(name, layrub.0 as f64 / ours.0 as f64);
        }
    }
    table.note(
        "Published memory has what the driver and cuDNN take besides; of a network as deep as these, \
         parameters are most of it.",
    );
    table.note("Only memory is shown, so that plans are looked for with 50 evaluations here.");
    table
}

/// Table 6: depth, and published MB on the K40M: Caffe, MXNet, Layrub.
const DEPTHS: [(&str, &str, &str); 8] = [
    ("resnet34", "resnet34", "Layrub 1257 MB, MXNet 1431, Caffe 4430"),
    ("resnet50", "resnet50", "Layrub 1805 MB, MXNet 2195, Caffe 11425"),
    ("resnet302", "resnet302", "Layrub 3448 MB, MXNet 4911, Caffe out of memory"),
    ("resnet695", "resnet695", "Layrub 5968 MB, MXNet 7885, Caffe out of memory"),
    ("resnet1001-imagenet", "resnet1001", "Layrub 7901 MB, MXNet 10104, Caffe out of memory"),
    ("resnet1172", "resnet1172", "Layrub 9022 MB, MXNet 11455, Caffe out of memory"),
    ("resnet1304", "resnet1304", "Layrub 9872 MB, MXNet and Caffe out of memory"),
    ("resnet1517", "resnet1517", "Layrub 11239 MB, MXNet and Caffe out of memory"),
];

pub fn extreme_depth(scale: &Scale) -> Table {
    let rows =
        scale.pick(&DEPTHS, 1).iter().map(|(network, _, published)| (*network, 32, *published)).collect();
    let mut table = runtime_memory(
        scale,
        "Memory in all over depth, batch 32, K40",
        "Layrub §5.4, Table 6: NVIDIA K40M with 11580 MB, batch 32, ImageNet, MB in all; and the deepest ResNet that fits, \
         of bottlenecks with the third group as long as it takes.",
        rows,
    );
    let deepest = |policy| deepest(scale, policy);
    let (layrub, ours) = (deepest(Policy::Layrub(Layrub::Hybrid)), deepest(Policy::Plimsoll));
    table.row(vec![
        "deepest in 11580 MB".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        format!("{layrub} layers"),
        "Layrub 1517, MXNet 1172, Caffe 50".to_owned(),
        format!("{ours} layers"),
        "-".to_owned(),
    ]);
    if layrub > 0 {
        table.claims.hold(
            "Layrub trains 1,517 layers in 11580 MB (§5.4)",
            format!("{layrub} layers"),
            layrub >= 1517,
        );
        table.advantage("deepest ResNet", f64::from(ours) / f64::from(layrub));
    }
    table
}

/// Returns the deepest ResNet, of bottlenecks, for which a policy has a plan in a K40M at batch 32.
fn deepest(scale: &Scale, policy: Policy) -> u32 {
    if scale.small {
        return 0;
    }
    let of = |blocks: u32| 302 + 3 * blocks;
    let subject = |blocks: u32| -> Option<(Subject, Trace)> {
        let depth = of(blocks);
        let name = if depth == 1202 { "resnet1202-imagenet".to_owned() } else { format!("resnet{depth}") };
        let subject = scale.subject(&name, None, device("k40", false))?;
        let trace = subject.trace(32);
        Some((subject, trace))
    };
    let planned =
        |(subject, trace): &(Subject, Trace)| subject.outcome(trace, &subject.glance(policy, K40M)).is_ok();
    // No plan fits below the floor, and plimsoll finds one just above it.
    let fits = |at: &(Subject, Trace)| floor(&at.1) <= K40M && (policy == Policy::Plimsoll || planned(at));
    let (mut low, mut high) = (0u32, 1200);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if subject(middle).is_some_and(|at| fits(&at)) { low = middle } else { high = middle }
    }
    while low > 0 && !subject(low).is_some_and(|at| planned(&at)) {
        low -= 1;
    }
    of(low)
}

/// Table 5: network, batch, published seconds of 20 iterations of Caffe and of Layrub, and the extra share of time; and
/// MXNet's.
pub const OVERHEADS: [(&str, u64, f64, f64); 8] = [
    ("lenet", 64, 0.0905, 0.1728),
    ("alexnet", 256, 0.2185, 0.2578),
    ("vgg16", 64, 0.2063, 0.2944),
    ("googlenet", 32, 0.2741, 0.2585),
    ("resnet34", 32, 0.2552, 0.2844),
    ("resnet50", 32, 0.5676, 0.2532),
    ("resnet56", 128, f64::NAN, f64::NAN),
    ("wrn-28-10", 128, 0.1842, f64::NAN),
];

const COSTS: &str = "What the hybrid strategy costs in time is as in Table 5, to 5 points (§5.3.2)";

pub fn overheads(scale: &Scale) -> Table {
    let plot =
        Plot::new("What saving memory costs, K40", "network (batch)", "% longer than keeping everything");
    let mut table = Table::new(
        "Layrub §5.3.2, Table 5: NVIDIA K40M. Time over keeping everything. `layrub-hybrid` and `memonger` at the least \
         memory of each; plimsoll in Layrub's.",
        &[
            "network (batch)",
            "layrub-hybrid",
            "published",
            "memonger",
            "published (MXNet)",
            "plimsoll in layrub's memory",
            "memory of layrub: GB",
            "memory of memonger: GB",
        ],
        plot,
    );
    let (mut costs, mut moving) = (Vec::new(), Vec::new());
    for (name, batch, theirs, mxnet) in scale.pick(&OVERHEADS, 1) {
        let Some(subject) = scale.subject(name, None, device("k40", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let trace = subject.trace(*batch);
        let compute = trace.fastest_seconds();
        let layrub = subject.leanest(&trace, Policy::Layrub(Layrub::Hybrid));
        let memonger = subject.leanest(&trace, Policy::Memonger { searched: false });
        let ours = layrub.as_ref().and_then(|made| subject.plan(&trace, Policy::Plimsoll, made.memory));
        let name = format!("{name} ({batch})");
        let x = table.plot.at(&name);
        let longer = |made: &Made| made.makespan / compute - 1.0;
        for (what, made) in [("layrub-hybrid", &layrub), ("memonger", &memonger), ("plimsoll", &ours)] {
            made.iter().for_each(|made| table.plot.add(what, x, 100.0 * longer(made)));
        }
        let published = |share: f64| if share.is_nan() { "-".to_owned() } else { percent(share) };
        for (what, share) in [("layrub-hybrid", *theirs), ("memonger", *mxnet)] {
            if !share.is_nan() {
                table.plot.published(what, x, 100.0 * share);
            }
        }
        let cells = vec![
            name.clone(),
            or_dash(layrub.as_ref(), |made| percent(longer(made))),
            published(*theirs),
            or_dash(memonger.as_ref(), |made| percent(longer(made))),
            published(*mxnet),
            or_dash(ours.as_ref(), |made| percent(longer(made))),
            or_dash(layrub.as_ref(), |made| gb(made.memory)),
            or_dash(memonger.as_ref(), |made| gb(made.memory)),
        ];
        table.add(cells, theirs.is_nan());
        if let Some(layrub) = layrub.as_ref().filter(|_| !theirs.is_nan()) {
            hold_share(&mut table, COSTS, &name, longer(layrub), *theirs);
            let transfers = (layrub.offloaded * 2) / subject.link().offload_bytes_per_second / compute;
            moving.push(format!("{:.2} ({name})", theirs / transfers));
        }
        if let (Some(layrub), Some(memonger), false) = (&layrub, &memonger, mxnet.is_nan()) {
            costs.push((longer(layrub), longer(memonger)));
        }
        if let (Some(layrub), Some(ours)) = (layrub, ours) {
            table.advantage(name, layrub.makespan / ours.makespan);
        }
    }
    if !costs.is_empty() {
        let mean = |all: fn(&(f64, f64)) -> f64| costs.iter().map(all).sum::<f64>() / costs.len() as f64;
        let (layrub, memonger) = (mean(|cost| cost.0), mean(|cost| cost.1));
        table.claims.hold(
            "Layrub costs less time than MXNet with memonger on average: 24.1 % for 26.3 (§5.3.2)",
            format!("mean of {} networks ({} for {})", costs.len(), percent(layrub), percent(memonger)),
            at_most(layrub, memonger),
        );
    }
    let published =
        "the published cost over that of all transfers, one after the other, which hide behind nothing";
    let here = "here computing hides a third of them and more ([Fig. 14](layrub-fig14.md))";
    table.claims.explain(COSTS, format!("{published}, is {}; {here}", moving.join(", ")));
    table.note("The paper does not say the batches of Table 5; those of Fig. 11 and Table 7 are taken.");
    table
}

/// Table 7: network, side, the usual batch, Layrub's largest, and its time per epoch over that of the usual batch.
const BATCHES: [(&str, u64, u64, f64); 6] = [
    ("alexnet", 128, 2100, -0.0819),
    ("vgg16", 64, 240, -0.0416),
    ("resnet34", 32, 416, -0.1325),
    ("resnet50", 32, 272, -0.0626),
    ("resnet56", 256, 5000, -0.0916),
    ("wrn-28-10", 128, 1376, -0.0864),
];

pub fn largest_batches(scale: &Scale) -> Table {
    let plot = Plot::new("Largest batch in 11580 MB, K40", "network", "images in an iteration").log_y();
    let mut table = Table::new(
        "Layrub §5.5, Table 7: NVIDIA K40M with 11580 MB. The largest batch of each policy, and the time of an epoch at \
         Layrub's over that at the usual batch.",
        &[
            "network",
            "keep",
            "layrub-hybrid",
            "published",
            "plimsoll",
            "epoch: layrub-hybrid over the usual batch",
            "published",
            "epoch: plimsoll at layrub's batch over layrub's",
        ],
        plot,
    );
    let mut reached = Vec::new();
    for (name, usual, published, change) in scale.pick(&BATCHES, 1) {
        let Some(subject) = scale.subject(name, None, device("k40", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let budget = if scale.small { peak(&subject.trace(16)) } else { K40M };
        let most = 60_000;
        let kept = subject.largest(most, &mut |trace| peak(trace) <= budget);
        let of = |trace: &Trace, policy| subject.plan(trace, policy, budget);
        let theirs = subject.largest(most, &mut |trace| of(trace, Policy::Layrub(Layrub::Hybrid)).is_some());
        // Starts from the floor's batch, and goes down until there is a plan.
        let mut ours = subject.largest(most, &mut |trace| floor(trace) <= budget);
        while ours > theirs && of(&subject.trace(ours), Policy::Plimsoll).is_none() {
            ours -= (ours / 100).max(1);
        }
        let (at, before) = (subject.trace(theirs.max(1)), subject.trace(*usual));
        let layrub = of(&at, Policy::Layrub(Layrub::Hybrid));
        let usual_time = of(&before, Policy::Layrub(Layrub::Hybrid));
        let plimsoll = of(&at, Policy::Plimsoll);
        let per_image = |made: &Made, trace: &Trace| made.makespan.0 / trace.batch as f64;
        let epoch = layrub.as_ref().zip(usual_time.as_ref());
        let x = table.plot.at(name);
        for (what, batch) in [("keep", kept), ("layrub-hybrid", theirs), ("plimsoll", ours)] {
            table.plot.add(what, x, batch as f64);
        }
        table.plot.published("layrub-hybrid", x, *published as f64);
        table.row(vec![
            (*name).to_owned(),
            kept.to_string(),
            theirs.to_string(),
            published.to_string(),
            ours.to_string(),
            or_dash(epoch, |(a, b)| percent(per_image(a, &at) / per_image(b, &before) - 1.0)),
            percent(*change),
            or_dash(plimsoll.as_ref().zip(layrub.as_ref()), |(a, b)| {
                format!("{:.3}", a.makespan / b.makespan)
            }),
        ]);
        if let (Some((a, b)), true) = (epoch, theirs > 0) {
            let shorter = per_image(a, &at) / per_image(b, &before) - 1.0;
            table.claims.hold(
                "An epoch is shorter at the largest batch than at the usual one (Table 7)",
                format!("{name} ({})", percent(shorter)),
                shorter < 0.0,
            );
            reached.push((theirs as f64 / *published as f64, shorter - *change));
        }
        if theirs > 0 {
            table.advantage(format!("{name}, batch"), ours as f64 / theirs as f64);
        }
        if let (Some(ours), Some(layrub)) = (plimsoll, layrub) {
            table.advantage(format!("{name}, time at layrub's batch"), layrub.makespan / ours.makespan);
        }
    }
    if let (Some(times), Some(points)) = (reach(&reached, |row| row.0), reach(&reached, |row| row.1)) {
        table.note(format!(
            "Layrub's largest batches are {:.2} to {:.2} times the published ones: our lowering needs less memory than Caffe \
             for the same batch (gradients share memory, ReLU and addition work in place, masks take a bit), and the model \
             knows no memory of the driver and of cuDNN.",
            times.0, times.1
        ));
        table.note(format!(
            "An epoch gets shorter by {:.1} to {:.1} points less than in the paper, which names a GPU that small batches do \
             not fill (§5.5): the model's seconds per image depend little on the batch.",
            100.0 * points.0,
            100.0 * points.1
        ));
    }
    table
}

/// Returns the least and the most of a number of each row; `None` if there is no row.
fn reach(rows: &[(f64, f64)], of: fn(&(f64, f64)) -> f64) -> Option<(f64, f64)> {
    rows.iter().map(of).fold(None, |reach, value| {
        let (least, most) = reach.unwrap_or((value, value));
        Some((value.min(least), value.max(most)))
    })
}
