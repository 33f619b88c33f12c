//! The performance model (AccUDNN §3.3): seconds of any op at any batch size, and the link, fitted to measurements.
//!
//! ```text
//! seconds of op j at batch k = adds_up(k) * layer_j(k)
//! ```
//!
//! `layer_j` is the op's own curve over the batch size (`layer.rs`) above the saturating curve of its layer type (`curve.rs`).
//! Both are fitted to the medians of the repetitions, so that a disturbed repetition counts nothing, and to relative errors.
//! Neither medians nor such fits add up: timing every op has a cost, starting an iteration too, and on a busy machine a short op
//! is seldom interrupted, so that its median does not include interruptions. `adds_up` corrects that. It is either one ratio for
//! all batch sizes, or iteration(k) / sum of all layer_i(k) with the typical iteration (the mean of the middle half of its
//! repetitions) fitted like one more layer, whichever predicts left-out iterations better; times the residual at the measured
//! batch sizes (`whole.rs`), so that there the prediction equals the measurement. The typical iteration is that of iterations as
//! training runs them, less the schedule's stalls and repetitions; if none was run, the sum over all ops.
//!
//! Types are finer than the trace's `kind`: the phase and the last part of the op's name (`conv1.backward_data`) distinguish the
//! kernels of a layer. FLOPs are linear in the batch (eq. (1)) and come with each op; if they are unknown (0), the batch size
//! replaces them, which suits the op's own curve and says little across ops.
//!
//! Every prediction carries its relative error, such that nine of ten iterations are within it (`whole.rs`). It is estimated by
//! leaving each batch size out of *everything* (curves, choice of shapes, fit), predicting its whole iteration, and comparing.
//! Batch sizes between the smallest and the largest give the error inside the measured range; leaving out an end gives the error
//! outside.
//!
//! An op's alternatives (other kernels for the same call) take the op's seconds times a separate ratio (`alternatives.rs`).
//!
//! This module deliberately models neither memory (exact, in the trace) nor stalls (`simulate`).

mod alternatives;
mod curve;
pub mod devices;
mod layer;
mod line;
mod link;
mod whole;

pub use layer::Shape;
pub use link::{FittedRate, LinkModel, Slowdown, planned_link};

use crate::numbers::real;
use crate::request::Error;
use alternatives::Ratios;
use curve::Curve;
use layer::{Fitted, Point};
use plimsoll_ir::Seconds;
use plimsoll_ir::profile::{BatchSamples, Profile};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::{Alternative, Op, Phase, Trace};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use whole::LeftOver;

/// Prediction of a batch size by a model fitted without it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// Held-out batch size.
    pub batch: u64,
    /// `true` if it lies between other measured ones.
    pub inside: bool,
    /// Predicted sum over all ops.
    pub predicted: Seconds,
    /// Seconds of the ops of a typical iteration together.
    pub measured: Seconds,
    /// Median over the ops of |predicted / measured - 1|.
    pub op_relative_error: f64,
}

impl HeldOut {
    /// Returns measured / predicted - 1 of the sum over all ops.
    pub fn off(&self) -> f64 {
        self.measured / self.predicted - 1.0
    }
}

/// Fitted model. Its JSON is for people and scripts: by op the fit, by layer type its curve, the link, and the errors of held-out
/// batch sizes; nothing reads it back, since the same profile gives the same model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    layers: BTreeMap<String, Layer>,
    #[serde(serialize_with = "listed")]
    curves: BTreeMap<Type, Curve>,
    iteration: Iteration,
    held_out: Vec<HeldOut>,
    /// Scatter of single iterations, as a share.
    scatter: f64,
    /// Error of the input of the fit: 0 if it was measured, and for a modelled machine the error that its model states.
    of_model: f64,
    /// Smallest and largest measured batch size.
    range: (u64, u64),
    link: LinkModel,
}

/// Serialises curves as a list: their keys are no strings.
fn listed<S: Serializer>(curves: &BTreeMap<Type, Curve>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct OfType<'a> {
        of: &'a Type,
        curve: &'a Curve,
    }
    serializer.collect_seq(curves.iter().map(|(of, curve)| OfType { of, curve }))
}

/// Op of the profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Layer {
    of: Type,
    fitted: Fitted,
    size: Size,
    /// Ratios of its alternatives, by name.
    alternatives: BTreeMap<String, Ratios>,
}

/// Key of the group curves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Type {
    kind: String,
    phase: Phase,
    kernel: String,
}

