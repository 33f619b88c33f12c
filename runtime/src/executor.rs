//! The executor: turns a checked schedule once into the commands of three streams, and enqueues them at every iteration.
//!
//! Loading a schedule fixes everything: addresses, events, and the few waits that cross streams (a stream itself is in
//! order). An iteration only enqueues and synchronises, and allocates nothing. On a half-duplex link a transfer also waits
//! for the previous transfer in list order, as formats.md requires.
//!
//! Iterations that copy a training's state are in `executor/keeping.rs`, those in two parts in `executor/apart.rs`, and
//! timed ones in `executor/timing.rs`.
//!
//! Deliberately does not run a schedule that it has not checked itself, or decide anything.

mod apart;
mod feeding;
mod keeping;
mod timing;

use crate::cpu::kernels::rounded;
use crate::device::{Begun, Device, EventId, IterationId, Launch, MemoryLayout, Room, Transfer};
use crate::error::{Kind, RuntimeError};
use crate::host::{HostSlab, host_slab};
use crate::state::Half;
use crate::waits::crossing_waits;
use apart::Apart;
pub(crate) use apart::Part;
use feeding::{Feeding, Slots};
use keeping::Keeping;
use plimsoll_ir::check::{Places, locate};
use plimsoll_ir::health::Health;
use plimsoll_ir::program::{Operand, OperandSpec, Program, Region, STORAGE_ALIGNMENT};
use plimsoll_ir::schedule::{Command, Holds, Schedule, Stream, alternative_of, moved};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, CommandId, Float, Seconds, TensorId};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use timing::Joined;

/// A device with its memory, ready to run loaded programs: one allocation for everything, three streams, and the commands of
/// schedules with addresses computed once.
///
/// ```
/// use plimsoll_ir::network::NetworkSpec;
/// use plimsoll_ir::program::KernelAlternative;
/// use plimsoll_ir::schedule::Link;
/// use plimsoll_ir::{Bytes, BytesPerSecond};
/// use plimsoll_networks::{LowerOptions, build, lower};
/// use plimsoll_runtime::cpu::kernels::workspace_bytes;
/// use plimsoll_runtime::{Cpu, CpuOptions, Executor, MemoryLayout};
/// use plimsoll_tuner::{PlanRequest, Policy, plan};
///
/// let spec = NetworkSpec { name: "mlp".into(), image: [8, 8], channels: 1, classes: 10 };
/// let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, 1));
/// let program = lower(&build(&spec)?, 8, &LowerOptions { alternatives: &alternatives, ..LowerOptions::default() })?;
/// let link = Link::symmetric(BytesPerSecond(10e9));
/// let planned = plan(&program.trace, &PlanRequest::new(Bytes(1 << 20), link, Policy::Plimsoll))?;
/// let schedule = &planned.plan().ok_or("a mebibyte is enough")?.schedule;
///
/// let layout = MemoryLayout::of(&program, schedule);
/// let mut executor = Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout)?;
/// let loaded = executor.load(&program, schedule)?;
/// executor.run(&loaded)?;
/// let timeline = executor.run_timed(&loaded)?;
/// println!("an iteration within {} took {}", layout.device(), timeline.makespan());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Executor {
    device: Box<dyn Device>,
    layout: MemoryLayout,
    room: Room,
    /// Number of command sequences made.
    sequences: u32,
    /// Images in the device's storage format, if it differs from the host's; the buffer is reused by every iteration.
    rounded: Vec<u8>,
    /// Unique number of the executor.
    id: u64,
}

/// One iteration without timed commands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole {
    /// From the first command to the end of the last, by the host's clock or the device's own.
    pub seconds: Seconds,
    /// Part of that in which compute threads were ready to run while other processes had their processors; 0 if it is not
    /// counted.
    pub waited: Seconds,
}

/// A program under a schedule, bound to one executor's memory.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Samples in an iteration.
    batch: u64,
    resident: Vec<Region>,
    hyper: Region,
    metrics: Region,
    inputs: Inputs,
    /// Source of later inputs; `None` if each input is written before its iteration.
    slots: Option<Slots>,
    plain: Enqueued,
    /// The same commands, followed by the next input from each slot.
    fed: Option<[Enqueued; 2]>,
    timed: Enqueued,
    /// Commands that are timed as one.
    joined: Vec<Joined>,
    keeping: Option<Keeping>,
    apart: Option<Apart>,
    trace: Arc<Trace>,
    schedule: Arc<Schedule>,
    executor: u64,
}

