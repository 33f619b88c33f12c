//! The swap-out and the swap-in stream: two threads that copy between pool and host while PyTorch computes.
//!
//! The compute stream is the caller. Each stream runs its copies in order, so that all waits are for three counts: how many
//! commands of each stream have ended. The threads live for one iteration: nothing is left behind by a fork, an exception or
//! the interpreter's end. The interpreter's lock is released wherever the caller waits.
//!
//! This file does not know the meaning of the bytes. `check` proves that they may be copied at these times.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Commands of each stream that must have ended, by [`Stream::index`](plimsoll_ir::schedule::Stream::index).
pub type Progress = [usize; 3];

/// Start and end of each command of a stream, in seconds from the start of the iteration.
pub type Spans = Vec<(f64, f64)>;

/// One copy.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Address of its source.
    pub from: usize,
    /// Address of its destination.
    pub to: usize,
    /// Number of bytes.
    pub length: usize,
    /// Commands that must have ended before it starts.
    pub needs: Progress,
}

/// Progress of this iteration.
#[derive(Default)]
struct TransferState {
    ended: Progress,
    aborted: bool,
    /// By stream: start and end of each command, in seconds from the start of the iteration. Compute commands are included only
    /// if their start was reported.
    spans: [Spans; 3],
}

#[derive(Default)]
struct Shared {
    state: Mutex<TransferState>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, TransferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until these commands have ended; returns `false` if the iteration was aborted.
    fn reach(&self, needs: &Progress) -> bool {
        let short = |state: &mut TransferState| {
            !state.aborted && state.ended.iter().zip(needs).any(|(ended, need)| ended < need)
        };
        let state = self.changed.wait_while(self.lock(), short).unwrap_or_else(PoisonError::into_inner);
        !state.aborted
    }

    /// Records the end of a stream's next command, with its times if known.
    fn end(&self, stream: usize, span: Option<(f64, f64)>) {
        let mut state = self.lock();
        state.ended[stream] += 1;
        state.spans[stream].extend(span);
        self.changed.notify_all();
    }
}

/// The copies of one schedule.
#[pyclass(module = "plimsoll")]
pub struct Transfers {
    copies: [Arc<Vec<Copy>>; 2],
    computes: usize,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    stalled: Duration,
    begun: Instant,
    /// Start of the running compute command, in seconds from the start of the iteration, if reported.
    began: Option<f64>,
}

impl Transfers {
    /// Takes the copies of the swap-out and the swap-in stream, and the number of compute commands.
    pub fn new(copies: [Vec<Copy>; 2], computes: usize) -> Transfers {
        let copies = copies.map(Arc::new);
        let shared = Arc::default();
        let (threads, stalled, begun) = (Vec::new(), Duration::ZERO, Instant::now());
        Transfers { copies, computes, shared, threads, stalled, begun, began: None }
    }

    /// Waits for the threads to end.
    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread that panicked has already reported it; its copies are then missing from the count.
            let _ = thread.join();
        }
    }
}

#[pymethods]
impl Transfers {
    /// Begins an iteration. The copies are always timed, and there is only one stream of calls.
    fn start(&mut self, py: Python<'_>, is_timed: bool, stream: usize) {
        let _ = (is_timed, stream);
        self.abort(py);
        let begun = Instant::now();
        (self.begun, self.began) = (begun, None);
        self.shared = Arc::default();
        self.stalled = Duration::ZERO;
        for (stream, copies) in (1..).zip(&self.copies) {
            if !copies.is_empty() {
                let (copies, shared) = (copies.clone(), self.shared.clone());
                self.threads.push(std::thread::spawn(move || run(stream, &copies, &shared, begun)));
            }
        }
    }

    /// Makes the compute stream wait until this many offloads and prefetches have ended.
    fn wait(&mut self, py: Python<'_>, offloads: usize, prefetches: usize) {
        let shared = self.shared.clone();
        let start = Instant::now();
        py.detach(|| shared.reach(&[0, offloads, prefetches]));
        self.stalled += start.elapsed();
    }

    /// Reports the start of a timed compute command.
    fn began(&mut self) {
        self.began = Some(self.begun.elapsed().as_secs_f64());
    }

    /// Reports the end of the next compute command.
    fn computed(&mut self) {
        let span = self.began.take().map(|began| (began, self.begun.elapsed().as_secs_f64()));
        self.shared.end(0, span);
    }

    /// Waits for the rest of the copies.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.clone();
        py.detach(|| self.join());
        let all = [self.computes, self.copies[0].len(), self.copies[1].len()];
        let ended = shared.lock().ended;
        if ended[1..] != all[1..] {
            let words = format!("internal error: of {all:?} commands {ended:?} ended");
            return Err(PyRuntimeError::new_err(words));
        }
        Ok(())
    }

    /// Ends the iteration early: copies that have not begun never begin.
    fn abort(&mut self, py: Python<'_>) {
        self.shared.lock().aborted = true;
        self.shared.changed.notify_all();
        py.detach(|| self.join());
    }

    /// Number of copies.
    fn __len__(&self) -> usize {
        self.copies.iter().map(|copies| copies.len()).sum()
    }

    /// Seconds that the two threads spent copying in the last iteration.
    #[getter]
    fn copying_seconds(&self) -> f64 {
        self.shared.lock().spans[1..].iter().flatten().map(|(start, end)| end - start).sum()
    }

    /// Start and end of each command of the last iteration, in seconds from its start, by stream: compute commands if they were
    /// timed, and all copies out and in.
    fn spans(&self) -> (Spans, Spans, Spans) {
        let [compute, out, back] = self.shared.lock().spans.clone();
        (compute, out, back)
    }

    /// Seconds that the compute stream waited for copies in the last iteration.
    #[getter]
    fn stalled_seconds(&self) -> f64 {
        self.stalled.as_secs_f64()
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        self.shared.lock().aborted = true;
        self.shared.changed.notify_all();
        self.join();
    }
}

/// One stream of copies.
fn run(stream: usize, copies: &[Copy], shared: &Shared, begun: Instant) {
    for copy in copies {
        if !shared.reach(&copy.needs) {
            return;
        }
        let start = begun.elapsed().as_secs_f64();
        // SAFETY: the maker of the transfers keeps pool and host slab allocated (`Schedule::transfers`); `check` proved that
        // the bytes lie inside of them and that no other command touches them meanwhile; pool and host never overlap.
        unsafe { std::ptr::copy_nonoverlapping(copy.from as *const u8, copy.to as *mut u8, copy.length) };
        shared.end(stream, Some((start, begun.elapsed().as_secs_f64())));
    }
}
