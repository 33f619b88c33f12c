//! AccUDNN (arXiv 1901.06773) §6.2 on AlexNet and an M40: the basis of its performance model. Computing efficiency over the
//! batch (Fig. 6), estimated and observed timelines (Fig. 7), and memory over one iteration (Fig. 8).
//!
//! *Observed* times are those of the device's model; the paper measured them.

use crate::accudnn::ACCUDNN;
use crate::frameworks::{caffe, of_all};
use crate::plot::Plot;
use crate::subjects::{Scale, Subject, device, peak};
use crate::table::{Table, at_most, cells, claim, gb, in_gb, mb, note, percent};
use plimsoll::ir::program::Program;
use plimsoll::ir::schedule::Command;
use plimsoll::ir::simulate::simulate;
use plimsoll::ir::trace::{Op, Phase, Trace};
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::model::Model;
use std::collections::BTreeMap;

/// Batches of Fig. 6: from 8 to 1024, by doubling.
const BATCHES: [u64; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];

/// Batches of Fig. 7.
const ESTIMATED: [u64; 3] = [256, 512, 1024];

/// Largest batch of AlexNet that Caffe trains in 12 GB (Table 1).
const CAFFES_MOST: u64 = 848;

fn alexnet(scale: &Scale) -> Subject {
    scale.subject("alexnet", None, device("m40", false))
}

pub fn efficiency(scale: &Scale) -> Table {
    let plot = Plot::new("Computing efficiency of AlexNet, M40", "batch", "TFLOP/s").log_y();
    let kinds = ["conv", "fc"];
    let mut table = Table::new(
        "AccUDNN §6.2.1 A, Fig. 6: AlexNet, NVIDIA M40. FLOP/s of all layers of a type in one iteration, over their time, in \
         TFLOP/s; and how much more than at half the batch.",
        "batch | conv | more than at half | fc | more than at half",
        plot,
    );
    let subject = alexnet(scale);
    let mut before: [Option<(f64, Option<f64>)>; 2] = [None; 2];
    for batch in scale.pick(&BATCHES, 2).iter().copied() {
        let trace = subject.trace(batch);
        let mut cells = cells![batch];
        for (kind, before) in kinds.into_iter().zip(&mut before) {
            let of_kind = |op: &&Op| op.kind == kind;
            let sum = |of: fn(&Op) -> f64| trace.ops.iter().filter(of_kind).map(of).fold(0.0, |a, b| a + b);
            let rate = sum(|op| op.flops as f64) / sum(|op| op.seconds.0) / 1e12;
            let more = before.map(|(earlier, _)| rate / earlier - 1.0);
            table.plot.over(&batch.to_string(), [(kind, Some(rate))]);
            cells.extend(cells![format!("{rate:.3}"), more.map(percent)]);
            if let (Some(more), Some((_, Some(earlier)))) = (more, *before) {
                claim!(table.claims;
                    "The increase of FLOP/s with the batch gradually slows down to a plateau (§6.2.1)";
                    "{kind} at {batch} ({} after {})", percent(more), percent(earlier);
                    at_most(more, earlier) && more >= -1e-3);
            }
            *before = Some((rate, more));
        }
        table.alone(cells);
    }
    note!(table; "Published: the figure is not legible in the text, which says no number of it.");
    table
}

/// Eq. (2): by layer type and pass, FLOP/s saturate as in Fig. 5, at F x / (x + h) for x FLOPs; so seconds are (x + h) / F. The
/// line with the least squares of relative errors.
struct Saturating(BTreeMap<(String, Phase), (f64, f64)>);

