//! Objects behind handles, and the rules of streams, events and captures.
//!
//! A handle is a number that is never reused, so a dead one is refused. Calls that wait release the state first: streams
//! continue, and other threads may call.

use crate::graph::{Capture, Graph, Mode};
use crate::kernels::Function;
use crate::status::{self, Outcome, Status};
use crate::stream::{Moment, Stream, Work};
use crate::{lock, memory, turns};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// All objects with handles, and the captures in progress.
#[derive(Default)]
pub struct DriverState {
    last_handle: usize,
    started: u32,
    pub streams: BTreeMap<usize, Arc<Stream>>,
    pub events: BTreeMap<usize, Event>,
    /// Kernels of each module, by name.
    pub modules: BTreeMap<usize, BTreeMap<String, Arc<Function>>>,
    pub functions: BTreeMap<usize, Arc<Function>>,
    captures: Vec<(usize, Capture)>,
    pub graphs: BTreeMap<usize, Arc<Graph>>,
    /// Graphs that can be launched.
    pub executables: BTreeMap<usize, Arc<Graph>>,
}

/// An event, and its last recording.
pub struct Event {
    /// `true` if it can tell times.
    pub timed: bool,
    pub last: Recorded,
}

/// Recorded point of an event.
#[derive(Clone)]
pub enum Recorded {
    /// Nothing yet.
    Never,
    /// A point in a stream.
    Moment(Arc<Moment>),
    /// Nodes of a capture.
    Captured {
        /// Handle of the capture.
        capture: usize,
        /// Numbers of the nodes.
        after: BTreeSet<usize>,
    },
}

/// Handle of the default stream, and the one by which it can be named explicitly.
const DEFAULT: [usize; 2] = [0, 1];

static STATE: LazyLock<Mutex<DriverState>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Treatment of this thread's own calls during captures.
    static INTERACTION: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets the treatment of this thread's calls during captures; returns the previous one.
pub fn exchange_interaction(mode: Mode) -> Mode {
    INTERACTION.replace(mode)
}

/// State of this process.
pub fn state() -> MutexGuard<'static, DriverState> {
    lock(&STATE)
}

impl DriverState {
    /// Returns a new handle; small numbers have a meaning for the driver.
    pub fn handle(&mut self) -> usize {
        self.last_handle = self.last_handle.max(0xff) + 1;
        self.last_handle
    }

    /// Makes a stream.
    pub fn start_stream(&mut self) -> usize {
        let (handle, number) = (self.handle(), self.started);
        self.started += 1;
        self.streams.insert(handle, Stream::start(number));
        handle
    }

    /// A stream by its handle.
    pub fn stream(&mut self, handle: usize) -> Outcome<Arc<Stream>> {
        if DEFAULT.contains(&handle) {
            let made = self.streams.entry(DEFAULT[0]).or_insert_with(|| Stream::start(u32::MAX));
            return Ok(Arc::clone(made));
        }
        self.streams.get(&handle).cloned().ok_or(status::INVALID_HANDLE)
    }

    /// Returns `true` if a handle names the default stream.
    pub fn is_default(handle: usize) -> bool {
        DEFAULT.contains(&handle)
    }

    /// Capture in which a stream takes part.
    pub fn capture_of(&mut self, stream: usize) -> Option<(usize, &mut Capture)> {
        let found = self.captures.iter_mut().find(|(_, capture)| capture.holds(stream));
        found.map(|(handle, capture)| (*handle, capture))
    }

    /// Refuses a call that captures cannot hold: it breaks those that forbid it, unless the thread's mode is relaxed.
    pub fn refuse_in_captures(&mut self) -> Outcome {
        if INTERACTION.get() == Mode::Relaxed {
            return Ok(());
        }
        let here = std::thread::current().id();
        let forbids = |capture: &Capture| match capture.mode {
            Mode::Global => true,
            Mode::ThreadLocal => capture.thread == here,
            Mode::Relaxed => false,
        };
        self.break_captures(forbids, status::CAPTURE_UNSUPPORTED)
    }