impl Type {
    fn of(name: &str, kind: &str, phase: Phase) -> Type {
        let kernel = name.rsplit_once(['.', '/', ':', ' ']).map_or("", |(_, last)| last);
        Type { kind: kind.to_owned(), phase, kernel: kernel.to_owned() }
    }
}

/// Lower limit of times in logarithms: a clock's tick.
const TICK: f64 = 1e-9;

/// Relative error if no batch size could be held out: anything up to twice.
const UNKNOWN: f64 = 1.0;

/// Returns the middle value, or the mean of the two middle ones. The slice is not empty.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// Profile prepared for fitting: per op the medians, ascending in batch.
struct Data {
    batches: Vec<u64>,
    names: Vec<(String, Type)>,
    /// One list per op, one point per batch size.
    points: Vec<Vec<Point>>,
    /// Ratios of the alternatives of each op, by name.
    alternatives: Vec<BTreeMap<String, Ratios>>,
    /// Seconds of the ops of a typical iteration together, per batch size.
    totals: Vec<f64>,
    /// Scatter of single iterations about it, as a share.
    scatter: f64,
}

impl Data {
    fn new(profile: &Profile) -> Result<Data, Error> {
        // Batch sizes that occur in the profile more than once (measured again to refit) are merged.
        let mut batches: BTreeMap<u64, Vec<&BatchSamples>> = BTreeMap::new();
        for samples in &profile.batches {
            batches.entry(samples.batch).or_default().push(samples);
        }
        let first = profile
            .batches
            .first()
            .filter(|b| !b.ops.is_empty())
            .ok_or_else(|| Error::usage("the profile holds no op times; run `profile` again"))?;
        let names: Vec<(String, Type)> =
            first.ops.iter().map(|op| (op.name.clone(), Type::of(&op.name, &op.kind, op.phase))).collect();
        let all = |position: usize| {
            batches.iter().map(move |(batch, parts)| {
                (*batch, parts.iter().filter_map(|part| part.ops.get(position)).collect::<Vec<_>>())
            })
        };
        let alternatives: Vec<_> =
            (0..names.len()).map(|position| alternatives::ratios(all(position))).collect();
        let mut points = vec![Vec::new(); names.len()];
        let mut totals = Vec::new();
        for (batch, parts) in &batches {
            for (position, (name, _)) in names.iter().enumerate() {
                let mismatch = || {
                    Error::usage(format_args!(
                        "op {position} (`{name}`) at batch {batch} does not match the other batch sizes or has no times; run \
                         `profile` again"
                    ))
                };
                let mut seconds = Vec::new();
                let mut flops = 0;
                for part in parts {
                    let op = part.ops.get(position).filter(|op| op.name == *name).ok_or_else(mismatch)?;
                    seconds.extend(op.seconds.iter().map(|s| s.0).filter(|s| s.is_finite() && *s >= 0.0));
                    flops = op.flops;
                }
                let middle = match seconds.is_empty() {
                    false => Some(median(&mut seconds)),
                    // Its usual alternative never ran here: its scratch did not fit, or a tuned schedule chose
                    // a different one.
                    true => {
                        let samples = parts.iter().map(|part| &part.ops[position]);
                        alternatives::usual_of_others(*batch, samples, &alternatives[position])
                    }
                };
                let seconds = middle.ok_or_else(mismatch)?.max(TICK);
                points[position].push(Point { batch: *batch as f64, x: size(flops, *batch), seconds });
            }
            let parts_sum = || points.iter().filter_map(|op| op.last()).map(|p| p.seconds).sum();
            let total = whole::of_training(parts).or_else(|| typical_iteration(parts));
            totals.push(total.unwrap_or_else(parts_sum));
        }
        let scatter = whole::scatter(profile.batches.iter());
        Ok(Data { batches: batches.into_keys().collect(), names, points, alternatives, totals, scatter })
    }
}

/// Returns the mean of the middle half of the repetitions' sums over all ops; `None` if the ops were not repeated together.
fn typical_iteration(parts: &[&BatchSamples]) -> Option<f64> {
    let mut totals = Vec::new();
    for part in parts {
        let repetitions = part.ops.first()?.seconds.len();
        if part.ops.iter().any(|op| op.seconds.len() != repetitions) {
            return None;
        }
        totals.extend((0..repetitions).map(|r| part.ops.iter().map(|op| op.seconds[r].0).sum::<f64>()));
    }
    middle_half(&mut totals)
}