impl Saturating {
    fn fit<'t>(traces: impl Iterator<Item = &'t Trace>) -> Saturating {
        let mut samples: BTreeMap<(String, Phase), Vec<(f64, f64)>> = BTreeMap::new();
        for op in traces.flat_map(|trace| &trace.ops) {
            samples.entry((op.kind.clone(), op.phase)).or_default().push((op.flops as f64, op.seconds.0));
        }
        let line = |samples: Vec<(f64, f64)>| {
            // The combination of x / y and 1 / y that is nearest to 1.
            let sum = |of: fn(f64, f64) -> f64| samples.iter().map(|(x, y)| of(*x, *y)).sum::<f64>();
            let (xx, x1, ones) = (sum(|x, y| x * x / y / y), sum(|x, y| x / y / y), sum(|_, y| 1.0 / y / y));
            let (x, one) = (sum(|x, y| x / y), sum(|_, y| 1.0 / y));
            let determinant = xx * ones - x1 * x1;
            if determinant <= 1e-9 * xx * ones {
                return (x / xx.max(f64::MIN_POSITIVE), 0.0);
            }
            ((x * ones - one * x1) / determinant, (one * xx - x * x1) / determinant)
        };
        Saturating(samples.into_iter().map(|(of, samples)| (of, line(samples))).collect())
    }

    fn fill(&self, trace: &mut Trace) {
        for op in &mut trace.ops {
            let (slope, start) = self.0[&(op.kind.clone(), op.phase)];
            op.seconds = Seconds((start + slope * op.flops as f64).max(0.0));
        }
    }
}

pub fn timelines(scale: &Scale) -> Table {
    let plot = Plot::new("Estimated over observed time of AlexNet, M40", "until the end of op", "ratio");
    let mut table = Table::new(
        "AccUDNN §6.2.1 B, Fig. 7: AlexNet, NVIDIA M40, estimated from the ops' times at 1/8, 1/4, 1/2, 2/3 and all of the \
         largest batch (§3.2). `eq. (2)` has a curve of each layer type and pass (Fig. 5); `plimsoll` is the model that tune \
         fits, which knows each layer as well.",
        "batch | until the end of | observed: ms | eq. (2): ms | off | plimsoll: ms | off",
        plot,
    );
    let subject = alexnet(scale);
    let most = if scale.small { 24 } else { CAFFES_MOST };
    let measured: Vec<Program> =
        [most / 8, most / 4, most / 2, 2 * most / 3, most].map(|batch| subject.program(batch)).into();
    let profile = subject.device.profile(&subject.network.spec, Bytes(12 << 30), &measured, "");
    let model = Model::fit(&profile).expect("a sound profile");
    let saturating = Saturating::fit(measured.iter().map(|program| &program.trace));
    for batch in scale.pick(&ESTIMATED, 1).iter().copied() {
        let observed = subject.trace(batch);
        let (mut by_type, mut ours) = (observed.clone(), observed.clone());
        saturating.fill(&mut by_type);
        model.fill(&mut ours).expect("the same ops");
        for (what, trace) in [("eq. (2)", &by_type), ("plimsoll", &ours)] {
            let mut sums = [0.0; 2];
            for (at, (op, seen)) in trace.ops.iter().zip(&observed.ops).enumerate() {
                sums = [sums[0] + op.seconds.0, sums[1] + seen.seconds.0];
                if op.phase != Phase::Update {
                    table.plot.add(&format!("{what}, {batch}"), at as f64, sums[0] / sums[1]);
                }
            }
        }
        for (until, name) in [(Phase::Forward, "forward pass"), (Phase::Backward, "backward pass")] {
            let milliseconds = |trace: &Trace| {
                let ops = trace.ops.iter().take_while(|op| op.phase != Phase::Update);
                let ops = ops.filter(|op| until == Phase::Backward || op.phase == Phase::Forward);
                1e3 * ops.map(|op| op.seconds.0).sum::<f64>()
            };
            let [seen, by_type, ours] = [&observed, &by_type, &ours].map(milliseconds);
            table.alone(cells![batch, name, format!("{seen:.2}"), format!("{by_type:.2}");
                percent(by_type / seen - 1.0), format!("{ours:.2}"), percent(ours / seen - 1.0)]);
            claim!(table.claims;
                "Estimates by eq. (2) have a relatively small error, which is taken as 10 % (§6.2.1)";
                "{batch}, {name} ({})", percent(by_type / seen - 1.0); (by_type / seen - 1.0).abs() <= 0.1);
        }
    }
    note!(table;
        "The paper's estimates lag by what starting kernels takes, which is not in its eq. (2); here the curve is fitted \
         to times that include it, so that what is left are differences between layers of one type.");
    note!(table; "Published: the figure is not legible in the text, which says no number of it.");
    table
}

/// Fig. 8: batch, GB of the budget, and start of the backward pass in ms.
const ITERATION: (u64, f64, f64) = (256, 3.0, 100.0);

