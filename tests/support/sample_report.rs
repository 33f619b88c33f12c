//! Reports of networks that nobody trains: every part, of any size, with consistent numbers.
//!
//! Layers in a row run forward and backward. Every third one's activations are swapped, every ninth one's are recomputed, the
//! rest stay; compute waits for tensors that have not returned yet, the link moves one tensor at a time each way, and every
//! residency gets the lowest free bytes. Nothing here is measured or planned: it is data to show.

use plimsoll::study::report::{
    About, Answer, BatchMeasured, BatchPoint, Batches, Fit, FitHeldOut, FitKind, FitLink, Iteration,
    LaneView, Layer, Memory, Policies, PolicyRow, Report, ReportKind, Residencies, ResourceShare, Scaled,
    Setting, Single, Slices, StallView, StepSeries, Workers,
};

const MIB: u64 = 1 << 20;

/// Bytes per nanosecond of the link, each way.
const LINK: f64 = 12.2;

/// Settings of a sample report.
#[derive(Clone, Copy)]
pub struct Sample {
    pub network: &'static str,
    /// Layers with activations.
    pub layers: usize,
    /// Nanoseconds of a layer's forward op; times vary around it.
    pub forward: u64,
    /// Bytes of a layer's activation; sizes vary around it.
    pub bytes: u64,
    /// `true` if the answer is to change nothing.
    pub keep_your_settings: bool,
    /// `true` if there was a tuning.
    pub tuned: bool,
    /// `true` if it was tuned for workers.
    pub workers: bool,
}

/// A report small enough to look at every row, with all parts; the answer is to keep the settings.
pub const SMALL: Sample = Sample {
    network: "lenet-like",
    layers: 12,
    forward: 400_000,
    bytes: 24 * MIB,
    keep_your_settings: true,
    tuned: true,
    workers: false,
};

/// A report of resnet152's size at a batch that needs swapping.
pub const LARGE: Sample = Sample {
    network: "resnet152-like",
    layers: 520,
    forward: 450_000,
    bytes: 20 * MIB,
    keep_your_settings: false,
    tuned: true,
    workers: true,
};

/// A report of a trace and its schedule alone.
pub const UNTUNED: Sample = Sample { network: "from-a-trace", tuned: false, ..SMALL };

/// Pseudo-random numbers from 0 to 1, the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }

    fn around(&mut self, middle: f64, share: f64) -> f64 {
        middle * (1.0 + share * (2.0 * self.roll() - 1.0))
    }
}

/// A layer's times on the lanes, in nanoseconds.
struct Stage {
    name: String,
    kind: &'static str,
    forward: u64,
    backward: u64,
    bytes: u64,
    decision: &'static str,
}

impl Stage {
    fn transfer(&self) -> u64 {
        (self.bytes as f64 / LINK) as u64
    }
}

fn stages(sample: &Sample, dice: &mut Dice) -> Vec<Stage> {
    let kinds = ["conv2d", "batch_norm", "relu"];
    (0..sample.layers)
        .map(|at| {
            let kind = kinds[at % 3];
            let weight = [1.9, 0.7, 0.4][at % 3];
            let forward = dice.around(sample.forward as f64 * weight, 0.4) as u64;
            let decision = match at {
                _ if at % 9 == 1 => "recomputed",
                _ if at % 3 == 0 && at + 2 < sample.layers => "swapped",
                _ if at % 7 == 5 => "none",
                _ => "kept",
            };
            let bytes =
                if decision == "none" { 0 } else { dice.around(sample.bytes as f64, 0.6) as u64 / 512 * 512 };
            let name = format!("stage{}.block{}.{kind}{}", at / 130 + 1, at / 3 % 43, at % 3 + 1);
            Stage { name, kind, forward, backward: 2 * forward, bytes, decision }
        })
        .collect()
}

