//! The three streams: a thread each, with a command queue that is allocated beforehand.
//!
//! An iteration's commands are gathered and handed to each thread at once: waking a thread for every single command would
//! cost more than most commands do.
//!
//! If a command fails (a kernel panics), the failure is kept as the iteration's, and everything after it is skipped except
//! the events, so that no stream waits for ever and `synchronise` always returns.

use super::CpuOptions;
use super::events::Events;
use super::kernels::{self, Threads};
use super::link::{self, Pace, Shared as SharedLink};
use super::memory::Memory;
use super::waited::{Waited, own_counter};
use crate::device::{EventId, Launch, Room, Transfer, in_range};
use crate::error::Error;
use plimsoll_ir::philox::philox4x32;
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Float, Seconds};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Task of a stream.
pub(super) enum Task {
    Compute(Arc<Launch>),
    Copy(Transfer),
    /// Write of host bytes to the allocation, within its bounds.
    Write(Bytes, Box<[u8]>),
    Record(EventId),
    Wait(EventId),
}

/// A stream's commands, and the state of its thread.
struct Queue {
    state: Mutex<QueueState>,
    work: Condvar,
    idle: Condvar,
}

struct QueueState {
    tasks: VecDeque<Task>,
    /// `true` while the thread waits for work; it has done all that it took.
    asleep: bool,
    closed: bool,
}

/// State that the three threads share.
struct Common {
    memory: Arc<Memory>,
    events: Events,
    queues: [Queue; 3],
    clock: Instant,
    /// Number of the running iteration, from 1.
    iteration: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    link: SharedLink,
    /// Waiting times of the compute threads, once they run.
    waited: OnceLock<Waited>,
}

/// The streams of a device; dropping them ends their threads once their queues are empty.
pub(super) struct Streams {
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    /// Tasks that were not handed over yet.
    gathered: [Vec<Task>; 3],
    begun: u64,
}

