//! Layrub (Jin et al., TACO 2018) on a K40: memory and cost of its strategies, the deepest ResNet and the largest batches.
//!
//! Layrub's intra-layer strategy, in which a gradient takes its activation's place, is a matter of lowering
//! (`tuner/src/policies/papers/layrub.rs` says why): ours has it by default. So *intra* keeps everything of that lowering,
//! *hybrid* is the inter-layer policy on it, and *inter* the same policy on a lowering without that reuse. The baseline is
//! Caffe's allocation (`frameworks.rs`). Its times are in `layrub_time.rs`.

use crate::frameworks::{caffe, of_all};
use crate::plot::Plot;
use crate::subjects::{Made, Scale, Subject, device, floor, peak};
use crate::table::{Table, at_most, cells, claim, gb, in_gb, mb, note, percent};
use crate::vdnn::mean;
use plimsoll::ir::Bytes;
use plimsoll::ir::trace::Trace;
use plimsoll::tuner::{Layrub, Policy};

/// Table 4: memory of the K40M.
pub const K40M: Bytes = Bytes(11580 << 20);

/// The text gives only the shares that it names.
pub const NOT_LEGIBLE: &str = "not legible (figure)";

const STRATEGIES: &str = "network (batch) | Caffe | intra | inter | hybrid | saved: intra, inter, hybrid | published \
 | plimsoll, least | plimsoll in hybrid's memory: time over hybrid's";

pub const HYBRID: Policy = Policy::Layrub(Layrub::Hybrid);

pub const MEMONGER: Policy = Policy::Memonger { searched: false };

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
    networks: &[(&str, u64, &str)],
) -> (Table, Vec<Saving>) {
    let plot = Plot::new(title, "network (batch)", "intermediate data, MB").log_y();
    let (mut table, mut savings) = (Table::new(from, STRATEGIES, plot), Vec::new());
    for (name, batch, published) in scale.pick(networks, 1) {
        let subject = scale.subject(name, None, device("k40", false));
        let trace = subject.trace(*batch);
        let pool = |bytes: Bytes| bytes.saturating_sub(trace.resident_bytes);
        let layrub = subject.leanest(&trace, HYBRID);
        let ours = layrub.and_then(|made| subject.plan(&trace, Policy::Plimsoll, made.memory));
        let least = subject.least_memory(&trace, Policy::Plimsoll);
        let blobs = of_all(&subject.network, *batch);
        let apart = subject.without_reuse();
        let inter = apart.leanest(&apart.trace(*batch), Policy::Layrub(Layrub::Inter));
        let name = format!("{name} ({batch})");
        let saving = layrub.zip(inter).map(|(hybrid, inter)| Saving {
            of: name.clone(),
            baseline: caffe(&blobs),
            intra: pool(peak(&trace)),
            inter: pool(inter.memory),
            hybrid: pool(hybrid.memory),
            intra_alone: blobs.data + blobs.masks,
        });
        let of = |of: fn(&Saving) -> Bytes| saving.as_ref().map(of);
        let [baseline, intra] = [of(|saving| saving.baseline), of(|saving| saving.intra)];
        let [inter, hybrid] = [of(|saving| saving.inter), of(|saving| saving.hybrid)];
        let least = least.map(pool);
        let bytes = [baseline, intra, inter, hybrid, least];
        let series = ["Caffe", "intra", "inter", "hybrid", "plimsoll, least"];
        let points = bytes.map(|bytes| bytes.map(|bytes| bytes.0 as f64 / (1u64 << 20) as f64));
        table.plot.over(&name, std::array::from_fn::<_, 5, _>(|at| (series[at], points[at])));
        let saved = |saving: &Saving| {
            [saving.intra, saving.inter, saving.hybrid].map(|left| percent(saving.saved(left))).join(", ")
        };
        let time = ours.zip(layrub).map(|(a, b)| format!("{:.3}", a.makespan / b.makespan));
        let cells = cells![name, baseline.map(mb), intra.map(mb), inter.map(mb), hybrid.map(mb);
            saving.as_ref().map(saved), published, least.map(mb), time];
        table.add(cells, *published == NOT_LEGIBLE);
        if let Some(saving) = &saving {
            claim!(table.claims;
                "The hybrid strategy takes less memory than the inter-layer one in every model (§5.2.1)";
                "{name} ({} MB over {})", mb(saving.hybrid), mb(saving.inter); saving.hybrid <= saving.inter);
        }
        savings.extend(saving);
        if let (Some(layrub), Some(ours), Some(least)) = (layrub, ours, least) {
            table.advantage(format!("{name}, memory"), pool(layrub.memory).0 as f64 / least.0.max(1) as f64);
            table.advantage(format!("{name}, time in layrub's memory"), layrub.makespan / ours.makespan);
        }
    }
    note!(table;
        "Megabytes of 2^20 bytes, parameters and what belongs to them left out, as in the paper (§5.1). Caffe allocates \
         each blob and its gradient once, ReLU and dropout in place. `intra` is everything kept by our lowering, \
         `hybrid` layrub-hybrid of it, `inter` layrub-inter of a lowering without intra-layer reuse.");
    (table, savings)
}