/// Results of one run through all lanes: commands, stalls, and positions of tensors.
#[derive(Default)]
struct Lanes {
    names: Vec<String>,
    slices: Slices,
    stalls: Vec<StallView>,
    busy: [u64; 3],
    end: u64,
    /// From, to, bytes, name, kind.
    lives: Vec<(u64, u64, u64, u32, u8)>,
    /// Copies on the host, and bytes in flight: from, to, bytes.
    copies: Vec<(u64, u64, u64)>,
    moving: Vec<(u64, u64, u64)>,
}

impl Lanes {
    fn name(&mut self, name: String) -> u32 {
        self.names.push(name);
        self.names.len() as u32 - 1
    }

    fn push(&mut self, lane: u8, start: u64, length: u64, name: u32, what: u8, bytes: u64) -> u64 {
        let slices = &mut self.slices;
        slices.lane.push(lane);
        slices.start.push(start);
        slices.length.push(length);
        slices.name.push(name);
        slices.what.push(what);
        slices.bytes.push(bytes);
        self.busy[usize::from(lane)] += length;
        if bytes > 0 {
            self.moving.push((start, start + length, bytes));
        }
        self.end = self.end.max(start + length);
        start + length
    }
}

/// Runs the stages on three lanes.
fn lanes(stages: &[Stage], dice: &mut Dice, noise: f64) -> Lanes {
    let mut lanes = Lanes::default();
    let mut takes = |nanos: u64| dice.around(nanos as f64, noise) as u64;
    let (mut now, mut out) = (0, 0);
    let mut starts = vec![];
    let mut left = vec![0; stages.len()];
    for (at, stage) in stages.iter().enumerate() {
        starts.push(now);
        let name = lanes.name(format!("{} forward", stage.name));
        now = lanes.push(0, now, takes(stage.forward), name, 0, 0);
        if stage.decision == "swapped" {
            let name = lanes.name(stage.name.clone());
            out = lanes.push(1, out.max(now), takes(stage.transfer()), name, 4, stage.bytes);
            left[at] = out;
            lanes.lives.push((starts[at], out, stage.bytes, name, 0));
        } else if stage.decision == "recomputed" {
            lanes.lives.push((starts[at], now, stage.bytes, name, 0));
        }
        lanes.lives.push((starts[at], now, stage.bytes / 8 + 4096, name, 2));
    }
    let mut back = now.max(out);
    for (at, stage) in stages.iter().enumerate().rev() {
        let begun = match stage.decision {
            "swapped" => {
                let name = lanes.name(stage.name.clone());
                let from = back.max(left[at]);
                back = lanes.push(2, from, takes(stage.transfer()), name, 5, stage.bytes);
                if back > now {
                    let cause = format!("the prefetch of {}, which the link has not finished", stage.name);
                    lanes.stalls.push(StallView { start: now, length: back - now, cause });
                    now = back;
                }
                lanes.copies.push((left[at], back, stage.bytes));
                Some((from, name))
            }
            "recomputed" => {
                let name = lanes.name(format!("{} forward", stage.name));
                let from = now;
                now = lanes.push(0, now, takes(stage.forward), name, 3, 0);
                Some((from, name))
            }
            "none" => None,
            _ => Some((starts[at], lanes.name(stage.name.clone()))),
        };
        let start = now;
        let name = lanes.name(format!("{} backward", stage.name));
        now = lanes.push(0, now, takes(stage.backward), name, 1, 0);
        if let Some((from, name)) = begun {
            lanes.lives.push((from, now, stage.bytes, name, 0));
        }
        lanes.lives.push((start, now, stage.bytes.max(MIB), name, 1));
        let name = lanes.name(format!("{} update", stage.name));
        now = lanes.push(0, now, takes(stage.forward / 20 + 1), name, 2, 0);
    }
    lanes
}