/// A mutex here guards plain values that are valid at every moment, so a panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn new(room: usize) -> Queue {
        let state = QueueState { tasks: VecDeque::with_capacity(room), asleep: false, closed: false };
        Queue { state: Mutex::new(state), work: Condvar::new(), idle: Condvar::new() }
    }

    fn hand_over(&self, tasks: &mut Vec<Task>) {
        if !tasks.is_empty() {
            lock(&self.state).tasks.extend(tasks.drain(..));
            self.work.notify_one();
        }
    }

    /// Next task, and `true` if the thread had to wait for it; `None` when the queue is closed.
    fn next(&self) -> Option<(Task, bool)> {
        let mut state = lock(&self.state);
        let mut waited = false;
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.asleep = false;
                return Some((task, waited));
            }
            if state.closed {
                return None;
            }
            waited = true;
            state.asleep = true;
            self.idle.notify_all();
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the queue is idle. The thread sets `asleep` only when it has done all that it took, so asleep and empty
    /// is idle.
    fn wait_until_idle(&self) {
        let mut state = lock(&self.state);
        while !(state.asleep && state.tasks.is_empty()) {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Streams {
    pub(super) fn start(options: &CpuOptions, memory: &Arc<Memory>, room: Room) -> Result<Streams, Error> {
        let common = Arc::new(Common {
            memory: Arc::clone(memory),
            events: Events::new(room.events),
            queues: Stream::ALL.map(|_| Queue::new(room.commands)),
            clock: Instant::now(),
            iteration: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            link: SharedLink::default(),
            waited: OnceLock::new(),
        });
        let gathered = Stream::ALL.map(|_| Vec::with_capacity(room.commands));
        let mut streams = Streams { common, threads: Vec::new(), gathered, begun: 0 };
        for stream in Stream::ALL {
            let worker = Worker::new(stream, options, Arc::clone(&streams.common))?;
            let builder = std::thread::Builder::new().name(format!("plimsoll-{stream:?}").to_lowercase());
            let failed = |error| Error::failed(stream, "starting its thread", error);
            let thread = builder.spawn(move || worker.work()).map_err(failed)?;
            streams.threads.push(thread);
        }
        Ok(streams)
    }

    pub(super) fn push(&mut self, stream: Stream, task: Task) {
        self.gathered[stream.index()].push(task);
    }

    pub(super) fn submit(&mut self) {
        for (queue, tasks) in self.common.queues.iter().zip(&mut self.gathered) {
            queue.hand_over(tasks);
        }
    }

    pub(super) fn begin(&mut self) {
        self.wait_until_idle();
        self.begun = self.now();
        self.common.failed.store(false, Ordering::Relaxed);
        *lock(&self.common.failure) = None;
        // The queues' mutexes carry this to the threads together with the tasks.
        self.common.iteration.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn synchronise(&mut self) -> Result<(), Error> {
        self.submit();
        self.wait_until_idle();
        lock(&self.common.failure).take().map_or(Ok(()), Err)
    }

    pub(super) fn wait_until_idle(&self) {
        self.common.queues.iter().for_each(Queue::wait_until_idle);
    }

    /// Returns `true` if an event was recorded in the running iteration.
    pub(super) fn has_happened(&self, event: EventId) -> bool {
        self.common.events.has_happened(event, self.common.iteration.load(Ordering::Relaxed))
    }

    pub(super) fn event_seconds(&self, event: EventId) -> Seconds {
        Seconds(self.common.events.nanos(event).saturating_sub(self.begun) as f64 * 1e-9)
    }

    /// Total time in which the compute threads were ready while others had the processors; `None` if the system does not
    /// count it.
    pub(super) fn waited(&self) -> Option<Seconds> {
        self.common.waited.get()?.so_far()
    }

    fn now(&self) -> u64 {
        self.common.clock.elapsed().as_nanos() as u64
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for queue in &self.common.queues {
            lock(&queue.state).closed = true;
            queue.work.notify_one();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its tasks, so it has none to pass on.
            let _ = thread.join();
        }
    }
}

/// Thread of a stream.
struct Worker {
    stream: Stream,
    common: Arc<Common>,
    threads: Threads,
    /// `None` for a link without pace, and for the compute stream.
    pace: Option<Pace>,
    delays: Option<u64>,
    feature_maps: Float,
    done: u64,
}

impl Worker {
    fn new(stream: Stream, options: &CpuOptions, common: Arc<Common>) -> Result<Worker, Error> {
        let count = if stream == Stream::Compute { options.threads.max(1) } else { 1 };
        let link = options.link.filter(|_| stream != Stream::Compute);
        let pace = link.map(|link| Pace::new(link, stream, options.hurry.clone()));
        let starting = format!("starting {count} compute threads");
        let threads = Threads::new(count).map_err(|error| Error::failed(stream, &starting, error))?;
        let &CpuOptions { delays, feature_maps, .. } = options;
        Ok(Worker { stream, common, threads, pace, delays, feature_maps, done: 0 })
    }

    fn work(mut self) {
        if self.pace.is_some() {
            link::wake_in_time();
        }
        if self.stream == Stream::Compute {
            let counters = self.threads.on_each(own_counter).into_iter().flatten().collect();
            self.common.waited.get_or_init(|| Waited::of(counters));
        }
        // Reused by every launch, so that none allocates.
        let mut operands = Vec::with_capacity(16);
        let common = Arc::clone(&self.common);
        while let Some((task, waited)) = common.queues[self.stream.index()].next() {
            if let (Some(pace), true) = (&mut self.pace, waited) {
                pace.not_before(common.clock.elapsed().as_nanos() as u64);
            }
            self.delay();
            self.run(&task, &mut operands);
        }
    }

    /// For tests: delays up to 100 us, drawn from the seed, the stream and the number of the task.
    fn delay(&mut self) {
        let Some(seed) = self.delays else { return };
        let [micros, ..] = philox4x32(seed, [self.done as u32, self.stream as u32, 0, 0]);
        self.done += 1;
        if micros % 4 == 0 {
            std::thread::sleep(Duration::from_micros(u64::from(micros / 4 % 100)));
        }
    }

    fn run(&mut self, task: &Task, operands: &mut Vec<*mut u8>) {
        let iteration = self.common.iteration.load(Ordering::Relaxed);
        match task {
            Task::Record(event) => {
                let now = self.common.clock.elapsed().as_nanos() as u64;
                let due = self.pace.as_ref().map_or(now, |pace| pace.due(now));
                self.common.events.record(*event, iteration, now, due);
            }
            Task::Wait(event) => {
                let then = self.common.events.wait(*event, iteration);
                if let Some(pace) = &mut self.pace {
                    pace.not_before(then);
                }
            }
            Task::Compute(_) | Task::Copy(_) | Task::Write(..)
                if self.common.failed.load(Ordering::Relaxed) => {}
            Task::Compute(launch) => self.compute(launch, operands),
            Task::Copy(transfer) => self.copy(*transfer),
            Task::Write(offset, data) => {
                let to = self.common.memory.device(*offset);
                // SAFETY: the range was checked when it was enqueued, and the stream's order keeps others from it.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
            }
        }
    }

    fn compute(&self, launch: &Launch, operands: &mut Vec<*mut u8>) {
        let memory = &self.common.memory;
        operands.clear();
        operands.extend(launch.offsets.iter().map(|o| memory.device(*o)));
        let (workspace, threads) = (memory.device(launch.workspace), &self.threads);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: only the executor makes launches: each operand's bytes were found in the allocation,
            // 256-aligned, and the checked schedule orders every other command that touches them; the workspace is
            // the command's own buffer.
            unsafe {
                match self.feature_maps {
                    Float::F32 => kernels::run(&launch.call, operands, workspace, threads),
                    Float::Bf16 => kernels::bf16::run(&launch.call, operands, workspace, threads),
                }
            }
        }));
        if let Err(panic) = outcome {
            self.fail(Error::failed(self.stream, launch.call.name(), message_of(&*panic)));
        }
    }

    fn copy(&mut self, transfer: Transfer) {
        let Common { memory, clock, link, .. } = &*self.common;
        let Transfer { stream, device, host, bytes } = transfer;
        let layout = memory.layout();
        let inside =
            in_range(device, bytes, layout.device()).and_then(|()| in_range(host, bytes, layout.on_host()));
        if let Err(error) = inside {
            return self.fail(error);
        }
        let (device, host) = (memory.device(device), memory.host(host));
        let (from, to) = if stream == Stream::Offload { (device, host) } else { (host, device) };
        let copy = |first: usize, end: usize| {
            if first < end {
                // SAFETY: the ranges were checked above, device memory and host slab are different mappings, and
                // the checked schedule orders every other command that touches these bytes.
                unsafe { copy_past_caches(from.add(first), to.add(first), end - first) };
            }
        };
        match &mut self.pace {
            Some(pace) => pace.transfer(bytes, *clock, link, copy),
            None => copy(0, bytes.0 as usize),
        }
    }

    fn fail(&self, error: Error) {
        lock(&self.common.failure).get_or_insert(error);
        self.common.failed.store(true, Ordering::Relaxed);
    }
}

