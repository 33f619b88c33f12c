//! vDNN (Rhu et al., arXiv 1602.08124) on a K40: performance of its policies, and VGG of up to 516 layers; its memory is in
//! `vdnn_memory.rs`.

use crate::claims::Claims;
use crate::frameworks::{Blobs, of_features, vdnn_baseline};
use crate::plot::Plot;
use crate::subjects::{ALL, Made, Scale, Subject, TWELVE_GB, device, peak};
use crate::table::{SAME, Table, at_most, cells, claim, gb, in_gb, note, or_dash, percent};
use plimsoll::ir::Bytes;
use plimsoll::ir::trace::Trace;
use plimsoll::tuner::model::devices::WORKSPACE_MOST;
use plimsoll::tuner::{Algorithms, Layers, Policy};

/// §4.3: networks and batches. The paper names VGG E, our vgg19, after its 16 convolutions. At 384, which only we plan, none of
/// vDNN's policies fits.
const NETWORKS: [(&str, u64); 7] = [
    ("alexnet", 128),
    ("overfeat", 128),
    ("vgg19", 32),
    ("vgg19", 64),
    ("vgg19", 128),
    ("vgg19", 256),
    ("vgg19", 384),
];

/// Network that is not in the paper.
pub const OURS: &str = "vgg19 (384)";

/// The paper's policies with the leanest algorithms (m) or the fastest (p); the last is the dynamic one.
pub const VARIANTS: [(&str, Policy); 5] = [
    ("vdnn-all (m)", Policy::Vdnn { layers: Layers::All, algorithms: Algorithms::Leanest }),
    ("vdnn-all (p)", Policy::Vdnn { layers: Layers::All, algorithms: Algorithms::Fastest }),
    ("vdnn-conv (m)", Policy::Vdnn { layers: Layers::Conv, algorithms: Algorithms::Leanest }),
    ("vdnn-conv (p)", Policy::Vdnn { layers: Layers::Conv, algorithms: Algorithms::Fastest }),
    ("vdnn-dyn", Policy::VdnnDyn),
];

/// Position of the dynamic policy in `VARIANTS`.
pub const DYNAMIC: usize = VARIANTS.len() - 1;

/// Mark after a number of a plan that does not fit the device.
pub const FITS_NOT: &str = "(*)";

/// A network as the paper's frameworks train it, or as we do.
pub struct Case {
    pub name: String,
    pub subject: Subject,
    pub trace: Trace,
    /// Blobs and weights that the paper counts.
    pub blobs: Blobs,
    /// Everything kept, with the fastest algorithms and unlimited memory: the paper's oracle.
    pub oracle: Made,
    /// The device's memory.
    pub budget: Bytes,
}

/// Returns all networks, with or without gradients in the places of activations.
pub fn cases(scale: &Scale, reuse: bool) -> Vec<Case> {
    let case = |(name, batch): &(&str, u64)| Case::new(scale, name, *batch, reuse);
    scale.pick(&NETWORKS, 1).iter().map(case).collect()
}

impl Case {
    fn new(scale: &Scale, name: &str, batch: u64, reuse: bool) -> Case {
        let subject = scale.subject(name, None, device("k40", true));
        let subject = if reuse { subject } else { subject.without_reuse() };
        let trace = subject.trace(batch);
        let oracle = subject.plan(&trace, Policy::Keep, ALL).expect("memory is unlimited");
        let budget = if scale.small { peak(&trace) } else { TWELVE_GB };
        let (name, blobs) = (format!("{name} ({batch})"), of_features(&subject.network, batch));
        Case { name, subject, trace, blobs, oracle, budget }
    }

    /// Converts bytes that include all resident bytes to the paper's count: weights and gradients of feature extraction layers.
    pub fn counted(&self, bytes: Bytes) -> Bytes {
        bytes.saturating_sub(self.trace.resident_bytes) + self.blobs.weights * 2
    }

    /// Returns the memory of the paper's baseline, as the paper counts it.
    pub fn baseline(&self) -> Bytes {
        vdnn_baseline(&self.blobs, &self.trace)
    }

    /// Returns a policy's plan, and `true` if it fits the device's memory; otherwise the plan has unlimited memory.
    pub fn made(&self, policy: Policy) -> (Option<Made>, bool) {
        match self.subject.plan(&self.trace, policy, self.budget) {
            Some(made) => (Some(made), true),
            None => (self.subject.plan(&self.trace, policy, ALL), false),
        }
    }

