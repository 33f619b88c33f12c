//! Swapping next to a compute stream with another owner: PyTorch's, on the primary context of its device.
//!
//! The owner of that stream enqueues the compute commands one after the other. Between two of them [`Swaps`] enqueues the
//! copies that follow in the schedule's order, on its two streams, and the schedule's waits as events: a command waits for
//! the last copy that it needs of each stream, a copy for the last compute command. Waits that the order of a stream
//! implies are dropped. Everything is enqueued in the schedule's order, in which a wait names only earlier commands; so
//! every event has been recorded in this iteration before a wait for it.
//!
//! An iteration begins behind all earlier work of the compute stream, and ends before its later work. So the owner sees one
//! stream only, and the host waits for nothing. For the same reason the owner may capture the compute stream around an
//! iteration ([`Swaps::start_captured`]): fork and joins bring both streams into the graph and out of it.
//!
//! Deliberately does not decide, look into bytes, or allocate while an iteration is enqueued (events for the time stamps
//! are made when the first timed iteration starts).

use super::driver::{Context, CudaStream, DeviceMemory, Driver, Event, PinnedMemory, given_back};
use super::error::Refusal;
use super::numa;
use super::pinned::pinned_memory;
use super::presence::Search;
use crate::error::{Error, Kind};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, BytesPerSecond};
use std::path::PathBuf;
use std::sync::Arc;

/// Number of commands of each stream that must have ended, by [`Stream::index`].
pub type Progress = [usize; 3];

/// Start and end of each command of a stream, in seconds from the start of the iteration.
pub type Spans = Vec<(f64, f64)>;

/// Number of timed copies; the median counts.
const SAMPLES: usize = 5;

/// Smallest piece tried when measuring how much can be page-locked.
const PINNABLE_PIECE: Bytes = Bytes(1 << 20);

/// Resolution of the clock: the least time of a copy.
const CLOCK_SECONDS: f64 = 0.5e-6;

/// Rates of the link to the host and back, by [`Stream::index`] less one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRates {
    /// Rate of each direction while the other is idle.
    pub alone: [BytesPerSecond; 2],
    /// Rate of each direction while the other runs.
    pub together: [BytesPerSecond; 2],
}

/// The swap-out and the swap-in stream of a device, on its primary context.
pub struct SwapStreams {
    /// NUMA node nearest to the device, if there are several.
    node: Option<u32>,
    streams: [CudaStream; 2],
    context: Arc<Context>,
}

/// Pinned host buffer of exactly its size.
pub struct PinnedSlab {
    bytes: Bytes,
    address: usize,
    /// `None` for 0 bytes.
    _memory: Option<PinnedMemory>,
    streams: Arc<SwapStreams>,
}

/// A command of a schedule, reduced to what swapping needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapCommand {
    pub stream: Stream,
    /// Earlier commands that must have ended before it starts.
    pub needs: Progress,
    /// Bytes to copy; empty for a compute command.
    pub copy: SwapCopy,
}

/// Bytes of a copy; its stream gives the direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapCopy {
    /// Device address.
    pub device: u64,
    /// Host address in the slab.
    pub host: usize,
    /// Length in bytes.
    pub length: usize,
}

/// A copy and the events that it waits for.
struct Copy {
    /// 0 for the swap-out stream, 1 for the swap-in stream.
    lane: usize,
    bytes: SwapCopy,
    /// Waits for a compute command and for a copy of the other stream, each by its number in its stream.
    waits: [Option<usize>; 3],
    /// Its number in its stream.
    number: usize,
}

/// The copies of one schedule.
pub struct Swaps {
    streams: Arc<SwapStreams>,
    /// Copies that follow, by the number of compute commands enqueued.
    copies: Vec<Vec<Copy>>,
    /// Event recorded after a command, by stream and number, if another command waits for it.
    events: [Vec<Option<Event>>; 3],
    fork: Event,
    joins: [Event; 2],
    times: Option<Times>,
    now: Option<Now>,
}

