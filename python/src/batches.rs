//! A step at batch sizes that were not recorded, derived from recordings at two other batch sizes.
//!
//! Bytes and seconds are assumed to grow linearly with the batch between the two and beyond them. The caller checks this for a
//! step, by the shapes of a third recording ([`Batches::bytes_at`]). The search itself is the tuner's.

use crate::errors::BadInput;
use crate::schedule::Schedule;
use crate::trace::{Trace, link_of, plan_within};
use plimsoll_ir::program::STORAGE_ALIGNMENT;
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{Bytes, Document, Seconds, trace};
use plimsoll_tuner::search::{self, EQUAL, Planned, SearchRequest, Sharing, frugal, largest, search};
use plimsoll_tuner::{Earlier, Outcome, Plan};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// Batches to try below the largest whose floor fits, if that one has no plan.
const STEPS_DOWN: u64 = 8;

/// Maximum number of plans in a search for the fastest batch.
const EVALUATIONS: usize = 16;

/// One step at any batch size.
#[pyclass(frozen, module = "plimsoll")]
pub struct Batches {
    low: trace::Trace,
    high: trace::Trace,
}

/// Limits of planning.
struct Limits {
    budget: Bytes,
    link: Link,
    seconds: Duration,
    host: Option<Bytes>,
}

#[pymethods]
impl Batches {
    /// Takes two traces of the step as JSON text, the smaller batch first. Their bytes are those requested, not yet rounded up
    /// to the size of storages.
    #[new]
    fn new(low: &str, high: &str) -> PyResult<Batches> {
        let read = |text| {
            trace::Trace::from_json(text)
                .map_err(|fault| BadInput::new_err(format!("the trace cannot be used: {fault}")))
        };
        let (low, high) = (read(low)?, read(high)?);
        let ops = low.ops.iter().zip(&high.ops);
        let other = ops.clone().find(|(a, b)| a.kind != b.kind || a.reads != b.reads || a.writes != b.writes);
        if low.ops.len() != high.ops.len() || low.tensors.len() != high.tensors.len() || other.is_some() {
            let place = other.map_or_else(String::new, |(op, _)| format!(", from `{}` on", op.name));
            let (low, high) = (low.batch, high.batch);
            return Err(BadInput::new_err(format!(
                "the step makes other calls at batch {high} than at batch {low}{place}"
            )));
        }
        if low.batch >= high.batch {
            return Err(BadInput::new_err("the first trace must have the smaller batch"));
        }
        Ok(Batches { low, high })
    }

    /// Trace of a batch size.
    fn at(&self, batch: u64) -> Trace {
        Trace { inner: self.trace_at(batch) }
    }

    /// Bytes of each tensor at a batch size, as in its trace.
    fn bytes_at(&self, batch: u64) -> Vec<u64> {
        self.trace_at(batch).tensors.iter().map(|tensor| tensor.bytes.0).collect()
    }