/// Tensors that the host writes before each iteration.
#[derive(Clone, Debug)]
struct Inputs {
    images: Input,
    labels: Input,
    /// Vocabulary size, if the images are tokens.
    vocabulary: Option<u32>,
    label_count: u64,
}

/// Pieces of a tensor that the host writes before each iteration.
#[derive(Clone, Debug)]
struct Input {
    bytes: Bytes,
    /// `true` if the host's f32 numbers are rounded to bf16.
    rounds: bool,
    /// Address in the allocation, first byte of the tensor, number of bytes.
    pieces: Vec<(Bytes, Bytes, Bytes)>,
}

impl Input {
    /// Bytes that the host's data take in the tensor; an error if they exceed it. A tensor's size is rounded up to the
    /// storage alignment.
    fn fits(&self, what: &str, data: &[u8]) -> Result<Bytes, RuntimeError> {
        let found = Bytes(data.len() as u64 / if self.rounds { 2 } else { 1 });
        if found > self.bytes {
            return Err(RuntimeError::mismatch(format!("bytes of the {what} of a batch"), self.bytes, found));
        }
        Ok(found)
    }

    /// Writes the host's data in the device's format, in as many bytes as [`Input::fits`] returns.
    fn store(&self, data: &[u8], to: &mut [u8]) {
        if !self.rounds {
            return to.copy_from_slice(data);
        }
        for (to, from) in to.as_chunks_mut::<2>().0.iter_mut().zip(data.as_chunks::<4>().0) {
            *to = rounded(f32::from_le_bytes(*from)).to_le_bytes();
        }
    }
}

/// Commands of an iteration in the order of enqueueing.
#[derive(Clone, Debug)]
struct Enqueued {
    id: IterationId,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Compute(Arc<Launch>),
    Copy(Transfer),
    Record(Stream, EventId),
    Wait(Stream, EventId),
}

impl Step {
    fn launch(&self) -> Option<&Launch> {
        if let Step::Compute(launch) = self { Some(launch) } else { None }
    }
}

impl MemoryLayout {
    /// Exact memory that a program under a schedule needs. The schedule must be valid for the program's trace.
    pub fn of(program: &Program, schedule: &Schedule) -> MemoryLayout {
        MemoryLayout {
            resident: program.trace.resident_bytes,
            pool: schedule.pool_bytes,
            host: host_slab(&program.trace, schedule).bytes(),
            state: Bytes::ZERO,
            input: Bytes::ZERO,
        }
    }
}

