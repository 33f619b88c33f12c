//! The exchange of gradients between the ranks of a distributed training step: an `exchange/1` for a schedule, and the time
//! that it adds.
//!
//! A piece is a gradient bucket, complete after an op of the step; the first op of the next step waits for all buckets, as a
//! step that PyTorch runs has no updates.
//!
//! This file deliberately does not assign gradients to buckets; PyTorch does.

use crate::errors::BadInput;
use crate::schedule::Schedule;
use plimsoll_ir::exchange::update::simulate_update;
use plimsoll_ir::exchange::{self, ExchangeKind, Form, Interconnect, Piece};
use plimsoll_ir::schedule::Command;
use plimsoll_ir::{Bytes, BytesPerSecond, Document, OpId, Seconds};
use pyo3::prelude::*;

/// The exchange of a step, and the step's duration with it.
#[pyclass(frozen, module = "plimsoll")]
pub struct Exchange {
    inner: exchange::Exchange,
    seconds: Seconds,
    exposed: Seconds,
}

#[pymethods]
impl Exchange {
    /// Takes the buckets of a schedule's step: the bytes of each, and the op after which it is complete. `staged` is true if
    /// gradients go over the device's link to the host and back.
    #[new]
    fn new(
        schedule: &Schedule,
        buckets: Vec<(u64, u32)>,
        workers: u64,
        bytes_per_second: f64,
        latency_seconds: f64,
        staged: bool,
    ) -> PyResult<Exchange> {
        let trace = schedule.trace();
        let again = |op: OpId| {
            let runs_again =
                |c: &Command| matches!(*c, Command::Compute { op: o, again: true, .. } if o == op);
            schedule.inner().commands.iter().any(runs_again)
        };
        let mut bytes = Bytes::ZERO;
        let mut pieces = Vec::new();
        for (size, op) in buckets {
            // The output of a recomputed op was sent when it first ran. The format has no such piece: it counts as complete
            // after the next op that runs once.
            let ready = (op..trace.ops.len() as u32).map(OpId).find(|op| !again(*op)).unwrap_or(OpId(op));
            pieces.push(Piece {
                first_byte: bytes,
                bytes: Bytes(size),
                ready,
                needed: OpId(0),
                kept: Bytes::ZERO,
            });
            bytes += Bytes(size);
        }
        let inner = exchange::Exchange {
            kind: ExchangeKind,
            trace: trace.name.clone(),
            batch: trace.batch,
            workers,
            form: Form::Sharded,
            interconnect: Interconnect {
                bytes_per_second: BytesPerSecond(bytes_per_second),
                latency_seconds: Seconds(latency_seconds),
            },
            staged,
            passes: 1,
            nodes: 1,
            bytes,
            pieces,
        };
        inner.check(trace, schedule.inner()).map_err(|unfit| BadInput::new_err(unfit.to_string()))?;
        let update = simulate_update(trace, schedule.inner(), &inner);
        Ok(Exchange { inner, seconds: update.seconds, exposed: update.exposed })
    }

    /// The `exchange/1` as JSON text.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// Predicted seconds from one step to the next.
    #[getter]
    fn seconds(&self) -> f64 {
        self.seconds.0
    }

    /// Seconds of these that the exchange adds to the step.
    #[getter]
    fn exposed_seconds(&self) -> f64 {
        self.exposed.0
    }

    /// Bytes of all buckets.
    #[getter]
    fn bytes(&self) -> u64 {
        self.inner.bytes.0
    }

    /// Number of buckets.
    fn __len__(&self) -> usize {
        self.inner.pieces.len()
    }

    fn __repr__(&self) -> String {
        let exchange::Exchange { workers, bytes, interconnect, .. } = &self.inner;
        format!(
            "<Exchange: {workers} ranks, {bytes} in {} buckets over {interconnect}>",
            self.inner.pieces.len()
        )
    }
}

/// Bytes per second, and seconds of a message, of an interconnect such as `10Gbit/s,30us`.
#[pyfunction]
pub fn parse_interconnect(text: &str) -> PyResult<(f64, f64)> {
    let Interconnect { bytes_per_second, latency_seconds } =
        text.parse().map_err(|error| BadInput::new_err(format!("the interconnect: {error}")))?;
    Ok((bytes_per_second.0, latency_seconds.0))
}

/// Formats an interconnect in the same form.
#[pyfunction]
pub fn show_interconnect(bytes_per_second: f64, latency_seconds: f64) -> String {
    let bytes_per_second = BytesPerSecond(bytes_per_second);
    Interconnect { bytes_per_second, latency_seconds: Seconds(latency_seconds) }.to_string()
}