/// Rows of the table of one iteration.
const TIMES: usize = 10;

pub fn iteration(scale: &Scale) -> Table {
    let plot = Plot::new("Memory allocated and released in an iteration of AlexNet, M40", "ms", "GB");
    let subject = alexnet(scale).without_reuse();
    let (batch, published, begins) = ITERATION;
    let batch = if scale.small { 8 } else { batch };
    let trace = subject.trace(batch);
    // Caffe's memory is nearly linear in the batch, and 12 GB hold 848.
    let caffes = 12.0 * ITERATION.0 as f64 / CAFFES_MOST as f64;
    let blobs = of_all(&subject.network, batch);
    let kept = peak(&trace);
    let budget = subject.leanest(&trace, ACCUDNN).map_or(kept, |made| made.memory);
    let mut table = Table::new(
        format!(
            "AccUDNN §6.2.2, Fig. 8: AlexNet as Caffe trains it, batch {batch}, NVIDIA M40. The paper's budget of {published} \
             GB is {} of what Caffe takes at that batch (Table 1: 848 images in 12 GB). Here the budget is the least within \
             which accudnn has a plan: {} GB of {} with everything kept. Sums of all that was allocated and released since the \
             start, parameters counted from there; their difference is what is in use.",
            percent(published / caffes),
            gb(budget),
            gb(kept)
        ),
        "at | pass | allocated: GB | released: GB | difference: GB | published",
        plot,
    );
    let Ok((made, schedule)) = subject.scheduled(&trace, &subject.request(ACCUDNN, budget)) else {
        note!(table; "accudnn has no plan within the budget.");
        return table;
    };
    let timeline = simulate(&trace, &schedule);
    let events = timeline.pool_events(&trace, &schedule);
    let sums = |until: Seconds| {
        let mut sums = [trace.resident_bytes, Bytes::ZERO];
        for event in events.iter().take_while(|event| event.at.0 <= until.0) {
            sums[usize::from(!event.opens)] += event.bytes;
        }
        sums
    };
    let first = trace.ops.iter().position(|op| op.phase == Phase::Backward);
    let turn = first.map_or(Seconds::ZERO, |first| {
        let mut all = schedule.commands.iter().zip(&timeline.spans);
        let starts =
            all.find(|(command, _)| matches!(command, Command::Compute { op, .. } if op.index() == first));
        starts.map_or(Seconds::ZERO, |(_, span)| span.start)
    });
    let mut times: Vec<Seconds> =
        (0..TIMES).map(|at| made.makespan * (at as f64 / (TIMES - 1) as f64)).collect();
    times.push(turn);
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    for at in times {
        let [allocated, released] = sums(at);
        let used = allocated - released;
        let is_turn = at == turn;
        let pass = if at.0 < turn.0 { "forward" } else { "backward and update" };
        let cells = cells![format!("{:.1} ms", 1e3 * at.0);
            if is_turn { "the backward pass begins" } else { pass }, gb(allocated), gb(released), gb(used);
            is_turn.then(|| format!("around {begins:.0} ms"))];
        table.add(cells, !is_turn);
    }
    for event in &events {
        let [allocated, released] = sums(event.at).map(in_gb);
        table.plot.add("allocated", 1e3 * event.at.0, allocated);
        table.plot.add("released", 1e3 * event.at.0, released);
    }
    claim!(table.claims; "What is allocated less what is released stays below the budget (eq. (4), §6.2.2)";
        "at most {} GB of {}", gb(made.alive), gb(budget); made.alive <= budget);
    claim!(table.claims; "The backward pass begins around 100 ms (§6.2.2), which is taken as 80 to 120";
        "{:.0} ms", 1e3 * turn.0; (1e3 * turn.0 / begins - 1.0).abs() <= 0.2);
    note!(table;
        "The paper's stream allocates everything as soon as there is room, so that its first curve rises at once; here \
         room is taken when an op or a transfer first needs it.");
    note!(table;
        "By blobs Caffe allocates {} MB for feature maps and gradients, of about {caffes:.1} GB at this batch; the rest \
         are parameters, with gradients and momenta {} MB, and what its kernels take. When the backward pass begins \
         depends on what convolutions take by the model.", mb(caffe(&blobs)), mb(trace.resident_bytes));
    table
}