impl Executor {
    /// Allocates the memory on the device.
    pub fn new(mut device: Box<dyn Device>, layout: MemoryLayout) -> Result<Executor, RuntimeError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        device.allocate(layout)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Executor { device, layout, room: Room::default(), sequences: 0, rounded: Vec::new(), id })
    }

    /// The device, for its facts and alternatives.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Memory allocated.
    pub fn layout(&self) -> MemoryLayout {
        self.layout
    }

    /// Checks a schedule and prepares it. Several programs with the same resident regions can be loaded, and then run in
    /// turn. If the program trains and the memory has room for inputs ([`MemoryLayout::feeding`]), each iteration of a
    /// [`crate::Trainer`] brings the next one's input.
    ///
    /// Errors: the schedule is not valid for the program's trace; the program's kernels do not fit its trace; the
    /// allocation is too small.
    pub fn load(&mut self, program: &Program, schedule: &Schedule) -> Result<Loaded, RuntimeError> {
        self.load_with(program, schedule, |_, _| Ok((None, None)))
    }

    fn load_with(
        &mut self,
        program: &Program,
        schedule: &Schedule,
        more: impl FnOnce(&mut Executor, &Builder) -> Result<(Option<Keeping>, Option<Apart>), RuntimeError>,
    ) -> Result<Loaded, RuntimeError> {
        let places = locate(&program.trace, schedule).map_err(|fault| {
            let message = format!("the schedule is not valid for this program: {fault}");
            RuntimeError::new(Kind::Verification, message)
        })?;
        check_program(program)?;
        if !self.device.stores(program.feature_maps) {
            let precision = self.device.facts().precision;
            let program = program.feature_maps;
            return Err(RuntimeError::mismatch(
                "feature maps",
                format!("those of {precision}"),
                format!("{program:?}"),
            ));
        }
        check_repetitions(program, schedule)?;
        let need = MemoryLayout::of(program, schedule);
        if need.union(self.layout) != self.layout {
            let show =
                |l: MemoryLayout| format!("{} resident, {} pool, {} host", l.resident, l.pool, l.on_host());
            return Err(RuntimeError::mismatch(
                "the executor's memory is too small",
                show(need),
                show(self.layout),
            ));
        }
        let slab = host_slab(&program.trace, schedule);
        let waits = crossing_waits(schedule);
        let resident = self.layout.resident;
        let slots = Slots::within(program, self.layout);
        let builder =
            Builder { program, schedule, places: &places, slab: &slab, waits: &waits, resident, slots };
        let plain = self.enqueued(false, builder.plain_steps(None));
        let fed = slots.map(|_| Half::BOTH.map(|slot| self.enqueued(false, builder.plain_steps(Some(slot)))));
        self.check_launches(program, &plain)?;
        let joined = builder.joined(&*self.device);
        let timed = self.enqueued(true, builder.timed_steps(&joined));
        let (keeping, apart) = more(self, &builder)?;
        let others = keeping.iter().flat_map(Keeping::sequences);
        let others = others.chain(apart.iter().flat_map(Apart::sequences)).chain(fed.iter().flatten());
        let room =
            [&plain, &timed].into_iter().chain(others).map(Enqueued::room).fold(self.room, Room::union);
        if room != self.room {
            self.device.reserve(room)?;
            self.room = room;
        }
        Ok(Loaded {
            batch: program.trace.batch,
            resident: program.resident.clone(),
            hyper: program.hyper().clone(),
            metrics: program.metrics().clone(),
            inputs: Inputs {
                images: Input {
                    rounds: program.feature_maps == Float::Bf16 && program.vocabulary().is_none(),
                    ..builder.input(program.images)
                },
                labels: builder.input(program.labels),
                vocabulary: program.vocabulary(),
                label_count: program.label_count(),
            },
            slots,
            plain,
            fed,
            timed,
            joined,
            keeping,
            apart,
            trace: Arc::new(program.trace.clone()),
            schedule: Arc::new(schedule.clone()),
            executor: self.id,
        })
    }

    /// Wraps steps as a new sequence of commands.
    fn enqueued(&mut self, timed: bool, steps: Vec<Step>) -> Enqueued {
        let id = IterationId { number: self.sequences, timed };
        self.sequences += 1;
        Enqueued { id, steps }
    }

    /// Checks requirements of kernels that no schedule guarantees: aligned operands, an alternative that this device has,
    /// and the scratch that it needs.
    fn check_launches(&self, program: &Program, enqueued: &Enqueued) -> Result<(), RuntimeError> {
        for launch in enqueued.steps.iter().filter_map(Step::launch) {
            let name = &program.trace.ops[launch.op.index()].name;
            let mut addresses = launch.offsets.iter().chain([&launch.workspace]);
            if let Some(odd) = addresses.find(|a| a.0 % STORAGE_ALIGNMENT != 0) {
                let expected = format!("multiples of {STORAGE_ALIGNMENT} bytes");
                return Err(RuntimeError::mismatch(format!("addresses of `{name}`"), expected, odd.0));
            }
            let Some(alternative) = self.device.alternative(&launch.call, launch.alternative) else {
                let (what, alternatives) =
                    (format!("alternatives of `{name}`"), self.device.alternatives(&launch.call).len());
                return Err(RuntimeError::mismatch(
                    what,
                    alternatives,
                    format!("number {}", launch.alternative + 1),
                ));
            };
            if launch.workspace_bytes < alternative.workspace {
                return Err(RuntimeError::mismatch(
                    format!("workspace of `{name}` by `{}`", alternative.name),
                    alternative.workspace,
                    launch.workspace_bytes,
                ));
            }
        }
        Ok(())
    }

    /// Runs one iteration and waits for its end.
    pub fn run(&mut self, loaded: &Loaded) -> Result<(), RuntimeError> {
        self.start(loaded);
        self.finish()
    }

    /// Runs one iteration as training does, without timed commands, and waits for its end.
    pub fn run_whole(&mut self, loaded: &Loaded) -> Result<Whole, RuntimeError> {
        let before = self.device.waited();
        let begun = Instant::now();
        self.run(loaded)?;
        let seconds = Seconds(begun.elapsed().as_secs_f64());
        let seconds = self.device.simulated_seconds().unwrap_or(seconds);
        Ok(Whole { seconds, waited: self.waited_since(before) })
    }

    /// Time since `before` (from [`Device::waited`]) in which compute threads were ready while other processes had their
    /// processors; 0 if it is not counted.
    pub(crate) fn waited_since(&self, before: Option<Seconds>) -> Seconds {
        match (before, self.device.waited()) {
            (Some(before), Some(now)) => Seconds((now.0 - before.0).max(0.0)),
            _ => Seconds::ZERO,
        }
    }

    /// Enqueues one iteration; [`Executor::finish`] must follow. Meanwhile the host is free to prepare the next input.
    pub fn start(&mut self, loaded: &Loaded) {
        self.enqueue(loaded, &loaded.plain);
    }

    /// Waits for the end of the iteration or pass that was started.
    pub fn finish(&mut self) -> Result<(), RuntimeError> {
        self.device.synchronise()
    }

    /// Runs one iteration with an event before and after each command, and returns the measured times. Commands that the
    /// device joins to one kernel are timed as that kernel; each gets a share of its time, by the bytes of their operands.
    pub fn run_timed(&mut self, loaded: &Loaded) -> Result<Timeline, RuntimeError> {
        self.enqueue(loaded, &loaded.timed);
        self.device.synchronise()?;
        Ok(timing::timeline(&mut *self.device, loaded))
    }

    fn enqueue(&mut self, loaded: &Loaded, enqueued: &Enqueued) {
        // Its addresses belong to one executor's memory and would be wild in another's.
        assert_eq!(loaded.executor, self.id, "a loaded program runs on the executor that loaded it");
        if self.device.begin(enqueued.id) == Begun::Replayed {
            return;
        }
        self.enqueue_steps(&enqueued.steps);
    }

    /// Enqueues some steps of an iteration that was begun, and lets them start.
    fn enqueue_steps(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Compute(launch) => self.device.compute(launch),
                Step::Copy(transfer) => self.device.copy(*transfer),
                Step::Record(stream, event) => self.device.record(*stream, *event),
                Step::Wait(stream, event) => self.device.wait(*stream, *event),
            }
        }
        self.device.submit();
    }

    /// Writes the images (f32 `[batch][height][width][channels]`, as bytes) of the next iteration, or its tokens (i32
    /// `[batch][length]`); they do not survive an iteration. A program in bf16 gets rounded images.
    pub fn write_images(&mut self, loaded: &Loaded, data: &[u8]) -> Result<(), RuntimeError> {
        self.write_input("images", &loaded.inputs.images, data)
    }

    /// Writes the labels (i32 `[batch][height][width]` of the logits' positions, as bytes; -1 for a label that does not
    /// count) of the next iteration.
    pub fn write_labels(&mut self, loaded: &Loaded, data: &[u8]) -> Result<(), RuntimeError> {
        self.write_input("labels", &loaded.inputs.labels, data)
    }

    fn write_input(&mut self, what: &str, input: &Input, data: &[u8]) -> Result<(), RuntimeError> {
        let found = input.fits(what, data)?;
        let mut data = data;
        if input.rounds {
            self.rounded.resize(found.0 as usize, 0);
            input.store(data, &mut self.rounded);
            data = &self.rounded;
        }
        for (address, first, bytes) in &input.pieces {
            let end = (*first + *bytes).min(found);
            if *first < end {
                self.device.write(*address, &data[first.0 as usize..end.0 as usize])?;
            }
        }
        Ok(())
    }

    /// Runs one iteration as a timed one, and returns the device's health during it instead of times.
    pub fn run_watched(&mut self, loaded: &Loaded) -> Result<Option<Health>, RuntimeError> {
        self.enqueue(loaded, &loaded.timed);
        let health = self.device.health();
        self.device.synchronise()?;
        Ok(health)
    }

    /// Copies plain host memory (neither pinned nor the slab's) to the start of the pool and back, as inputs are written and
    /// results read; returns the seconds of each direction by the host's clock. Between two iterations the pool's contents
    /// are unused.
    pub fn time_plain_copies(&mut self, host: &mut [u8]) -> Result<[Seconds; 2], RuntimeError> {
        let begun = Instant::now();
        self.device.write(self.layout.resident, host)?;
        let written = Instant::now();
        self.device.read(self.layout.resident, host)?;
        Ok([written - begun, written.elapsed()].map(|time| Seconds(time.as_secs_f64())))
    }

    /// Writes a resident region; the data must have the region's length.
    pub fn write_region(&mut self, region: &Region, data: &[u8]) -> Result<(), RuntimeError> {
        same_length(region, data.len())?;
        self.device.write(region.offset, data)
    }

    /// Reads a resident region; the data must have the region's length.
    pub fn read_region(&mut self, region: &Region, data: &mut [u8]) -> Result<(), RuntimeError> {
        same_length(region, data.len())?;
        self.device.read(region.offset, data)
    }
}