    pub fn plimsoll(&self, budget: Bytes) -> Option<Made> {
        self.subject.plan(&self.trace, Policy::Plimsoll, budget)
    }

    /// Returns a plan's images per second, as a share of the oracle's.
    fn share(&self, made: &Made) -> f64 {
        self.oracle.makespan / made.makespan
    }
}

/// Published means, by variant; `None` if the text gives none.
pub type Means = [Option<f64>; VARIANTS.len()];

/// Compares the mean of each variant with the published one.
pub fn hold_means(claims: &mut Claims, words: &str, ours: &[f64], published: Means) {
    for (((name, ..), ours), published) in VARIANTS.iter().zip(ours).zip(published) {
        published.iter().for_each(|published| claims.near(words, name, *ours, *published));
    }
}

pub fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Statements of §5.1 and §5.3 on single networks: policy, and its images per second over the oracle's.
const SHARES: [(&str, usize, f64); 2] = [("vgg19 (128)", 0, 0.51), ("vgg19 (256)", DYNAMIC, 0.78)];

pub fn performance(scale: &Scale) -> Table {
    let title = "Performance over an oracle with all memory, K40";
    let plot = Plot::new(title, "network (batch)", "share of the oracle's");
    let mut table = Table::new(
        "vDNN §5.3, Fig. 12: NVIDIA K40, 12 GB, networks as the paper's frameworks train them. Images per second over those of \
         the oracle, which keeps everything with the fastest algorithms in memory without end; (*) does not fit the device.",
        "network (batch) | vdnn-all (m) | vdnn-all (p) | vdnn-conv (m) | vdnn-conv (p) | vdnn-dyn | published | plimsoll \
         in vdnn-dyn's memory | plimsoll in 12 GB",
        plot,
    );
    let mut lost: Vec<Vec<f64>> = vec![Vec::new(); VARIANTS.len()];
    for case in cases(scale, false) {
        let x = table.plot.at(&case.name);
        let mut row = vec![case.name.clone()];
        let made = VARIANTS.map(|(_, policy)| case.made(policy));
        let share = |made: Option<Made>| made.map(|made| case.share(&made));
        let shares = made.map(|(made, _)| share(made));
        for (at, (name, _)) in VARIANTS.iter().enumerate() {
            row.push(or_dash(shares[at], |share| {
                table.plot.add(name, x, share);
                format!("{}{}", percent(share), if made[at].1 { "" } else { FITS_NOT })
            }));
            lost[at].extend(shares[at].filter(|_| case.name != OURS).map(|share| 1.0 - share));
        }
        let published = SHARES.iter().find(|(name, ..)| *name == case.name);
        row.push(or_dash(published, |(_, at, share)| format!("{} {}", VARIANTS[*at].0, percent(*share))));
        if let Some((name, at, share)) = published {
            table.plot.published(VARIANTS[*at].0, x, *share);
            let ours = shares[*at].unwrap_or(0.0);
            let words = "Performance of VGG-16 over the oracle's, to 5 points (§5.1, §5.3)";
            table.claims.near(words, &format!("{}, {name}", VARIANTS[*at].0), ours, *share);
        }
        let (dynamic, fits) = made[DYNAMIC];
        let (tight, wide) = (dynamic.and_then(|made| case.plimsoll(made.alive)), case.plimsoll(case.budget));
        row.extend([tight, wide].map(|made| or_dash(share(made), percent)));
        table.plot.add("plimsoll in vdnn-dyn's memory", x, share(tight));
        table.add(row, published.is_none());
        claims_of_performance(&mut table.claims, &case.name, &shares);
        if let Some(dynamic) = dynamic {
            let times = |made: Option<Made>| made.map_or(0.0, |made| dynamic.makespan / made.makespan);
            table.advantage(format!("{}, in vdnn-dyn's memory", case.name), times(tight));
            if fits {
                table.advantage(format!("{}, in 12 GB", case.name), times(wide));
            }
        }
    }
    losses(&mut table, &lost);
    if !scale.small {
        table.notes.push(why_nothing_is_downgraded(&Case::new(scale, "vgg19", DOWNGRADED.0, false)));
    }
    table
}

/// Batch of VGG-16 at which the paper's vdnn-dyn downgrades algorithms, and its baseline in GB (§5.1).
const DOWNGRADED: (u64, f64) = (256, 28.0);