/// Returns a sum of spans as steps.
fn steps(spans: impl Iterator<Item = (u64, u64, u64)>) -> StepSeries {
    let mut changes: Vec<(u64, i64)> = vec![(0, 0)];
    for (from, to, bytes) in spans {
        changes.extend([(from, bytes as i64), (to, -(bytes as i64))]);
    }
    changes.sort_unstable();
    let mut series = StepSeries::default();
    let mut sum = 0;
    for (at, by) in changes {
        sum += by;
        if series.at.last() == Some(&at) {
            *series.bytes.last_mut().expect("as long as the times") = sum as u64;
        } else {
            series.at.push(at);
            series.bytes.push(sum as u64);
        }
    }
    series
}

/// Assigns the lowest free bytes to each residency, in the order of their starts.
fn addresses(lives: &[(u64, u64, u64, u32, u8)]) -> Residencies {
    let mut sorted: Vec<_> = lives.iter().filter(|life| life.2 > 0).copied().collect();
    sorted.sort_by_key(|life| (life.0, life.1));
    let mut all = Residencies::default();
    let mut alive: Vec<(u64, u64, u64)> = vec![];
    for (from, to, bytes, name, what) in sorted {
        alive.retain(|(end, ..)| *end > from);
        alive.sort_by_key(|(_, offset, _)| *offset);
        let mut offset = 0;
        for (_, other, length) in &alive {
            if *other >= offset + bytes {
                break;
            }
            offset = offset.max(other + length);
        }
        alive.push((to, offset, bytes));
        all.name.push(name);
        all.what.push(what);
        all.start.push(from);
        all.length.push(to - from);
        all.offset.push(offset);
        all.bytes.push(bytes);
    }
    all
}

fn view(name: &str, lanes: &Lanes) -> LaneView {
    LaneView {
        name: name.to_owned(),
        makespan_seconds: lanes.end as f64 / 1e9,
        slices: lanes.slices.clone(),
        stalls: lanes.stalls.clone(),
        busy_seconds: lanes.busy.map(|busy| busy as f64 / 1e9),
    }
}

fn memory(lanes: &Lanes, stages: &[Stage]) -> Memory {
    let addresses = addresses(&lanes.lives);
    let ends = addresses.offset.iter().zip(&addresses.bytes).map(|(offset, bytes)| offset + bytes);
    let pool_bytes = ends.max().unwrap_or(0);
    let pool = steps(lanes.lives.iter().map(|life| (life.0, life.1, life.2)));
    let host = steps(lanes.copies.iter().copied());
    let mut now = 0;
    let kept = stages.iter().map(|stage| {
        now += stage.forward;
        (
            now - stage.forward,
            now + 2 * (stages.iter().map(|s| s.forward).sum::<u64>() - now) + stage.backward,
            stage.bytes,
        )
    });
    let resident_bytes = pool_bytes / 5;
    let kept = steps(kept);
    Memory {
        budget_bytes: (pool_bytes + resident_bytes) / 100 * 104,
        resident_bytes,
        pool_bytes,
        alive_bytes: pool.bytes.iter().copied().max().unwrap_or(0),
        host_bytes: host.bytes.iter().copied().max().unwrap_or(0),
        pool,
        keeping_everything_bytes: resident_bytes + kept.bytes.iter().copied().max().unwrap_or(0),
        keeping_everything: kept,
        host,
        in_flight: steps(lanes.moving.iter().copied()),
        addresses,
    }
}