pub fn deep(scale: &Scale) -> Table {
    let (mut table, savings) = strategies(
        scale,
        "Memory of strategies, deep networks, K40",
        "Layrub §5.2.1, Fig. 9: NVIDIA K40M, batch 32, ImageNet.",
        &[
            ("resnet34", 32, NOT_LEGIBLE),
            ("resnet50", 32, "759.5 MB"),
            ("resnet101", 32, "759.5 MB"),
            ("resnet152", 32, "759.5 MB"),
            ("resnet1001-imagenet", 32, "759.5 MB, 98.9 % saved"),
        ],
    );
    let from_50 = || savings.iter().filter(|saving| !saving.of.starts_with("resnet34"));
    if let Some(first) = from_50().next() {
        for saving in from_50().skip(1) {
            claim!(table.claims;
                "From 50 to 1,001 layers the hybrid strategy's memory stays the same, to 5 % (§5.2.1)";
                "{} ({} MB over {})", saving.of, mb(saving.hybrid), mb(first.hybrid);
                (saving.hybrid.0 as f64 / first.hybrid.0 as f64 - 1.0).abs() <= 0.05);
        }
    }
    for saving in savings.iter().filter(|saving| saving.of.starts_with("resnet1001")) {
        let words = "ResNet-1001 saves 98.9 %, to 5 points (§5.2.1)";
        table.claims.near(words, &saving.of, saving.saved(saving.hybrid), 0.989);
        // The published 759.5 MB are the 1.1 % that remain after saving 98.9 %.
        let published = 759.5 / (1.0 - 0.989);
        let ours = saving.baseline.0 as f64 / (1u64 << 20) as f64;
        claim!(table.claims;
            "ResNet-1001 takes 69,045 MB in Caffe, of which 759.5 MB are 1.1 %, to 5 % (§5.2.1)";
            "{} ({ours:.0} MB for {published:.0})", saving.of; (ours / published - 1.0).abs() <= 0.05);
    }
    table
}