/// Rejects recomputation after the update has begun. Parameters are resident and have no version, so a recomputed op would
/// use new ones; `trace/1` cannot express that, and no check of a schedule sees it.
fn check_repetitions(program: &Program, schedule: &Schedule) -> Result<(), RuntimeError> {
    let mut updating = false;
    for command in &schedule.commands {
        let Command::Compute { op, again, .. } = command else { continue };
        let op = &program.trace.ops[op.index()];
        if *again && updating {
            let what = format!("recomputation of `{}`", op.name);
            return Err(RuntimeError::mismatch(what, "before the first update of a parameter", "after it"));
        }
        updating |= op.phase == Phase::Update;
    }
    Ok(())
}

fn same_length(region: &Region, found: usize) -> Result<(), RuntimeError> {
    if region.bytes() == Bytes(found as u64) {
        return Ok(());
    }
    Err(RuntimeError::mismatch(format!("bytes of region `{}`", region.name), region.bytes().0, found))
}

impl Loaded {
    /// Samples in an iteration.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Vocabulary size of a network that takes tokens.
    pub fn vocabulary(&self) -> Option<u32> {
        self.inputs.vocabulary
    }

    /// Labels of a batch.
    pub fn label_count(&self) -> u64 {
        self.inputs.label_count
    }