fn layers(stages: &[Stage], dice: &mut Dice, tuned: bool) -> Vec<Layer> {
    let to_come =
        |at: usize| stages[at + 1..].iter().map(|s| s.forward + s.backward).sum::<u64>() as f64 / 1e9;
    let of = |at: usize, stage: &Stage, dice: &mut Dice| {
        let transfer = 2.0 * stage.transfer() as f64 / 1e9;
        let slack = to_come(at);
        let (moved, idle) = (transfer * 1e3, slack * 1e3);
        let reason = match stage.decision {
            "swapped" => format!("swapped: its transfer takes {moved:.2} ms, the slack is {idle:.2} ms"),
            "kept" => {
                format!("kept: its transfer takes {moved:.2} ms, the slack is {idle:.2} ms, and it fits")
            }
            "recomputed" => {
                format!(
                    "recomputed: running it again takes {:.2} ms, less than waiting for the link",
                    stage.forward as f64 / 1e6
                )
            }
            _ => "its backward pass reads no feature map of it".to_owned(),
        };
        let both = (stage.forward + stage.backward) as f64 / 1e9;
        Layer {
            layer: stage.name.clone(),
            kind: stage.kind.to_owned(),
            forward_seconds: stage.forward as f64 / 1e9,
            backward_seconds: stage.backward as f64 / 1e9,
            measured_seconds: tuned.then(|| dice.around(both, 0.06)),
            feature_map_bytes: stage.bytes,
            decision: stage.decision.to_owned(),
            reason,
            offloaded_bytes: if stage.decision == "swapped" { stage.bytes } else { 0 },
            recomputed_bytes: if stage.decision == "recomputed" { stage.bytes } else { 0 },
            recomputed_seconds: if stage.decision == "recomputed" { stage.forward as f64 / 1e9 } else { 0.0 },
            transfer_seconds: transfer,
            slack_seconds: slack,
        }
    };
    stages.iter().enumerate().map(|(at, stage)| of(at, stage, dice)).collect()
}

fn batches(iteration: f64, chosen: u64, yours: u64, device: u64) -> Batches {
    let samples = 50_000;
    let time = |batch: u64| {
        let keeps = 0.12 * iteration + 0.8 * iteration * batch as f64 / chosen as f64;
        keeps * if batch > chosen { 1.0 + 0.9 * (batch - chosen) as f64 / chosen as f64 } else { 1.0 }
    };
    let sizes = (1..=24).map(|step| chosen * step / 16).filter(|batch| *batch > 0);
    let point = |batch: u64| BatchPoint {
        batch,
        iteration_seconds: time(batch),
        epoch_seconds: (time(batch) + 2e-4) * samples as f64 / batch as f64,
        relative_error: 0.05 + 0.03 * (batch as f64 / chosen as f64 - 0.6).abs(),
        compute_seconds: 0.94 * (0.12 * iteration + 0.8 * iteration * batch as f64 / chosen as f64),
        peak_bytes: device * batch.min(chosen) / chosen,
        at_peak_bytes: device / 2 * batch.min(chosen) / chosen,
        offloaded_bytes: device / 4 * batch.saturating_sub(chosen / 2) / chosen,
        swapping_seconds: 0.3 * iteration * batch.saturating_sub(chosen / 2) as f64 / chosen as f64,
        recomputed_ops: batch.saturating_sub(chosen / 2) / 4,
        recomputed_bytes: Some(device / 16 * batch.saturating_sub(chosen / 2) / chosen),
        recomputing_seconds: 0.02 * iteration * batch.saturating_sub(chosen / 2) as f64 / chosen as f64,
    };
    let measured = |batch: u64, what: &str, off: f64| BatchMeasured {
        batch,
        what: what.to_owned(),
        iteration_seconds: time(batch) * off,
        relative_error: 0.012,
        epoch_seconds: (time(batch) * off + 2e-4) * samples as f64 / batch as f64,
    };
    Batches {
        points: sizes.map(point).collect(),
        measured: vec![
            measured(chosen / 4, "profiled", 1.01),
            measured(chosen / 2, "keeping everything", 0.98),
            measured(yours, "yours", 1.016),
            measured(chosen, "chosen", 1.02),
        ],
        chosen,
        within: 0.01,
        keeps_all: Some(chosen / 2),
        largest: chosen * 3 / 2,
        yours,
        samples,
        no_plan: vec![chosen * 2, chosen * 3],
    }
}

