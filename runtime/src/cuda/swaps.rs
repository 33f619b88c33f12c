//! Swapping beside a compute stream that belongs to somebody else: PyTorch's, on the primary context of its device.
//!
//! The compute commands are enqueued by the owner of that stream, one after the other. Between two of them [`Swaps`] enqueues
//! the copies that follow in the schedule's order, on two streams of its own, and the waits that the schedule names, as events:
//! a command waits for the last copy of each stream that it needs, a copy for the last compute command. What the order of a
//! stream implies is not waited for again. All of it is enqueued in the order of the schedule, in which a wait only names what
//! came before; so every event has been recorded in this iteration when it is waited for.
//!
//! An iteration begins behind all that the compute stream has to do, and ends before anything that it is given later. So the
//! owner sees one stream only, and the host waits for nothing. For the same reason the owner may capture the compute stream
//! around an iteration ([`Swaps::start_captured`]): fork and joins bring both streams into the graph and out of it.
//!
//! What it deliberately does not do: decide, look into bytes, or allocate while an iteration is enqueued (events for the time
//! stamps are made when the first timed iteration starts).

use super::driver::{Context, CudaStream, DeviceMemory, Driver, Event, PinnedMemory};
use super::error::{CudaError, Refusal};
use super::numa;
use super::pinned::pinned_memory;
use super::presence::Search;
use crate::device::DeviceError;
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, BytesPerSecond};
use std::path::PathBuf;
use std::sync::Arc;

/// How many commands of each stream must have ended, by [`Stream::index`].
pub type Progress = [usize; 3];

/// Start and end of each command of a stream, in seconds from the start of the iteration.
pub type Spans = Vec<(f64, f64)>;

/// Copies are timed so often; the median counts.
const SAMPLES: usize = 5;

/// No smaller piece is tried where it is measured how much can be page-locked.
const PINNABLE_PIECE: Bytes = Bytes(1 << 20);

/// A clock that gives 0 is off by its resolution.
const CLOCK_SECONDS: f64 = 0.5e-6;

/// Rates of the link to the host and back, by [`Stream::index`] less one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRates {
    /// Each way while the other is idle.
    pub alone: [BytesPerSecond; 2],
    /// Each way while the other runs.
    pub together: [BytesPerSecond; 2],
}

/// The swap-out and the swap-in stream of a device, on its primary context.
pub struct SwapStreams {
    /// The host's memory node beside the device, where there are several.
    node: Option<u32>,
    streams: [CudaStream; 2],
    context: Arc<Context>,
}

/// Host memory that the device copies from and to directly, of exactly its size.
pub struct PinnedSlab {
    bytes: Bytes,
    address: usize,
    /// None for 0 bytes.
    _memory: Option<PinnedMemory>,
    streams: Arc<SwapStreams>,
}

/// A command of a schedule, as far as swapping is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapCommand {
    /// Where it runs.
    pub stream: Stream,
    /// What must have ended before it starts, of commands that stand before it.
    pub needs: Progress,
    /// What it copies; a compute command copies nothing.
    pub copy: SwapCopy,
}

/// The bytes of a copy, whose direction is its stream's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapCopy {
    /// The address on the device.
    pub device: u64,
    /// The address in the slab.
    pub host: usize,
    /// How many bytes.
    pub length: usize,
}

/// A copy, with the events that it waits for and whether others wait for it.
struct Copy {
    /// 0 for the swap-out stream, 1 for the swap-in stream.
    lane: usize,
    bytes: SwapCopy,
    /// For a compute command and for a copy of the other stream, each by its number in its stream.
    waits: [Option<usize>; 3],
    /// Its number in its stream.
    number: usize,
}

