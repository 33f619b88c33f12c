//! vDNN (Rhu et al., arXiv 1602.08124) on a K40: memory of its policies on the device, at most and on average (Fig. 9), and on
//! the host (Fig. 10), and the device bandwidth that convolutions leave free (Fig. 11).
//!
//! Memory is counted in two ways. *The paper's*: a network as its frameworks train it, without gradients in the places of
//! activations; the baseline allocates for the whole network before it runs (`frameworks.rs`), vDNN's policies count live
//! tensors; both count the feature extraction layers, weights with gradients included. *Ours*: our own lowering, in which dead
//! memory is free for any tensor, with everything counted, for the baseline too.

use crate::claims::Claims;
use crate::plot::Plot;
use crate::subjects::{Made, Scale, device};
use crate::table::{Table, at_most, cells, claim, gb, in_gb, note, or_dash, percent};
use crate::vdnn::{Case, DYNAMIC, FITS_NOT, Means, OURS, VARIANTS, cases, hold_means, mean};
use plimsoll::ir::Bytes;
use plimsoll::ir::trace::Phase;
use plimsoll::tuner::Policy;
use plimsoll::tuner::model::devices::WORKSPACE_MOST;

/// Way of counting memory.
#[derive(Clone, Copy, PartialEq)]
enum Counting {
    Papers,
    Ours,
}

/// Memory figure of a plan that a table shows.
struct Measure {
    of: fn(&Made) -> Bytes,
    /// Figure by which plimsoll is compared.
    of_plimsoll: fn(&Made) -> Bytes,
    /// Published share that each variant saves of the baseline (§5.1).
    means: Means,
    words: &'static str,
}

const MOST: Measure = Measure {
    of: |made| made.alive,
    of_plimsoll: |made| made.memory,
    means: [Some(0.69), Some(0.50), None, Some(0.39), Some(0.37)],
    words: "What each policy saves of base (p) at most, mean of six, to 5 points (§5.1)",
};

const AVERAGE: Measure = Measure {
    of: |made| made.average,
    of_plimsoll: |made| made.average,
    means: [Some(0.92), Some(0.85), None, Some(0.72), Some(0.64)],
    words: "What each policy saves of base (p) on average, mean of six, to 5 points (§5.1)",
};

impl Counting {
    fn name(self) -> &'static str {
        match self {
            Counting::Papers => "the paper's",
            Counting::Ours => "ours",
        }
    }

    /// Counts bytes, given those that include all resident bytes.
    fn count(self, case: &Case, bytes: Bytes) -> Bytes {
        match self {
            Counting::Papers => case.counted(bytes),
            Counting::Ours => bytes,
        }
    }

    fn baseline(self, case: &Case, measure: &Measure) -> Bytes {
        match self {
            // Constant over time.
            Counting::Papers => case.baseline(),
            Counting::Ours => (measure.of)(&case.oracle),
        }
    }
}

pub fn most(scale: &Scale) -> Table {
    let plot = Plot::new("Maximum memory as the paper counts, K40", "network (batch)", "GB").log_y();
    let from = "vDNN §5.1, Fig. 9: NVIDIA K40, 12 GB, maximum memory in GB. `base (p)` keeps everything with the fastest \
                algorithms, (m) is with the leanest; (*) does not fit the device.";
    let mut table = memory(scale, &MOST, from, plot);
    table.claims.explain(
        MOST.words,
        "the published base is larger by its workspace (the notes above), and so is what is saved of it",
    );
    note!(table;
        "Memory of vDNN's policies is what is alive at once; of plimsoll it is what is allocated, addresses included.");
    note!(table;
        "Published for single networks: VGG-16 (128) with vdnn-all (m) 4.8 GB, base 15 GB; VGG-16 (256) base 28 GB \
         (§5.1, §5.3).");
    let said = |case: &Case| SAID.iter().find(|(network, _, of, _)| *network == case.name && of.is_none());
    for case in cases(scale, false) {
        let (Some((.., said)), Some(lean)) = (said(&case), case.made(VARIANTS[0].1).0) else { continue };
        let base = in_gb(case.baseline());
        let all = in_gb(Counting::Papers.count(&case, lean.alive));
        note!(table;
            "Why {} saves less here: the published base is {:.1} GB above ours, which is workspace, of which the model \
             gives no algorithm more than {} GB; of the published base, vdnn-all (m) saves {}.", case.name,
            said - base, gb(WORKSPACE_MOST), percent(1.0 - all / said));
    }
    note!(table;
        "Why vdnn-conv (p) saves more here than in the paper: its maximum is a convolution with its workspace beside the \
         inputs of poolings that stay, and the paper's workspace is larger.");
    table
}