/// Explains why vdnn-dyn loses next to nothing here, although the paper's loses most.
fn why_nothing_is_downgraded(case: &Case) -> String {
    let known = case.trace.ops.iter().flat_map(|op| &op.alternatives).map(|way| way.workspace_bytes).max();
    let workspace = in_gb(known.unwrap_or_default());
    let papers = workspace + DOWNGRADED.1 - in_gb(case.baseline());
    let mut trace = case.trace.clone();
    for way in trace.ops.iter_mut().flat_map(|op| &mut op.alternatives) {
        way.workspace_bytes = Bytes((way.workspace_bytes.0 as f64 * papers / workspace) as u64);
    }
    let of = |policy| case.subject.scheduled(&trace, &case.subject.request(policy, case.budget)).ok();
    let fits = |policy| if of(policy).is_some() { "fits" } else { "does not fit" };
    format!(
        "Why vdnn-dyn loses next to nothing of {} here: within 12 GB the model's workspace of at most {workspace:.1} GB lets \
         all convolutions have their fastest algorithms, where the published base leaves the paper's {papers:.1} GB; with \
         workspaces that much larger vdnn-conv (p) {} and vdnn-all (p) {}, so that algorithms are downgraded, and vdnn-dyn \
         has {} of the oracle, as the model has none between the fastest and the leanest.",
        case.name,
        fits(Policy::Vdnn { layers: Layers::Conv, algorithms: Algorithms::Fastest }),
        fits(Policy::Vdnn { layers: Layers::All, algorithms: Algorithms::Fastest }),
        or_dash(of(Policy::VdnnDyn), |(made, _)| percent(case.share(&made))),
    )
}

/// Adds the means over the paper's networks, with the published ones.
fn losses(table: &mut Table, lost: &[Vec<f64>]) {
    let published = ["46 % (worst 59 %)", "not said", "43 % (worst 56 %)", "not said", "5 % (worst 22 %)"];
    for (((name, ..), lost), published) in VARIANTS.iter().zip(lost).zip(published) {
        let worst = lost.iter().copied().fold(0.0, f64::max);
        let (mean, worst) = (percent(mean(lost)), percent(worst));
        note!(table; "{name}: loses {mean} on average, {worst} at worst; published: {published} (§5.3).");
    }
    let means: Vec<f64> = lost.iter().map(|lost| mean(lost)).collect();
    let words = "What each policy loses to the oracle on average, to 5 points (§5.3)";
    hold_means(&mut table.claims, words, &means, [Some(0.46), None, Some(0.43), None, Some(0.05)]);
    note!(table;
        "Why the leanest algorithms lose more here: with all but no transfer in the way (vdnn-conv), the model's fastest \
         ones are {:.1} times as fast, where the paper's of cuDNN 4 are {:.1} times.", 1.0 / (1.0 - means[2]),
        1.0 / (1.0 - 0.43));
    note!(table; "The paper compares the feature extraction layers only; here the classifier and the update count too.");
}

/// Claims of §5.3 about each network's performance; by variant, the share of the oracle's.
fn claims_of_performance(claims: &mut Claims, name: &str, shares: &[Option<f64>]) {
    let &[Some(all), _, Some(conv), _, Some(dynamic)] = shares else { return };
    if name == OURS {
        return;
    }
    claim!(claims; "vdnn-dyn is faster than the policies with the leanest algorithms (§5.3)"; "{}", name;
        at_most(all.max(conv), dynamic));
    claim!(claims; "vdnn-dyn reaches 78 % of the oracle at worst (§5.3)"; "{name} ({})", percent(dynamic);
        dynamic >= 0.78 * (1.0 - SAME));
}

/// The paper's name, our network, convolutions, and the memory in GB of the baseline and of vdnn-dyn, if the text gives it.
type Deep = (&'static str, &'static str, u32, Option<f64>, Option<f64>);

/// The networks of Fig. 13.
const DEEP: [Deep; 6] = [
    ("VGG-16", "vgg19", 16, Some(4.9), None),
    ("VGG-116", "vgg119", 116, None, None),
    ("VGG-216", "vgg219", 216, None, None),
    ("VGG-316", "vgg319", 316, None, None),
    ("VGG-416", "vgg419", 416, None, None),
    ("VGG-516", "vgg519", 516, Some(80.6), Some(5.8)),
];