/// Copies without leaving the written bytes in the caches, which belong to the computing thread.
///
/// # Safety
///
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LANE: usize = size_of::<__m128i>();
    const LINE: usize = 4 * LANE;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail are parts of the range that the caller vouches for; the lines of `to` start at multiples
    // of 64 bytes, as streaming stores require; SSE2 is part of the architecture.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let source: *const __m128i = from.add(at).cast();
            let target: *mut __m128i = to.add(at).cast();
            let lanes = [0, 1, 2, 3].map(|i| _mm_loadu_si128(source.add(i)));
            for (i, lane) in lanes.into_iter().enumerate() {
                _mm_stream_si128(target.add(i), lane);
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
use std::ptr::copy_nonoverlapping as copy_past_caches;

/// Message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_the_caches_is_a_copy_at_any_length_and_place() {
        let from: Vec<u8> = (0..4096u32).map(|i| (i * 31 % 251) as u8).collect();
        for (start, bytes) in
            [(0, 0), (0, 1), (3, 63), (1, 64), (7, 65), (64, 128), (5, 1000), (0, 4096), (33, 4000)]
        {
            let mut to = vec![0xaa; 4096 + 64];
            // SAFETY: both ranges lie in their own vectors.
            unsafe { copy_past_caches(from.as_ptr().add(start), to.as_mut_ptr().add(start + 1), bytes) };
            assert_eq!(&to[start + 1..start + 1 + bytes], &from[start..start + bytes]);
            assert!(
                to[..start + 1].iter().chain(&to[start + 1 + bytes..]).all(|b| *b == 0xaa),
                "nothing else is written"
            );
        }
    }
    use crate::device::MemoryLayout;

    /// Only a mistake in this crate can make a task leave its memory; it surfaces, and nothing hangs.
    #[test]
    fn a_failure_surfaces_at_synchronise_and_the_streams_go_on() {
        let layout = MemoryLayout {
            resident: Bytes(4096),
            pool: Bytes(4096),
            host: Bytes(4096),
            ..MemoryLayout::default()
        };
        let memory =
            Arc::new(Memory::new(layout, &super::super::HostMemory::Anonymous).expect("it is small"));
        let room = Room { events: 2, commands: 8 };
        let mut streams =
            Streams::start(&CpuOptions::default(), &memory, room).expect("threads can be started");
        for (bytes, fails) in [(8192, true), (4096, false), (8193, true)] {
            let transfer =
                Transfer { stream: Stream::Offload, device: Bytes(0), host: Bytes(0), bytes: Bytes(bytes) };
            streams.begin();
            streams.push(Stream::Offload, Task::Copy(transfer));
            streams.push(Stream::Offload, Task::Record(EventId(0)));
            streams.push(Stream::Compute, Task::Wait(EventId(0)));
            streams.push(Stream::Compute, Task::Record(EventId(1)));
            assert_eq!(streams.synchronise().is_err(), fails, "{bytes} bytes");
        }
    }
}