pub fn average(scale: &Scale) -> Table {
    let plot = Plot::new("Average memory as the paper counts, K40", "network (batch)", "GB").log_y();
    let from = "vDNN §5.1, Fig. 9: NVIDIA K40, 12 GB, memory in GB on average over the ops of forward and backward pass. \
                `base (p)` keeps everything with the fastest algorithms, (m) is with the leanest; (*) does not fit the device.";
    let mut table = memory(scale, &AVERAGE, from, plot);
    note!(table;
        "The paper does not say over what its average is. Over ops, each the same, as here, all policies but vdnn-dyn \
         come within 5 points of it; over time, where the first layers of VGG weigh most, none does.");
    note!(table;
        "Why vdnn-dyn saves less here: with a workspace of at most 1 GB, VGG-16 (128) fits with everything kept, where \
         the paper's has to offload; and OverFeat's base, which has the largest workspace at all times, is smaller.");
    table
}

/// Makes one half of figure 9.
fn memory(scale: &Scale, measure: &Measure, from: &str, plot: Plot) -> Table {
    let mut table = Table::new(
        format!(
            "{from} Counting: the paper's is of networks as its frameworks train them, a baseline that allocates for the \
             whole network, and feature extraction layers alone; ours is of our own lowering, where what is dead is anybody's \
             in the baseline as well, and of everything. `plimsoll` is its least memory at which it takes no longer than \
             vdnn-dyn."
        ),
        "network (batch) | counting | base (p) | vdnn-all (m) | vdnn-all (p) | vdnn-conv (m) | vdnn-conv (p) | vdnn-dyn \
         | plimsoll | plimsoll, least",
        plot,
    );
    for counting in [Counting::Papers, Counting::Ours] {
        let mut saved: Vec<Vec<f64>> = vec![Vec::new(); VARIANTS.len()];
        for case in cases(scale, counting == Counting::Ours) {
            add_row(scale, &mut table, measure, counting, &case, &mut saved);
        }
        let means: Vec<f64> = saved.iter().map(|saved| mean(saved)).collect();
        let papers = counting == Counting::Papers;
        let cell = |(mean, published): (&f64, Option<f64>)| match published.filter(|_| papers) {
            Some(published) => format!("{} for {}", percent(*mean), percent(published)),
            None => percent(*mean),
        };
        let cells = means.iter().zip(measure.means).map(cell);
        let first = cells!["saved of base (p), mean of the paper's", counting.name(), "-"];
        table.add(first.into_iter().chain(cells).chain(cells!["-", "-"]).collect(), !papers);
        if papers {
            hold_means(&mut table.claims, measure.words, &means, measure.means);
        }
    }
    table
}

fn add_row(
    scale: &Scale,
    table: &mut Table,
    measure: &Measure,
    counting: Counting,
    case: &Case,
    saved: &mut [Vec<f64>],
) {
    let papers = counting == Counting::Papers;
    let base = counting.baseline(case, measure);
    let counted = |made: &Made| counting.count(case, (measure.of)(made));
    let all = VARIANTS.map(|(_, policy)| case.made(policy));
    let mut row = cells![case.name, counting.name(), gb(base)];
    for (((made, fits), (name, _)), saved) in all.iter().zip(VARIANTS).zip(saved.iter_mut()) {
        row.push(or_dash(made.as_ref(), |made| {
            if papers {
                table.plot.over(&case.name, [(name, Some(in_gb(counted(made))))]);
            }
            if case.name != OURS {
                saved.push(1.0 - counted(made).0 as f64 / base.0 as f64);
            }
            format!("{}{}", gb(counted(made)), if *fits { "" } else { FITS_NOT })
        }));
    }
    let dynamic = all[DYNAMIC].0;
    let ours = dynamic.as_ref().and_then(|dynamic| least(scale, case, dynamic));
    let leanest = case.subject.leanest(&case.trace, Policy::Plimsoll);
    let of_plimsoll = |made: &Made| counting.count(case, (measure.of_plimsoll)(made));
    row.extend([ours, leanest].map(|made| or_dash(made, |made| gb(of_plimsoll(&made)))));
    if let (Some(ours), Some(dynamic)) = (&ours, &dynamic) {
        let times = counted(dynamic).0 as f64 / of_plimsoll(ours).0 as f64;
        // The plan is the leanest at its maximum, but may be larger on average.
        if measure.words == MOST.words {
            table.advantage(format!("{}, memory at vdnn-dyn's time, {}", case.name, counting.name()), times);
        }
        if papers {
            table.plot.over(&case.name, [("plimsoll", Some(in_gb(of_plimsoll(ours))))]);
        }
    }
    if papers {
        table.plot.over(&case.name, [("base (p)", Some(in_gb(base)))]);
        let known: Vec<f64> =
            all.iter().flat_map(|(made, _)| made).map(|made| counted(made).0 as f64).collect();
        claims(&mut table.claims, measure, &case.name, base, &known, all[DYNAMIC].1);
    }
    table.add(row, !papers || said_of(measure, &case.name).next().is_none());
}

