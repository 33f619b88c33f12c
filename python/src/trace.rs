//! A `trace/1` for Python: its memory figures, and the planner.
//!
//! If nothing fits a budget, the tuner's outcome becomes the Python exception [`NoPlan`], with the words and numbers of the
//! tuner's witness. Planning runs without the interpreter's lock and checks for Ctrl-C now and then.

use crate::errors::{BadInput, NoPlan};
use crate::schedule::Schedule;
use crate::signals::Signals;
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::{Bytes, BytesPerSecond, Document, OpId, Seconds, trace};
use plimsoll_tuner::{Earlier, Outcome, PlanRequest, Policy, Witness};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// One training iteration, op by op: a `trace/1`.
#[pyclass(frozen, module = "plimsoll")]
pub struct Trace {
    pub(crate) inner: trace::Trace,
}

#[pymethods]
impl Trace {
    /// Reads a trace from its JSON text.
    #[new]
    fn new(text: &str) -> PyResult<Trace> {
        let inner = trace::Trace::from_json(text)
            .map_err(|fault| BadInput::new_err(format!("the trace cannot be used: {fault}")))?;
        Ok(Trace { inner })
    }

    /// The trace as JSON text, which every verb of the command line takes.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// Writes the trace to a file.
    fn save(&self, path: std::path::PathBuf) -> PyResult<()> {
        Ok(std::fs::write(path, self.inner.to_json())?)
    }

    /// The same trace with different seconds, one for each op.
    fn with_seconds(&self, seconds: Vec<f64>) -> PyResult<Trace> {
        if seconds.len() != self.inner.ops.len() {
            let (given, ops) = (seconds.len(), self.inner.ops.len());
            return Err(BadInput::new_err(format!("{given} seconds cannot be those of {ops} ops")));
        }
        let mut inner = self.inner.clone();
        for (op, seconds) in inner.ops.iter_mut().zip(seconds) {
            op.seconds = Seconds(seconds);
        }
        Ok(Trace { inner })
    }

    /// The network's name.
    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    /// Samples in one iteration.
    #[getter]
    fn batch(&self) -> u64 {
        self.inner.batch
    }

    /// Bytes on the device during the whole iteration: parameters, gradients, optimizer state.
    #[getter]
    fn resident_bytes(&self) -> u64 {
        self.inner.resident_bytes.0
    }

    /// Bytes that the iteration takes with nothing swapped or recomputed.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.inner.memory().peak().map_or(0, |(_, bytes)| bytes.0)
    }

    /// Smallest feasible budget, in bytes.
    #[getter]
    fn floor_bytes(&self) -> u64 {
        self.inner.memory().floor().map_or(0, |(_, bytes)| bytes.0)
    }

    /// Layer of the op that determines the floor.
    #[getter]
    fn floor_layer(&self) -> &str {
        self.inner.memory().floor().map_or("", |(op, _)| self.layer(op))
    }

    /// By layer: most bytes that one of its ops touches, resident bytes included. The first entry determines the floor.
    fn floors(&self) -> Vec<(String, u64)> {
        let mut layers: Vec<(String, u64)> = Vec::new();
        for (op, touched) in self.inner.ops.iter().zip(&self.inner.memory().touched) {
            match layers.iter_mut().find(|(layer, _)| *layer == op.layer) {
                Some((_, most)) => *most = touched.0.max(*most),
                None => layers.push((op.layer.clone(), touched.0)),
            }
        }
        layers.sort_by_key(|(_, most)| std::cmp::Reverse(*most));
        layers
    }

    /// The op that determines the floor.
    #[getter]
    fn floor_op(&self) -> &str {
        self.inner.memory().floor().map_or("", |(op, _)| &self.inner.ops[op.index()].kind)
    }

    /// Bytes of each tensor.
    fn tensor_bytes(&self) -> Vec<u64> {
        self.inner.tensors.iter().map(|tensor| tensor.bytes.0).collect()
    }

    /// Sum of all ops' seconds.
    #[getter]
    fn compute_seconds(&self) -> f64 {
        self.inner.compute_seconds().0
    }

    /// Number of ops.
    fn __len__(&self) -> usize {
        self.inner.ops.len()
    }

    fn __repr__(&self) -> String {
        let trace::Trace { name, batch, ops, tensors, .. } = &self.inner;
        let (peak, floor) = (Bytes(self.peak_bytes()), Bytes(self.floor_bytes()));
        let (ops, tensors) = (ops.len(), tensors.len());
        format!("<Trace {name}, batch {batch}: {ops} ops, {tensors} tensors, peak {peak}, floor {floor}>")
    }

    /// Returns a schedule within `budget` bytes for a link of these rates (bytes per second), or raises `NoPlan`. `seconds`
    /// limits the search, which then returns its best plan so far; without it the same trace gives the same plan. Swapped
    /// tensors take at most `host` bytes of the host's memory; without it the host is unlimited.
    #[pyo3(signature = (budget, offload_rate, prefetch_rate, seconds=None, host=None, half_duplex=false))]
    #[allow(clippy::too_many_arguments)]
    fn plan(
        &self,
        py: Python<'_>,
        budget: u64,
        offload_rate: f64,
        prefetch_rate: f64,
        seconds: Option<f64>,
        host: Option<u64>,
        half_duplex: bool,
    ) -> PyResult<Schedule> {
        let link = link_of(offload_rate, prefetch_rate, half_duplex);
        let deadline = match seconds.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(limit)) => Instant::now().checked_add(limit),
            Some(Err(error)) => return Err(BadInput::new_err(format!("the time limit: {error}"))),
        };
        let (outcome, interrupted) =
            py.detach(|| plan_within(&self.inner, Bytes(budget), link, host.map(Bytes), deadline, None));
        if let Some(interrupted) = interrupted {
            return Err(interrupted);
        }
        match outcome.map_err(|error| BadInput::new_err(error.to_string()))? {
            Outcome::Planned(plan) => Schedule::new(&self.inner, plan),
            Outcome::Infeasible(witness) => {
                Err(self.no_plan(py, Bytes(budget), host.map(Bytes), &witness)?)
            }
        }
    }
}