/// Interpolates points that ascend, constant beyond them; `None` without points.
fn along(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let above = points.partition_point(|p| p.0 < x);
    match (above.checked_sub(1).map(|i| points[i]), points.get(above)) {
        (Some((x0, y0)), Some((x1, y1))) => Some(y0 + (y1 - y0) * (x - x0) / (x1 - x0)),
        (Some((_, y)), None) => Some(y),
        (None, next) => next.map(|(_, y)| *y),
    }
}

/// Returns the mean of the middle half; `None` without values.
fn middle_half(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let middle = &values[quarter..values.len() - quarter];
    (!middle.is_empty()).then(|| (middle.iter().sum::<f64>() / real(middle.len())).max(TICK))
}

/// Returns the argument of the curves: FLOPs, or the batch size if they are unknown.
fn size(flops: u64, batch: u64) -> f64 {
    if flops > 0 { flops as f64 } else { batch as f64 }
}

/// Argument of an op's curve (FLOPs) over the batch size: linear (eq. (1)), from any two batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Size {
    at: (f64, f64),
    slope: f64,
}

impl Size {
    /// Returns the size from the points of one op. A single point is taken as proportional, or in the update as constant.
    fn of(points: &[Point], phase: Phase) -> Size {
        let (first, last) = (points[0], points[points.len() - 1]);
        let slope = if last.batch > first.batch {
            (last.x - first.x) / (last.batch - first.batch)
        } else if phase == Phase::Update {
            0.0
        } else {
            first.x / first.batch
        };
        Size { at: (first.batch, first.x), slope }
    }

    fn at(self, batch: f64) -> f64 {
        (self.at.1 + self.slope * (batch - self.at.0)).max(f64::MIN_POSITIVE)
    }
}

/// Whole iteration, fitted like an op; the batch size is its x.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Iteration {
    curve: Curve,
    fitted: Fitted,
    /// Typical iteration / sum of the layers, if one ratio for all batch sizes predicts better than the fitted iteration.
    ratio: Option<f64>,
    /// Residual at the measured batch sizes.
    left_over: LeftOver,
}

impl Iteration {
    /// Fits typical iterations (x is the batch size), ascending, given the sum of the fitted layers at each of them.
    fn fit(points: &[Point], sums: &[f64]) -> Iteration {
        let logs: Vec<f64> =
            points.iter().zip(sums).map(|(p, sum)| (p.seconds / sum.max(TICK)).ln()).collect();
        let total: f64 = logs.iter().sum();
        let folds = layer::folds(logs.len());
        let miss = |i: usize| (logs[i] - (total - logs[i]) / real(logs.len() - 1)).abs();
        let samples: Vec<(f64, f64)> = points.iter().map(|p| (p.x, p.seconds)).collect();
        let curve = Curve::fit(&samples, None).expect("there is a batch size");
        let [_, line, between] = layer::scores(points, &curve);
        let one_ratio =
            logs.len() >= 3 && folds.clone().map(miss).sum::<f64>() / real(folds.len()) <= line.min(between);
        let ratio = one_ratio.then(|| (total / real(logs.len())).exp());
        let fitted = layer::fit_group(&[points.to_vec()], &curve).remove(0);
        let mut iteration = Iteration { curve, fitted, ratio, left_over: LeftOver::default() };
        let off = |(p, sum): (&Point, &f64)| {
            (p.batch, (p.seconds / (iteration.adds_up(p.batch as u64, *sum) * sum.max(TICK))).ln())
        };
        iteration.left_over = LeftOver::of(points.iter().zip(sums).map(off));
        iteration
    }

    /// Returns the factor by which layers that sum to `sum` at a batch size add up to the iteration.
    fn adds_up(&self, batch: u64, sum: f64) -> f64 {
        let whole = || self.fitted.at(batch as f64, batch as f64, &self.curve).max(TICK);
        self.ratio.unwrap_or_else(|| whole() / sum.max(TICK)) * self.left_over.factor(batch as f64)
    }
}

/// Curves per type, one fitted shape per op, and the whole iteration.
struct Fits {
    curves: BTreeMap<Type, Curve>,
    layers: Vec<Fitted>,
    iteration: Iteration,
}