fn answer(sample: &Sample, batches: &Batches, memory: &Memory) -> Answer {
    let of = |what: &str, batch: u64, measured: bool| {
        let close = |point: &&BatchPoint| point.batch.abs_diff(batch);
        let point = batches.points.iter().min_by_key(close).expect("points");
        let iteration = point.iteration_seconds * batch as f64 / point.batch as f64;
        Setting {
            what: what.to_owned(),
            batch,
            predicted_iteration_seconds: Some(iteration),
            predicted_error: Some(point.relative_error),
            iteration_seconds: measured.then_some(iteration * 1.02),
            relative_error: measured.then_some(0.012),
            samples_per_second: measured.then_some(batch as f64 / iteration / 1.02),
            peak_bytes: measured
                .then_some(memory.resident_bytes + memory.pool_bytes * batch / batches.chosen),
            epoch_seconds: measured.then_some(point.epoch_seconds * 1.02),
            efficiency: None,
            note: (!measured).then(|| "it was not run".to_owned()),
        }
    };
    let (chosen, yours) = (batches.chosen, batches.yours);
    let keep = sample.keep_your_settings;
    let headline = if keep {
        format!("Keep your settings: batch {yours} is as fast as any that fits")
    } else {
        format!("Batch {chosen} with swapping, instead of your batch {yours}")
    };
    let why = if keep {
        "No batch size that fits the budget is measured to be faster than yours by more than the spread of the measurements."
    } else {
        "The shortest epoch that is predicted within the budget, and it was confirmed by running it."
    };
    let mut settings = vec![of("chosen", chosen, true), of("yours", yours, true)];
    settings.push(of("keeping everything", if keep { chosen / 2 } else { yours + 16 }, keep));
    Answer {
        keep_your_settings: keep,
        headline,
        why: why.to_owned(),
        placement: "Of 14.2 GiB of feature maps 6.1 GiB stay, 7.4 GiB are swapped in every iteration, and 40 ops run again."
            .to_owned(),
        batch: chosen,
        learning_rate: 0.1468,
        learning_rate_rule: "AccUDNN eq. (9) with c = 0.6250, from 0.05 at batch 32".to_owned(),
        learning_rate_samples: batches.chosen,
        learning_rate_caution: Some("12 times the base batch, and AccUDNN shows eq. (9) at 2.3 times".to_owned()),
        warmup_iterations: 390,
        settings,
        training: vec![
            ("epochs".to_owned(), "3".to_owned()),
            ("test accuracy".to_owned(), "98.6 %".to_owned()),
            ("iteration, measured in training".to_owned(), "18.97 ms".to_owned()),
        ],
    }
}