pub fn very_deep(scale: &Scale) -> Table {
    let plot = Plot::new("Very deep VGG at batch 32, K40", "convolutions", "maximum memory, GB").log_y();
    let mut table = Table::new(
        "vDNN §5.4, Fig. 13: NVIDIA K40, 12 GB, batch 32, networks as the paper's frameworks train them. Memory is as the \
         paper counts: a baseline that allocates for the whole network, with the fastest algorithms, and of all systems \
         feature extraction layers alone, without momenta; and, for vdnn-dyn, with everything. Throughput is over the \
         baseline's in memory without end.",
        "network (convolutions) | baseline: GB | published | vdnn-dyn: GB | published | vdnn-dyn, everything: GB | \
         vdnn-dyn: throughput | published | plimsoll in vdnn-dyn's memory: throughput | plimsoll: least GB | its \
         throughput",
        plot,
    );
    for (papers, name, convolutions, base, theirs) in scale.pick(&DEEP, 1) {
        let case = Case::new(scale, name, 32, false);
        let made = case.subject.plan(&case.trace, Policy::VdnnDyn, case.budget);
        let ours = made.and_then(|made| case.plimsoll(made.alive));
        let least = case.subject.leanest(&case.trace, Policy::Plimsoll);
        let share = |made: Made| percent(case.share(&made));
        let (alive, allocated) =
            (made.map(|made| case.counted(made.alive)), least.map(|made| case.counted(made.memory)));
        let x = f64::from(*convolutions);
        table.plot.add("baseline", x, in_gb(case.baseline()));
        table.plot.add("vdnn-dyn", x, alive.map(in_gb));
        table.plot.add("plimsoll, least", x, allocated.map(in_gb));
        table.plot.published("baseline", x, *base);
        table.plot.published("vdnn-dyn", x, *theirs);
        let figure = |gb: &Option<f64>| gb.map_or("not legible (figure)".to_owned(), |gb| gb.to_string());
        table.row(cells![format!("{papers} ({convolutions})"), gb(case.baseline()), figure(base);
            alive.map(gb), figure(theirs), made.map(|made| gb(made.alive)), made.map(share), "99 %";
            ours.map(share), allocated.map(gb), least.map(share)]);
        if let Some(said) = base {
            claim!(table.claims;
                "The baseline of VGG-16 takes 4.9 GB, that of VGG-516 80.6 GB, to 10 % (§5.4)";
                "{papers} ({} GB for {said})", gb(case.baseline());
                (in_gb(case.baseline()) / said - 1.0).abs() <= 0.1);
        }
        let (Some(made), Some(alive)) = (made, alive) else { continue };
        claim!(table.claims; "vdnn-dyn has 99 % of the throughput of the baseline (§5.4)"; "{papers} ({})",
            share(made); case.share(&made) >= 0.99 * (1.0 - SAME));
        claim!(table.claims; "vdnn-dyn takes 5.8 GB at most (§5.4)"; "{papers} ({} GB)", gb(alive);
            in_gb(alive) <= 5.85);
        if let (Some(ours), Some(allocated)) = (ours, allocated) {
            table.advantage(format!("{papers}, time in vdnn-dyn's memory"), made.makespan / ours.makespan);
            table.advantage(format!("{papers}, least memory"), alive.0 as f64 / allocated.0 as f64);
        }
    }
    note!(table;
        "The paper counts convolutions: its VGG-16 is VGG E, our vgg19, with three fully connected layers; with 20k more \
         convolutions in each of the five groups it is our vgg119 to vgg519.");
    let (papers, name, .., theirs) = DEEP[DEEP.len() - 1];
    let deepest = (!scale.small).then(|| Case::new(scale, name, 32, false));
    let made = deepest.as_ref().and_then(|case| case.subject.plan(&case.trace, Policy::VdnnDyn, case.budget));
    if let (Some(case), Some(made), Some(said)) = (deepest, made, theirs) {
        let weights = in_gb(case.blobs.weights * 2);
        note!(table;
            "Why vdnn-dyn takes more than {said} GB of {papers} here: weights and their gradients are {weights:.2} GB, \
             and the other {:.2} GB are what the fastest algorithms need, of which the model's have a workspace of {} \
             GB; the paper's {said} GB leave {:.2} GB. Why the baseline of VGG-16 is smaller here: the paper's workspace \
             is larger.", in_gb(case.counted(made.alive)) - weights, gb(WORKSPACE_MOST), said - weights);
    }
    note!(table;
        "Memory of vdnn-dyn is the most that is alive at once; of plimsoll it is what is allocated, addresses included.");
    table
}