/// Fits everything, as if batch size `left_out` had never been measured. `near` has the curves to start from.
fn fit_all(data: &Data, left_out: Option<usize>, near: Option<&Fits>) -> Fits {
    let mut members: BTreeMap<&Type, Vec<usize>> = BTreeMap::new();
    for (j, (_, of)) in data.names.iter().enumerate() {
        members.entry(of).or_default().push(j);
    }
    let mut layers: Vec<Option<Fitted>> = vec![None; data.names.len()];
    let mut curves = BTreeMap::new();
    for (of, members) in members {
        let keep = |points: &[Point]| -> Vec<Point> {
            points.iter().enumerate().filter(|(b, _)| Some(*b) != left_out).map(|(_, p)| *p).collect()
        };
        let points: Vec<Vec<Point>> = members.iter().map(|j| keep(&data.points[*j])).collect();
        let samples: Vec<(f64, f64)> = points.iter().flatten().map(|p| (p.x, p.seconds)).collect();
        let curve = Curve::fit(&samples, near.and_then(|fits| fits.curves.get(of)));
        let curve = curve.expect("every op has a point at every batch size, and one is never left out alone");
        for (j, fitted) in members.iter().zip(layer::fit_group(&points, &curve)) {
            layers[*j] = Some(fitted);
        }
        curves.insert(of.clone(), curve);
    }
    let layers: Vec<Fitted> =
        layers.into_iter().map(|fitted| fitted.expect("every op belongs to one type")).collect();
    let whole = |b: usize| {
        let batch = data.batches[b] as f64;
        Point { batch, x: batch, seconds: data.totals[b] }
    };
    let measured = || (0..data.batches.len()).filter(|b| Some(*b) != left_out);
    let sums: Vec<f64> = measured().map(|b| sum_of(data, &curves, &layers, b)).collect();
    let iteration = Iteration::fit(&measured().map(whole).collect::<Vec<_>>(), &sums);
    Fits { curves, layers, iteration }
}

/// Returns the sum of all fitted ops at the measured batch size of position `b`.
fn sum_of(data: &Data, curves: &BTreeMap<Type, Curve>, layers: &[Fitted], b: usize) -> f64 {
    let seconds = |j: usize| {
        let p = data.points[j][b];
        layers[j].at(p.batch, p.x, &curves[&data.names[j].1]).max(0.0)
    };
    (0..layers.len()).map(seconds).sum()
}

impl Model {
    /// Fits the model to a profile. The same profile gives the same model.
    pub fn fit(profile: &Profile) -> Result<Model, Error> {
        let link = LinkModel::fit(&profile.link)?;
        let data = Data::new(profile)?;
        let fits = fit_all(&data, None, None);
        let held_out = hold_out(&data, &fits);
        let mut layers = BTreeMap::new();
        let sizes = data.points.iter().zip(&data.names).map(|(points, (_, of))| Size::of(points, of.phase));
        let of_ops = data.names.iter().zip(fits.layers).zip(sizes).zip(&data.alternatives);
        for ((((name, of), fitted), size), alternatives) in of_ops {
            let layer = Layer { of: of.clone(), fitted, size, alternatives: alternatives.clone() };
            if layers.insert(name.clone(), layer).is_some() {
                return Err(Error::usage(format_args!(
                    "two ops of the profile are called `{name}`; names tell ops apart"
                )));
            }
        }
        let range = (data.batches[0], data.batches[data.batches.len() - 1]);
        let (curves, iteration, scatter) = (fits.curves, fits.iteration, data.scatter);
        let machine = &profile.machine;
        // The error of a model that states none is unknown.
        let of_model = if machine.modelled { machine.modelled_error.unwrap_or(UNKNOWN) } else { 0.0 };
        Ok(Model { layers, curves, iteration, held_out, scatter, of_model, range, link })
    }

    /// Returns the factor by which the layers' curves add up to the iteration at a batch size.
    fn adds_up(&self, batch: u64) -> f64 {
        let k = batch as f64;
        let seconds = |layer: &Layer| layer.fitted.at(k, layer.size.at(k), &self.curves[&layer.of]).max(0.0);
        self.iteration.adds_up(batch, self.layers.values().map(seconds).sum())
    }

    /// Returns the share of an op in an iteration, if they add up by this factor. An op that was not measured itself gets the curve
    /// of its layer type.
    fn share(&self, op: &Op, batch: u64, adds_up: f64) -> Result<Seconds, Error> {
        let Op { name, kind, phase, flops, .. } = op;
        let (of, x) = (Type::of(name, kind, *phase), size(*flops, batch));
        let curve = self.curves.get(&of).ok_or_else(|| {
            Error::usage(format_args!(
                "no `{kind}` op like `{name}` was measured; profile the network that the trace is of"
            ))
        })?;
        let own = self.layers.get(name).filter(|layer| layer.of == of);
        let seconds = own.map_or_else(|| curve.at(x), |layer| layer.fitted.at(batch as f64, x, curve));
        Ok(Seconds(adds_up * seconds.max(0.0)))
    }