/// Returns a link of these rates; with `half_duplex` only one direction copies at a time.
pub fn link_of(offload_rate: f64, prefetch_rate: f64, half_duplex: bool) -> Link {
    let duplex = if half_duplex { Duplex::Half } else { Duplex::Full };
    let prefetch_bytes_per_second = BytesPerSecond(prefetch_rate);
    Link { prefetch_bytes_per_second, duplex, ..Link::symmetric(BytesPerSecond(offload_rate)) }
}

/// Searches for a plan until the deadline or a Ctrl-C, whose exception is returned with the outcome.
pub fn plan_within(
    trace: &trace::Trace,
    budget: Bytes,
    link: Link,
    host: Option<Bytes>,
    deadline: Option<Instant>,
    from: Option<&Earlier>,
) -> (Result<Outcome, plimsoll_tuner::Error>, Option<PyErr>) {
    let signals = Signals::default();
    let expired = || signals.came() || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut request = PlanRequest { from, ..PlanRequest::new(budget, link, Policy::Plimsoll) };
    request.allow.host = host;
    request.limits.expired = Some(&expired);
    request.anytime = deadline.is_some();
    let outcome = plimsoll_tuner::plan(trace, &request);
    (outcome, signals.into_error())
}

impl Trace {
    fn layer(&self, op: OpId) -> &str {
        &self.inner.ops[op.index()].layer
    }

    /// Returns the exception that names the op, its layer, and the bytes that it needs.
    fn no_plan(
        &self,
        py: Python<'_>,
        budget: Bytes,
        host: Option<Bytes>,
        witness: &Witness,
    ) -> PyResult<PyErr> {
        let layer = self.layer(witness.op);
        let floor = Bytes(self.floor_bytes());
        let verb = if witness.why.is_proved() { "fits" } else { "was found within" };
        let place =
            if layer.is_empty() { "outside all modules, as the loss" } else { &format!("layer `{layer}`") };
        let name = &self.inner.name;
        let advice = if witness.why.is_of_host() { "the host budget" } else { "the budget above it" };
        let and_host = host.map_or_else(String::new, |host| format!(" and a host budget of {host}"));
        let message = format!(
            "no plan for {name} at batch {} {verb} a budget of {budget}{and_host}: {witness} ({place}); the floor is {floor}: \
             raise {advice}, or lower the batch",
            self.inner.batch
        );
        let error = NoPlan::new_err(message);
        let value = error.value(py);
        value.setattr("op", &witness.name)?;
        value.setattr("layer", layer)?;
        value.setattr("needs_bytes", witness.needs.0)?;
        value.setattr("short_by_bytes", witness.short_by.0)?;
        value.setattr("floor_bytes", floor.0)?;
        value.setattr("budget_bytes", budget.0)?;
        value.setattr("is_proved", witness.why.is_proved())?;
        Ok(error)
    }
}
