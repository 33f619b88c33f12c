//! AccUDNN (arXiv 1901.06773) on an M40: efficiency-optimal batches within 12 GB, compared with SuperNeurons, memory of
//! swapping, and eight workers.

use crate::plot::Plot;
use crate::scaling::{self, exchanged};
use crate::subjects::{Made, Scale, Subject, TWELVE_GB, device, floor, peak};
use crate::table::{SAME, Table, at_most, cells, claim, gb, in_gb, note, or_dash, percent};
use plimsoll::ir::exchange::{Interconnect, Overlap, PIECE_BYTES};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll::tuner::Policy;
use plimsoll::tuner::exchange::Workers;
use plimsoll::tuner::policies::papers::accudnn::satisfies;

pub const ACCUDNN: Policy = Policy::Accudnn { as_printed: false };

/// A batch, and images/s.
type Rate = (u64, f64);

/// Tables 1 and 3: network; batch and images/s of AccUDNN, of Caffe, and of SuperNeurons if given.
const ROWS: [(&str, Rate, Rate, Option<Rate>); 7] = [
    ("alexnet", (1032, 853.0), (848, 865.0), Some((640, 414.0))),
    ("googlenet", (286, 245.0), (150, 263.0), None),
    ("vgg16", (192, 50.0), (80, 51.0), Some((48, 30.0))),
    ("resnet34", (276, 99.0), (91, 99.0), None),
    ("resnet50", (112, 66.0), (33, 66.0), Some((48, 60.0))),
    ("resnet101", (74, 34.0), (20, 29.0), Some((48, 34.0 / 1.13))),
    ("resnet152", (54, 24.0), (13, 19.0), Some((32, 17.0))),
];

/// Largest batch to consider.
const MOST: u64 = 8192;

/// Returns a subject's budget: 12 GB, or for a small subject a tight one.
fn budget(subject: &Subject) -> Bytes {
    if subject.small { peak(&subject.trace(24)) } else { TWELVE_GB }
}

/// Returns the choice of AccUDNN's Algorithm 2, and its schedule: from the largest batch whose layer-wise memory fits, down
/// until eq. (6) holds.
fn algorithm_2(subject: &Subject, budget: Bytes) -> Option<(Trace, Made)> {
    let plan = |trace: &Trace| subject.plan(trace, ACCUDNN, budget);
    let batch = subject.batch_once("algorithm 2", budget, || {
        let most = subject.largest(MOST, &mut |trace| floor(trace) <= budget);
        let link = subject.link();
        (1..=most).rev().find(|batch| {
            let trace = subject.trace(*batch);
            satisfies(&trace, budget, &link) && plan(&trace).is_some()
        })
    })?;
    let trace = subject.trace(batch);
    plan(&trace).map(|made| (trace, made))
}

/// Returns the images per second of a policy's plan.
fn rate_of(subject: &Subject, trace: &Trace, policy: Policy, budget: Bytes) -> Option<f64> {
    subject.plan(trace, policy, budget).map(|made| subject.rate(trace, made.makespan))
}

/// Returns the largest batch, from one on and to a part in twenty, at which plimsoll trains no slower than this many images a
/// second, and its rate there.
fn no_slower(subject: &Subject, budget: Bytes, from: u64, rate: f64) -> (u64, f64) {
    let at = |batch: u64| {
        let trace = subject.trace(batch);
        if floor(&trace) <= budget { rate_of(subject, &trace, Policy::Plimsoll, budget) } else { None }
    };
    let found = subject.batch_once(&format!("no slower than {rate} from {from}"), budget, || {
        let good = |batch: u64| at(batch).is_some_and(|found| found >= rate * (1.0 - SAME));
        let (mut low, mut high) = (from, from + from / 2 + 1);
        // A small table looks no farther.
        let limit = if subject.small { from + 1 } else { MOST };
        while high < limit && good(high) {
            (low, high) = (high, high + high / 2 + 1);
        }
        while high - low > 1 + low / 20 {
            let middle = low.midpoint(high);
            if good(middle) { low = middle } else { high = middle }
        }
        Some(low)
    });
    let batch = found.unwrap_or(from);
    (batch, at(batch).unwrap_or(0.0))
}

/// Notes below the table of batches.
const BATCHES_NOTES: [&str; 3] = [
    "Our lowering needs less memory than Caffe for the same batch (gradients share memory, ReLU and addition work in place, \
     masks take a bit), so that all batches are larger than the published ones; the ratios are what compares.",
    "accudnn is the paper's text and not its listings, which stall where nothing needs to move \
     (`tuner/src/policies/papers/accudnn.rs`).",
    "Rates of residual networks are up to twice Caffe's: its batch normalisation is two layers of several passes each, the \
     model's is bound by memory once.",
];