    /// Writes the predicted seconds of every op and of its alternatives into a trace. Nothing is written if an op is unknown.
    pub fn fill(&self, trace: &mut Trace) -> Result<(), Error> {
        let adds_up = self.adds_up(trace.batch);
        let share = |op: &Op| self.share(op, trace.batch, adds_up);
        let seconds: Vec<Seconds> = trace.ops.iter().map(share).collect::<Result<_, _>>()?;
        for (op, seconds) in trace.ops.iter_mut().zip(seconds) {
            op.seconds = seconds;
            let layer = self.layers.get(&op.name);
            for Alternative { name, seconds: of_alternative, .. } in &mut op.alternatives {
                // One that was not measured is chosen if nothing else fits, and never for its speed.
                let known = layer.and_then(|layer| layer.alternatives.get(name));
                let ratio = known.map_or(alternatives::UNMEASURED, |ratios| ratios.at(trace.batch as f64));
                *of_alternative = seconds * ratio;
            }
        }
        Ok(())
    }

    /// Returns the relative error of an iteration at a batch size: nine of ten are off by no more. It is the error of the fit,
    /// and for the profile of a modelled machine also that of its model. At most 1.
    pub fn iteration_error(&self, batch: u64) -> f64 {
        self.fit_error(batch).hypot(self.of_model).min(UNKNOWN)
    }

    /// Returns the error of an iteration without that of a modelled machine's model, which affects all plans alike, and does not
    /// show which one is faster. It comes from the held-out batch sizes: for a batch inside, those inside the measured range
    /// (all, if there are fewer than two); for a batch outside, those at its ends; 1 if there is none.
    pub fn fit_error(&self, batch: u64) -> f64 {
        let inside = self.inside(batch);
        let enough = !inside || self.held_out.iter().filter(|h| h.inside).count() >= 2;
        let of = self.held_out.iter().filter(|h| !enough || h.inside == inside).map(HeldOut::off);
        whole::nine_of_ten(&of.collect::<Vec<_>>(), self.scatter).unwrap_or(UNKNOWN)
    }

    /// Returns every batch size as predicted by a model fitted without it, ascending.
    pub fn held_out(&self) -> &[HeldOut] {
        &self.held_out
    }

    /// Returns the number of ops that follow each shape.
    pub fn shapes(&self) -> [(Shape, usize); 3] {
        let shape = |layer: &Layer| match layer.fitted {
            Fitted::Group(_) => Shape::Group,
            Fitted::Line(_) => Shape::Line,
            Fitted::Between(_) => Shape::Between,
        };
        Shape::ALL.map(|s| (s, self.layers.values().filter(|layer| shape(layer) == s).count()))
    }

    /// Returns the link to plan with.
    pub fn link(&self) -> Link {
        self.link.planned()
    }

    /// Returns the four fitted rates.
    pub fn rates(&self) -> &LinkModel {
        &self.link
    }

    fn inside(&self, batch: u64) -> bool {
        (self.range.0..=self.range.1).contains(&batch)
    }
}

/// Leaves every batch size out in turn. Returns the predictions of whole iterations.
fn hold_out(data: &Data, full: &Fits) -> Vec<HeldOut> {
    let count = data.batches.len();
    if count < 2 {
        return Vec::new();
    }
    let held_out = (0..count).map(|b| {
        let fits = fit_all(data, Some(b), Some(full));
        let off = |j: usize| {
            let p = data.points[j][b];
            let seconds = fits.layers[j].at(p.batch, p.x, &fits.curves[&data.names[j].1]).max(0.0);
            (seconds / p.seconds - 1.0).abs()
        };
        let sum = sum_of(data, &fits.curves, &fits.layers, b);
        HeldOut {
            batch: data.batches[b],
            inside: count >= 3 && layer::folds(count).contains(&b),
            predicted: Seconds(sum * fits.iteration.adds_up(data.batches[b], sum)),
            measured: Seconds(data.totals[b]),
            op_relative_error: median(&mut (0..data.names.len()).map(off).collect::<Vec<_>>()),
        }
    });
    held_out.collect()
}

#[cfg(test)]
mod tests;