    /// The resident regions.
    pub fn resident(&self) -> &[Region] {
        &self.resident
    }

    /// Region to which the hyperparameters are written.
    pub fn hyper(&self) -> &Region {
        &self.hyper
    }

    /// Region from which the metrics are read.
    pub fn metrics(&self) -> &Region {
        &self.metrics
    }

    /// The schedule that runs.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The trace that the schedule is for.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

impl Enqueued {
    fn room(&self) -> Room {
        let mut room = Room::default();
        let mut commands = [0; 3];
        for step in &self.steps {
            let stream = match step {
                Step::Compute(_) => Stream::Compute,
                Step::Copy(transfer) => transfer.stream,
                Step::Record(stream, event) => {
                    room.events = room.events.max(event.0 + 1);
                    *stream
                }
                Step::Wait(stream, _) => *stream,
            };
            commands[stream.index()] += 1;
        }
        Room { commands: commands.into_iter().max().unwrap_or_default(), ..room }
    }
}

/// First free event number.
fn unused(events: &[Option<EventId>]) -> u32 {
    events.iter().flatten().count() as u32
}

struct Builder<'a> {
    program: &'a Program,
    schedule: &'a Schedule,
    places: &'a Places,
    slab: &'a HostSlab,
    waits: &'a [Vec<CommandId>],
    resident: Bytes,
    slots: Option<Slots>,
}

