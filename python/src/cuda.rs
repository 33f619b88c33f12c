//! Swapping on a GPU, for Python: two swap streams on the context that PyTorch has there ([`plimsoll_runtime::cuda::swaps`]),
//! and page-locked memory.
//!
//! The methods are those of [`Transfers`](crate::transfers::Transfers), so that the loop over calls is the same. The host waits
//! for nothing, except when times are requested and when an iteration ends early.

use crate::errors::{DeviceError, HostMemoryError};
use crate::transfers::Spans;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Duplex;
use plimsoll_runtime::cuda::swaps::{self, SwapCommand, Swaps};
use plimsoll_runtime::{Error as Refused, Kind, MemoryKind};
use plimsoll_tuner::model::planned_link;
use pyo3::prelude::*;
use std::sync::Arc;

/// Available host memory, if the system reports it.
#[pyfunction]
pub fn available_host_bytes() -> Option<u64> {
    plimsoll_runtime::cpu::available_bytes().map(|bytes| bytes.0)
}

/// The two streams of a GPU that copy.
#[pyclass(frozen, module = "plimsoll")]
pub struct SwapStreams {
    inner: Arc<swaps::SwapStreams>,
}

/// Page-locked memory of the host.
#[pyclass(frozen, module = "plimsoll")]
pub struct PinnedSlab {
    inner: Arc<swaps::PinnedSlab>,
}

/// The copies of one schedule on a GPU.
#[pyclass(module = "plimsoll")]
pub struct CudaTransfers {
    swaps: Swaps,
    spans: [Spans; 3],
    /// Freed after the copies.
    _slab: Arc<swaps::PinnedSlab>,
}

#[pymethods]
impl SwapStreams {
    /// Opens the streams of GPU `ordinal` among those that PyTorch sees.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<SwapStreams> {
        let opened = py.detach(|| swaps::SwapStreams::open(ordinal, &[]));
        opened.map(|inner| SwapStreams { inner }).map_err(|error| unusable(&error))
    }

    /// Page-locks this much host memory, which takes a second for some gigabytes.
    fn pinned(&self, py: Python<'_>, bytes: u64) -> PyResult<PinnedSlab> {
        let slab = py.detach(|| self.inner.pinned(Bytes(bytes))).map_err(refused)?;
        Ok(PinnedSlab { inner: Arc::new(slab) })
    }

    /// Part of this many bytes of host memory that can be page-locked, found by trying; releases it.
    fn pinnable(&self, py: Python<'_>, bytes: u64) -> PyResult<u64> {
        py.detach(|| self.inner.pinnable(Bytes(bytes))).map(|bytes| bytes.0).map_err(refused)
    }

    /// Link to plan with, measured by copies of this many bytes to the host and back, alone and both ways at once: bytes per
    /// second of each way, and true if both share the link, so that one copies at a time.
    fn link(&self, py: Python<'_>, bytes: u64) -> PyResult<(f64, f64, bool)> {
        let rates = py.detach(|| self.inner.rates(Bytes(bytes))).map_err(refused)?;
        let link = planned_link(rates.alone, rates.together);
        let is_half = link.duplex == Duplex::Half;
        Ok((link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0, is_half))
    }
}

#[pymethods]
impl PinnedSlab {
    /// Address of its first byte; 0 if it is empty.
    #[getter]
    fn address(&self) -> usize {
        self.inner.address()
    }

    /// Size in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.inner.bytes().0
    }
}

impl PinnedSlab {
    /// Returns the slab as the Rust type.
    pub fn slab(&self) -> Arc<swaps::PinnedSlab> {
        Arc::clone(&self.inner)
    }
}

impl CudaTransfers {
    /// Takes the copies of a schedule, whose commands are given in its order; copies to the host and back use the slab.
    pub fn new(
        streams: &SwapStreams,
        slab: Arc<swaps::PinnedSlab>,
        commands: &[SwapCommand],
    ) -> PyResult<CudaTransfers> {
        let swaps = Swaps::new(&streams.inner, commands).map_err(refused)?;
        Ok(CudaTransfers { swaps, spans: Default::default(), _slab: slab })
    }
}

#[pymethods]
impl CudaTransfers {
    /// Begins an iteration on the stream with this handle, which must live until it has been finished or aborted.
    fn start(&mut self, is_timed: bool, stream: usize) -> PyResult<()> {
        // SAFETY: the handle is PyTorch's current stream, which PyTorch never destroys. The maker of the transfers keeps the
        // pool allocated (`Schedule::cuda_transfers`), and the slab is held; `check` proved that no other command touches the
        // bytes.
        unsafe { self.swaps.start(stream, is_timed) }.map_err(refused)
    }

    /// Begins an iteration within a capture of that stream, which the caller ends after `finish` or `abort`.
    fn start_captured(&mut self, stream: usize) -> PyResult<()> {
        // SAFETY: as in `start`; and the launcher of the graph keeps pool and slab until it has ended (`devices/graphs.py`).
        unsafe { self.swaps.start_captured(stream) }.map_err(refused)
    }

    /// Makes the next compute command wait until this many offloads and prefetches have ended.
    fn wait(&mut self, offloads: usize, prefetches: usize) -> PyResult<()> {
        self.swaps.wait(offloads, prefetches).map_err(refused)
    }

    /// Reports the start of a timed compute command.
    fn began(&mut self) -> PyResult<()> {
        self.swaps.began().map_err(refused)
    }

    /// Reports that the next compute command was enqueued.
    fn computed(&mut self) -> PyResult<()> {
        self.swaps.computed().map_err(refused)
    }

    /// Ends the enqueueing, without a wait.
    fn finish(&mut self) -> PyResult<()> {
        self.swaps.finish().map_err(refused)
    }

    /// Ends the iteration early: copies that were not enqueued never are.
    fn abort(&mut self, py: Python<'_>) {
        py.detach(|| self.swaps.abort());
    }

    /// Number of copies.
    fn __len__(&self) -> usize {
        self.swaps.count()
    }

    /// Start and end of each command of the last timed iteration, in seconds from its start, by stream. Waits until all have
    /// ended.
    fn spans(&mut self, py: Python<'_>) -> PyResult<(Spans, Spans, Spans)> {
        if let Some(spans) = py.detach(|| self.swaps.spans()).map_err(refused)? {
            self.spans = spans;
        }
        let [compute, out, back] = self.spans.clone();
        Ok((compute, out, back))
    }

    /// Seconds that both streams spent copying in the last timed iteration.
    #[getter]
    fn copying_seconds(&self) -> f64 {
        self.spans[1..].iter().flatten().map(|(start, end)| end - start).sum()
    }

    /// Seconds between the compute commands of the last timed iteration: waits for copies, and for the host.
    #[getter]
    fn stalled_seconds(&self) -> f64 {
        self.spans[0].windows(2).map(|pair| (pair[1].0 - pair[0].1).max(0.0)).sum()
    }
}

fn unusable(error: &Refused) -> PyErr {
    DeviceError::new_err(format!("Plimsoll cannot use the GPU beside PyTorch: {error}"))
}

#[allow(clippy::needless_pass_by_value, reason = "as an argument of `map_err`")]
fn refused(error: Refused) -> PyErr {
    match error.kind {
        Kind::OutOfMemory { what: MemoryKind::PinnedHost, .. } | Kind::NotPinned => {
            HostMemoryError::new_err(error.message)
        }
        _ => DeviceError::new_err(error.message),
    }
}