fn fit(dice: &mut Dice) -> Fit {
    let kinds = [
        "conv2d forward",
        "conv2d backward",
        "batch_norm forward",
        "batch_norm backward",
        "relu forward",
        "relu backward",
        "linear forward",
        "update",
    ];
    let kind = |at: usize, name: &str, dice: &mut Dice| {
        let batch: Vec<u64> = (0..24).map(|i| 8 << (i % 4)).collect();
        let base = 2e-6 * f64::from(1u32 << (at % 5));
        let measured: Vec<f64> = batch.iter().map(|b| base * *b as f64 * dice.around(3.0, 0.8)).collect();
        let predicted: Vec<f64> =
            measured.iter().map(|m| dice.around(*m, 0.03 + 0.012 * at as f64)).collect();
        let mut errors: Vec<f64> =
            predicted.iter().zip(&measured).map(|(p, m)| (p / m - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        FitKind {
            kind: name.to_owned(),
            median_error: errors[errors.len() / 2],
            worst_error: errors[errors.len() - 1],
            predicted,
            measured,
            op: (0..batch.len() as u32 / 4 + 1).flat_map(|name| [name; 4]).take(batch.len()).collect(),
            batch,
        }
    };
    let direction = |what: &str, speed: f64, latency: f64, dice: &mut Dice| {
        let bytes: Vec<u64> = (0..11).map(|i| 4096u64 << (2 * i)).collect();
        let seconds = bytes.iter().map(|b| dice.around(latency + *b as f64 / speed, 0.04)).collect();
        FitLink {
            what: what.to_owned(),
            bytes_per_second: speed,
            latency_seconds: latency,
            median_error: 0.02,
            worst_error: 0.04,
            bytes,
            seconds,
        }
    };
    let held_out = [(24, true, 1.02), (96, true, 0.985), (192, false, 1.046)];
    Fit {
        kinds: kinds.iter().enumerate().map(|(at, name)| kind(at, name, dice)).collect(),
        held_out: held_out
            .map(|(batch, inside, off)| FitHeldOut {
                batch,
                inside,
                predicted_seconds: 2e-4 * batch as f64 * off,
                measured_seconds: 2e-4 * batch as f64,
            })
            .to_vec(),
        link: vec![
            direction("offload alone", 12.4e9, 9e-6, dice),
            direction("prefetch alone", 12.9e9, 8e-6, dice),
            direction("offload beside prefetch", 9.8e9, 1.1e-5, dice),
            direction("prefetch beside offload", 10.1e9, 1.1e-5, dice),
        ],
        notes: vec![
            "Iterations at batch sizes that were held out are off by 1.5 % (median) and 4.6 % (worst)."
                .to_owned(),
            "Ops run 2.1 % slower beside transfers; this is part of the predictions.".to_owned(),
        ],
    }
}

fn policies(makespan: f64, compute: f64, memory: &Memory) -> Policies {
    let row = |policy: &str, paper: &str, factor: Option<f64>, again: f64| PolicyRow {
        policy: policy.to_owned(),
        paper: paper.to_owned(),
        makespan_seconds: factor.map(|factor| makespan * factor),
        offloaded_bytes: if again > 0.2 { 0 } else { memory.host_bytes },
        prefetched_bytes: if again > 0.2 { 0 } else { memory.host_bytes },
        recomputed_bytes: Some((memory.pool_bytes as f64 * again) as u64),
        recomputed_seconds: compute * again,
        stalled_seconds: factor.map_or(0.0, |factor| (makespan * factor - compute * (1.0 + again)).max(0.0)),
        device_bytes: factor.map(|_| memory.resident_bytes + memory.pool_bytes),
        planning_seconds: (policy != "plimsoll").then_some(0.4),
        note: factor.is_none().then(|| "it is short by 1.7 GiB at stage2.block7.conv2d1 backward".to_owned()),
    };
    Policies {
        bound_seconds: makespan * 0.985,
        compute_seconds: compute,
        rows: vec![
            row("plimsoll", "this program", Some(1.0), 0.01),
            row("accudnn", "AccUDNN", Some(1.06), 0.0),
            row("layrub", "Layrub", Some(1.19), 0.0),
            row("superneurons", "SuperNeurons", Some(1.24), 0.12),
            row("memonger", "Memonger", Some(1.33), 0.32),
            row("vdnn", "vDNN", Some(1.61), 0.0),
            row("keep-all", "no policy", None, 0.0),
        ],
    }
}

/// Returns a plan's setting, and eager's, which exceeds the budget.
fn beside_eager(memory: &Memory, batch: u64, makespan: f64) -> Vec<Setting> {
    let setting = |what: &str, peak_bytes: u64, iteration: f64, note: Option<&str>| Setting {
        what: what.to_owned(),
        batch,
        predicted_iteration_seconds: Some(iteration),
        predicted_error: None,
        iteration_seconds: Some(iteration * 1.03),
        relative_error: None,
        samples_per_second: Some(batch as f64 / iteration / 1.03),
        peak_bytes: Some(peak_bytes),
        epoch_seconds: None,
        efficiency: None,
        note: note.map(str::to_owned),
    };
    let above = Some("its peak is above the budget");
    vec![
        setting("the plan", memory.resident_bytes + memory.pool_bytes, makespan, None),
        setting("eager", memory.keeping_everything_bytes, makespan * 0.97, above),
    ]
}

/// Returns eight workers, whose exchange becomes noticeable from some number on.
fn workers(iteration: f64, batch: u64) -> Workers {
    let of = |workers: u64| {
        let update = iteration * (1.0 + 0.004 * (workers as f64).log2().powi(2));
        Scaled {
            workers,
            global_batch: workers * batch,
            update_seconds: update,
            samples_per_second: (workers * batch) as f64 / update,
            efficiency: iteration / update,
        }
    };
    let scaling: Vec<Scaled> = (0..7).map(|power| of(1 << power)).collect();
    let resource = |(resource, share): (&str, f64)| ResourceShare {
        resource: resource.to_owned(),
        busy_seconds: share * scaling[3].update_seconds,
        share,
    };
    let resources = [("compute", 0.94), ("link, out", 0.61), ("link, back", 0.57), ("interconnect", 0.83)];
    let (update, together) = (scaling[3].update_seconds, scaling[3].samples_per_second);
    Workers {
        workers: 8,
        interconnect: "10Gbit/s,30us".to_owned(),
        nccl: false,
        global_batch: 8 * batch,
        passes: 1,
        update_seconds: update * 1.01,
        exchange_seconds: update - iteration,
        predicted_update_seconds: update,
        without_overlap_seconds: iteration * 1.8,
        hidden: Some((iteration * 1.8 - update) / (iteration * 0.8)),
        bound_seconds: iteration,
        samples_per_second: together,
        single: Some(Single {
            what: "yours".to_owned(),
            batch: 48,
            samples_per_second: together / 9.5,
            predicted_samples_per_second: Some(together / 9.7),
            times: 9.5,
        }),
        resources: resources.map(resource).into(),
        scaling,
    }
}

/// Returns the report.
pub fn report(sample: &Sample) -> Report {
    let mut dice = Dice(7);
    let stages = stages(sample, &mut dice);
    let predicted = lanes(&stages, &mut dice, 0.0);
    let measured = lanes(&stages, &mut dice, 0.05);
    let memory = memory(&predicted, &stages);
    let compute =
        stages.iter().map(|s| s.forward + s.backward + s.forward / 20 + 1).sum::<u64>() as f64 / 1e9;
    let makespan = predicted.end as f64 / 1e9;
    let mut timelines = vec![view("predicted", &predicted)];
    if sample.tuned {
        timelines.push(view("measured", &measured));
    }
    let (chosen, yours) = (128, if sample.keep_your_settings { 128 } else { 48 });
    let batches =
        sample.tuned.then(|| batches(makespan, chosen, yours, memory.resident_bytes + memory.pool_bytes));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Report {
        kind: ReportKind::Report1,
        settings: if sample.tuned { Vec::new() } else { beside_eager(&memory, chosen, makespan) },
        about: About {
            network: sample.network.to_owned(),
            data: sample.tuned.then(|| "32x32x3 images, 10 classes, 50000 samples".to_owned()),
            batch: chosen,
            budget_bytes: memory.budget_bytes,
            device: Some("a made-up device".to_owned()),
            modelled: false,
            machine: vec![
                pair("system", "Linux 6.1, x86-64"),
                pair("threads", "16"),
                pair("memory", "125.8 GiB"),
                pair("link", "paced at 12.2 GB/s"),
            ],
            plimsoll: "0.1.0".to_owned(),
            commit: sample.tuned.then(|| "0123456789ab".to_owned()),
            command: Some("plimsoll auto --network sample --budget 4GiB --link 12.2GB/s".to_owned()),
            seed: Some(1),
            unix_seconds: Some(1_795_000_000),
            warnings: vec!["The machine was busy while this was measured: load 3.1 on 2 cores.".to_owned()],
        },
        answer: batches.as_ref().map(|batches| answer(sample, batches, &memory)),
        batches,
        workers: sample.workers.then(|| workers(makespan, chosen)),
        layers: layers(&stages, &mut dice, sample.tuned),
        fit: sample.tuned.then(|| fit(&mut dice)),
        policies: policies(makespan, compute, &memory),
        iteration: Iteration {
            names: predicted.names,
            timelines,
            bound_seconds: makespan * 0.985,
            compute_seconds: compute,
        },
        memory,
    }
}