/// The copies of one schedule.
pub struct Swaps {
    streams: Arc<SwapStreams>,
    /// By how many compute commands have been enqueued: the copies that follow.
    copies: Vec<Vec<Copy>>,
    /// By stream and number: the event that is recorded after a command, where somebody waits for it.
    events: [Vec<Option<Event>>; 3],
    fork: Event,
    joins: [Event; 2],
    times: Option<Times>,
    now: Option<Now>,
}

/// Events with time stamps.
struct Times {
    origin: Event,
    /// By stream and number: at the start of a command and at its end.
    commands: [Vec<(Event, Event)>; 3],
}

/// The iteration that is enqueued.
struct Now {
    compute: CudaStream,
    is_timed: bool,
    /// Compute commands that were enqueued.
    computed: usize,
    /// What the compute stream waited for last, as numbers of copies.
    reached: [usize; 2],
    /// Whether all is enqueued; only a timed iteration is kept then, for its spans.
    is_finished: bool,
    /// Whether it becomes a graph: nothing of it runs, and nothing can be waited for.
    is_captured: bool,
}

impl SwapStreams {
    /// Streams on the primary context of a device, which is PyTorch's, too. The ordinal is of those devices that
    /// `CUDA_VISIBLE_DEVICES` leaves; `libraries` are searched for the driver before all other places.
    pub fn open(ordinal: u32, libraries: &[PathBuf]) -> Result<Arc<SwapStreams>, CudaError> {
        let driver = Driver::start(&Search::new(libraries))?;
        let node = numa::node_of(&driver.facts(ordinal)?.bus);
        let context = Context::retain(driver, ordinal)?;
        let stream = || CudaStream::new(&context);
        Ok(Arc::new(SwapStreams { node, streams: [stream()?, stream()?], context }))
    }

    /// Page-locks so much host memory.
    pub fn pinned(self: &Arc<Self>, bytes: Bytes) -> Result<PinnedSlab, DeviceError> {
        self.context.enter()?;
        let mut memory = pinned_memory(&self.context, bytes, self.node)?;
        let address = memory.as_mut().map_or(0, |memory| memory.base() as usize);
        Ok(PinnedSlab { bytes, address, _memory: memory, streams: Arc::clone(self) })
    }