pub fn wide(scale: &Scale) -> Table {
    let (mut table, savings) = strategies(
        scale,
        "Memory of strategies, wide networks, K40",
        "Layrub §5.2.2, Fig. 10: NVIDIA K40M, batch 128, CIFAR-10. Published for WRN-8-128 and WRN-8-256: inter-layer saves \
         13.6 % on average, intra-layer close to 50 %.",
        &[
            ("wrn-16-1", 128, NOT_LEGIBLE),
            ("wrn-16-10", 128, NOT_LEGIBLE),
            ("wrn-16-20", 128, NOT_LEGIBLE),
            ("wrn-8-64", 128, NOT_LEGIBLE),
            ("wrn-8-128", 128, "inter 13.6 % saved (mean of two)"),
            ("wrn-8-256", 128, "inter 13.6 % saved (mean of two)"),
        ],
    );
    let numbered = |saving: &&Saving| ["wrn-8-128 (128)", "wrn-8-256 (128)"].contains(&&*saving.of);
    let numbered: Vec<&Saving> = savings.iter().filter(numbered).collect();
    if !numbered.is_empty() {
        let mean = |of: fn(&Saving) -> Bytes| {
            mean(&numbered.iter().map(|one| one.saved(of(one))).collect::<Vec<_>>())
        };
        let words = "The inter-layer strategy saves 13.6 % on WRN-8-128 and WRN-8-256, to 5 points (§5.2.2)";
        table.claims.near(words, "their mean", mean(|saving| saving.inter), 0.136);
        let words = "The intra-layer strategy saves \"close to 50 %\" on WRN-8-128 and WRN-8-256, to 5 points (§5.2.2)";
        table.claims.near(words, "their mean", mean(|saving| saving.intra), 0.5);
        note!(table;
            "Why intra saves more here: by address, everything that is dead is anybody's; with a place for each blob and \
             its gradient and nothing else shared, it saves {}.", percent(mean(|saving| saving.intra_alone)));
        note!(table;
            "Why inter saves more here: at most one block's maps and gradients are alive at once, a fifth of what these \
             networks have; the paper's 86 % that are left would be nearly all blobs of the network, and it does not say \
             which stay.");
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
            ("lenet", 64, NOT_LEGIBLE),
            ("alexnet", 128, NOT_LEGIBLE),
            ("vgg16", 64, NOT_LEGIBLE),
            ("googlenet", 128, NOT_LEGIBLE),
            ("resnet34", 32, NOT_LEGIBLE),
            ("resnet50", 32, NOT_LEGIBLE),
            ("wrn-28-10", 128, NOT_LEGIBLE),
        ],
    );
    for saving in savings.iter().filter(|saving| saving.of.starts_with("lenet")) {
        claim!(table.claims; "The inter-layer strategy falls behind the intra-layer one on LeNet (§5.2.2)";
            "{} ({} MB over {})", saving.of, mb(saving.inter), mb(saving.intra); saving.intra <= saving.inter);
    }
    for saving in &savings {
        claim!(table.claims; "The hybrid strategy saves 55 % to 98.9 % (§5.2.3)"; "{} ({})", saving.of,
            percent(saving.saved(saving.hybrid)); saving.saved(saving.hybrid) >= 0.55);
    }
    table
}

pub fn systems(scale: &Scale) -> Table {
    runtime_memory(
        scale,
        "Memory in all, K40",
        "Layrub §5.3.1, Fig. 12: NVIDIA K40M, memory in all, with parameters, their gradients and momenta. The least \
         of each policy.",
        &[
            ("alexnet", 128, NOT_LEGIBLE),
            ("vgg16", 64, NOT_LEGIBLE),
            ("googlenet", 128, "35.2 % less than MXNet (Layrub)"),
            ("resnet34", 32, "Layrub 1482 MB, GeePS 2705 MB"),
            ("resnet50", 32, "Layrub 1805 MB, MXNet 2195 MB (Table 6)"),
            ("resnet1001-imagenet", 32, "Layrub 7901 MB, MXNet 10104 MB (Table 6)"),
        ],
    )
}

