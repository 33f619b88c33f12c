//! vDNN (Rhu et al., arXiv 1602.08124) on a K40: memory and performance of its policies, and VGG of up to 516 layers.

use crate::claims::Claims;
use crate::plot::Plot;
use crate::subjects::{ALL, Made, Scale, Subject, TWELVE_GB, device, peak};
use crate::table::{SAME, Table, at_most, gb, in_gb, or_dash, percent};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::Policy;

/// §4.3: networks and batches; and VGG-16 at 384, which does not fit with everything kept as 256 did not there.
const NETWORKS: [(&str, u64); 7] = [
    ("alexnet", 128),
    ("overfeat", 128),
    ("vgg16", 32),
    ("vgg16", 64),
    ("vgg16", 128),
    ("vgg16", 256),
    ("vgg16", 384),
];

/// A policy with the leanest algorithms (m), or the fastest (p).
const VARIANTS: [(&str, Policy, bool); 5] = [
    ("vdnn-all (m)", Policy::VdnnAll, false),
    ("vdnn-all (p)", Policy::VdnnAll, true),
    ("vdnn-conv (m)", Policy::VdnnConv, false),
    ("vdnn-conv (p)", Policy::VdnnConv, true),
    ("vdnn-dyn", Policy::VdnnDyn, true),
];

/// A network with the leanest and with all algorithms.
struct Pair {
    name: String,
    lean: Subject,
    lean_trace: Trace,
    fast: Subject,
    fast_trace: Trace,
    /// Keeping everything, with the fastest algorithms and memory without end: the paper's oracle.
    oracle: Seconds,
    /// What that takes.
    oracle_bytes: Bytes,
    /// The device's.
    budget: Bytes,
}

fn pairs(scale: &Scale) -> Vec<Pair> {
    let pair = |(name, batch): &(&str, u64)| {
        let [lean, fast] = [false, true].map(|fast| scale.subject(name, None, device("k40", fast)));
        let (lean, fast) = (lean?, fast?);
        let (lean_trace, fast_trace) = (lean.trace(*batch), fast.trace(*batch));
        let kept = fast.plan(&fast_trace, Policy::Keep, ALL)?;
        let budget = if scale.small { peak(&lean_trace) } else { TWELVE_GB };
        let name = format!("{name} ({batch})");
        let (oracle, oracle_bytes) = (kept.makespan, kept.alive);
        Some(Pair { name, lean, lean_trace, fast, fast_trace, oracle, oracle_bytes, budget })
    };
    scale.pick(&NETWORKS, 1).iter().filter_map(pair).collect()
}

impl Pair {
    /// A variant within the device's memory; where it does not fit, without end.
    fn made(&self, policy: Policy, fast: bool) -> (Option<Made>, bool) {
        let (subject, trace) =
            if fast { (&self.fast, &self.fast_trace) } else { (&self.lean, &self.lean_trace) };
        match subject.plan(trace, policy, self.budget) {
            Some(made) => (Some(made), true),
            None => (subject.plan(trace, policy, ALL), false),
        }
    }

    fn plimsoll(&self, budget: Bytes) -> Option<Made> {
        self.fast.plan(&self.fast_trace, Policy::Plimsoll, budget)
    }
}

const FITS_NOT: &str = "(*)";

/// The network that is not the paper's.
const OURS: &str = "vgg16 (384)";

/// Published means, by variant; none where the text does not say one.
type Means = [Option<f64>; VARIANTS.len()];