impl Builder<'_> {
    /// Steps of an iteration without timed commands, which brings the next input from a slot.
    fn plain_steps(&self, slot: Option<Half>) -> Vec<Step> {
        let events = self.events();
        let feeding = self.feeding(slot, unused(&events));
        self.steps(&events, &|_| false, Vec::new(), feeding, |_, _, _| {})
    }

    /// By command: the event of its end, if another stream waits for it.
    fn events(&self) -> Vec<Option<EventId>> {
        let mut events: Vec<Option<EventId>> = vec![None; self.schedule.commands.len()];
        self.waits.iter().flatten().for_each(|w| events[w.index()] = Some(EventId(0)));
        events.iter_mut().flatten().zip(0..).for_each(|(event, number)| *event = EventId(number));
        events
    }

    /// All steps: first the given ones, then every command, then the next input. Around a command stand, in order: the steps
    /// of `before`, its waits, a start event if it begins a timed section, the command, and its end event if it has one.
    fn steps(
        &self,
        events: &[Option<EventId>],
        begins: &dyn Fn(CommandId) -> bool,
        first: Vec<Step>,
        feeding: Option<Feeding>,
        mut before: impl FnMut(CommandId, &Command, &mut Vec<Step>),
    ) -> Vec<Step> {
        let mut steps = first;
        for (id, command) in self.schedule.numbered_commands() {
            let stream = command.stream();
            before(id, command, &mut steps);
            for wait in &self.waits[id.index()] {
                let event = events[wait.index()].expect("whatever is waited for has an event");
                steps.push(Step::Wait(stream, event));
            }
            if begins(id) {
                steps.push(Step::Record(stream, timing::begin_event(id.0)));
            }
            steps.push(self.step(id, command));
            steps.extend(events[id.index()].map(|event| Step::Record(stream, event)));
            feeding.iter().for_each(|feeding| feeding.behind(id, &mut steps));
        }
        feeding.into_iter().for_each(|feeding| feeding.end(&mut steps));
        steps
    }

    fn step(&self, id: CommandId, command: &Command) -> Step {
        let Command::Compute { op, alternative, .. } = command else {
            let (tensor, piece) =
                moved(&self.program.trace, command).expect("a checked transfer stays in its tensor");
            let host = self.slab.place(tensor, &piece).expect("a checked prefetch brings what was offloaded");
            let bytes = Bytes(piece.end - piece.start);
            return Step::Copy(Transfer {
                stream: command.stream(),
                device: self.address(id, tensor),
                host,
                bytes,
            });
        };
        let (kernel, op_of_trace) = (&self.program.kernels[op.index()], &self.program.trace.ops[op.index()]);
        let (seconds, workspace_bytes) = alternative_of(op_of_trace, *alternative)
            .expect("a checked command names an alternative that is there");
        let offset = |operand: &Operand| match operand {
            Operand::Resident(offset) => *offset,
            Operand::Tensor(tensor) => self.address(id, *tensor),
        };
        let workspace = self.places.workspace(id).map_or(Bytes::ZERO, |w| self.resident + w);
        Step::Compute(Arc::new(Launch {
            op: *op,
            // A name with a zero byte is cut there.
            name: CString::new(op_of_trace.name.split('\0').next().unwrap_or_default())
                .expect("what stands before the first zero byte has none"),
            call: kernel.call,
            alternative: alternative.map_or(0, |k| k + 1),
            offsets: kernel.operands.iter().map(offset).collect(),
            workspace,
            workspace_bytes,
            seconds,
        }))
    }

    /// Address of a tensor, or of the piece that is moved, for a command; a tensor of no bytes may have any address.
    fn address(&self, id: CommandId, tensor: TensorId) -> Bytes {
        let mut places = self.places.tensors(id).iter();
        self.resident + places.find(|(t, _)| *t == tensor).map_or(Bytes::ZERO, |(_, offset)| *offset)
    }

    /// Pieces of a tensor that is there from the start.
    fn input(&self, tensor: TensorId) -> Input {
        let whole = self.program.trace.tensors[tensor.index()].bytes;
        let pieces = self.schedule.buffers.iter().filter(|b| b.opens.is_none()).filter_map(|buffer| {
            match buffer.holds {
                Holds::Tensor { tensor: held, first_byte, bytes } if held == tensor => {
                    let first = first_byte.unwrap_or_default();
                    Some((self.resident + buffer.offset, first, bytes.unwrap_or(whole - first)))
                }
                _ => None,
            }
        });
        Input { bytes: whole, rounds: false, pieces: pieces.collect() }
    }
}