    /// Largest batch up to `limit` that has a plan within the budget; `None` if not even one sample has a plan. The search for
    /// each plan takes at most `seconds`. Swapped tensors take at most `host` bytes of the host's memory; without it the host
    /// is unlimited.
    #[pyo3(signature = (budget, limit, offload_rate, prefetch_rate, half_duplex, seconds, host=None))]
    #[allow(clippy::too_many_arguments)]
    fn largest(
        &self,
        py: Python<'_>,
        budget: u64,
        limit: u64,
        offload_rate: f64,
        prefetch_rate: f64,
        half_duplex: bool,
        seconds: f64,
        host: Option<u64>,
    ) -> PyResult<Option<u64>> {
        let limits = limits(budget, offload_rate, prefetch_rate, half_duplex, seconds, host)?;
        let fits = |batch| self.trace_at(batch).memory().floor().is_none_or(|(_, floor)| floor.0 <= budget);
        let Some(most) = largest(limit, &mut |batch| Ok::<_, PyErr>(fits(batch)))? else { return Ok(None) };
        let step = (most / 64).max(1);
        for batch in (0..STEPS_DOWN).filter_map(|down| most.checked_sub(down * step)).filter(|b| *b > 0) {
            if plan(py, &self.trace_at(batch), &limits, None)?.is_some() {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Batches with a plan within the budget, by samples per second, the fastest first; empty if no plan is found. The search
    /// considers `among`, or if that is empty, batches up to `limit`. Of batches that are equally fast within 1 % the one that
    /// swaps and recomputes least counts as the fastest, then the smallest. A batch that swaps counts as faster than one that
    /// keeps everything only by more than `error`. `host` is as in `largest`.
    ///
    /// `exchange` is called with a batch and its schedule, and returns the seconds that exchanging gradients between ranks adds
    /// to one iteration; an exception that it raises is raised here. Without it nothing is exchanged.
    #[pyo3(signature = (
        budget, limit, among, offload_rate, prefetch_rate, half_duplex, seconds, error, host=None, exchange=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn fastest(
        &self,
        py: Python<'_>,
        budget: u64,
        limit: u64,
        among: Vec<u64>,
        offload_rate: f64,
        prefetch_rate: f64,
        half_duplex: bool,
        seconds: f64,
        error: f64,
        host: Option<u64>,
        exchange: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Candidate>> {
        let limits = limits(budget, offload_rate, prefetch_rate, half_duplex, seconds, host)?;
        let at = |batch: u64| self.trace_at(batch).memory();
        let keeps = |batch| Ok::<_, PyErr>(at(batch).peak().is_none_or(|(_, peak)| peak.0 <= budget));
        let fits = |batch| Ok::<_, PyErr>(at(batch).floor().is_none_or(|(_, floor)| floor.0 <= budget));
        let Some(most) = largest(limit, &mut { fits })? else { return Ok(Vec::new()) };
        let request = SearchRequest {
            dataset: most.saturating_mul(64),
            least: 1,
            most,
            among: Some(among).filter(|among| !among.is_empty()),
            keeps_all: largest(most, &mut { keeps })?,
            within: EQUAL,
            evaluations: EVALUATIONS,
        };
        let dataset = request.dataset;
        let mut planner = Planner { batches: self, py, limits, error, exchange, dataset };
        let found = search(request, &mut planner)?;
        let Some(choice) = found.choose(&planner) else { return Ok(Vec::new()) };
        let chosen = choice.plan.candidate;
        let others = found.ranked().into_iter().filter(|other| other.batch != chosen.batch);
        Ok(std::iter::once(chosen).chain(others).map(|inner| Candidate { inner }).collect())
    }
}

/// Planner of a step at any batch size.
struct Planner<'a, 'py> {
    batches: &'a Batches,
    py: Python<'py>,
    limits: Limits,
    /// Relative error of predictions.
    error: f64,
    /// Seconds that exchanging gradients adds to an iteration, by a Python function; without it there is a single rank.
    exchange: Option<&'a Bound<'py, PyAny>>,
    /// Samples in an epoch.
    dataset: u64,
}

impl search::Batches for Planner<'_, '_> {
    type Error = PyErr;

    fn plan(&mut self, batch: u64, near: Option<&Planned>) -> PyResult<Option<Planned>> {
        let trace = self.batches.trace_at(batch);
        let from = near.map(Planned::earlier).transpose();
        let from = from.map_err(|error| BadInput::new_err(error.to_string()))?;
        let Some(plan) = plan(self.py, &trace, &self.limits, from.as_ref())? else { return Ok(None) };
        let schedule = plan.schedule.clone();
        let mut sharing = Sharing::ALONE;
        if let Some(exchange) = self.exchange {
            let seconds = exchange.call1((batch, Schedule::new(&trace, plan)?))?.extract()?;
            sharing.exchange = Seconds(seconds);
        }
        let plan = Planned::new(trace, schedule, sharing, self.dataset);
        Ok(Some(Planned { carried: from.is_some(), ..plan }))
    }

    fn error(&self, _: u64) -> f64 {
        self.error
    }
}

/// A batch with a plan, as predicted.
#[pyclass(frozen, module = "plimsoll")]
pub struct Candidate {
    inner: search::Candidate,
}

#[pymethods]
impl Candidate {
    /// Samples in an iteration.
    #[getter]
    fn batch(&self) -> u64 {
        self.inner.batch
    }

    /// Seconds of one iteration, without the exchange of gradients.
    #[getter]
    fn seconds(&self) -> f64 {
        self.inner.iteration.0
    }

    /// Seconds that exchanging gradients between ranks adds to it; 0 if nothing is exchanged.
    #[getter]
    fn exchange_seconds(&self) -> f64 {
        self.inner.sharing.exchange.0
    }

    /// Bytes that the device holds.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.inner.peak.0
    }

    /// Bytes that are swapped out in one iteration.
    #[getter]
    fn offloaded_bytes(&self) -> u64 {
        self.inner.moved.offloaded.0
    }

    /// Number of ops recomputed in one iteration.
    #[getter]
    fn recomputed_ops(&self) -> u64 {
        self.inner.moved.recomputed_ops
    }

    /// Bytes of the tensors that these ops write again.
    #[getter]
    fn recomputed_bytes(&self) -> u64 {
        self.inner.moved.recomputed.0
    }
}

/// Chooses the best candidate, by the measured seconds of one sample of each, and the relative scatter of these times. Of those
/// as fast as the fastest, within the scatter (1 % at least, 3 % at most), it takes the one that swaps and recomputes least,
/// then the smallest.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn choose(candidates: Vec<PyRef<'_, Candidate>>, seconds: Vec<f64>, scatter: f64) -> PyResult<u64> {
    let measured: Vec<search::Candidate> = candidates
        .iter()
        .zip(&seconds)
        .map(|(candidate, seconds)| search::Candidate { epoch: Seconds(*seconds), ..candidate.inner })
        .collect();
    let [least, most] = EQUAL;
    let shortest = measured.iter().map(|candidate| candidate.epoch).min_by(|a, b| a.0.total_cmp(&b.0));
    shortest
        .and_then(|shortest| frugal(&measured, shortest * (1.0 + scatter.clamp(least, most))))
        .map(|chosen| chosen.batch)
        .ok_or_else(|| BadInput::new_err("there is nothing to choose from"))
}

fn limits(
    budget: u64,
    offload_rate: f64,
    prefetch_rate: f64,
    half_duplex: bool,
    seconds: f64,
    host: Option<u64>,
) -> PyResult<Limits> {
    let link = link_of(offload_rate, prefetch_rate, half_duplex);
    let seconds = Duration::try_from_secs_f64(seconds)
        .map_err(|error| BadInput::new_err(format!("the time limit: {error}")))?;
    Ok(Limits { budget: Bytes(budget), link, seconds, host: host.map(Bytes) })
}

/// Returns a plan, if one is found, starting from an earlier plan if given.
fn plan(
    py: Python<'_>,
    trace: &trace::Trace,
    limits: &Limits,
    from: Option<&Earlier>,
) -> PyResult<Option<Plan>> {
    let Limits { budget, link, seconds, host } = *limits;
    let deadline = Instant::now().checked_add(seconds);
    let (outcome, interrupted) = py.detach(|| plan_within(trace, budget, link, host, deadline, from));
    if let Some(interrupted) = interrupted {
        return Err(interrupted);
    }
    match outcome.map_err(|error| BadInput::new_err(error.to_string()))? {
        Outcome::Planned(plan) => Ok(Some(plan)),
        Outcome::Infeasible(_) => Ok(None),
    }
}

impl Batches {
    fn trace_at(&self, batch: u64) -> trace::Trace {
        let mut trace = self.low.clone();
        trace.batch = batch;
        trace.resident_bytes = self.bytes(self.low.resident_bytes, self.high.resident_bytes, batch);
        for (tensor, high) in trace.tensors.iter_mut().zip(&self.high.tensors) {
            tensor.bytes = self.bytes(tensor.bytes, high.bytes, batch);
        }
        for (op, high) in trace.ops.iter_mut().zip(&self.high.ops) {
            op.workspace_bytes = self.bytes(op.workspace_bytes, high.workspace_bytes, batch);
            let seconds = self.line(op.seconds.0, high.seconds.0, batch);
            // Noise may make the smaller batch slower; no op is faster at a larger batch.
            op.seconds = Seconds(match batch {
                _ if batch > self.high.batch => seconds.max(high.seconds.0),
                _ if batch < self.low.batch => seconds.clamp(op.seconds.0 / 100.0, op.seconds.0),
                _ => seconds,
            });
        }
        trace
    }

    /// Returns the value at a batch on the line through the values of both recordings.
    fn line(&self, low: f64, high: f64, batch: u64) -> f64 {
        let share = (batch as f64 - self.low.batch as f64) / (self.high.batch - self.low.batch) as f64;
        low + (high - low) * share
    }

    /// Returns the bytes of a storage, by the line through the requested bytes.
    fn bytes(&self, low: Bytes, high: Bytes, batch: u64) -> Bytes {
        let bytes = self.line(low.0 as f64, high.0 as f64, batch).round().max(0.0) as u64;
        Bytes(bytes.next_multiple_of(STORAGE_ALIGNMENT))
    }
}