/// Makes a table of total memory in MB of 2^20 bytes, of Memonger (the paper's MXNet), Layrub and plimsoll.
fn runtime_memory(scale: &Scale, title: &str, from: &str, rows: &[(&str, u64, &str)]) -> Table {
    let plot = Plot::new(title, "network", "memory in all, GB").log_y();
    let heading = "network (batch) | keep | memonger | layrub-hybrid | published | plimsoll | resident";
    let mut table = Table::new(from, heading, plot);
    for (name, batch, published) in scale.pick(rows, 1).iter().copied() {
        let subject = scale.subject(name, None, device("k40", false));
        let trace = subject.trace(batch);
        let [memonger, layrub, ours] =
            [MEMONGER, HYBRID, Policy::Plimsoll].map(|policy| subject.least_memory(&trace, policy));
        let all = [("memonger", memonger), ("layrub-hybrid", layrub), ("plimsoll", ours)];
        table.plot.over(name, [("keep", Some(in_gb(peak(&trace))))]);
        let x = table.plot.over(name, all.map(|(what, memory)| (what, memory.map(in_gb))));
        let figure = published.split("Layrub ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        table.plot.published("layrub-hybrid", x, figure.map(|mb: f64| mb / 1024.0));
        let cells = cells![format!("{name} ({batch})"), mb(peak(&trace)), memonger.map(mb), layrub.map(mb);
            published, ours.map(mb), mb(trace.resident_bytes)];
        table.add(cells, published == NOT_LEGIBLE);
        if let (Some(layrub), Some(memonger)) = (layrub, memonger) {
            claim!(table.claims; "Layrub takes less memory in all than MXNet with memonger (§5.3.1, §5.4)";
                "{name} ({batch}) ({} MB over {})", mb(layrub), mb(memonger);
                at_most(layrub.0 as f64, memonger.0 as f64));
        }
        if let (Some(layrub), Some(ours)) = (layrub, ours) {
            table.advantage(name, layrub.0 as f64 / ours.0 as f64);
        }
    }
    note!(table;
        "Published memory has what the driver and cuDNN take besides; of a network as deep as these, parameters are most \
         of it.");
    note!(table; "Only memory is shown, so that plans are looked for with 50 evaluations here.");
    table
}

/// Table 6: network, batch, and published MB on the K40M: Caffe, MXNet, Layrub.
const DEPTHS: [(&str, u64, &str); 8] = [
    ("resnet34", 32, "Layrub 1257 MB, MXNet 1431, Caffe 4430"),
    ("resnet50", 32, "Layrub 1805 MB, MXNet 2195, Caffe 11425"),
    ("resnet302", 32, "Layrub 3448 MB, MXNet 4911, Caffe out of memory"),
    ("resnet695", 32, "Layrub 5968 MB, MXNet 7885, Caffe out of memory"),
    ("resnet1001-imagenet", 32, "Layrub 7901 MB, MXNet 10104, Caffe out of memory"),
    ("resnet1172", 32, "Layrub 9022 MB, MXNet 11455, Caffe out of memory"),
    ("resnet1304", 32, "Layrub 9872 MB, MXNet and Caffe out of memory"),
    ("resnet1517", 32, "Layrub 11239 MB, MXNet and Caffe out of memory"),
];

pub fn depths(scale: &Scale) -> Table {
    let mut table = runtime_memory(
        scale,
        "Memory in all over depth, batch 32, K40",
        "Layrub §5.4, Table 6: NVIDIA K40M with 11580 MB, batch 32, ImageNet, MB in all; and the deepest ResNet that fits, \
         of bottlenecks with the third group as long as it takes.",
        &DEPTHS,
    );
    let [layrub, ours] = [HYBRID, Policy::Plimsoll].map(|policy| deepest(scale, policy));
    table.row(cells!["deepest in 11580 MB", "-", "-", format!("{layrub} layers");
        "Layrub 1517, MXNet 1172, Caffe 50", format!("{ours} layers"), "-"]);
    if layrub > 0 {
        claim!(table.claims; "Layrub trains 1,517 layers in 11580 MB (§5.4)"; "{layrub} layers";
            layrub >= 1517);
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
    let subject = |blocks: u32| {
        let depth = of(blocks);
        let name = if depth == 1202 { "resnet1202-imagenet".to_owned() } else { format!("resnet{depth}") };
        let subject = scale.subject(&name, None, device("k40", false));
        let trace = subject.trace(32);
        (subject, trace)
    };
    let planned =
        |(subject, trace): &(Subject, Trace)| subject.outcome(trace, &subject.glance(policy, K40M)).is_ok();
    // No plan fits below the floor, and plimsoll finds one just above it.
    let fits = |at: &(Subject, Trace)| floor(&at.1) <= K40M && (policy == Policy::Plimsoll || planned(at));
    let (mut low, mut high) = (0u32, 1200);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(&subject(middle)) { low = middle } else { high = middle }
    }
    while low > 0 && !planned(&subject(low)) {
        low -= 1;
    }
    of(low)
}

/// Table 5: network, batch, and the published extra share of time of Layrub and of MXNet.
type Overhead = (&'static str, u64, Option<f64>, Option<f64>);

const OVERHEADS: [Overhead; 8] = [
    ("lenet", 64, Some(0.0905), Some(0.1728)),
    ("alexnet", 256, Some(0.2185), Some(0.2578)),
    ("vgg16", 64, Some(0.2063), Some(0.2944)),
    ("googlenet", 32, Some(0.2741), Some(0.2585)),
    ("resnet34", 32, Some(0.2552), Some(0.2844)),
    ("resnet50", 32, Some(0.5676), Some(0.2532)),
    ("resnet56", 128, None, None),
    ("wrn-28-10", 128, Some(0.1842), None),
];

/// A network of Table 5, and the plans that three figures show.
pub struct Priced {
    pub network: &'static str,
    /// Network and batch.
    pub name: String,
    pub subject: Subject,
    pub trace: Trace,
    pub layrub: Option<Made>,
    pub memonger: Option<Made>,
    /// plimsoll's in Layrub's memory.
    pub ours: Option<Made>,
    /// Extra share of time that the paper gives for Layrub, and for MXNet.
    pub published: [Option<f64>; 2],
}

impl Priced {
    /// Returns a plan's time over keeping everything.
    pub fn over(&self, made: Option<Made>) -> Option<f64> {
        made.map(|made| made.makespan / self.trace.fastest_seconds())
    }

    /// Returns the time of all of Layrub's transfers, one after the other, over keeping everything.
    pub fn moving(&self) -> Option<f64> {
        let seconds = |made: Made| made.offloaded * 2 / self.subject.link().offload_bytes_per_second;
        self.layrub.map(|made| seconds(made) / self.trace.fastest_seconds())
    }

    /// Adds plimsoll's advantage over Layrub.
    pub fn advantage(self, table: &mut Table) {
        if let (Some(layrub), Some(ours)) = (self.layrub, self.ours) {
            table.advantage(self.name, layrub.makespan / ours.makespan);
        }
    }
}

/// Returns the first networks of Table 5.
pub fn priced(scale: &Scale, count: usize) -> impl Iterator<Item = Priced> {
    scale.pick(&OVERHEADS[..count], 1).iter().map(|(network, batch, layrub, mxnet)| {
        let subject = scale.subject(network, None, device("k40", false));
        let trace = subject.trace(*batch);
        let [hybrid, memonger] = [HYBRID, MEMONGER].map(|policy| subject.leanest(&trace, policy));
        let ours = hybrid.and_then(|made| subject.plan(&trace, Policy::Plimsoll, made.memory));
        let (name, published) = (format!("{network} ({batch})"), [*layrub, *mxnet]);
        Priced { network, name, subject, trace, layrub: hybrid, memonger, ours, published }
    })
}

const COSTS: &str = "What the hybrid strategy costs in time is as in Table 5, to 5 points (§5.3.2)";

pub fn overheads(scale: &Scale) -> Table {
    let plot =
        Plot::new("What saving memory costs, K40", "network (batch)", "% longer than keeping everything");
    let mut table = Table::new(
        "Layrub §5.3.2, Table 5: NVIDIA K40M. Time over keeping everything. `layrub-hybrid` and `memonger` at the least \
         memory of each; plimsoll in Layrub's.",
        "network (batch) | layrub-hybrid | published | memonger | published (MXNet) | plimsoll in layrub's memory | \
         memory of layrub: GB | memory of memonger: GB",
        plot,
    );
    let (mut costs, mut moving) = (Vec::new(), Vec::new());
    for row in priced(scale, OVERHEADS.len()) {
        let longer = [row.layrub, row.memonger, row.ours].map(|made| row.over(made).map(|over| over - 1.0));
        let [layrub, memonger, ours] = longer;
        let [theirs, mxnet] = row.published;
        let all = [("layrub-hybrid", layrub), ("memonger", memonger), ("plimsoll", ours)];
        let x = table.plot.over(&row.name, all.map(|(what, share)| (what, share.map(|share| 100.0 * share))));
        for (what, share) in [("layrub-hybrid", theirs), ("memonger", mxnet)] {
            table.plot.published(what, x, share.map(|share| 100.0 * share));
        }
        let memory = [row.layrub, row.memonger].map(|made| made.map(|made| gb(made.memory)));
        let [layrub_gb, memonger_gb] = memory;
        let cells = cells![row.name, layrub.map(percent), theirs.map(percent), memonger.map(percent);
            mxnet.map(percent), ours.map(percent), layrub_gb, memonger_gb];
        table.add(cells, theirs.is_none());
        if let (Some(layrub), Some(theirs), Some(transfers)) = (layrub, theirs, row.moving()) {
            table.claims.near(COSTS, &row.name, layrub, theirs);
            moving.push(format!("{:.2} ({})", theirs / transfers, row.name));
        }
        if let (Some(layrub), Some(memonger), Some(_)) = (layrub, memonger, mxnet) {
            costs.push((layrub, memonger));
        }
        row.advantage(&mut table);
    }
    if !costs.is_empty() {
        let mean = |all: fn(&(f64, f64)) -> f64| costs.iter().map(all).sum::<f64>() / costs.len() as f64;
        let (layrub, memonger) = (mean(|cost| cost.0), mean(|cost| cost.1));
        claim!(table.claims;
            "Layrub costs less time than MXNet with memonger on average: 24.1 % for 26.3 (§5.3.2)";
            "mean of {} networks ({} for {})", costs.len(), percent(layrub), percent(memonger);
            at_most(layrub, memonger));
    }
    let published =
        "the published cost over that of all transfers, one after the other, which hide behind nothing";
    let here = "here computing hides a third of them and more ([Fig. 14](layrub-fig14.md))";
    table.claims.explain(COSTS, format!("{published}, is {}; {here}", moving.join(", ")));
    note!(table; "The paper does not say the batches of Table 5; those of Fig. 11 and Table 7 are taken.");
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
        "network | keep | layrub-hybrid | published | plimsoll | epoch: layrub-hybrid over the usual batch | published | \
         epoch: plimsoll at layrub's batch over layrub's",
        plot,
    );
    let mut reached = Vec::new();
    for (name, usual, published, change) in scale.pick(&BATCHES, 1) {
        let subject = scale.subject(name, None, device("k40", false));
        let budget = if scale.small { peak(&subject.trace(16)) } else { K40M };
        let most = 60_000;
        let kept = subject.largest(most, &mut |trace| peak(trace) <= budget);
        let of = |trace: &Trace, policy| subject.plan(trace, policy, budget);
        let theirs = subject.largest(most, &mut |trace| of(trace, HYBRID).is_some());
        // Starts from the floor's batch, and goes down until there is a plan.
        let mut ours = subject.largest(most, &mut |trace| floor(trace) <= budget);
        while ours > theirs && of(&subject.trace(ours), Policy::Plimsoll).is_none() {
            ours -= (ours / 100).max(1);
        }
        let (at, before) = (subject.trace(theirs.max(1)), subject.trace(*usual));
        let [layrub, plimsoll] = [HYBRID, Policy::Plimsoll].map(|policy| of(&at, policy));
        let per_image = |made: Made, trace: &Trace| made.makespan.0 / trace.batch as f64;
        let epoch = layrub.zip(of(&before, HYBRID));
        let shorter = epoch.map(|(a, b)| per_image(a, &at) / per_image(b, &before) - 1.0);
        let batches = [("keep", kept), ("layrub-hybrid", theirs), ("plimsoll", ours)];
        let x = table.plot.over(name, batches.map(|(what, batch)| (what, Some(batch as f64))));
        table.plot.published("layrub-hybrid", x, *published as f64);
        table.row(cells![name, kept, theirs, published, ours, shorter.map(percent), percent(*change);
            plimsoll.zip(layrub).map(|(a, b)| format!("{:.3}", a.makespan / b.makespan))]);
        if let Some(shorter) = shorter.filter(|_| theirs > 0) {
            claim!(table.claims; "An epoch is shorter at the largest batch than at the usual one (Table 7)";
                "{name} ({})", percent(shorter); shorter < 0.0);
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
        note!(table;
            "Layrub's largest batches are {:.2} to {:.2} times the published ones: our lowering needs less memory than \
             Caffe for the same batch (gradients share memory, ReLU and addition work in place, masks take a bit), and \
             the model knows no memory of the driver and of cuDNN.", times.0, times.1);
        note!(table;
            "An epoch gets shorter by {:.1} to {:.1} points less than in the paper, which names a GPU that small batches \
             do not fill (§5.5): the model's seconds per image depend little on the batch.", 100.0 * points.0,
            100.0 * points.1);
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
