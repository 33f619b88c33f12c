//! The methods of a schedule for Python.

use super::{Facts, Schedule};
use crate::cuda::{CudaTransfers, PinnedSlab, SwapStreams};
use crate::errors::BadInput;
use crate::trace::Trace;
use crate::transfers::{Copy, Transfers};
use plimsoll_ir::schedule::{self, Command, Stream, moved, place_on_host};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::{Bytes, BytesPerSecond, Document, trace};
use plimsoll_runtime::cuda::swaps::{SwapCommand, SwapCopy};
use pyo3::prelude::*;

/// One run of an op.
#[pyclass(frozen, get_all, module = "plimsoll")]
pub struct Compute {
    /// Position of the op in the trace.
    op: u32,
    /// `true` if it is a recomputation.
    again: bool,
    /// Each tensor that it touches, with the pool offset of its first byte.
    places: Vec<(u32, u64)>,
    /// Pool offset of its workspace.
    workspace: Option<u64>,
    /// Offloads that must have ended before it starts.
    offloads: usize,
    /// Prefetches that must have ended before it starts.
    prefetches: usize,
}

#[pymethods]
impl Schedule {
    /// Reads a schedule from its JSON text, and proves it valid for the trace.
    #[staticmethod]
    fn from_json(text: &str, trace: &Trace) -> PyResult<Schedule> {
        let inner = schedule::Schedule::from_json(text)
            .map_err(|fault| BadInput::new_err(format!("the schedule cannot be used: {fault}")))?;
        Schedule::proved(&trace.inner, inner, None)
    }

    /// The schedule as JSON text, which every verb of the command line takes.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// Bytes of the single allocation that contains all tensors and workspaces.
    #[getter]
    fn pool_bytes(&self) -> u64 {
        self.inner.pool_bytes.0
    }

    /// Limit of resident bytes and pool together.
    #[getter]
    fn budget_bytes(&self) -> u64 {
        self.inner.budget_bytes.0
    }

    /// Bytes of the host's memory that swapped tensors take.
    #[getter]
    fn host_bytes(&self) -> u64 {
        self.inner.host_bytes(&self.trace).0
    }

    /// Bytes that go from device to host in one iteration.
    #[getter]
    fn offloaded_bytes(&self) -> u64 {
        self.moved_bytes(Stream::Offload)
    }

    /// Bytes that are prefetched from the host in one iteration.
    #[getter]
    fn prefetched_bytes(&self) -> u64 {
        self.moved_bytes(Stream::Prefetch)
    }

    /// Number of ops that run again.
    #[getter]
    fn recomputed_ops(&self) -> usize {
        self.inner.commands.iter().filter(|c| matches!(c, Command::Compute { again: true, .. })).count()
    }

    /// Bytes of the tensors that these ops write again.
    #[getter]
    fn recomputed_bytes(&self) -> u64 {
        let written = |command: &Command| match command {
            Command::Compute { op, again: true, .. } => {
                self.trace.written_bytes(&self.trace.ops[op.index()]).0
            }
            _ => 0,
        };
        self.inner.commands.iter().map(written).sum()
    }

    /// Predicted seconds of one iteration; `None` for a schedule that was read from text.
    #[getter]
    fn makespan_seconds(&self) -> Option<f64> {
        self.plan.as_ref().map(|plan| plan.makespan)
    }

    /// Lower bound of every schedule's seconds; `None` for a schedule that was read from text.
    #[getter]
    fn bound_seconds(&self) -> Option<f64> {
        self.plan.as_ref().map(|plan| plan.bound)
    }