/// Events with time stamps.
struct Times {
    origin: Event,
    /// Start and end of each command, by stream and number.
    commands: [Vec<(Event, Event)>; 3],
}

/// The iteration being enqueued.
struct Now {
    compute: CudaStream,
    is_timed: bool,
    /// Number of compute commands enqueued.
    computed: usize,
    /// Numbers of copies that the compute stream waited for last.
    reached: [usize; 2],
    /// `true` if all is enqueued; only a timed iteration is then kept, for its spans.
    is_finished: bool,
    /// `true` if it becomes a graph: nothing in it runs, and nothing can be waited for.
    is_captured: bool,
}

impl SwapStreams {
    /// Opens streams on a device's primary context, which PyTorch uses too. The ordinal counts the devices that
    /// `CUDA_VISIBLE_DEVICES` leaves; `libraries` are searched for the driver before all other places.
    pub fn open(ordinal: u32, libraries: &[PathBuf]) -> Result<Arc<SwapStreams>, Error> {
        let driver = Driver::start(&Search::new(libraries))?;
        let node = numa::node_of(&driver.facts(ordinal)?.bus);
        let context = Context::retain(driver, ordinal)?;
        let stream = || CudaStream::new(&context);
        Ok(Arc::new(SwapStreams { node, streams: [stream()?, stream()?], context }))
    }

    /// Allocates a pinned host buffer of this size.
    pub fn pinned(self: &Arc<Self>, bytes: Bytes) -> Result<PinnedSlab, Error> {
        self.context.enter()?;
        let mut memory = pinned_memory(&self.context, bytes, self.node)?;
        let address = memory.as_mut().map_or(0, |memory| memory.base() as usize);
        Ok(PinnedSlab { bytes, address, _memory: memory, streams: Arc::clone(self) })
    }