/// Checks that kernels and trace agree, and that every operand lies whole in its tensor or among the resident bytes.
fn check_program(program: &Program) -> Result<(), RuntimeError> {
    let trace = &program.trace;
    if program.kernels.len() != trace.ops.len() {
        return Err(RuntimeError::mismatch("kernels of the program", trace.ops.len(), program.kernels.len()));
    }
    for region in &program.resident {
        let end = region.offset.0.saturating_add(region.bytes().0);
        if end > trace.resident_bytes.0 {
            return Err(RuntimeError::mismatch(
                format!("end of region `{}`", region.name),
                trace.resident_bytes,
                end,
            ));
        }
    }
    for (op, kernel) in trace.ops.iter().zip(&program.kernels) {
        let count = kernel.call.operands().len();
        if kernel.operands.len() != count {
            let what = format!("operands of `{}`", op.name);
            return Err(RuntimeError::mismatch(what, count, kernel.operands.len()));
        }
        for (i, (operand, spec)) in kernel.specified().enumerate() {
            let OperandSpec { access, .. } = spec;
            let bytes = spec.bytes_in(program.feature_maps);
            let room = match operand {
                Operand::Resident(offset) => trace.resident_bytes.saturating_sub(offset),
                Operand::Tensor(tensor) => {
                    let told = (!access.reads() || op.reads.contains(&tensor))
                        && (!access.writes() || op.writes.contains(&tensor));
                    if !told {
                        let what = format!("operand {i} of `{}` in its op's reads and writes", op.name);
                        return Err(RuntimeError::mismatch(what, format!("{access:?}"), tensor));
                    }
                    trace.tensors[tensor.index()].bytes
                }
            };
            if bytes > room {
                return Err(RuntimeError::mismatch(
                    format!("bytes of operand {i} of `{}`", op.name),
                    bytes,
                    room,
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::schedule::{Link, ScheduleKind};
    use plimsoll_ir::trace::{Op, TraceKind};
    use plimsoll_ir::{BytesPerSecond, OpId};

    fn op(name: &str, phase: Phase) -> Op {
        Op {
            name: name.into(),
            layer: name.into(),
            kind: "x".into(),
            phase,
            seconds: Seconds::ZERO,
            reads: vec![],
            writes: vec![],
            workspace_bytes: Bytes::ZERO,
            flops: 0,
            recomputable: true,
            alternatives: vec![],
        }
    }

    #[test]
    fn nothing_is_run_again_once_parameters_change() {
        let (name, batch, resident_bytes) = ("t".to_owned(), 1, Bytes::ZERO);
        let ops = vec![op("forward", Phase::Forward), op("update", Phase::Update)];
        let trace =
            Trace { kind: TraceKind, name: name.clone(), batch, resident_bytes, tensors: vec![], ops };
        let program = Program {
            trace,
            kernels: vec![],
            resident: vec![],
            feature_maps: Float::F32,
            images: TensorId(0),
            labels: TensorId(0),
        };
        let check = |order: &[(u32, bool)]| {
            let command = |(op, again): &(u32, bool)| Command::Compute {
                op: OpId(*op),
                again: *again,
                alternative: None,
                waits: vec![],
            };
            let (budget_bytes, pool_bytes) = (Bytes::ZERO, Bytes::ZERO);
            let link = Link::symmetric(BytesPerSecond(1.0));
            let (trace, kind) = (name.clone(), ScheduleKind);
            let commands = order.iter().map(command).collect();
            let buffers = vec![];
            let schedule = Schedule { kind, trace, batch, budget_bytes, pool_bytes, link, commands, buffers };
            check_repetitions(&program, &schedule)
        };
        assert!(check(&[(0, false), (0, true), (1, false)]).is_ok());
        let late = check(&[(0, false), (1, false), (0, true)]).expect_err("it computes with new parameters");
        assert!(late.to_string().contains("recomputation of `forward`"), "{late}");
    }
}