    /// `optimal`, `feasible`, `out of time` or `unknown`; `None` for a schedule that was read from text.
    #[getter]
    fn status(&self) -> Option<&'static str> {
        self.plan.as_ref().map(|plan| plan.status)
    }

    /// The same schedule with measurements of its runs: seconds of ops, which `trace` has, and the bytes per second of its
    /// copies. The time of an iteration is predicted anew from these, and the bound becomes the time of running all ops once.
    fn timed(&self, trace: &Trace, offload_rate: f64, prefetch_rate: f64) -> PyResult<Schedule> {
        let mut inner = self.inner.clone();
        inner.link.offload_bytes_per_second = BytesPerSecond(offload_rate);
        inner.link.prefetch_bytes_per_second = BytesPerSecond(prefetch_rate);
        let makespan = simulate(&trace.inner, &inner).makespan().0;
        let status = self.plan.as_ref().map_or("unknown", |plan| plan.status);
        let facts = Facts { makespan, bound: trace.inner.compute_seconds().0, status };
        Schedule::proved(&trace.inner, inner, Some(facts))
    }

    /// Bytes per second of its copies out of the device, and of those back.
    #[getter]
    fn rates(&self) -> (f64, f64) {
        let link = &self.inner.link;
        (link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0)
    }

    /// Runs of ops, in their order.
    fn computes(&self) -> Vec<Compute> {
        let needs = self.needs();
        let compute = |(id, command): (plimsoll_ir::CommandId, &Command)| {
            let &Command::Compute { op, again, .. } = command else { return None };
            let places = self.places.tensors(id).iter().map(|(tensor, at)| (tensor.0, at.0)).collect();
            let workspace = self.places.workspace(id).map(|at| at.0);
            let [_, offloads, prefetches] = needs[id.index()];
            Some(Compute { op: op.0, again, places, workspace, offloads, prefetches })
        };
        self.inner.numbered_commands().filter_map(compute).collect()
    }

    /// Pool offset of each tensor that is on the device from the start.
    fn inputs(&self) -> Vec<(u32, u64)> {
        let lives = self.trace.lives();
        let first = |(id, life): (usize, &Option<trace::Life>)| {
            life.filter(|life| life.born.is_none())?;
            self.inner.buffers.iter().find_map(|buffer| match buffer.holds {
                schedule::Holds::Tensor { tensor, first_byte, .. }
                    if tensor.index() == id && buffer.opens.is_none() =>
                {
                    Some((tensor.0, buffer.offset.0 - first_byte.unwrap_or_default().0))
                }
                _ => None,
            })
        };
        lives.iter().enumerate().filter_map(first).collect()
    }

    /// Copies of one iteration, between a pool of `pool_bytes` at the address `pool` and `host_bytes` at the address `host`.
    /// Both must stay in place and allocated for as long as the transfers exist.
    fn transfers(&self, pool: usize, host: usize) -> Transfers {
        let computes = self.inner.commands.iter().filter(|c| c.stream() == Stream::Compute).count();
        Transfers::new(self.copies(pool, host), computes)
    }

    /// Copies of one iteration, between a pool of `pool_bytes` at the address `pool` on the device and `host_bytes` of
    /// page-locked memory, on the two swap streams. The pool must stay in place and allocated for as long as the transfers
    /// exist.
    fn cuda_transfers(&self, streams: &SwapStreams, pool: u64, host: &PinnedSlab) -> PyResult<CudaTransfers> {
        let slab = host.slab();
        let wanted = self.inner.host_bytes(&self.trace);
        if slab.bytes() < wanted {
            let there = slab.bytes();
            return Err(BadInput::new_err(format!(
                "the schedule swaps {wanted}, and {there} are page-locked"
            )));
        }
        let mut copies = self.copies(pool as usize, slab.address()).map(Vec::into_iter);
        let needs = self.needs();
        let command = |(id, command): (plimsoll_ir::CommandId, &Command)| {
            let stream = command.stream();
            let next = stream.index().checked_sub(1).and_then(|lane| copies[lane].next());
            let copy = next.map_or(SwapCopy::default(), |copy| {
                let (device, host) =
                    if stream == Stream::Offload { (copy.from, copy.to) } else { (copy.to, copy.from) };
                SwapCopy { device: device as u64, host, length: copy.length }
            });
            SwapCommand { stream, needs: needs[id.index()], copy }
        };
        let commands: Vec<SwapCommand> = self.inner.numbered_commands().map(command).collect();
        CudaTransfers::new(streams, slab, &commands)
    }

    fn __repr__(&self) -> String {
        let (pool, budget) = (self.inner.pool_bytes, self.inner.budget_bytes);
        let again = self.recomputed_ops();
        let out = Bytes(self.offloaded_bytes());
        format!("<Schedule: pool {pool}, budget {budget}, {again} ops recomputed, {out} swapped out>")
    }
}

impl Schedule {
    /// Returns the copies of the swap-out and of the swap-in stream, between a pool and a slab at these addresses.
    fn copies(&self, pool: usize, host: usize) -> [Vec<Copy>; 2] {
        let needs = self.needs();
        let mut copies = [Vec::new(), Vec::new()];
        let mut place = 0;
        let mut on_host = Vec::new();
        for span in self.inner.host_spans(&self.trace) {
            on_host.push(span.as_ref().map(|span| (place, span.start)));
            place += span.map_or(0, |span| place_on_host(span.end - span.start));
        }
        for (id, command) in self.inner.numbered_commands() {
            let Some((tensor, bytes)) = moved(&self.trace, command) else { continue };
            let (_, offset) = self.places.tensors(id)[0];
            let (slot, first) = on_host[tensor.index()].expect("what is transferred was offloaded");
            let device = pool + offset.0 as usize;
            let host = host + (slot + bytes.start - first) as usize;
            let (from, to) =
                if command.stream() == Stream::Offload { (device, host) } else { (host, device) };
            let length = (bytes.end - bytes.start) as usize;
            copies[command.stream().index() - 1].push(Copy { from, to, length, needs: needs[id.index()] });
        }
        copies
    }
}