/// Holds the mean of each variant against the published one.
fn hold_means(claims: &mut Claims, words: &str, ours: &[f64], published: Means) {
    for (((name, ..), ours), published) in VARIANTS.iter().zip(ours).zip(published) {
        if let Some(published) = published {
            let row = format!("{name} ({} for {})", percent(*ours), percent(published));
            claims.hold(words, row, (ours - published).abs() <= 0.05);
        }
    }
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// What §5.1 says of each network's memory; by variant, bytes and whether they fit.
fn claims_of_memory(claims: &mut Claims, name: &str, made: &[(Option<Made>, bool)]) {
    let bytes: Vec<f64> = made.iter().flat_map(|(made, _)| made).map(|made| made.alive.0 as f64).collect();
    if bytes.len() < VARIANTS.len() || name == OURS {
        return;
    }
    let (lean, dynamic) = (bytes[0], bytes[VARIANTS.len() - 1]);
    let words = "vdnn-all (m) takes the least memory of the policies (§5.1)";
    claims.hold(words, name, bytes.iter().all(|bytes| at_most(lean, *bytes)));
    let words = "vdnn-dyn takes the most memory of the policies (§5.1)";
    claims.hold(words, name, bytes.iter().all(|bytes| at_most(*bytes, dynamic)));
    claims.hold("vdnn-dyn trains the network within 12 GB (§5.1)", name, made[VARIANTS.len() - 1].1);
}

pub fn memory(scale: &Scale) -> Table {
    let plot = Plot::new("Maximum memory of vDNN's policies, K40", "network (batch)", "GB").log_y();
    let mut table = Table::new(
        "vDNN §5.1, Fig. 9: NVIDIA K40, 12 GB. `base (p)` keeps everything with the fastest algorithms, (m) is with the \
         leanest. Maximum memory in GB; (*) does not fit the device. `plimsoll` is at its least memory that takes no longer \
         than vdnn-dyn.",
        &[
            "network (batch)",
            "base (p)",
            "vdnn-all (m)",
            "vdnn-all (p)",
            "vdnn-conv (m)",
            "vdnn-conv (p)",
            "vdnn-dyn",
            "plimsoll",
            "plimsoll, least",
        ],
        plot,
    );
    let mut saved: Vec<Vec<f64>> = vec![Vec::new(); VARIANTS.len()];
    for pair in pairs(scale) {
        let x = table.plot.at(&pair.name);
        let mut row = vec![pair.name.clone(), gb(pair.oracle_bytes)];
        table.plot.add("base (p)", x, in_gb(pair.oracle_bytes));
        let mut all = Vec::new();
        for ((name, policy, fast), saved) in VARIANTS.iter().zip(&mut saved) {
            let (made, fits) = pair.made(*policy, *fast);
            row.push(or_dash(made.as_ref(), |made| {
                table.plot.add(name, x, in_gb(made.alive));
                saved.push(1.0 - made.alive.0 as f64 / pair.oracle_bytes.0 as f64);
                format!("{}{}", gb(made.alive), if fits { "" } else { FITS_NOT })
            }));
            all.push((made, fits));
        }
        claims_of_memory(&mut table.claims, &pair.name, &all);
        let dynamic = all[VARIANTS.len() - 1].0;
        let ours = dynamic.as_ref().and_then(|dynamic| least(scale, &pair, dynamic));
        row.push(or_dash(ours, gb));
        row.push(or_dash(pair.lean.leanest(&pair.lean_trace, Policy::Plimsoll), |made| gb(made.memory)));
        if let (Some(ours), Some(dynamic)) = (ours, dynamic) {
            table.plot.add("plimsoll", x, in_gb(ours));
            table.advantage(
                format!("{}, memory at vdnn-dyn's time", pair.name),
                dynamic.alive.0 as f64 / ours.0 as f64,
            );
        }
        // Of these the text says what base (p) takes, 15 and 28 GB (§5.3).
        table.add(row, !["vgg16 (128)", "vgg16 (256)"].contains(&&*pair.name));
    }
    let published: Means = [Some(0.69), Some(0.50), None, Some(0.39), Some(0.37)];
    let means: Vec<f64> = saved.iter().map(|saved| mean(saved)).collect();
    for (((name, ..), mean), published) in VARIANTS.iter().zip(&means).zip(published) {
        let published = published.map_or_else(|| "not said".to_owned(), percent);
        table.note(format!(
            "{name}: saves {} of base (p) on average; published: {published} (§5.1).",
            percent(*mean)
        ));
    }
    hold_means(
        &mut table.claims,
        "What each policy saves of base (p) on average, to 5 points (§5.1)",
        &means,
        published,
    );
    table.note(
        "Memory of vDNN's policies is the most that is alive at once; of plimsoll it is what is allocated, \
         addresses included.",
    );
    table.note(
        "Published for single networks: VGG-16 (128) with vdnn-all (m) 4.8 GB, base 15 GB; VGG-16 (256) base \
         28 GB (§5.1, §5.3).",
    );
    table.note(
        "The paper measures the feature extraction layers and Torch's buffers; here classifier, optimizer state and \
         gradients of parameters count too, and what is dead is freed at once, so that base and savings are smaller.",
    );
    table
}

/// The least memory at which plimsoll takes no longer than a plan.
fn least(scale: &Scale, pair: &Pair, made: &Made) -> Option<Bytes> {
    let mut best = pair.plimsoll(made.alive).filter(|ours| ours.makespan <= made.makespan * 1.001)?.memory;
    let (mut low, mut high) = (0u64, made.alive.0);
    for _ in 0..if scale.small { 1 } else { 6 } {
        let middle = low.midpoint(high);
        match pair.plimsoll(Bytes(middle)).filter(|ours| ours.makespan <= made.makespan * 1.001) {
            Some(ours) => (high, best) = (middle, best.min(ours.memory)),
            None => low = middle,
        }
    }
    Some(best)
}

pub fn performance(scale: &Scale) -> Table {
    let plot = Plot::new(
        "Performance over an oracle with all memory, K40",
        "network (batch)",
        "share of the oracle's",
    );
    let mut table = Table::new(
        "vDNN §5.3, Fig. 12: NVIDIA K40, 12 GB. Images per second over those of the oracle, which keeps everything with the \
         fastest algorithms in memory without end; (*) does not fit the device.",
        &[
            "network (batch)",
            "vdnn-all (m)",
            "vdnn-all (p)",
            "vdnn-conv (m)",
            "vdnn-conv (p)",
            "vdnn-dyn",
            "published (dyn)",
            "plimsoll in vdnn-dyn's memory",
            "plimsoll in 12 GB",
        ],
        plot,
    );
    let mut lost: Vec<Vec<f64>> = vec![Vec::new(); VARIANTS.len()];
    for pair in pairs(scale) {
        let x = table.plot.at(&pair.name);
        let mut row = vec![pair.name.clone()];
        let mut dynamic = None;
        let mut dynamic_fits = false;
        let mut shares = Vec::new();
        for ((name, policy, fast), lost) in VARIANTS.iter().zip(&mut lost) {
            let (made, fits) = pair.made(*policy, *fast);
            row.push(or_dash(made.as_ref(), |made| {
                let share = pair.oracle / made.makespan;
                table.plot.add(name, x, share);
                lost.push(1.0 - share);
                shares.push(share);
                format!("{}{}", percent(share), if fits { "" } else { FITS_NOT })
            }));
            (dynamic, dynamic_fits) = (made, fits);
        }
        let published = (pair.name == "vgg16 (256)").then_some(0.78);
        published.into_iter().for_each(|share| table.plot.published("vdnn-dyn", x, share));
        row.push(or_dash(published, percent));
        let tight = dynamic.as_ref().and_then(|made| pair.plimsoll(made.alive));
        let wide = pair.plimsoll(pair.budget);
        row.push(or_dash(tight.as_ref(), |made| percent(pair.oracle / made.makespan)));
        row.push(or_dash(wide.as_ref(), |made| percent(pair.oracle / made.makespan)));
        tight
            .iter()
            .for_each(|made| table.plot.add("plimsoll in vdnn-dyn's memory", x, pair.oracle / made.makespan));
        table.add(row, published.is_none());
        claims_of_performance(&mut table.claims, &pair, &shares);
        if let Some(dynamic) = dynamic {
            let times = |made: Option<Made>| made.map_or(0.0, |made| dynamic.makespan / made.makespan);
            table.advantage(format!("{}, in vdnn-dyn's memory", pair.name), times(tight));
            if dynamic_fits {
                table.advantage(format!("{}, in 12 GB", pair.name), times(wide));
            }
        }
    }
    let published = ["46 % (worst 59 %)", "not said", "43 % (worst 56 %)", "not said", "5 % (worst 22 %)"];
    for (((name, ..), lost), published) in VARIANTS.iter().zip(&lost).zip(published) {
        let worst = lost.iter().copied().fold(0.0, f64::max);
        let (mean, worst) = (percent(mean(lost)), percent(worst));
        table.note(format!(
            "{name}: loses {mean} on average, {worst} at worst; published: {published} (§5.3)."
        ));
    }
    let means: Vec<f64> = lost.iter().map(|lost| mean(lost)).collect();
    hold_means(
        &mut table.claims,
        "What each policy loses to the oracle on average, to 5 points (§5.3)",
        &means,
        [Some(0.46), None, Some(0.43), None, Some(0.05)],
    );
    table.note("The paper compares the feature extraction layers only; here the classifier and the update count too.");
    table.note(
        "VGG-16 (256) takes 28 GB in the paper and 12.2 here, where what is dead is freed at once and masks take a bit: it \
         nearly fits. At 384 none of vDNN's policies fits, and plimsoll does.",
    );
    table
}

/// What §5.3 says of each network's performance; by variant, the share of the oracle's.
fn claims_of_performance(claims: &mut Claims, pair: &Pair, shares: &[f64]) {
    let &[all, _, conv, _, dynamic] = shares else { return };
    if pair.name == OURS {
        return;
    }
    claims.hold(
        "vdnn-dyn is faster than the policies with the leanest algorithms (§5.3)",
        pair.name.as_str(),
        at_most(all.max(conv), dynamic),
    );
    claims.hold(
        "vdnn-dyn reaches 78 % of the oracle at worst (§5.3)",
        format!("{} ({})", pair.name, percent(dynamic)),
        dynamic >= 0.78 * (1.0 - SAME),
    );
}

/// Fig. 13: convolutional layers, and the baseline's memory in GB where the text says it.
const DEEP: [(&str, Option<f64>, Option<f64>); 6] = [
    ("vgg16", Some(4.9), None),
    ("vgg116", None, None),
    ("vgg216", None, None),
    ("vgg316", None, None),
    ("vgg416", None, None),
    ("vgg516", Some(80.6), Some(5.8)),
];

pub fn very_deep(scale: &Scale) -> Table {
    let plot = Plot::new("Very deep VGG at batch 32, K40", "network", "maximum memory, GB").log_y();
    let mut table = Table::new(
        "vDNN §5.4, Fig. 13: NVIDIA K40, batch 32. The baseline keeps everything with the fastest algorithms. Throughput is \
         over the baseline's in memory without end.",
        &[
            "network",
            "baseline: GB",
            "published",
            "vdnn-dyn: GB",
            "published",
            "vdnn-dyn: throughput",
            "published",
            "plimsoll in vdnn-dyn's memory: throughput",
            "plimsoll: least GB",
            "its throughput",
        ],
        plot,
    );
    for (name, base, theirs) in scale.pick(&DEEP, 1) {
        let subject = scale.subject(name, None, device("k40", true)).expect("in the zoo");
        let trace = subject.trace(32);
        let kept = subject.plan(&trace, Policy::Keep, ALL).expect("memory without end");
        let share = |made: &Made| percent(kept.makespan / made.makespan);
        let budget = if scale.small { peak(&trace) } else { TWELVE_GB };
        let dynamic = subject.plan(&trace, Policy::VdnnDyn, budget);
        let ours = dynamic.as_ref().and_then(|made| subject.plan(&trace, Policy::Plimsoll, made.alive));
        let least = subject.leanest(&trace, Policy::Plimsoll);
        let x = table.plot.at(name);
        table.plot.add("baseline", x, in_gb(kept.alive));
        dynamic.iter().for_each(|made| table.plot.add("vdnn-dyn", x, in_gb(made.alive)));
        least.iter().for_each(|made| table.plot.add("plimsoll, least", x, in_gb(made.memory)));
        base.iter().for_each(|gb| table.plot.published("baseline", x, *gb));
        theirs.iter().for_each(|gb| table.plot.published("vdnn-dyn", x, *gb));
        let figure =
            |gb: &Option<f64>| gb.map_or_else(|| "not legible (figure)".to_owned(), |gb| gb.to_string());
        table.row(vec![
            (*name).to_owned(),
            gb(kept.alive),
            figure(base),
            or_dash(dynamic.as_ref(), |made| gb(made.alive)),
            figure(theirs),
            or_dash(dynamic.as_ref(), share),
            "99 %".to_owned(),
            or_dash(ours.as_ref(), share),
            or_dash(least.as_ref(), |made| gb(made.memory)),
            or_dash(least.as_ref(), share),
        ]);
        if let Some(dynamic) = dynamic {
            let share = kept.makespan / dynamic.makespan;
            table.claims.hold(
                "vdnn-dyn has 99 % of the throughput of the baseline (§5.4)",
                format!("{name} ({})", percent(share)),
                share >= 0.99 * (1.0 - SAME),
            );
            table.claims.hold(
                "vdnn-dyn takes 5.8 GB at most (§5.4)",
                format!("{name} ({} GB)", gb(dynamic.alive)),
                in_gb(dynamic.alive) <= 5.85,
            );
        }
        if let (Some(dynamic), Some(ours), Some(least)) = (dynamic, ours, least) {
            table.advantage(format!("{name}, time in vdnn-dyn's memory"), dynamic.makespan / ours.makespan);
            table.advantage(format!("{name}, least memory"), dynamic.alive.0 as f64 / least.memory.0 as f64);
        }
    }
    let resident = |name| {
        scale.subject(name, None, device("k40", true)).map_or(Bytes::ZERO, |s| s.trace(32).resident_bytes)
    };
    let [least, most] = [DEEP[0], DEEP[DEEP.len() - 1]].map(|(name, ..)| gb(resident(name)));
    table.note(format!(
        "Weights, their gradients and momenta stay on the device here: {least} GB of VGG-16, {most} GB of VGG-516. The \
         published 5.8 GB leave no room for that: the paper's runs have no momenta, and count the feature extraction layers."
    ));
    table.note(
        "Memory of the baseline and of vdnn-dyn is the most that is alive at once; of plimsoll it is what is \
         allocated, addresses included.",
    );
    table
}