    /// Host memory that can be page-locked, up to `needed`: page-locks piece by piece until that is reached or a piece is
    /// refused, then by smaller pieces, and gives all back.
    pub fn pinnable(self: &Arc<Self>, needed: Bytes) -> Result<Bytes, Error> {
        let mut piece = Bytes((needed.0 / 8).max(PINNABLE_PIECE.0));
        let (mut held, mut total) = (Vec::new(), Bytes::ZERO);
        while total < needed && piece >= PINNABLE_PIECE {
            match self.pinned(piece.min(needed.saturating_sub(total))) {
                Ok(slab) => {
                    total += slab.bytes();
                    held.push(slab);
                }
                Err(error) if matches!(error.kind, Kind::OutOfMemory { .. } | Kind::NotPinned) => {
                    piece = Bytes(piece.0 / 2);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(total)
    }

    /// Rates of copies of this size to the host and back, each alone (the median of a few) and with the other direction
    /// running.
    pub fn rates(self: &Arc<Self>, bytes: Bytes) -> Result<LinkRates, Error> {
        let slabs = [self.pinned(bytes)?, self.pinned(bytes)?];
        let allocate = || DeviceMemory::allocate(&self.context, bytes.0 as usize);
        let device = [allocate()?, allocate()?];
        let length = bytes.0 as usize;
        let copy =
            |lane: usize| SwapCopy { device: device[lane].address(), host: slabs[lane].address(), length };
        let copies = [copy(0), copy(1)];
        Ok(LinkRates { alone: self.rates_alone(copies)?, together: self.rates_together(copies)? })
    }

    fn rates_alone(&self, copies: [SwapCopy; 2]) -> Result<[BytesPerSecond; 2], Error> {
        let [start, end] = [Event::new(&self.context, true)?, Event::new(&self.context, true)?];
        let mut rates = [BytesPerSecond(0.0); 2];
        for (lane, rate) in rates.iter_mut().enumerate() {
            let mut seconds = Vec::new();
            // The first copy warms up.
            for _ in 0..=SAMPLES {
                self.streams[lane].record(&start)?;
                // SAFETY: both ranges are whole allocations of `rates` that live until the stream is idle, which is waited for.
                unsafe { self.copy(lane, copies[lane]) }?;
                self.streams[lane].record(&end)?;
                self.streams[lane].synchronise()?;
                seconds.push(end.seconds_since(&start)?);
            }
            let samples = &mut seconds[1..];
            samples.sort_by(f64::total_cmp);
            *rate = BytesPerSecond(copies[lane].length as f64 / samples[SAMPLES / 2].max(CLOCK_SECONDS));
        }
        Ok(rates)
    }

    /// Starts both directions at once, each copying repeatedly. Counts copies that ended before the other direction
    /// finished, since later ones had the link to themselves.
    fn rates_together(&self, copies: [SwapCopy; 2]) -> Result<[BytesPerSecond; 2], Error> {
        let event = || Event::new(&self.context, true);
        let start = event()?;
        let ends = |_| (0..SAMPLES).map(|_| event()).collect::<Result<Vec<_>, _>>();
        let ends = [ends(0)?, ends(1)?];
        self.streams[0].record(&start)?;
        self.streams[1].wait(&start)?;
        for pair in ends[0].iter().zip(&ends[1]) {
            for (lane, end) in [pair.0, pair.1].into_iter().enumerate() {
                // SAFETY: as in `rates_alone`; the two ways share no range.
                unsafe { self.copy(lane, copies[lane]) }?;
                self.streams[lane].record(end)?;
            }
        }
        self.synchronise()?;
        let mut seconds: [Vec<f64>; 2] = Default::default();
        for (lane, ends) in ends.iter().enumerate() {
            seconds[lane] = ends.iter().map(|end| end.seconds_since(&start)).collect::<Result<_, _>>()?;
        }
        let through = |lane: usize| seconds[lane][SAMPLES - 1];
        Ok([0, 1].map(|lane| {
            let before = seconds[lane].iter().filter(|end| **end <= through(1 - lane)).count().max(1);
            let took = seconds[lane][before - 1].max(CLOCK_SECONDS);
            BytesPerSecond((before * copies[lane].length) as f64 / took)
        }))
    }

    /// Enqueues a copy on the swap-out stream (0) or the swap-in stream (1).
    ///
    /// # Safety
    /// Both ranges lie in live memory until the copy has ended, and only accesses ordered by events touch them.
    unsafe fn copy(&self, lane: usize, copy: SwapCopy) -> Result<(), Refusal> {
        let SwapCopy { device, host, length } = copy;
        // SAFETY: passed on to the caller.
        unsafe {
            match lane {
                0 => self.streams[0].copy_to_host(host as *mut u8, device, length),
                _ => self.streams[1].copy_to_device(device, host as *const u8, length),
            }
        }
    }

    fn synchronise(&self) -> Result<(), Refusal> {
        self.context.enter()?;
        self.streams.iter().map(CudaStream::synchronise).fold(Ok(()), Result::and)
    }
}

impl PinnedSlab {
    /// Address of the first byte; 0 if empty.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for PinnedSlab {
    fn drop(&mut self) {
        // Copies to it that still run end first.
        given_back(self.streams.synchronise());
    }
}

impl Swaps {
    /// Prepares the copies of a schedule, whose commands are given in its order.
    pub fn new(streams: &Arc<SwapStreams>, commands: &[SwapCommand]) -> Result<Swaps, Error> {
        streams.context.enter()?;
        let mut copies = vec![Vec::new()];
        let mut counts = [0; 3];
        let mut awaited: [Vec<bool>; 3] = Default::default();
        // By stream: the commands of each stream that it has already waited for.
        let mut reached = [[0; 3]; 3];
        for command in commands {
            let stream = command.stream.index();
            let mut waits = [None; 3];
            for other in (0..3).filter(|other| *other != stream) {
                let need = command.needs[other];
                debug_assert!(need <= counts[other], "a wait names what comes before");
                if need > reached[stream][other] {
                    reached[stream][other] = need;
                    awaited[other][need - 1] = true;
                    waits[other] = Some(need - 1);
                }
            }
            let number = counts[stream];
            counts[stream] += 1;
            awaited[stream].push(false);
            if command.stream == Stream::Compute {
                copies.push(Vec::new());
            } else {
                let copy = Copy { lane: stream - 1, bytes: command.copy, waits, number };
                copies.last_mut().expect("there is a first").push(copy);
            }
        }
        let context = &streams.context;
        let event = |wanted: &bool| wanted.then(|| Event::new(context, false)).transpose();
        let events = |wanted: &Vec<bool>| wanted.iter().map(event).collect::<Result<Vec<_>, _>>();
        let [compute, out, back] = &awaited;
        let events = [events(compute)?, events(out)?, events(back)?];
        let plain = || Event::new(context, false);
        let (fork, joins) = (plain()?, [plain()?, plain()?]);
        Ok(Swaps { streams: Arc::clone(streams), copies, events, fork, joins, times: None, now: None })
    }

    /// Begins an iteration on this compute stream of the context (0 for its default stream), timed or not.
    ///
    /// # Safety
    /// The handle is a stream of this context that lives until the iteration has been finished or aborted. The memory that
    /// the copies name lives until they have ended, and only accesses that the schedule orders touch it.
    pub unsafe fn start(&mut self, compute: usize, is_timed: bool) -> Result<(), Error> {
        self.begin(compute, is_timed, false)
    }

    /// Begins an iteration within a capture of the compute stream, which the caller began in the mode of one thread and
    /// ends after [`Swaps::finish`] or [`Swaps::abort`]. Nothing runs until the graph is launched.
    ///
    /// # Safety
    /// The handle is a stream of this context. Whenever the graph is launched, the memory that the copies name lives until
    /// it has ended, and only accesses that the schedule orders touch it. An iteration started meanwhile is enqueued behind
    /// it.
    pub unsafe fn start_captured(&mut self, compute: usize) -> Result<(), Error> {
        self.begin(compute, false, true)
    }

    fn begin(&mut self, compute: usize, is_timed: bool, is_captured: bool) -> Result<(), Error> {
        // A capture that ended without its joins is over, whatever it contained.
        self.now.take_if(|now| now.is_captured);
        self.abort();
        self.streams.context.enter()?;
        if is_timed && self.times.is_none() {
            self.times = Some(Times::new(&self.streams.context, &self.events)?);
        }
        let compute = CudaStream::borrowed(&self.streams.context, compute);
        if let Some(times) = self.times.as_ref().filter(|_| is_timed) {
            compute.record(&times.origin)?;
        }
        compute.record(&self.fork)?;
        let reached = [0; 2];
        self.now = Some(Now { compute, is_timed, computed: 0, reached, is_finished: false, is_captured });
        for lane in 0..2 {
            self.streams.streams[lane].wait(&self.fork)?;
        }
        self.enqueue_copies()
    }

    /// Makes the next compute command wait for these numbers of copies to the host and back. Only waits that the schedule's
    /// own order does not imply need a call.
    pub fn wait(&mut self, offloads: usize, prefetches: usize) -> Result<(), Error> {
        let Some(now) = self.now.as_mut() else { return Ok(()) };
        for (lane, need) in [offloads, prefetches].into_iter().enumerate() {
            if need > now.reached[lane] {
                now.reached[lane] = need;
                let event = self.events[lane + 1][need - 1].as_ref();
                now.compute.wait(event.expect("an awaited copy has an event"))?;
            }
        }
        Ok(())
    }

    /// Records, in a timed iteration, the start of the next compute command.
    pub fn began(&mut self) -> Result<(), Error> {
        let (Some(now), Some(times)) = (&self.now, &self.times) else { return Ok(()) };
        if now.is_timed {
            now.compute.record(&times.commands[0][now.computed].0)?;
        }
        Ok(())
    }

    /// Records that one more compute command was enqueued, and enqueues the copies that follow it.
    pub fn computed(&mut self) -> Result<(), Error> {
        let Some(now) = self.now.as_mut() else { return Ok(()) };
        if let Some(times) = self.times.as_ref().filter(|_| now.is_timed) {
            now.compute.record(&times.commands[0][now.computed].1)?;
        }
        if let Some(event) = &self.events[0][now.computed] {
            now.compute.record(event)?;
        }
        now.computed += 1;
        self.enqueue_copies()
    }

    fn enqueue_copies(&self) -> Result<(), Error> {
        let Some(now) = &self.now else { return Ok(()) };
        for copy in &self.copies[now.computed] {
            let stream = &self.streams.streams[copy.lane];
            for (other, number) in copy.waits.iter().enumerate() {
                if let Some(number) = number {
                    stream.wait(
                        self.events[other][*number].as_ref().expect("an awaited command has an event"),
                    )?;
                }
            }
            let times = self.times.as_ref().filter(|_| now.is_timed);
            let times = times.map(|times| &times.commands[copy.lane + 1][copy.number]);
            if let Some((start, _)) = times {
                stream.record(start)?;
            }
            // SAFETY: as the caller of `start` promises.
            unsafe { self.streams.copy(copy.lane, copy.bytes) }?;
            if let Some((_, end)) = times {
                stream.record(end)?;
            }
            if let Some(event) = &self.events[copy.lane + 1][copy.number] {
                stream.record(event)?;
            }
        }
        Ok(())
    }

    /// Ends the enqueueing: later work of the compute stream comes after all copies.
    pub fn finish(&mut self) -> Result<(), Error> {
        let Some(mut now) = self.now.take() else { return Ok(()) };
        self.join(&now.compute)?;
        now.is_finished = true;
        self.now = Some(now).filter(|now| now.is_timed);
        Ok(())
    }

    fn join(&self, compute: &CudaStream) -> Result<(), Refusal> {
        for (stream, event) in self.streams.streams.iter().zip(&self.joins) {
            stream.record(event)?;
            compute.wait(event)?;
        }
        Ok(())
    }

    /// Ends the iteration early. Copies not yet enqueued never run, and the host waits for the others; in a captured
    /// iteration none runs. Does nothing if no iteration was started, or if it was finished.
    pub fn abort(&mut self) {
        let Some(now) = self.now.take().filter(|now| !now.is_finished) else { return };
        let ended = if now.is_captured { Ok(()) } else { self.streams.synchronise() };
        let outcome = ended.and_then(|()| self.join(&now.compute));
        if let Err(refusal) = outcome {
            tracing::warn!("while an iteration was ended early: {refusal}");
        }
    }

    /// Waits for the last iteration and returns the times of its commands, by stream; `None` if it was not timed or not
    /// finished.
    pub fn spans(&mut self) -> Result<Option<[Spans; 3]>, Error> {
        let (Some(now), Some(times)) = (self.now.take_if(|now| now.is_finished), &self.times) else {
            return Ok(None);
        };
        now.compute.synchronise()?;
        let span = |(start, end): &(Event, Event)| -> Result<(f64, f64), Refusal> {
            Ok((start.seconds_since(&times.origin)?, end.seconds_since(&times.origin)?))
        };
        let of = |stream: usize| times.commands[stream].iter().map(span).collect::<Result<Spans, _>>();
        Ok(Some([of(0)?, of(1)?, of(2)?]))
    }

    /// Number of copies.
    pub fn count(&self) -> usize {
        self.copies.iter().map(Vec::len).sum()
    }
}

impl Drop for Swaps {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Times {
    fn new(context: &Arc<Context>, events: &[Vec<Option<Event>>; 3]) -> Result<Times, Refusal> {
        let event = || Event::new(context, true);
        let pairs =
            |count: usize| (0..count).map(|_| Ok((event()?, event()?))).collect::<Result<Vec<_>, Refusal>>();
        let [compute, out, back] = events;
        let commands = [pairs(compute.len())?, pairs(out.len())?, pairs(back.len())?];
        Ok(Times { origin: event()?, commands })
    }
}