    /// How much host memory can be page-locked, of so many bytes: it is page-locked piece by piece until that is reached or a
    /// piece is refused, then by smaller pieces, and all is given back.
    pub fn pinnable(self: &Arc<Self>, needed: Bytes) -> Result<Bytes, DeviceError> {
        let mut piece = Bytes((needed.0 / 8).max(PINNABLE_PIECE.0));
        let (mut held, mut total) = (Vec::new(), Bytes::ZERO);
        while total < needed && piece >= PINNABLE_PIECE {
            match self.pinned(piece.min(needed.saturating_sub(total))) {
                Ok(slab) => {
                    total += slab.bytes();
                    held.push(slab);
                }
                Err(DeviceError::OutOfMemory { .. } | DeviceError::NotPinned { .. }) => {
                    piece = Bytes(piece.0 / 2);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(total)
    }

    /// The rates of copies of so many bytes to the host and back, each alone (the median of a few) and with the other way
    /// running.
    pub fn rates(self: &Arc<Self>, bytes: Bytes) -> Result<LinkRates, DeviceError> {
        let slabs = [self.pinned(bytes)?, self.pinned(bytes)?];
        let allocate = || DeviceMemory::allocate(&self.context, bytes.0 as usize);
        let device = [allocate()?, allocate()?];
        let length = bytes.0 as usize;
        let copy =
            |lane: usize| SwapCopy { device: device[lane].address(), host: slabs[lane].address(), length };
        let copies = [copy(0), copy(1)];
        Ok(LinkRates { alone: self.rates_alone(copies)?, together: self.rates_together(copies)? })
    }

    fn rates_alone(&self, copies: [SwapCopy; 2]) -> Result<[BytesPerSecond; 2], DeviceError> {
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

    /// Both ways begin at once, and each copies again and again. Counted is what ended before the other way was through: what
    /// comes later had the link to itself.
    fn rates_together(&self, copies: [SwapCopy; 2]) -> Result<[BytesPerSecond; 2], DeviceError> {
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
    /// Both ranges lie in live memory until the copy has ended, and only what is ordered by events touches them.
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
    /// The address of its first byte; 0 where it has none.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for PinnedSlab {
    fn drop(&mut self) {
        // What still copies to it ends first.
        if let Err(refusal) = self.streams.synchronise() {
            tracing::debug!("before a slab is given back: {refusal}");
        }
    }
}

impl Swaps {
    /// The copies of a schedule, whose commands are given in its order.
    pub fn new(streams: &Arc<SwapStreams>, commands: &[SwapCommand]) -> Result<Swaps, DeviceError> {
        streams.context.enter()?;
        let mut copies = vec![Vec::new()];
        let mut counts = [0; 3];
        let mut awaited: [Vec<bool>; 3] = Default::default();
        // By stream: what it has waited for of each.
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
    /// The handle is a stream of this context that lives until the iteration has been finished or aborted. The memory that the
    /// copies name lives until they have ended, and only what the schedule orders touches it.
    pub unsafe fn start(&mut self, compute: usize, is_timed: bool) -> Result<(), DeviceError> {
        self.begin(compute, is_timed, false)
    }

    /// The same within a capture of the compute stream, which the caller began in the mode of one thread and ends after
    /// [`Swaps::finish`] or [`Swaps::abort`]. Nothing runs until the graph is launched.
    ///
    /// # Safety
    /// The handle is a stream of this context. Whenever the graph is launched, the memory that the copies name lives until it
    /// has ended, and only what the schedule orders touches it. An iteration that is started meanwhile is enqueued behind it.
    pub unsafe fn start_captured(&mut self, compute: usize) -> Result<(), DeviceError> {
        self.begin(compute, false, true)
    }

    fn begin(&mut self, compute: usize, is_timed: bool, is_captured: bool) -> Result<(), DeviceError> {
        // A capture that ended without its joins is over, whatever it held.
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

    /// The next compute command starts after so many copies to the host and back. Only what the schedule's own order does not
    /// imply is said.
    pub fn wait(&mut self, offloads: usize, prefetches: usize) -> Result<(), DeviceError> {
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

    /// In a timed iteration: the next compute command begins here.
    pub fn began(&mut self) -> Result<(), DeviceError> {
        let (Some(now), Some(times)) = (&self.now, &self.times) else { return Ok(()) };
        if now.is_timed {
            now.compute.record(&times.commands[0][now.computed].0)?;
        }
        Ok(())
    }

    /// One more compute command was enqueued: enqueues the copies that follow it.
    pub fn computed(&mut self) -> Result<(), DeviceError> {
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

    fn enqueue_copies(&self) -> Result<(), DeviceError> {
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

    /// Ends the enqueueing: what the compute stream is given from here on comes after all copies.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
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

    /// Ends the iteration early: copies that were not enqueued never are, and the host waits for the others; of a captured one
    /// none runs. Does nothing where none was started, or where it was finished.
    pub fn abort(&mut self) {
        let Some(now) = self.now.take().filter(|now| !now.is_finished) else { return };
        let ended = if now.is_captured { Ok(()) } else { self.streams.synchronise() };
        let outcome = ended.and_then(|()| self.join(&now.compute));
        if let Err(refusal) = outcome {
            tracing::warn!("while an iteration was ended early: {refusal}");
        }
    }

    /// When each command of the last iteration ran, by stream, once all have ended, which is waited for; none where the
    /// iteration was not timed, or not finished.
    pub fn spans(&mut self) -> Result<Option<[Spans; 3]>, DeviceError> {
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

    /// How many copies there are.
    pub fn len(&self) -> usize {
        self.copies.iter().map(Vec::len).sum()
    }

    /// Whether nothing is copied.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