const LARGER: &str =
    "The efficiency-optimal batch is 22 to 315 % larger than the largest that Caffe trains (Table 1)";
const MORE: &str = "AccUDNN trains 10 to 106 % more images a second than SuperNeurons (Table 3)";

pub fn batches(scale: &Scale) -> Table {
    let mut table = Table::new(
        "AccUDNN §6.3, Table 1: NVIDIA M40, a budget of 12 GB. A batch is efficiency-optimal for AccUDNN where its eq. (6) \
         holds; for plimsoll it is the largest at which it trains as many images a second as AccUDNN does at its own.",
        "network | keep: batch | images/s | Caffe, published | accudnn: batch | images/s | AccUDNN, published | \
         plimsoll: images/s at AccUDNN's batch | plimsoll: batch | images/s",
        Plot::new("Efficiency-optimal batch in 12 GB, M40", "network", "images in an iteration").log_y(),
    );
    for (network, accudnn, caffe, _) in scale.pick(&ROWS, 1).iter().copied() {
        let subject = scale.subject(network, None, device("m40", true));
        let budget = budget(&subject);
        let by_bytes = subject.largest(MOST, &mut |trace| peak(trace) <= budget);
        // Bytes that fit may slightly lack addresses.
        let kept = (1..=by_bytes)
            .rev()
            .take(20)
            .find_map(|batch| Some((batch, rate_of(&subject, &subject.trace(batch), Policy::Keep, budget)?)));
        let (kept, keep) = kept.map_or((by_bytes, None), |(batch, rate)| (batch, Some(rate)));
        let Some((trace, made)) = algorithm_2(&subject, budget) else {
            note!(table; "{network}: without a plan by AccUDNN's policy.");
            continue;
        };
        let (batch, rate) = (trace.batch, subject.rate(&trace, made.makespan));
        let same = rate_of(&subject, &trace, Policy::Plimsoll, budget);
        let (most, most_rate) = no_slower(&subject, budget, batch, rate);
        let batches = [("keeping everything", kept), ("accudnn", batch), ("plimsoll", most)];
        let x = table.plot.over(network, batches.map(|(what, batch)| (what, Some(batch as f64))));
        table.plot.published("keeping everything", x, caffe.0 as f64);
        table.plot.published("accudnn", x, accudnn.0 as f64);
        table.row(cells![network, kept, keep.map(number), pair(caffe), batch, number(rate), pair(accudnn);
            same.map(number), most, number(most_rate)]);
        claim!(table.claims; LARGER; "{network} ({batch} over {kept})"; batch as f64 >= 1.22 * kept as f64);
        if let Some(keep) = keep {
            claim!(table.claims; "It keeps almost the throughput of Caffe, which is taken as 5 % less (§6.3 B)";
                "{network} ({rate:.1} over {keep:.1} images/s)"; rate >= 0.95 * keep);
        }
        table.advantage(format!("{network}, images/s at the same batch"), same.unwrap_or(0.0) / rate);
        table.advantage(format!("{network}, batch"), most as f64 / batch as f64);
    }
    let keeps = "the batch that keeps everything is larger here than Caffe's";
    table.claims.explain(LARGER, format!("{keeps} (the first note says why), so that less is left to gain"));
    table.notes.extend(BATCHES_NOTES.map(str::to_owned));
    table
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn pair((batch, rate): Rate) -> String {
    format!("{batch}, {rate:.0}")
}

pub fn super_neurons(scale: &Scale) -> Table {
    let mut table = Table::new(
        "AccUDNN §6.3 E, Table 3: NVIDIA M40, 12 GB. All three at the batch of AccUDNN's Algorithm 2.",
        "network | batch | superneurons: images/s | published (batch, images/s) | accudnn: images/s | published (batch, \
         images/s) | plimsoll: images/s",
        Plot::new("Images per second within 12 GB, M40", "network", "images/s").log_y(),
    );
    for (network, accudnn, _, published) in scale.pick(&ROWS, 1).iter().copied() {
        let Some(published) = published else { continue };
        let subject = scale.subject(network, None, device("m40", true));
        let budget = budget(&subject);
        // The paper uses each system's best batch; with our memory, that is the batch of AccUDNN's own search.
        let Some((trace, made)) = algorithm_2(&subject, budget) else { continue };
        let [neurons, ours] =
            [Policy::SuperNeurons, Policy::Plimsoll].map(|policy| rate_of(&subject, &trace, policy, budget));
        let rate = subject.rate(&trace, made.makespan);
        let all = [("superneurons", neurons), ("accudnn", Some(rate)), ("plimsoll", ours)];
        let x = table.plot.over(network, all);
        table.plot.published("superneurons", x, published.1);
        table.plot.published("accudnn", x, accudnn.1);
        table.row(cells![network, trace.batch, neurons.map(number), pair(published), number(rate);
            pair(accudnn), ours.map(number)]);
        if let Some(neurons) = neurons {
            claim!(table.claims; MORE; "{network} ({rate:.1} over {neurons:.1})"; rate >= 1.1 * neurons);
        }
        table.advantage(network, ours.unwrap_or(0.0) / rate);
    }
    table.claims.explain(MORE, "where the batch keeps everything (Table 1), all plans are the same");
    note!(table;
        "SuperNeurons' rate of ResNet-101 is worked out from the table's 13 %. Each published pair is at a batch of its \
         own; here all have the same, so that only the policies differ.");
    table
}

/// Fig. 9: networks, and the batch that the text names.
const FOOTPRINTS: [(&str, u64); 7] = [
    ("alexnet", 256),
    ("googlenet", 128),
    ("vgg16", 64),
    ("resnet34", 64),
    ("resnet50", 32),
    ("resnet101", 32),
    ("resnet152", 32),
];

pub fn footprints(scale: &Scale) -> Table {
    let plot = Plot::new("Memory of one iteration, M40", "network", "GB");
    let mut table = Table::new(
        "AccUDNN §6.3 A, Fig. 9: NVIDIA M40. `keep` is what Caffe does, with what is dead freed; `naive` is the least memory \
         with everything swapped; `accudnn` and `plimsoll` the least at which they take at most 1 % longer than keeping \
         everything.",
        "network | batch | keep: GB | naive: GB | naive: time over keep | accudnn: GB | plimsoll: GB | published",
        plot,
    );
    for (network, batch) in scale.pick(&FOOTPRINTS, 1) {
        let subject = scale.subject(network, None, device("m40", false));
        let trace = subject.trace(*batch);
        let most = peak(&trace);
        let limit = trace.fastest_seconds() * 1.01;
        let naive = subject.leanest(&trace, Policy::Naive);
        // The least budget, to half a per cent of the peak, at which a policy stalls less than that.
        let least = |policy| {
            let (mut low, mut high, mut best) = (floor(&trace).0, most.0, most);
            while high - low > most.0 / if scale.small { 4 } else { 100 } {
                let middle = low.midpoint(high);
                match subject.plan(&trace, policy, Bytes(middle)).filter(|made| made.makespan <= limit) {
                    Some(made) => (high, best) = (middle, best.min(made.memory)),
                    None => low = middle,
                }
            }
            best
        };
        let (accudnn, plimsoll) = (least(ACCUDNN), least(Policy::Plimsoll));
        let swapped = naive.map(|made| made.memory);
        let (first, last) =
            ([("keep", Some(most)), ("naive", swapped)], [("accudnn", accudnn), ("plimsoll", plimsoll)]);
        table.plot.over(network, first.map(|(what, memory)| (what, memory.map(in_gb))));
        let x = table.plot.over(network, last.map(|(what, memory)| (what, Some(in_gb(memory)))));
        let published = *network == "resnet152";
        if published {
            for (what, gb) in [("keep", 24.0), ("naive", 2.5), ("accudnn", 8.3)] {
                table.plot.published(what, x, gb);
            }
        }
        let longer = naive.map(|made| percent(made.makespan / trace.fastest_seconds() - 1.0));
        let said =
            if published { "Caffe more than 24 GB, naive 2.5, dynamic 8.3" } else { "not legible (figure)" };
        let cells =
            cells![network, batch, gb(most), swapped.map(gb), longer, gb(accudnn), gb(plimsoll), said];
        table.add(cells, !published);
        claim!(table.claims; "Dynamic swapping needs less memory than Caffe, at nearly its time (§6.3 A)";
            "{network} ({} GB over {})", gb(accudnn), gb(most); accudnn.0 as f64 <= 0.99 * most.0 as f64);
        if let Some(naive) = naive {
            claim!(table.claims;
                "Swapping all maps needs less memory than dynamic swapping, and more time than Caffe (§6.3 A)";
                "{network} ({} GB over {})", gb(naive.memory), gb(accudnn);
                at_most(naive.memory.0 as f64, accudnn.0 as f64) && naive.makespan > limit);
        }
        table.advantage(*network, accudnn.0 as f64 / plimsoll.0 as f64);
        if published {
            let saved = |bytes: Bytes| percent(1.0 - bytes.0 as f64 / most.0 as f64);
            let times = |published: f64, ours: Bytes| format!("{:.1}", published / in_gb(ours));
            note!(table;
                "{network}: dynamic swapping saves {} of keeping everything, where the paper's 8.3 of 24 GB save {}; naive \
                 swapping saves {}, where 2.5 of 24 GB save {}. In bytes, keeping everything takes {} times ours, dynamic \
                 swapping {} times and naive swapping {} times.", saved(accudnn), percent(1.0 - 8.3 / 24.0),
                or_dash(swapped, saved), percent(1.0 - 2.5 / 24.0), times(24.0, most), times(8.3, accudnn),
                or_dash(swapped, |naive| times(2.5, naive)));
        }
    }
    note!(table;
        "Why ours are smaller: Caffe gives each map and each gradient memory of its own and keeps it for the whole \
         iteration; here what is dead is freed, gradients share memory, ReLU and addition work in place. So there is \
         less to save, and what is resident (parameters, their gradients and momenta) is a larger part.");
    table
}

/// Table 2: network, workers; Caffe's batch and images/s of 1 and 8 workers, AccUDNN's batch and images/s of 8.
pub const WORKERS: [(&str, u64, f64, f64, u64, f64); 2] =
    [("resnet101", 20, 30.0, 132.0, 74, 217.0), ("resnet152", 13, 19.0, 76.0, 54, 147.0)];

/// Returns the rate of AccUDNN on one GPU, of Table 1.
pub fn alone(network: &str) -> f64 {
    ROWS.iter().find(|row| row.0 == network).expect("Table 1 has it").1.1
}

/// Returns the time of an update of a row besides its passes, in seconds, by its rates of Caffe-PS: Δ of eq. (3).
pub fn delta((_, caffe, one, eight, ..): &(&str, u64, f64, f64, u64, f64)) -> f64 {
    8.0 * *caffe as f64 / eight - *caffe as f64 / one
}

/// Makes Table 2 from eq. (3) and Caffe's rows alone: their Δ does not depend on the batch, so it gives the rate of eight
/// workers at AccUDNN's batch.
pub fn synchronisation(_: &Scale) -> Table {
    let plot = Plot::new("Eight workers from the Δ of Caffe-PS", "network", "images/s");
    let mut table = Table::new(
        "AccUDNN §6.3 D, Table 2, with the rates of one GPU of Tables 1 and 2: eight workers, batch k of each, images/s r of \
         one and R of eight. An iteration takes k / r + Δ = 8 k / R by eq. (3). Δ is taken from the row of Caffe-PS, and \
         that of AccUDNN-PS is predicted by it.",
        "network | Δ | computing over Δ: Caffe-PS, AccUDNN-PS | AccUDNN-PS, predicted images/s | published | off | time \
         saved, predicted | published | over one GPU of Caffe, of its own",
        plot,
    );
    table.published = true;
    for row @ (network, caffe, one, eight, batch, rate) in WORKERS {
        let (few, many, delta) = (caffe as f64, batch as f64, delta(&row));
        let compute = many / alone(network);
        let predicted = 8.0 * many / (compute + delta);
        let off = predicted / rate - 1.0;
        assert!(off.abs() < 0.01, "{network}: {predicted:.1} images/s, where {rate} are published");
        let x = table.plot.over(network, [("predicted", Some(predicted))]);
        table.plot.published("AccUDNN-PS", x, rate);
        table.row(
            cells![network, Seconds(delta), format!("{:.2}, {:.2}", few / one / delta, compute / delta);
            format!("{predicted:.1}"), format!("{rate:.0}"), percent(off), percent(1.0 - eight / predicted);
            percent(1.0 - eight / rate), format!("{:.1}, {:.1}", rate / one, rate / alone(network))],
        );
    }
    note!(table;
        "The paper's speed-ups of 7.2 and 7.7 are over one GPU of Caffe at Caffe's batch; over one GPU of AccUDNN at its \
         own batch they are what stands behind.");
    table
}

/// Bytes a second of a synchronisation, parameters out and back, of eight workers over 10 Gb/s Ethernet, by Table 2. ResNet-152
/// with Caffe: 8 x 13 / 76 - 13 / 19 = 0.68 s for twice 241 MB; with AccUDNN: 8 x 54 / 147 - 54 / 24 = 0.69 s.
const SYNCHRONISATION: f64 = 0.70e9;

pub fn workers(scale: &Scale) -> Table {
    let plot =
        Plot::new("Scaling over 8 workers, M40, 10 Gb/s", "network", "times one worker of the same batch");
    let mut table = Table::new(
        "AccUDNN §6.3 C and D, Fig. 10 and Table 2: 8 workers with an M40 each, parameter servers over 10 Gb/s Ethernet. \
         Between iterations Δ = 2 x parameters / 0.70 GB/s, which is what Table 2 comes to for all four of its rows.",
        "network | Δ | keep: batch, images/s, scaling | published (Caffe-PS) | accudnn: batch, images/s, scaling | \
         published (AccUDNN-PS) | plimsoll: batch, images/s, scaling | update without overlap, with it",
        plot,
    );
    for (network, caffe, one, eight, theirs, rate) in scale.pick(&WORKERS, 1) {
        let subject = scale.subject(network, None, device("m40", true));
        // At the published batches: with our memory, keeping everything would fit more than Caffe did.
        let delta = Seconds(2.0 * 4.0 * subject.network.all_parameters() as f64 / SYNCHRONISATION);
        let budget = budget(&subject);
        let of = |policy, batch: u64| {
            let trace = subject.trace(batch);
            subject.plan(&trace, policy, budget).map(|made| {
                let whole = 8.0 * batch as f64 / (made.makespan + delta).0;
                (batch, whole, whole / subject.rate(&trace, made.makespan))
            })
        };
        let keep = of(Policy::Keep, *caffe);
        let found = algorithm_2(&subject, budget);
        let accudnn = found.as_ref().and_then(|(trace, _)| of(ACCUDNN, trace.batch));
        let ours = found.as_ref().and_then(|(trace, made)| {
            let (batch, _) = no_slower(&subject, budget, trace.batch, subject.rate(trace, made.makespan));
            of(Policy::Plimsoll, batch)
        });
        let update = ours.and_then(|(batch, ..)| overlapped(&subject, batch, budget, delta));
        let text = |(batch, whole, scaling): (u64, f64, f64)| format!("{batch}, {whole:.0}, {scaling:.2}");
        let all = [("keep, Caffe's batch", keep), ("accudnn", accudnn), ("plimsoll", ours)];
        let x = table.plot.over(network, all.map(|(name, one)| (name, one.map(|one| one.2))));
        table.plot.published("keep, Caffe's batch", x, eight / one);
        table.plot.published("accudnn", x, rate / one);
        table.row(cells![network, delta, keep.map(text), format!("{caffe}, {eight:.0}, {:.1}", eight / one);
            accudnn.map(text), format!("{theirs}, {rate:.0}, {:.1}", rate / one), ours.map(text);
            update.map(|(without, with)| format!("{without}, {with}"))]);
        if let (Some(accudnn), Some(keep)) = (accudnn, keep) {
            claim!(table.claims; "Eight workers scale better at AccUDNN's batch than at Caffe's (Table 2)";
                "{network} ({:.2} over {:.2})", accudnn.2, keep.2; accudnn.2 > keep.2);
        }
        if let (Some(ours), Some(accudnn)) = (ours, accudnn) {
            table.advantage(format!("{network}, images/s of 8 workers"), ours.1 / accudnn.1);
        }
    }
    note!(table;
        "The paper's scaling is over one worker of Caffe at Caffe's batch; ours is over one worker of the same batch. \
         Iterations of the model are shorter than Caffe's, so that Δ weighs more.");
    note!(table;
        "The last column is modelled, too: an update by plimsoll's plan at its batch, with Δ behind the iteration, and \
         with plimsoll's exchange beside it. That one sends gradients in pieces of 1 MiB while the backward pass and the \
         next forward pass go on, by way of the hosts, over a network whose rate makes Δ of the same bytes, without \
         latency.");
    table
}

/// Returns an update by a plan of this batch, with Δ after the iteration, and with our overlapped exchange over a network of
/// the same rate.
fn overlapped(subject: &Subject, batch: u64, budget: Bytes, delta: Seconds) -> Option<(Seconds, Seconds)> {
    let program = subject.program(batch);
    let (made, schedule) =
        subject.scheduled(&program.trace, &subject.request(Policy::Plimsoll, budget)).ok()?;
    // A worker sends its terms, and the sums of its share.
    let gradients = 4.0 * subject.network.all_parameters() as f64;
    let bytes_per_second = BytesPerSecond(2.0 * 7.0 / 8.0 * gradients / delta.0);
    let interconnect = Interconnect { bytes_per_second, latency_seconds: Seconds::ZERO };
    let workers = Workers { overlap: Overlap::Forward(PIECE_BYTES), ..scaling::workers(8, interconnect) };
    Some((made.makespan + delta, exchanged(&program, &schedule, workers).0))
}