fn is_average(measure: &Measure) -> bool {
    measure.words == AVERAGE.words
}

fn said_of(measure: &Measure, name: &str) -> impl Iterator<Item = &'static Said> {
    SAID.iter().filter(move |said| said.0 == name && said.1 == is_average(measure))
}

/// Statement of the text on a single network: the network; `true` if on average; the position of the variant, or `None` for the
/// baseline; and GB, or the share of the baseline that is saved on average.
type Said = (&'static str, bool, Option<usize>, f64);

/// §5.1, §5.3; and the abstract, whose three shares have the mean that §5.1 gives for the dynamic policy.
const SAID: [Said; 5] = [
    ("vgg19 (128)", false, None, 15.0),
    ("vgg19 (128)", false, Some(0), 4.8),
    ("vgg19 (256)", false, None, 28.0),
    ("alexnet (128)", true, Some(DYNAMIC), 0.61),
    ("overfeat (128)", true, Some(DYNAMIC), 0.83),
];

/// Adds the paper's claims on a network's memory, in the paper's count; by variant, bytes.
fn claims(claims: &mut Claims, measure: &Measure, name: &str, base: Bytes, all: &[f64], fits: bool) {
    if all.len() < VARIANTS.len() || name == OURS {
        return;
    }
    let what = if is_average(measure) { "on average" } else { "at most" };
    let words = format!("vdnn-all (m) takes the least memory of the policies {what} (§5.1)");
    claims.hold(&words, name, all.iter().all(|bytes| at_most(all[0], *bytes)));
    let words = format!("vdnn-dyn takes the most memory of the policies {what} (§5.1)");
    claims.hold(&words, name, all.iter().all(|bytes| at_most(*bytes, all[DYNAMIC])));
    claims.hold("vdnn-dyn trains the network within 12 GB (§5.1)", name, fits);
    for (_, average, at, said) in said_of(measure, name) {
        let of = at.map_or("base (p)", |at| VARIANTS[at].0);
        if *average {
            let ours = 1.0 - all[DYNAMIC] / base.0 as f64;
            let words = "What vdnn-dyn saves of a network's base (p) on average, to 5 points (abstract)";
            claims.near(words, &format!("{of}, {name}"), ours, *said);
        } else {
            let ours = at.map_or(in_gb(base), |at| in_gb(Bytes(all[at] as u64)));
            claim!(claims; "Memory of VGG-16 at most, to 10 % (§5.1, §5.3)"; "{of}, {name} ({ours:.1} GB for {said})";
                (ours / said - 1.0).abs() <= 0.1);
        }
    }
}

/// Returns the plan of the least memory at which plimsoll takes no longer than a given plan.
fn least(scale: &Scale, case: &Case, made: &Made) -> Option<Made> {
    let no_longer =
        |budget: Bytes| case.plimsoll(budget).filter(|ours| ours.makespan <= made.makespan * 1.001);
    let mut best = no_longer(made.alive)?;
    let (mut low, mut high) = (0u64, made.alive.0);
    for _ in 0..if scale.small { 1 } else { 5 } {
        let middle = low.midpoint(high);
        match no_longer(Bytes(middle)) {
            Some(ours) => {
                high = middle;
                best = if ours.memory < best.memory { ours } else { best };
            }
            None => low = middle,
        }
    }
    Some(best)
}

/// §5.1: bytes that vdnn-all offloads of VGG-16 (256), "up to 16 GB".
const OFFLOADED: (&str, f64) = ("vgg19 (256)", 16.0);

pub fn offloaded(scale: &Scale) -> Table {
    let plot = Plot::new("Memory on the host, K40", "network (batch)", "GB");
    let mut table = Table::new(
        "vDNN §5.1, Fig. 10: NVIDIA K40, 12 GB, networks as the paper's frameworks train them. Gigabytes that are offloaded to \
         page-locked memory of the host. `plimsoll` within 12 GB.",
        "network (batch) | vdnn-all | vdnn-conv | vdnn-dyn | published | plimsoll",
        plot,
    );
    for case in cases(scale, false) {
        let of = |at: usize| case.made(VARIANTS[at].1).0.map(|made| made.offloaded);
        let [all, conv, dynamic] = [0, 2, DYNAMIC].map(of);
        let ours = case.plimsoll(case.budget).map(|made| made.offloaded);
        let named = [("vdnn-all", all), ("vdnn-conv", conv), ("vdnn-dyn", dynamic), ("plimsoll", ours)];
        let x = table.plot.over(&case.name, named.map(|(name, bytes)| (name, bytes.map(in_gb))));
        let published = (case.name == OFFLOADED.0).then_some(OFFLOADED.1);
        if let (Some(published), Some(all)) = (published, all) {
            table.plot.published("vdnn-all", x, published);
            claim!(table.claims; "vdnn-all offloads 16 GB of VGG-16 (256), to 5 % (§5.1)"; "{} ({} GB)",
                case.name, gb(all); (in_gb(all) / published - 1.0).abs() <= 0.05);
        }
        let words = published.map(|gb| format!("vdnn-all {gb}"));
        let cells = cells![case.name, all.map(gb), conv.map(gb), dynamic.map(gb), words, ours.map(gb)];
        table.add(cells, published.is_none());
    }
    note!(table;
        "What is offloaded depends on the layers, and not on the algorithms: (m) and (p) are the same.");
    table
}

/// Maximum of PCIe, GB a second (§5.2).
const PCIE: f64 = 16.0;

pub fn bandwidth(scale: &Scale) -> Table {
    let plot = Plot::new("Memory bandwidth of VGG-16's convolutions at batch 128, K40", "layer", "GB/s");
    let device = device("k40", true);
    let peak = device.sheet.bandwidth / 1e9;
    let mut table = Table::new(
        format!(
            "vDNN §5.2, Fig. 11: NVIDIA K40, VGG-16 (our vgg19), batch 128, fastest algorithms. Gigabytes a second between \
             processors and memory, of a peak of {peak:.0} GB/s: an average over each op, where the paper measured the \
             highest; of two backward ops, the higher."
        ),
        "layer | forward | backward | higher of the two, of the peak | with transfers at 16 GB/s",
        plot,
    );
    let subject = scale.subject("vgg19", None, device);
    let subject = subject.without_reuse();
    let program = subject.program(if scale.small { 2 } else { 128 });
    let all = program.trace.ops.iter().zip(subject.device.bandwidths(&program));
    let all = all.filter(|(op, _)| op.kind == "conv").map(|(op, rate)| (&*op.layer, op.phase, rate / 1e9));
    let all: Vec<(&str, Phase, f64)> = all.collect();
    for (layer, _, forward) in all.iter().filter(|(_, phase, _)| *phase == Phase::Forward) {
        let backward = all.iter().filter(|(of, phase, _)| of == layer && *phase == Phase::Backward);
        let backward = backward.map(|(.., rate)| *rate).fold(0.0, f64::max);
        let most = forward.max(backward);
        table.plot.over(layer, [("forward", Some(*forward)), ("backward", Some(backward))]);
        table.alone(cells![layer, format!("{forward:.0}"), format!("{backward:.0}"), percent(most / peak);
            percent((most + PCIE) / peak)]);
        claim!(table.claims; "Convolutions leave the bandwidth that offloading and prefetching take (§5.2)";
            "{layer} ({most:.0} GB/s)"; most + PCIE <= peak);
    }
    note!(table;
        "Were convolutions to take all of it, transfers would cost {} (§5.2: 5.5 %, {PCIE:.0} of {peak:.0} GB/s). The \
         model lets no op have more than {} of the peak.", percent(PCIE / peak),
        percent(subject.device.reach.memory));
    table
}