    fn break_captures(&mut self, which: impl Fn(&Capture) -> bool, status: Status) -> Outcome {
        let mut outcome = Ok(());
        for (_, capture) in self.captures.iter_mut().filter(|(_, capture)| which(capture)) {
            capture.broken = true;
            outcome = Err(status);
        }
        outcome
    }

    /// Refuses to query the progress of a stream that captures.
    pub fn refuse_capturing(&mut self, stream: usize) -> Outcome {
        match self.capture_of(stream) {
            Some((_, capture)) => {
                capture.broken = true;
                Err(status::CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Gives work to a stream, or to the capture that it takes part in.
    pub fn enqueue(&mut self, handle: usize, work: Work) -> Outcome {
        let stream = self.stream(handle)?;
        if let Some((_, capture)) = self.capture_of(handle) {
            if capture.broken {
                return Err(status::CAPTURE_INVALIDATED);
            }
            capture.push(handle, stream.number, work);
            return Ok(());
        }
        stream.push(work);
        Ok(())
    }

    /// Records an event.
    pub fn record(&mut self, event: usize, stream: usize) -> Outcome {
        if !self.events.contains_key(&event) {
            return Err(status::INVALID_HANDLE);
        }
        let last = if let Some((capture, held)) = self.capture_of(stream) {
            if held.broken {
                return Err(status::CAPTURE_INVALIDATED);
            }
            Recorded::Captured { capture, after: held.tail(stream) }
        } else {
            let moment = Arc::new(Moment::default());
            self.enqueue(stream, Work::Record(Arc::clone(&moment)))?;
            Recorded::Moment(moment)
        };
        self.events.get_mut(&event).expect("it was looked up").last = last;
        Ok(())
    }

    /// Records an event each time that the graph captured by the stream runs (`cudaEventRecordExternal`).
    pub fn record_external(&mut self, event: usize, stream: usize) -> Outcome {
        if !self.events.contains_key(&event) {
            return Err(status::INVALID_HANDLE);
        }
        if self.capture_of(stream).is_none() {
            return Err(status::INVALID_VALUE);
        }
        let moment = Arc::new(Moment::default());
        self.enqueue(stream, Work::Record(Arc::clone(&moment)))?;
        self.events.get_mut(&event).expect("it was looked up").last = Recorded::Moment(moment);
        Ok(())
    }

    /// Makes a stream wait for the last recording of an event. Waiting for an event of a capture makes the stream join it.
    pub fn wait(&mut self, stream: usize, event: usize) -> Outcome {
        let number = self.stream(stream)?.number;
        let last = self.events.get(&event).ok_or(status::INVALID_HANDLE)?.last.clone();
        let own = self.capture_of(stream).map(|(capture, held)| (capture, held.broken));
        if own.is_some_and(|(_, broken)| broken) {
            return Err(status::CAPTURE_INVALIDATED);
        }
        match last {
            Recorded::Never => Ok(()),
            Recorded::Moment(_) if own.is_some() => {
                self.break_captures(|held| held.holds(stream), status::CAPTURE_ISOLATION)
            }
            Recorded::Moment(moment) => self.enqueue(stream, Work::Wait(moment)),
            Recorded::Captured { capture, after } => {
                let Some(at) = self.captures.iter().position(|(handle, _)| *handle == capture) else {
                    return Err(status::CAPTURED_EVENT);
                };
                if own.is_some_and(|(own, _)| own != capture) {
                    self.captures[at].1.broken = true;
                    return self.break_captures(|held| held.holds(stream), status::CAPTURE_MERGE);
                }
                if Self::is_default(stream) {
                    self.captures[at].1.broken = true;
                    return Err(status::CAPTURE_IMPLICIT);
                }
                self.captures[at].1.join(stream, number, &after);
                Ok(())
            }
        }
    }

    /// Moment of an event's last recording; `None` if it was never recorded.
    pub fn moment(&mut self, event: usize) -> Outcome<Option<Arc<Moment>>> {
        match &self.events.get(&event).ok_or(status::INVALID_HANDLE)?.last {
            Recorded::Never => Ok(None),
            Recorded::Moment(moment) => Ok(Some(Arc::clone(moment))),
            Recorded::Captured { capture, .. } => {
                let capture = *capture;
                self.captures.iter_mut().filter(|(at, _)| *at == capture).for_each(|(_, c)| c.broken = true);
                Err(status::CAPTURED_EVENT)
            }
        }
    }

    /// Begins a capture.
    pub fn begin_capture(&mut self, stream: usize, mode: Mode) -> Outcome {
        self.stream(stream)?;
        if Self::is_default(stream) {
            return Err(status::CAPTURE_UNSUPPORTED);
        }
        if self.capture_of(stream).is_some() {
            return Err(status::ILLEGAL_STATE);
        }
        let handle = self.handle();
        self.captures.push((handle, Capture::new(stream, mode)));
        Ok(())
    }

    /// Ends a capture on the stream on which it began.
    pub fn end_capture(&mut self, stream: usize) -> Outcome<Arc<Graph>> {
        let at = self.captures.iter().position(|(_, capture)| capture.holds(stream));
        let at = at.ok_or(status::ILLEGAL_STATE)?;
        let capture = &mut self.captures[at].1;
        if capture.origin != stream {
            capture.broken = true;
            return Err(status::CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            capture.broken = true;
            return Err(status::CAPTURE_WRONG_THREAD);
        }
        let (_, capture) = self.captures.remove(at);
        if capture.broken {
            return Err(status::CAPTURE_INVALIDATED);
        }
        if !capture.is_joined() {
            return Err(status::CAPTURE_UNJOINED);
        }
        Ok(capture.end())
    }

    /// All streams, for waiting without holding the state.
    pub fn all_streams(&self) -> Vec<Arc<Stream>> {
        self.streams.values().cloned().collect()
    }
}

/// Makes streams take turns in this order from now on ([`turns::choose`]), or run independently.
pub fn choose_order(order: u64) {
    turns::choose(order);
    // If they run independently, they take back the work that is left.
    state().all_streams().iter().for_each(|stream| stream.wake());
}

/// Waits until a stream has no work left.
pub fn finish(stream: &Stream) {
    if !turns::on() {
        return stream.wait_until_idle();
    }
    let mut streams = state().all_streams();
    loop {
        // Another thread's turn may do the last piece of the stream's work.
        let turn = lock(&TURN);
        if stream.is_idle() {
            return;
        }
        if !take_turn(&turn, &mut streams) {
            return status::fail(status::LAUNCH_TIMEOUT, "streams wait for what nobody does");
        }
    }
}

/// Makes a caller that polls an event wait: if streams take turns, one does its next piece of work.
pub fn wait_a_little() {
    if turns::on() {
        take_turn(&lock(&TURN), &mut state().all_streams());
    }
}

/// Held by the thread whose turn it is.
static TURN: Mutex<()> = Mutex::new(());

/// Does the next piece of work of these streams; returns `false` if none can continue.
fn take_turn(_: &MutexGuard<'_, ()>, streams: &mut [Arc<Stream>]) -> bool {
    streams.sort_by_key(|stream| turns::rank(stream.number));
    let Some(work) = streams.iter().find_map(|stream| stream.take_ready()) else { return false };
    work.run();
    turns::step();
    true
}

/// Waits until no stream has work left.
pub fn wait_for_all() {
    let streams = state().all_streams();
    streams.iter().for_each(|stream| finish(stream));
}

/// Ends everything that lives in a context, after its pending work. Handles are not reused.
pub fn end_context() {
    wait_for_all();
    let mut state = state();
    state.streams.values().for_each(|stream| stream.close());
    *state = DriverState { last_handle: state.last_handle, started: state.started, ..DriverState::default() };
    memory::free_all();
    status::forgive();
}
